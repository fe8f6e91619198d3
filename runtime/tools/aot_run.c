// aot-run: loads a module, runs it, writes its outputs, reports how long each phase took.
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aot/aot.h"
#include "cold.h"
#include "generate.h"
#include "inputs.h"
#include "machine.h"
#include "measure.h"
#include "print.h"
#include "report.h"
#include "runner.h"

#ifdef AOT_EMBED
#include "aot/embedded.h"
#endif

#define MOST_SAMPLES ((size_t)1 << 20)

static double milliseconds_since(int64_t start_ns) {
  return (double)(now_ns() - start_ns) / 1e6;
}

// Ends a phase that began at `start_ns`; returns when.
static int64_t end_phase(runner_t *runner, phase_t phase, int64_t start_ns) {
  const int64_t end_ns = now_ns();
  runner->phases_ms[phase] = (double)(end_ns - start_ns) / 1e6;
  return end_ns;
}

static bool open_module(runner_t *runner, int64_t start_ns) {
  const options_t *options = &runner->options;
  const aot_module_options_t module_options = {.size = sizeof module_options,
                                               .copy = options->copies};
  aot_error_t error;
#ifdef AOT_EMBED
  int64_t at = end_phase(runner, PHASE_OPEN, start_ns);
  const aot_status_t status = aot_embedded_open(&module_options, &error, &runner->module);
#else
  const int fd = open(options->module, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail("cannot open %s: %s", options->module, strerror(errno));
  int64_t at = end_phase(runner, PHASE_OPEN, start_ns);
  const aot_status_t status =
      aot_module_open_fd(fd, 0, 0, &module_options, &error, &runner->module);
  (void)close(fd);
#endif
  if (status != AOT_OK) return fail("%s: %s", options->module, error.message);
  if (options->verifies && aot_module_verify_segments(runner->module, &error) != AOT_OK) {
    return fail("%s: %s", options->module, error.message);
  }
  at = end_phase(runner, PHASE_VERIFY, at);

  const aot_program_options_t program_options = options_program(options);
  if (options_create_program(options, runner->module, &program_options, &error, &runner->program) !=
      AOT_OK) {
    return fail("%s: %s", options->module, error.message);
  }
  (void)end_phase(runner, PHASE_MAP, at);
  return true;
}

static bool run_first(runner_t *runner) {
  aot_error_t error;
  int64_t at = now_ns();
  if (!set_inputs(runner)) return false;
  at = end_phase(runner, PHASE_INPUTS, at);
  if (aot_program_prepare(runner->program, &error) != AOT_OK) return fail("%s", error.message);
  at = end_phase(runner, PHASE_PREPARE, at);
  if (aot_program_run(runner->program, &error) != AOT_OK) return fail("%s", error.message);
  runner->first_result_ns = end_phase(runner, PHASE_FIRST_RUN, at);
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

static void release(runner_t *runner) {
  free_inputs(runner);
  aot_program_destroy(runner->program);
  aot_module_close(runner->module);
  free(runner->samples);
}

// Of a program that was made and is not run.
static bool report_warm(const runner_t *runner) {
  aot_program_info_t info = {.size = sizeof info};
  (void)aot_program_get_info(runner->program, NULL, &info);
  print_name(info.target);
  (void)printf(" on %s, made in %.3f ms\n", info.device, runner->phases_ms[PHASE_MAP]);
  return flush_report();
}

static bool run(runner_t *runner, int64_t start_ns) {
  if (!open_module(runner, start_ns)) return false;
  if (runner->options.warms) return report_warm(runner);
  if (runner->options.prompt != NULL) return generate(runner);
  if (!run_first(runner)) return false;
  if (runner->options.report_fd >= 0) return tell_parent(runner);
  if (!run_more(runner)) return false;
  runner->peak_rss_kb = peak_rss_kb();
  return write_outputs(runner) && report(runner);
}

int main(int count, char **arguments) {
  static const runner_t empty;
  runner_t runner = empty;
  const int64_t start_ns = now_ns();
  switch (options_parse(count, arguments, &runner.options)) {
    case OPTIONS_DONE:
      return flush_report() ? 0 : 1;
    case OPTIONS_WRONG:
      return 2;
    case OPTIONS_RUN:
    default:
      break;
  }
  const options_t *options = &runner.options;
  if (options->measures_machine) return report_machine() ? 0 : 1;
  if (options->cold_rounds > 0) return report_cold_starts(options, arguments[0], arguments) ? 0 : 1;
  if (options->started_ns > 0) {
    runner.phases_ms[PHASE_EXEC] = (double)(start_ns - options->started_ns) / 1e6;
  }
  const bool is_done = run(&runner, start_ns);
  release(&runner);
  return is_done ? 0 : 1;
}
