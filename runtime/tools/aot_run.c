// aot-run: loads a module, runs it, writes its outputs, reports how long each phase took.
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aot/aot.h"
#include "npy.h"
#include "options.h"

#define MOST_SAMPLES ((size_t)1 << 20)

typedef struct runner_t {
  options_t options;
  aot_module_t *module;
  aot_program_t *program;
  npy_array_t *inputs;
  double open_ms, verify_ms, map_ms, prepare_ms, first_run_ms;
  int64_t first_result_ns;
  double *samples;  // milliseconds
  size_t sample_count;
} runner_t;

__attribute__((format(printf, 1, 2))) static bool fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)fputs("aot-run: ", stderr);
  (void)vfprintf(stderr, format, arguments);
  (void)fputc('\n', stderr);
  va_end(arguments);
  return false;
}

static int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double milliseconds_since(int64_t start_ns) {
  return (double)(now_ns() - start_ns) / 1e6;
}

// ---- inputs ----

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
    // give +-[0.5, 1); close enough to uniform for a timing run.
    const uint16_t half = (uint16_t)((bits >> 63) << 15 | 14u << 10 | (bits >> 40 & 0x3ff));
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
    char name[512];
    aot_error_t error;
    size_t index = 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)list[i].name_bytes, list[i].name);
    if (aot_program_find_input(runner->program, name, &error, &index) != AOT_OK) {
      return fail("%s", error.message);
    }
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
    if (length < 0 || used + (size_t)length >= sizeof missing) break;
    used += (size_t)length;
  }
  if (used == 0) return true;
  return fail("inputs missing: %s; give --input NAME=FILE.npy or --random", missing);
}

static bool set_inputs(runner_t *runner) {
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
    const aot_tensor_t tensor = {array->dtype, array->rank, array->dims, array->data, array->bytes};
    aot_error_t error;
    if (aot_program_set_input(runner->program, i, &tensor, &error) != AOT_OK) {
      return fail("%s", error.message);
    }
  }
  return true;
}

// ---- loading and running ----

static bool open_module(runner_t *runner) {
  const options_t *options = &runner->options;
  aot_error_t error;
  int64_t start = now_ns();
  const int fd = open(options->module, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail("cannot open %s: %s", options->module, strerror(errno));
  runner->open_ms = milliseconds_since(start);

  start = now_ns();
  const aot_module_options_t module_options = {.copy = options->copies};
  const aot_status_t status =
      aot_module_open_fd(fd, 0, 0, &module_options, &error, &runner->module);
  (void)close(fd);
  if (status != AOT_OK) return fail("%s: %s", options->module, error.message);
  if (options->verifies && aot_module_verify_segments(runner->module, &error) != AOT_OK) {
    return fail("%s: %s", options->module, error.message);
  }
  runner->verify_ms = milliseconds_since(start);

  start = now_ns();
  const aot_program_options_t program_options = {.entry = options->entry,
                                                 .target = options->target};
  if (aot_program_create(runner->module, &program_options, &error, &runner->program) != AOT_OK) {
    return fail("%s: %s", options->module, error.message);
  }
  runner->map_ms = milliseconds_since(start);
  return true;
}

static bool run_first(runner_t *runner) {
  aot_error_t error;
  int64_t start = now_ns();
  if (aot_program_prepare(runner->program, &error) != AOT_OK) return fail("%s", error.message);
  runner->prepare_ms = milliseconds_since(start);
  start = now_ns();
  if (aot_program_run(runner->program, &error) != AOT_OK) return fail("%s", error.message);
  runner->first_result_ns = now_ns();
  runner->first_run_ms = (double)(runner->first_result_ns - start) / 1e6;
  return true;
}

static bool add_sample(runner_t *runner, double ms) {
  const size_t count = runner->sample_count;
  if ((count & (count - 1)) == 0) {  // full at each power of two
    double *grown = realloc(runner->samples, (count > 0 ? 2 * count : 1) * sizeof *grown);
    if (grown == NULL) return fail("out of memory");
    runner->samples = grown;
  }
  runner->samples[runner->sample_count++] = ms;
  return true;
}

static bool run_more(runner_t *runner) {
  const options_t *options = &runner->options;
  aot_error_t error;
  if (options->runs == 0) return true;
  for (uint64_t i = 0; i < options->warmup; ++i) {
    if (aot_program_run(runner->program, &error) != AOT_OK) return fail("%s", error.message);
  }
  const int64_t begin = now_ns();
  while (runner->sample_count < MOST_SAMPLES &&
         (runner->sample_count < options->runs || milliseconds_since(begin) < options->min_ms)) {
    const int64_t start = now_ns();
    if (aot_program_run(runner->program, &error) != AOT_OK) return fail("%s", error.message);
    if (!add_sample(runner, milliseconds_since(start))) return false;
  }
  return true;
}

// ---- results ----

static bool is_safe_file_name(const char *name) {
  const size_t length = strlen(name);
  if (length == 0 || length > 100 || name[0] == '.') return false;
  for (size_t i = 0; i < length; ++i) {
    const char c = name[i];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter && !(c >= '0' && c <= '9') && strchr("._-", c) == NULL) return false;
  }
  return true;
}

static bool write_outputs(const runner_t *runner) {
  const char *folder = runner->options.output;
  if (folder == NULL) return true;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    return fail("cannot make %s: %s", folder, strerror(errno));
  }
  for (size_t i = 0; i < aot_program_output_count(runner->program); ++i) {
    const char *name = aot_program_output_info(runner->program, i)->name;
    char path[4096];
    char message[4400];
    aot_tensor_t tensor;
    aot_error_t error;
    const int length = is_safe_file_name(name)
                           ? snprintf(path, sizeof path, "%s/%s.npy", folder, name)
                           : snprintf(path, sizeof path, "%s/%zu.npy", folder, i);
    if (length < 0 || (size_t)length >= sizeof path) return fail("%s: too long a path", folder);
    if (aot_program_get_output(runner->program, i, &error, &tensor) != AOT_OK) {
      return fail("%s", error.message);
    }
    if (!npy_write(path, &tensor, message, sizeof message)) return fail("%s", message);
  }
  return true;
}

static int compare_samples(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}

// Of sorted samples, nearest rank.
static double quantile(const runner_t *runner, double part) {
  const size_t last = runner->sample_count - 1;
  const size_t index = (size_t)(part * (double)last + 0.5);
  return runner->samples[index];
}

static void print_json_text(const char *text) {
  (void)putchar('"');
  for (; *text != '\0'; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') (void)putchar('\\');
    if (c < 0x20) {
      (void)printf("\\u%04x", c);
    } else {
      (void)putchar(c);
    }
  }
  (void)putchar('"');
}

static const char *mapping_name(aot_code_mapping_t mapping) {
  return mapping == AOT_CODE_MAPPED ? "mapped" : mapping == AOT_CODE_COPIED ? "copied" : "none";
}

static long peak_rss_kb(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
}

static void print_json(const runner_t *runner, const aot_program_info_t *info) {
  (void)fputs("{\"target\": ", stdout);
  print_json_text(info->target);
  (void)printf(", \"device\": \"%s\", \"entry\": ", info->device);
  print_json_text(info->entry);
  (void)printf(", \"code_mapping\": \"%s\", \"code_bytes\": %" PRIu64 ", \"arena_bytes\": %" PRIu64
               ", \"scratch_bytes\": %" PRIu64,
               mapping_name(info->code_mapping), info->code_bytes, info->arena_bytes,
               info->scratch_bytes);
  (void)printf(", \"first_result_ns\": %" PRId64, runner->first_result_ns);
  (void)printf(
      ", \"phases_ms\": {\"open\": %.6f, \"verify\": %.6f, \"map\": %.6f, \"prepare\": "
      "%.6f, \"first_run\": %.6f}",
      runner->open_ms, runner->verify_ms, runner->map_ms, runner->prepare_ms, runner->first_run_ms);
  (void)printf(", \"runs\": %zu", runner->sample_count);
  if (runner->sample_count > 0) {
    (void)printf(", \"median_ms\": %.6f, \"min_ms\": %.6f, \"p90_ms\": %.6f", quantile(runner, 0.5),
                 runner->samples[0], quantile(runner, 0.9));
  } else {
    (void)fputs(", \"median_ms\": null, \"min_ms\": null, \"p90_ms\": null", stdout);
  }
  (void)printf(", \"peak_rss_kb\": %ld}\n", peak_rss_kb());
}

static void print_text(const runner_t *runner, const aot_program_info_t *info) {
  (void)printf("%s on %s, code %s, arena %" PRIu64 " bytes\n", info->target, info->device,
               mapping_name(info->code_mapping), info->arena_bytes);
  for (size_t i = 0; i < aot_program_output_count(runner->program); ++i) {
    aot_tensor_t tensor;
    if (aot_program_get_output(runner->program, i, NULL, &tensor) != AOT_OK) continue;
    (void)printf("output %s: %s[", aot_program_output_info(runner->program, i)->name,
                 aot_dtype_name(tensor.dtype));
    for (uint32_t axis = 0; axis < tensor.rank; ++axis) {
      (void)printf("%s%" PRId64, axis > 0 ? ", " : "", tensor.dims[axis]);
    }
    (void)printf("]\n");
  }
  (void)printf("open %.3f ms, verify %.3f ms, map %.3f ms, prepare %.3f ms, first run %.3f ms\n",
               runner->open_ms, runner->verify_ms, runner->map_ms, runner->prepare_ms,
               runner->first_run_ms);
  if (runner->sample_count > 0) {
    (void)printf("%zu runs: median %.3f ms, min %.3f ms, p90 %.3f ms\n", runner->sample_count,
                 quantile(runner, 0.5), runner->samples[0], quantile(runner, 0.9));
  }
}

static bool report(runner_t *runner) {
  aot_program_info_t info;
  aot_program_get_info(runner->program, &info);
  if (runner->sample_count > 0) {
    qsort(runner->samples, runner->sample_count, sizeof *runner->samples, compare_samples);
  }
  if (runner->options.is_json) {
    print_json(runner, &info);
  } else {
    print_text(runner, &info);
  }
  return fflush(stdout) == 0 || fail("cannot write the report: %s", strerror(errno));
}

static void release(runner_t *runner) {
  const size_t count = runner->program != NULL ? aot_program_input_count(runner->program) : 0;
  for (size_t i = 0; runner->inputs != NULL && i < count; ++i)
    free(runner->inputs[i].data);
  aot_program_destroy(runner->program);
  aot_module_close(runner->module);
  free(runner->inputs);
  free(runner->samples);
}

int main(int count, char **arguments) {
  static const runner_t empty;
  runner_t runner = empty;
  switch (options_parse(count, arguments, &runner.options)) {
    case OPTIONS_DONE:
      return 0;
    case OPTIONS_WRONG:
      return 2;
    case OPTIONS_RUN:
    default:
      break;
  }
  const bool is_done = open_module(&runner) && set_inputs(&runner) && run_first(&runner) &&
                       run_more(&runner) && write_outputs(&runner) && report(&runner);
  release(&runner);
  return is_done ? 0 : 1;
}
