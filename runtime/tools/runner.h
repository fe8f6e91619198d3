// What aot-run knows of its one program, shared by the files of the tool.
#ifndef AOT_TOOLS_RUNNER_H_
#define AOT_TOOLS_RUNNER_H_

#include "aot/aot.h"
#include "npy.h"
#include "options.h"
#include "phases.h"

typedef struct runner_t {
  options_t options;
  aot_module_t *module;
  aot_program_t *program;
  npy_array_t *inputs;
  double phases_ms[PHASE_COUNT];
  int64_t first_result_ns;
  long peak_rss_kb;  // until the last timed run
  double *samples;   // milliseconds; sorted once all are there
  size_t sample_count;
} runner_t;

#endif  // AOT_TOOLS_RUNNER_H_
