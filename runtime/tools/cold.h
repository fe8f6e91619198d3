// Cold starts, each in a process of its own.
#ifndef AOT_TOOLS_COLD_H_
#define AOT_TOOLS_COLD_H_

#include "runner.h"

// Starts this program again and again, and prints how long each phase took.
bool report_cold_starts(const options_t *options, const char *program, char **arguments);

// In such a process: tells the one that started it.
bool tell_parent(const runner_t *runner);

#endif  // AOT_TOOLS_COLD_H_
