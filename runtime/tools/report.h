// Output files, and the report of a run.
#ifndef AOT_TOOLS_REPORT_H_
#define AOT_TOOLS_REPORT_H_

#include "runner.h"

bool write_outputs(const runner_t *runner);
bool report(runner_t *runner);

#endif  // AOT_TOOLS_REPORT_H_
