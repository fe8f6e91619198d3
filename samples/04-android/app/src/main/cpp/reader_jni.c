// What Kotlin's NativeReader calls: arguments and results as Java has them, nothing else.  A handle
// is a reader_t's address; TextReader sees to it that it is used by one thread at a time and closed
// once.
#include <jni.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"

// The class is found by name each time: errors are rare.
static void throw_status(JNIEnv *env, const aot_error_t *error) {
  const char *name = error->status == AOT_ERROR_MEMORY     ? "java/lang/OutOfMemoryError"
                     : error->status == AOT_ERROR_ARGUMENT ? "java/lang/IllegalArgumentException"
                                                           : "java/io/IOException";
  char text[sizeof error->message + 32];
  (void)snprintf(text, sizeof text, "%s (%s)", error->message, aot_status_name(error->status));
  jclass type = (*env)->FindClass(env, name);
  if (type == NULL) return;  // its own exception is pending
  (void)(*env)->ThrowNew(env, type, text);
  (*env)->DeleteLocalRef(env, type);
}

static void throw_memory(JNIEnv *env) {
  const aot_error_t error = {AOT_ERROR_MEMORY, "out of memory"};
  throw_status(env, &error);
}

static reader_t *reader_of(jlong handle) {
  return (reader_t *)(intptr_t)handle;
}

JNIEXPORT jlong JNICALL Java_com_example_readtext_NativeReader_open(
    JNIEnv *env, jobject self, jint fd, jlong offset, jlong length, jbyteArray characters,
    jint device, jint threads, jstring cache_dir) {
  (void)self;
  reader_t *reader = NULL;
  aot_error_t error = {AOT_OK, ""};
  // Where these are NULL, an OutOfMemoryError is pending.
  const jsize bytes = (*env)->GetArrayLength(env, characters);
  jbyte *text = (*env)->GetByteArrayElements(env, characters, NULL);
  const char *folder = text != NULL ? (*env)->GetStringUTFChars(env, cache_dir, NULL) : NULL;
  if (folder != NULL) {
    const reader_options_t options = {(aot_device_kind_t)device, (uint32_t)threads, folder};
    (void)reader_open(fd, (uint64_t)offset, (uint64_t)length, (const char *)text, (size_t)bytes,
                      &options, &error, &reader);
    (*env)->ReleaseStringUTFChars(env, cache_dir, folder);
  }
  if (text != NULL) (*env)->ReleaseByteArrayElements(env, characters, text, JNI_ABORT);
  if (error.status != AOT_OK) throw_status(env, &error);
  return (jlong)(intptr_t)reader;
}

JNIEXPORT void JNICALL Java_com_example_readtext_NativeReader_close(JNIEnv *env, jobject self,
                                                                    jlong handle) {
  (void)env;
  (void)self;
  reader_close(reader_of(handle));
}

// Device, target, how its code was made executable, why no variant before it was taken.
JNIEXPORT jobjectArray JNICALL Java_com_example_readtext_NativeReader_info(JNIEnv *env,
                                                                           jobject self,
                                                                           jlong handle) {
  (void)self;
  reader_info_t info;
  reader_get_info(reader_of(handle), &info);
  const char *const texts[] = {info.device, info.target, info.code, info.skipped};
  const jsize count = (jsize)(sizeof texts / sizeof *texts);
  jclass type = (*env)->FindClass(env, "java/lang/String");
  if (type == NULL) return NULL;
  jobjectArray result = (*env)->NewObjectArray(env, count, type, NULL);
  (*env)->DeleteLocalRef(env, type);
  for (jsize i = 0; result != NULL && i < count; ++i) {
    jstring text = (*env)->NewStringUTF(env, texts[i]);
    if (text == NULL) return NULL;
    (*env)->SetObjectArrayElement(env, result, i, text);
    (*env)->DeleteLocalRef(env, text);
  }
  return result;
}

// Returns the number of lines.  The pixels are copied, so that no array is held while models run.
JNIEXPORT jint JNICALL Java_com_example_readtext_NativeReader_read(JNIEnv *env, jobject self,
                                                                   jlong handle, jintArray pixels,
                                                                   jint width, jint height) {
  (void)self;
  const jsize count = (*env)->GetArrayLength(env, pixels);
  if (width < 1 || height < 1 || (int64_t)width * height != count) {
    const aot_error_t error = {AOT_ERROR_ARGUMENT, "there are not width * height pixels"};
    throw_status(env, &error);
    return 0;
  }
  uint32_t *argb = malloc((size_t)count * sizeof *argb);
  if (argb == NULL) {
    throw_memory(env);
    return 0;
  }
  (*env)->GetIntArrayRegion(env, pixels, 0, count, (jint *)argb);
  reader_t *reader = reader_of(handle);
  aot_error_t error;
  const aot_status_t status = reader_read(reader, argb, width, height, &error);
  free(argb);
  if (status != AOT_OK) {
    throw_status(env, &error);
    return 0;
  }
  return (jint)reader_line_count(reader);
}

// Top, left, bottom, right, and 1 where the line is turned.
JNIEXPORT jintArray JNICALL Java_com_example_readtext_NativeReader_place(JNIEnv *env, jobject self,
                                                                         jlong handle, jint index) {
  (void)self;
  const reader_line_t *line = reader_line(reader_of(handle), (size_t)index);
  if (line == NULL) return NULL;
  const jint place[] = {line->box.top, line->box.left, line->box.bottom, line->box.right,
                        line->is_turned};
  const jsize count = (jsize)(sizeof place / sizeof *place);
  jintArray result = (*env)->NewIntArray(env, count);
  if (result != NULL) (*env)->SetIntArrayRegion(env, result, 0, count, place);
  return result;
}

// UTF-8: the strings of JNI have an encoding of their own.
JNIEXPORT jbyteArray JNICALL Java_com_example_readtext_NativeReader_text(JNIEnv *env, jobject self,
                                                                         jlong handle, jint index) {
  (void)self;
  const reader_line_t *line = reader_line(reader_of(handle), (size_t)index);
  if (line == NULL) return NULL;
  const jsize count = (jsize)strlen(line->text);
  jbyteArray result = (*env)->NewByteArray(env, count);
  if (result != NULL) {
    (*env)->SetByteArrayRegion(env, result, 0, count, (const jbyte *)line->text);
  }
  return result;
}
