// Operands with a storage buffer of their own: a window of their class, which may be larger than
// what a device binds as one buffer (aot/backends/vulkan/shader.py).
#ifndef AOT_DRIVERS_VULKAN_WINDOWS_H_
#define AOT_DRIVERS_VULKAN_WINDOWS_H_

#include "gpu.h"
#include "module_fbs.h"

#define AOT_VK_MOST_WINDOWS 64u
// A window begins at a multiple of the most that minStorageBufferOffsetAlignment may be.
#define AOT_VK_WINDOW_ALIGNMENT 256u
// Of parameter blocks that are push constants, where an executable has windows.
#define AOT_VK_MOST_WINDOW_PUSH_WORDS 256u

typedef struct aot_vk_windows_t {
  uint32_t most;  // of an executable
  bool has_class[AOT_FBS_BUFFER_CLASS_COUNT];
} aot_vk_windows_t;

// Checks the windows of a variant's executables.
aot_status_t aot_vk_windows_find(const aot_variant_t *variant, aot_error_t *error,
                                 aot_vk_windows_t *out_windows);

static inline uint32_t aot_vk_window_class(const aot_executable_t *executable, uint32_t number) {
  return executable->windows[number] >> 16;
}

static inline uint32_t aot_vk_window_word(const aot_executable_t *executable, uint32_t number) {
  return executable->windows[number] & 0xffff;
}

// Where the window of an operand at this offset begins.
static inline uint32_t aot_vk_window_start(uint32_t offset) {
  return offset & ~(AOT_VK_WINDOW_ALIGNMENT - 1);
}

#endif  // AOT_DRIVERS_VULKAN_WINDOWS_H_
