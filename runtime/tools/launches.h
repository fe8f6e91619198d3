// The times of single launches, part of the report.
#ifndef AOT_TOOLS_LAUNCHES_H_
#define AOT_TOOLS_LAUNCHES_H_

#include "runner.h"

// Runs on a program of its own whose launches are timed, and prints them.
bool report_launches(const runner_t *runner);

#endif  // AOT_TOOLS_LAUNCHES_H_
