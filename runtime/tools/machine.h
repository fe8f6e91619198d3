// What one core can do.
#ifndef AOT_TOOLS_MACHINE_H_
#define AOT_TOOLS_MACHINE_H_

#include <stdbool.h>

// Measures one core's arithmetic and memory, and prints them.
bool report_machine(void);

#endif  // AOT_TOOLS_MACHINE_H_
