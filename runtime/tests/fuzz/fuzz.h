// What the fuzzers of modules and the fake Vulkan share.
#ifndef AOT_TESTS_FUZZ_H_
#define AOT_TESTS_FUZZ_H_

#include <stdbool.h>
#include <stdint.h>

#include "aot/abi.h"
#include "module.h"

// What was read ends up here, so that it is read.
extern volatile uint8_t aot_fuzz_sink;

// Whether the host and the device of the fake Vulkan share memory.
extern bool aot_fuzz_is_unified;

// The kernel that runs in the place of an executable's: one that does nothing, unless a fuzzer has
// its own.
aot_kernel_t aot_fuzz_kernel(const aot_executable_t *executable);

#endif  // AOT_TESTS_FUZZ_H_
