// Inputs of aot-run: .npy files, or random numbers that are the same every time.
#include "inputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"

static uint64_t next_random(uint64_t *state) {
  // xorshift64*, so that a run can be repeated on any machine.
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

static void fill_random(npy_array_t *array, uint64_t seed) {
  static const int64_t integer_mask = 3;
  const size_t width = aot_dtype_bytes(array->dtype);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (size_t at = 0; at < array->bytes; at += width) {
    const uint64_t bits = next_random(&state);
    uint8_t *target = (uint8_t *)array->data + at;
    const float value = (float)(bits >> 40) / 8388608.0f - 1.0f;
    const double wide = value;
    // A half in [1, 2) less 1.5, without a conversion routine: sign, exponent 14, 10 random bits
    // give +-[0.5, 1); close enough to uniform for a timing run. So do the upper halves of floats.
    const uint16_t half = (uint16_t)((bits >> 63) << 15 | 14u << 10 | (bits >> 40 & 0x3ff));
    const uint16_t upper = (uint16_t)((bits >> 63) << 15 | 126u << 7 | (bits >> 40 & 0x7f));
    const int64_t integer =
        (int64_t)(bits >> 33) & (array->dtype == AOT_DTYPE_BOOL ? 1 : integer_mask);
    switch (array->dtype) {
      case AOT_DTYPE_F32:
        memcpy(target, &value, width);
        break;
      case AOT_DTYPE_F64:
        memcpy(target, &wide, width);
        break;
      case AOT_DTYPE_F16:
        memcpy(target, &half, width);
        break;
      case AOT_DTYPE_BF16:
        memcpy(target, &upper, width);
        break;
      default:
        memcpy(target, &integer, width);  // little endian: the low bytes
        break;
    }
  }
}

static bool parse_shape(const char *text, npy_array_t *array) {
  array->rank = 0;
  for (const char *at = text; *at != '\0';) {
    char *end = NULL;
    errno = 0;
    const long long extent = strtoll(at, &end, 10);
    if (errno != 0 || end == at || extent < 0 || array->rank == NPY_MOST_RANK) return false;
    array->dims[array->rank++] = extent;
    if (*end == '\0') return true;
    if (*end != 'x') return false;
    at = end + 1;
  }
  return false;
}

static bool make_random(const runner_t *runner, size_t index, npy_array_t *array) {
  const aot_tensor_info_t *info = aot_program_input_info(runner->program, index);
  const options_t *options = &runner->options;
  const char *shape = options_find(options->shapes, options->shape_count, info->name);
  array->dtype = info->dtype;
  array->rank = info->rank;
  if (info->rank > NPY_MOST_RANK)
    return fail("input \"%s\": more than %u dims", info->name, NPY_MOST_RANK);
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    array->dims[axis] = info->dims[axis].extent;
    if (shape == NULL && array->dims[axis] < 0) {
      return fail("input \"%s\": extent %s is not fixed, give --shape %s=...", info->name,
                  info->dims[axis].text, info->name);
    }
  }
  if (shape != NULL && !parse_shape(shape, array)) {
    return fail("--shape %s=%s: expected extents such as 1x3x48x192", info->name, shape);
  }
  if (!npy_size(array, &array->bytes)) return fail("input \"%s\" is too large", info->name);
  array->data = malloc(array->bytes > 0 ? array->bytes : 1);
  if (array->data == NULL) return fail("out of memory: %zu bytes", array->bytes);
  fill_random(array, index + 1);
  return true;
}

// Every name on the command line must be an input's.
static bool check_names(const runner_t *runner, const named_text_t *list, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    aot_error_t error;
    size_t index = 0;
    char *name = malloc(list[i].name_bytes + 1);  // whole: a part of it may be another input's name
    if (name == NULL) return fail("out of memory");
    memcpy(name, list[i].name, list[i].name_bytes);
    name[list[i].name_bytes] = '\0';
    const aot_status_t status = aot_program_find_input(runner->program, name, &error, &index);
    free(name);
    if (status != AOT_OK) return fail("%s", error.message);
  }
  return true;
}

static bool check_missing(const runner_t *runner) {
  const options_t *options = &runner->options;
  char missing[400] = "";
  size_t used = 0;
  for (size_t i = 0; i < aot_program_input_count(runner->program); ++i) {
    const char *name = aot_program_input_info(runner->program, i)->name;
    if (options->is_random || options_find(options->inputs, options->input_count, name) != NULL) {
      continue;
    }
    const int length =
        snprintf(missing + used, sizeof missing - used, "%s\"%s\"", used > 0 ? ", " : "", name);
    if (length < 0 || used + (size_t)length >= sizeof missing - sizeof ", ...") {
      used +=
          (size_t)snprintf(missing + used, sizeof missing - used, "%s...", used > 0 ? ", " : "");
      break;
    }
    used += (size_t)length;
  }
  if (used == 0) return true;
  return fail("inputs missing: %s; give --input NAME=FILE.npy or --random", missing);
}

bool set_inputs(runner_t *runner) {
  const options_t *options = &runner->options;
  const size_t count = aot_program_input_count(runner->program);
  runner->inputs = calloc(count > 0 ? count : 1, sizeof *runner->inputs);
  if (runner->inputs == NULL) return fail("out of memory");
  if (!check_names(runner, options->inputs, options->input_count) ||
      !check_names(runner, options->shapes, options->shape_count) || !check_missing(runner)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    npy_array_t *array = &runner->inputs[i];
    const char *name = aot_program_input_info(runner->program, i)->name;
    const char *source = options_find(options->inputs, options->input_count, name);
    if (source == NULL || strcmp(source, "random") == 0) {
      if (!make_random(runner, i, array)) return false;
    } else {
      char message[512];
      if (!npy_read(source, message, sizeof message, array)) {
        return fail("input \"%s\": %s", name, message);
      }
    }
  }
  return give_inputs(runner, runner->program);
}

bool give_inputs(const runner_t *runner, aot_program_t *program) {
  for (size_t i = 0; i < aot_program_input_count(program); ++i) {
    const npy_array_t *array = &runner->inputs[i];
    const aot_tensor_t tensor = {sizeof tensor, array->dtype, array->rank,
                                 array->dims,   array->data,  array->bytes};
    aot_error_t error;
    if (aot_program_set_input(program, i, &tensor, &error) != AOT_OK) {
      return fail("%s", error.message);
    }
  }
  return true;
}

void free_inputs(runner_t *runner) {
  const size_t count = runner->program != NULL ? aot_program_input_count(runner->program) : 0;
  for (size_t i = 0; runner->inputs != NULL && i < count; ++i)
    npy_free(&runner->inputs[i]);
  free(runner->inputs);
  runner->inputs = NULL;
}
