// Descriptor set 0, as aot/backends/vulkan/shader.py has it: its layout, its pool, what is in a
// set.
#ifndef AOT_DRIVERS_VULKAN_DESCRIPTORS_H_
#define AOT_DRIVERS_VULKAN_DESCRIPTORS_H_

#include "memory.h"
#include "module_fbs.h"
#include "windows.h"

// Of parameter blocks that are no push constants: what is bound at a time.
#define AOT_VK_PARAM_WINDOW_BYTES 16384u

typedef struct aot_vk_descriptors_t {
  VkDescriptorSetLayout layout;
  VkDescriptorPool pool;  // for a set of each recording
  aot_vk_windows_t windows;
} aot_vk_descriptors_t;

// For the sets of a variant, with room for `set_count`.  Close it in any case.
aot_status_t aot_vk_descriptors_open(const aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                                     uint32_t set_count, aot_error_t *error,
                                     aot_vk_descriptors_t *descriptors);
void aot_vk_descriptors_close(const aot_vk_gpu_t *gpu, aot_vk_descriptors_t *descriptors);

// A pool with room for `set_count` sets.
aot_status_t aot_vk_descriptors_pool(const aot_vk_gpu_t *gpu,
                                     const aot_vk_descriptors_t *descriptors, uint32_t set_count,
                                     aot_error_t *error, VkDescriptorPool *out_pool);

aot_status_t aot_vk_descriptors_allocate(const aot_vk_gpu_t *gpu,
                                         const aot_vk_descriptors_t *descriptors,
                                         VkDescriptorPool pool, aot_error_t *error,
                                         VkDescriptorSet *out_set);

// `buffers` are those of all classes, with texels where the variant reads them; `params` is NULL
// where all parameter blocks are push constants.
void aot_vk_descriptors_write(const aot_vk_gpu_t *gpu, VkDescriptorSet set,
                              const aot_vk_buffer_t *buffers, const aot_vk_buffer_t *params);

// The windows of one dispatch, whose parameter block is `block`: the offsets of their operands
// there become distances from where the windows begin.
void aot_vk_descriptors_write_windows(const aot_vk_gpu_t *gpu, VkDescriptorSet set,
                                      const aot_vk_buffer_t *buffers,
                                      const aot_executable_t *executable, uint32_t *block);

#endif  // AOT_DRIVERS_VULKAN_DESCRIPTORS_H_
