// The names of the phases, as reports have them.
#include "phases.h"

const char *const phase_names[PHASE_COUNT] = {"exec",   "open",    "verify",   "map",
                                              "inputs", "prepare", "first_run"};
