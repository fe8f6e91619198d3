// What the parts of the module fuzzer share.
#ifndef AOT_TESTS_FUZZ_H_
#define AOT_TESTS_FUZZ_H_

#include <stdbool.h>
#include <stdint.h>

// What was read ends up here, so that it is read.
extern volatile uint8_t aot_fuzz_sink;

// Whether the host and the device of the fake Vulkan share memory.
extern bool aot_fuzz_is_unified;

#endif  // AOT_TESTS_FUZZ_H_
