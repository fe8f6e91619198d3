// Runs the module once: opens it, gives every input, prints what comes out.
//
//   example [--module FILE] [--threads N] [--save FOLDER] [INPUT[:1x3x48x192] ...]
//
// An INPUT is a file of raw elements, row-major, in the order that the module declares them; an
// input that isn't given is zeros.  A shape is needed where the module leaves it open.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/aot.h"
#ifdef AOT_EMBED
#include "aot/embedded.h"
#endif

#define MOST_DIMS 16

typedef struct example_t {
  const char *module;
  const char *folder;
  uint32_t threads;
  char **inputs;
  size_t input_count;
} example_t;

static int fail(const char *what, const char *why) {
  (void)fprintf(stderr, "example: %s: %s\n", what, why);
  return 1;
}

static aot_status_t open_module(const example_t *example, aot_error_t *error,
                                aot_module_t **out_module) {
#ifdef AOT_EMBED
  if (example->module == NULL) return aot_embedded_open(NULL, error, out_module);
#endif
  return aot_module_open_path(example->module != NULL ? example->module : "model.aotm", NULL, error,
                              out_module);
}

// The shape behind the last colon of an argument, else the declared one.
static bool read_shape(const aot_tensor_info_t *info, char *argument, int64_t *dims) {
  char *text = argument != NULL ? strrchr(argument, ':') : NULL;
  for (uint32_t axis = 0; axis < info->rank; ++axis)
    dims[axis] = info->dims[axis].extent;
  if (text != NULL) *text++ = '\0';
  for (uint32_t axis = 0; text != NULL && axis < info->rank; ++axis) {
    char *end = NULL;
    dims[axis] = strtoll(text, &end, 10);
    if (end == text || (*end != 'x' && *end != '\0')) return false;
    text = *end == 'x' ? end + 1 : end;
  }
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    if (dims[axis] < 0) return false;
  }
  return true;
}

static bool read_data(const char *path, void *data, size_t bytes) {
  FILE *file = path != NULL ? fopen(path, "rb") : NULL;
  if (file == NULL) return path == NULL;
  const bool is_read = fread(data, 1, bytes, file) == bytes && fgetc(file) == EOF;
  (void)fclose(file);
  return is_read;
}

static int set_input(const example_t *example, aot_program_t *program, size_t index,
                     void **out_data) {
  const aot_tensor_info_t *info = aot_program_input_info(program, index);
  char *argument = index < example->input_count ? example->inputs[index] : NULL;
  int64_t dims[MOST_DIMS];
  if (info->rank > MOST_DIMS) return fail(info->name, "too many dims");
  if (!read_shape(info, argument, dims)) return fail(info->name, "its shape is open: FILE:1x3x...");
  size_t bytes = aot_dtype_bytes(info->dtype);
  for (uint32_t axis = 0; axis < info->rank; ++axis)
    bytes *= (size_t)dims[axis];
  *out_data = calloc(1, bytes > 0 ? bytes : 1);
  if (*out_data == NULL) return fail(info->name, "out of memory");
  if (!read_data(argument, *out_data, bytes)) {
    return fail(argument, "is not there, or not of the input's size");
  }
  const aot_tensor_t tensor = {sizeof tensor, info->dtype, info->rank, dims, *out_data, bytes};
  aot_error_t error;
  if (aot_program_set_input(program, index, &tensor, &error) == AOT_OK) return 0;
  return fail(info->name, error.message);
}

static int show_output(const example_t *example, const aot_program_t *program, size_t index) {
  const aot_tensor_info_t *info = aot_program_output_info(program, index);
  aot_tensor_t tensor = {.size = sizeof tensor};
  aot_error_t error;
  if (aot_program_get_output(program, index, &error, &tensor) != AOT_OK) {
    return fail(info->name, error.message);
  }
  (void)printf("%s: %s[", info->name, aot_dtype_name(tensor.dtype));
  for (uint32_t axis = 0; axis < tensor.rank; ++axis) {
    (void)printf("%s%lld", axis > 0 ? ", " : "", (long long)tensor.dims[axis]);
  }
  (void)printf("]");
  for (size_t i = 0; tensor.dtype == AOT_DTYPE_F32 && i < 4 && i < tensor.bytes / 4; ++i) {
    (void)printf(" %g", (double)((const float *)tensor.data)[i]);
  }
  (void)printf("\n");
  if (example->folder == NULL) return 0;
  char path[1024];
  (void)snprintf(path, sizeof path, "%s/%zu.bin", example->folder, index);
  FILE *file = fopen(path, "wb");
  if (file == NULL) return fail(path, "cannot be written");
  const bool is_written = fwrite(tensor.data, 1, tensor.bytes, file) == tensor.bytes;
  return fclose(file) == 0 && is_written ? 0 : fail(path, "cannot be written");
}

static int run(const example_t *example, aot_program_t *program) {
  const size_t count = aot_program_input_count(program);
  void **data = calloc(count > 0 ? count : 1, sizeof *data);
  if (data == NULL) return fail("inputs", "out of memory");
  int status = 0;
  for (size_t i = 0; status == 0 && i < count; ++i)
    status = set_input(example, program, i, &data[i]);
  aot_error_t error;
  if (status == 0 && aot_program_run(program, &error) != AOT_OK) {
    status = fail("run", error.message);
  }
  for (size_t i = 0; status == 0 && i < aot_program_output_count(program); ++i)
    status = show_output(example, program, i);
  for (size_t i = 0; i < count; ++i)
    free(data[i]);
  free(data);
  return status;
}

int main(int count, char **arguments) {
  example_t example = {NULL, NULL, 1, NULL, 0};
  int at = 1;
  for (; at + 1 < count && strncmp(arguments[at], "--", 2) == 0; at += 2) {
    if (strcmp(arguments[at], "--module") == 0) {
      example.module = arguments[at + 1];
    } else if (strcmp(arguments[at], "--save") == 0) {
      example.folder = arguments[at + 1];
    } else if (strcmp(arguments[at], "--threads") == 0) {
      example.threads = (uint32_t)strtoul(arguments[at + 1], NULL, 10);
    } else {
      return fail(arguments[at], "no such option");
    }
  }
  example.inputs = arguments + at;
  example.input_count = (size_t)(count - at);
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  aot_error_t error;
  int status = 0;
  if (open_module(&example, &error, &module) != AOT_OK) {
    return fail("the module", error.message);
  }
  const aot_program_options_t options = {.size = sizeof options, .threads = example.threads};
  if (aot_program_create(module, &options, &error, &program) != AOT_OK) {
    status = fail("the program", error.message);
  } else {
    status = run(&example, program);
  }
  (void)aot_program_destroy(program);
  aot_module_close(module);
  return status;
}
