// What aot-run tells: output files, a text for people, one line of JSON for programs.
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "launches.h"
#include "measure.h"
#include "print.h"

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

bool write_outputs(const runner_t *runner) {
  const char *folder = runner->options.output;
  if (folder == NULL) return true;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    return fail("cannot make %s: %s", folder, strerror(errno));
  }
  for (size_t i = 0; i < aot_program_output_count(runner->program); ++i) {
    const char *name = aot_program_output_info(runner->program, i)->name;
    char path[4096];
    char message[4400];
    aot_tensor_t tensor = {.size = sizeof tensor};
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

static const char *mapping_name(aot_code_mapping_t mapping) {
  return mapping == AOT_CODE_MAPPED ? "mapped" : mapping == AOT_CODE_COPIED ? "copied" : "none";
}

static double mean(const runner_t *runner) {
  double sum = 0.0;
  for (size_t i = 0; i < runner->sample_count; ++i)
    sum += runner->samples[i];
  return sum / (double)runner->sample_count;
}

static void print_json_samples(const runner_t *runner) {
  static const struct {
    const char *key;
    double part;
  } quantiles[] = {
      {"min_ms", 0.0}, {"median_ms", 0.5}, {"p90_ms", 0.9}, {"p99_ms", 0.99}, {"max_ms", 1.0}};
  (void)printf(", \"runs\": %zu", runner->sample_count);
  for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; ++i) {
    (void)printf(", \"%s\": ", quantiles[i].key);
    if (runner->sample_count == 0) {
      (void)fputs("null", stdout);
    } else {
      (void)printf("%.6f", quantile(runner->samples, runner->sample_count, quantiles[i].part));
    }
  }
  if (runner->sample_count > 0) (void)printf(", \"mean_ms\": %.6f", mean(runner));
}

static bool print_json(const runner_t *runner, const aot_program_info_t *info) {
  (void)fputs("{\"target\": ", stdout);
  print_json_text(info->target);
  (void)printf(", \"device\": \"%s\", \"skipped\": ", info->device);
  print_json_text(info->skipped);
  (void)fputs(", \"entry\": ", stdout);
  print_json_text(info->entry);
  (void)printf(", \"code_mapping\": \"%s\", \"code_bytes\": %" PRIu64 ", \"arena_bytes\": %" PRIu64
               ", \"scratch_bytes\": %" PRIu64 ", \"threads\": %" PRIu32,
               mapping_name(info->code_mapping), info->code_bytes, info->arena_bytes,
               info->scratch_bytes, info->threads);
  (void)printf(", \"first_result_ns\": %" PRId64 ", \"phases_ms\": {", runner->first_result_ns);
  for (int i = runner->options.started_ns > 0 ? 0 : PHASE_EXEC + 1; i < PHASE_COUNT; ++i) {
    (void)printf("\"%s\": %.6f%s", phase_names[i], runner->phases_ms[i],
                 i + 1 < PHASE_COUNT ? ", " : "}");
  }
  print_json_samples(runner);
  (void)printf(", \"peak_rss_kb\": %ld", runner->peak_rss_kb);
  if (runner->options.profiles) {
    (void)fputs(", ", stdout);
    if (!report_launches(runner)) return false;
  }
  (void)fputs("}\n", stdout);
  return true;
}

static bool print_lines(const runner_t *runner, const aot_program_info_t *info) {
  print_name(info->target);
  (void)printf(" on %s, code %s, arena %" PRIu64 " bytes, %" PRIu32 " thread%s, peak RSS %ld kB\n",
               info->device, mapping_name(info->code_mapping), info->arena_bytes, info->threads,
               info->threads == 1 ? "" : "s", runner->peak_rss_kb);
  if (info->skipped[0] != '\0') {
    (void)printf("not taken: ");
    print_name(info->skipped);
    (void)printf("\n");
  }
  for (size_t i = 0; i < aot_program_output_count(runner->program); ++i) {
    aot_tensor_t tensor = {.size = sizeof tensor};
    if (aot_program_get_output(runner->program, i, NULL, &tensor) != AOT_OK) continue;
    (void)printf("output ");
    print_name(aot_program_output_info(runner->program, i)->name);
    (void)printf(": %s[", aot_dtype_name(tensor.dtype));
    for (uint32_t axis = 0; axis < tensor.rank; ++axis) {
      (void)printf("%s%" PRId64, axis > 0 ? ", " : "", tensor.dims[axis]);
    }
    (void)printf("]\n");
  }
  for (int i = runner->options.started_ns > 0 ? 0 : PHASE_EXEC + 1; i < PHASE_COUNT; ++i) {
    (void)printf("%s %.3f ms%s", phase_names[i], runner->phases_ms[i],
                 i + 1 < PHASE_COUNT ? ", " : "\n");
  }
  const size_t count = runner->sample_count;
  const double *samples = runner->samples;
  if (count > 0) {
    (void)printf("%zu runs: median %.3f ms, mean %.3f, min %.3f, p90 %.3f, p99 %.3f, max %.3f\n",
                 count, quantile(samples, count, 0.5), mean(runner), samples[0],
                 quantile(samples, count, 0.9), quantile(samples, count, 0.99), samples[count - 1]);
  }
  return !runner->options.profiles || report_launches(runner);
}

bool report(runner_t *runner) {
  aot_program_info_t info = {.size = sizeof info};
  (void)aot_program_get_info(runner->program, NULL, &info);
  if (runner->sample_count > 0) {
    qsort(runner->samples, runner->sample_count, sizeof *runner->samples, compare_doubles);
  }
  const bool is_done =
      runner->options.is_json ? print_json(runner, &info) : print_lines(runner, &info);
  if (!is_done) return false;
  return flush_report();
}
