// A mark on disk while a driver reads its cache and compiles shaders: where it ends the process
// then, the next start does without the cache, and the one after that without the device.
#ifndef AOT_DRIVERS_VULKAN_START_H_
#define AOT_DRIVERS_VULKAN_START_H_

#include "gpu.h"
#include "system.h"

typedef struct aot_vk_start_t {
  bool is_marked;      // by this start
  bool without_cache;  // the last start has not come to its end
  char path[AOT_VK_PATH_BYTES];
} aot_vk_start_t;

// Marks a start of the driver whose cache is at `cache_path`; nothing where that is "".  Fails with
// AOT_ERROR_UNSUPPORTED where two starts one after the other have not come to their end.  A start
// that another process is at is no reason for anything.
aot_status_t aot_vk_start_begin(const aot_vk_gpu_t *gpu, const char *cache_path,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_vk_start_t *start);

// Removes the mark; to be called however the start has ended.
void aot_vk_start_end(const aot_vk_start_t *start);

#endif  // AOT_DRIVERS_VULKAN_START_H_
