// The persistent pipeline cache: a file a device and driver, shared by all modules and processes.
#ifndef AOT_DRIVERS_VULKAN_CACHE_H_
#define AOT_DRIVERS_VULKAN_CACHE_H_

#include "gpu.h"
#include "system.h"

#define AOT_VK_CACHE_MOST_BYTES ((size_t)64 << 20)

typedef struct aot_vk_cache_t {
  VkPipelineCache handle;  // may be null
  aot_vulkan_cache_state_t state;
  bool was_written;
  uint64_t file_checksum;        // of the driver's data in the file as it was read or written last
  size_t loaded_bytes;           // what the driver makes of it before anything is compiled
  char path[AOT_VK_PATH_BYTES];  // "": no file
} aot_vk_cache_t;

// Finds the file's path.
void aot_vk_cache_find(const aot_vk_gpu_t *gpu, const aot_vulkan_options_t *options,
                       aot_vk_cache_t *cache);

// Reads the file, unless it `is_distrusted`.  Never fails: a file that is damaged or another
// device's is as good as none, and where the driver can't make a cache, pipelines are created
// without.
void aot_vk_cache_open(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                       bool is_distrusted, aot_vk_cache_t *cache);

// Puts what the cache has learned into the file, with what others wrote there since.  A file that
// can't be written is no failure.
void aot_vk_cache_save(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                       aot_vk_cache_t *cache);

// Tells the caller what became of the file; `is_distrusted` as for open.
void aot_vk_cache_tell(const aot_vk_cache_t *cache, const aot_vulkan_options_t *options,
                       bool is_distrusted);

void aot_vk_cache_close(const aot_vk_gpu_t *gpu, aot_vk_cache_t *cache);

#endif  // AOT_DRIVERS_VULKAN_CACHE_H_
