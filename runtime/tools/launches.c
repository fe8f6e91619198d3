// The times of single launches: runs on a program of its own, whose hook costs the others nothing.
#include "launches.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "measure.h"
#include "print.h"

#define MOST_RUNS 1000u
#define LEAST_RUNS 10u

// What one instruction launched, added up run by run: a loop's instruction launches several times.
typedef struct site_t {
  aot_launch_t launch;  // the last one
  uint64_t count;       // in all runs
  double run_ms;        // of the run that goes on
  double *samples;      // a run each
} site_t;

typedef struct recorder_t {
  site_t *sites;  // in the order of their first launch
  size_t count;
  size_t room;
  size_t next;  // where the last launch's successor should be
  size_t run;
  size_t runs;
  bool is_full;  // out of memory
} recorder_t;

static site_t *add_site(recorder_t *recorder) {
  if (recorder->count == recorder->room) {
    const size_t room = recorder->room > 0 ? 2 * recorder->room : 64;
    site_t *grown = realloc(recorder->sites, room * sizeof *grown);
    if (grown == NULL) return NULL;
    recorder->sites = grown;
    recorder->room = room;
  }
  site_t *site = &recorder->sites[recorder->count];
  *site = (site_t){.samples = calloc(recorder->runs, sizeof *site->samples)};
  if (site->samples == NULL) return NULL;
  ++recorder->count;
  return site;
}

static site_t *find_site(recorder_t *recorder, const aot_launch_t *launch) {
  // Most programs launch the same in each run, in the same order.
  for (size_t i = 0; i < recorder->count; ++i) {
    const size_t at = (recorder->next + i) % recorder->count;
    if (recorder->sites[at].launch.word != launch->word) continue;
    recorder->next = at + 1;
    return &recorder->sites[at];
  }
  site_t *site = add_site(recorder);
  recorder->next = recorder->count;
  return site;
}

static void record(void *user, const aot_launch_t *launch) {
  recorder_t *recorder = user;
  site_t *site = find_site(recorder, launch);
  if (site == NULL) {
    recorder->is_full = true;
    return;
  }
  site->launch = *launch;
  ++site->count;
  site->samples[recorder->run] += (double)launch->duration_ns / 1e6;
}

static bool run_all(const runner_t *runner, aot_program_t *program, recorder_t *recorder) {
  aot_error_t error;
  if (!give_inputs(runner, program)) return false;
  for (int i = 0; i < 2; ++i) {  // the first one is not counted: pages are touched, threads start
    if (aot_program_run(program, &error) != AOT_OK) return fail("%s", error.message);
    for (size_t s = 0; s < recorder->count; ++s) {
      recorder->sites[s].samples[0] = 0.0;
      recorder->sites[s].count = 0;
    }
  }
  for (recorder->run = 0; recorder->run < recorder->runs; ++recorder->run) {
    recorder->next = 0;
    if (aot_program_run(program, &error) != AOT_OK) return fail("%s", error.message);
  }
  return !recorder->is_full || fail("out of memory");
}

static void print_site_json(const recorder_t *recorder, const site_t *site, bool is_first) {
  static const char *const kinds[] = {"dispatch", "copy", "fill"};
  const aot_launch_t *launch = &site->launch;
  (void)printf("%s{\"word\": %" PRIu32 ", \"kind\": \"%s\", \"name\": ", is_first ? "" : ", ",
               launch->word, kinds[launch->kind]);
  print_json_text(launch->name);
  if (launch->kind == AOT_LAUNCH_DISPATCH) {
    (void)printf(", \"executable\": %" PRIu32 ", \"grid\": [%" PRIu32 ", %" PRIu32 ", %" PRIu32 "]",
                 launch->executable, launch->grid[0], launch->grid[1], launch->grid[2]);
  } else {
    (void)printf(", \"bytes\": %" PRIu64, launch->bytes);
  }
  (void)printf(", \"threads\": %" PRIu32
               ", \"count\": %.6g, \"median_ms\": %.6f, \"min_ms\": %.6f}",
               launch->threads, (double)site->count / (double)recorder->runs,
               quantile(site->samples, recorder->runs, 0.5), site->samples[0]);
}

static void print_site_text(const recorder_t *recorder, const site_t *site, double total_ms) {
  const aot_launch_t *launch = &site->launch;
  char grid[40] = "";
  if (launch->kind == AOT_LAUNCH_DISPATCH) {
    (void)snprintf(grid, sizeof grid, "%" PRIu32 "x%" PRIu32 "x%" PRIu32, launch->grid[0],
                   launch->grid[1], launch->grid[2]);
  }
  const double ms = quantile(site->samples, recorder->runs, 0.5);
  (void)printf("%9.4f %5.1f%% %14s %3" PRIu32 "  ", ms, 100.0 * ms / total_ms, grid,
               launch->threads);
  print_name(launch->name);
  (void)printf("\n");
}

static void print_sites(const runner_t *runner, const recorder_t *recorder) {
  double total_ms = 0.0;
  for (size_t i = 0; i < recorder->count; ++i) {
    site_t *site = &recorder->sites[i];
    qsort(site->samples, recorder->runs, sizeof *site->samples, compare_doubles);
    total_ms += quantile(site->samples, recorder->runs, 0.5);
  }
  if (runner->options.is_json) {
    (void)printf("\"profile\": {\"runs\": %zu, \"launches\": [", recorder->runs);
  } else {
    (void)printf("%9s %6s %14s %3s  launch, medians of %zu runs\n", "ms", "", "grid", "thr",
                 recorder->runs);
  }
  for (size_t i = 0; i < recorder->count; ++i) {
    if (runner->options.is_json) {
      print_site_json(recorder, &recorder->sites[i], i == 0);
    } else {
      print_site_text(recorder, &recorder->sites[i], total_ms > 0.0 ? total_ms : 1.0);
    }
  }
  if (runner->options.is_json) (void)fputs("]}", stdout);
}

bool report_launches(const runner_t *runner) {
  size_t runs = runner->sample_count;
  if (runs < LEAST_RUNS) runs = LEAST_RUNS;
  if (runs > MOST_RUNS) runs = MOST_RUNS;
  recorder_t recorder = {.runs = runs};
  aot_program_options_t options = options_program(&runner->options);
  options.profile = record;
  options.profile_user = &recorder;
  aot_error_t error;
  aot_program_t *program = NULL;
  bool is_done = options_create_program(&runner->options, runner->module, &options, &error,
                                        &program) == AOT_OK ||
                 fail("%s", error.message);
  is_done = is_done && run_all(runner, program, &recorder);
  if (is_done) print_sites(runner, &recorder);
  for (size_t i = 0; i < recorder.count; ++i)
    free(recorder.sites[i].samples);
  free(recorder.sites);
  aot_program_destroy(program);
  return is_done;
}
