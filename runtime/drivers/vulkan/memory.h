// Buffers with memory of their own, and which memory that is.
#ifndef AOT_DRIVERS_VULKAN_MEMORY_H_
#define AOT_DRIVERS_VULKAN_MEMORY_H_

#include "gpu.h"

// Of a storage buffer that is bound in parts, which may be larger than what is bound at once.
#define AOT_VK_USAGE_IN_WINDOWS ((VkBufferUsageFlags)1 << 31)

// What a texel is: four words, or one.
#define AOT_VK_TEXEL_KINDS 2u

typedef struct aot_vk_buffer_t {
  VkBuffer handle;
  VkBufferView texels[AOT_VK_TEXEL_KINDS];  // none where no shader reads it so
  VkDeviceMemory memory;
  uint64_t bytes;         // 0: there is no buffer
  uint64_t memory_bytes;  // of the allocation
  uint8_t *mapped;        // NULL: the host doesn't see it
  bool is_coherent;
} aot_vk_buffer_t;

typedef enum aot_vk_place_t {
  AOT_VK_PLACE_DEVICE,    // where the device is quickest, seen by the host or not
  AOT_VK_PLACE_UNIFIED,   // the device's, and seen by the host
  AOT_VK_PLACE_UPLOAD,    // seen by the host, which writes it
  AOT_VK_PLACE_READBACK,  // seen by the host, which reads it
} aot_vk_place_t;

// Whether one memory serves the device and the host alike, as on phones and in software.
bool aot_vk_is_unified(const aot_vk_gpu_t *gpu);

// At least one word, rounded up to whole ones; or to four, where the usage is a uniform texel
// buffer's too.  `what` is for the message.  On failure *out_buffer is empty.
aot_status_t aot_vk_buffer_create(const aot_vk_gpu_t *gpu, aot_vk_place_t place, uint64_t bytes,
                                  VkBufferUsageFlags usage, const char *what, aot_error_t *error,
                                  aot_vk_buffer_t *out_buffer);
void aot_vk_buffer_destroy(const aot_vk_gpu_t *gpu, aot_vk_buffer_t *buffer);

// Before the device reads what the host wrote, and before the host reads what the device wrote.
aot_status_t aot_vk_buffer_flush(const aot_vk_gpu_t *gpu, const aot_vk_buffer_t *buffer,
                                 aot_error_t *error);
aot_status_t aot_vk_buffer_invalidate(const aot_vk_gpu_t *gpu, const aot_vk_buffer_t *buffer,
                                      aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_MEMORY_H_
