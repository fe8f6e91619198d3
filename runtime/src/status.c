#include "status.h"

#include <stdio.h>
#include <string.h>

#include "utf8.h"

#ifndef AOT_VERSION
#define AOT_VERSION "0.0.0"
#endif

uint32_t aot_runtime_interface(void) {
  return AOT_INTERFACE;
}

const char *aot_runtime_version(void) {
  return AOT_VERSION;
}

const char *aot_status_name(aot_status_t status) {
  static const char *const names[AOT_ERROR_COUNT] = {
      "ok",        "argument", "memory",    "io",        "not_a_module", "version",
      "truncated", "checksum", "malformed", "not_found", "unsupported",  "dtype",
      "shape",     "capacity", "not_ready", "check",     "arithmetic",   "bounds",
      "budget",    "device",   "text",      "cancelled", "deadline",     "busy",
  };
  return (unsigned)status < AOT_ERROR_COUNT ? names[status] : "unknown";
}

static const struct {
  const char *name;
  size_t bytes;
} aot_dtypes[AOT_DTYPE_COUNT] = {
    {"f32", 4}, {"f16", 2}, {"f64", 8}, {"i8", 1},  {"i16", 2},  {"i32", 4},  {"i64", 8},
    {"u8", 1},  {"u16", 2}, {"u32", 4}, {"u64", 8}, {"bool", 1}, {"bf16", 2},
};

const char *aot_dtype_name(aot_dtype_t dtype) {
  return (unsigned)dtype < AOT_DTYPE_COUNT ? aot_dtypes[dtype].name : NULL;
}

size_t aot_dtype_bytes(aot_dtype_t dtype) {
  return (unsigned)dtype < AOT_DTYPE_COUNT ? aot_dtypes[dtype].bytes : 0;
}

size_t aot_text_cut(char *text, size_t most) {
  text[most] = '\0';
  size_t begin = strlen(text);
  if (begin < most) return begin;
  while (begin > 0 && ((uint8_t)text[--begin] & 0xC0) == 0x80) {
  }
  if (begin + aot_utf8_bytes((uint8_t)text[begin]) > most) text[begin] = '\0';
  return most;
}

size_t aot_text_format(char *text, size_t room, const char *format, va_list arguments) {
  (void)vsnprintf(text, room, format, arguments);
  return aot_text_cut(text, room - 1);
}

aot_status_t aot_fail(aot_error_t *error, aot_status_t status, const char *format, ...) {
  if (error != NULL) {
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    (void)aot_text_format(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}

void aot_text_append(aot_text_t *text, const char *format, ...) {
  const size_t room = sizeof text->bytes - text->length;
  if (room <= 1) return;
  va_list arguments;
  va_start(arguments, format);
  text->length += aot_text_format(text->bytes + text->length, room, format, arguments);
  va_end(arguments);
}
