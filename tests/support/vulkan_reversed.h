// Dispatches in the opposite order where no barrier is between them.
#ifndef AOT_TESTS_VULKAN_REVERSED_H_
#define AOT_TESTS_VULKAN_REVERSED_H_

typedef void (*reversed_function_t)(void);

// What stands in for a function of Vulkan: `found`, or one of its own that calls it.
reversed_function_t reversed_find(const char *name, reversed_function_t found);

#endif  // AOT_TESTS_VULKAN_REVERSED_H_
