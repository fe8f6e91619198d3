// Puts a log, or a single copy, into a command buffer.
#ifndef AOT_DRIVERS_VULKAN_RECORDER_H_
#define AOT_DRIVERS_VULKAN_RECORDER_H_

#include "device.h"

// What a log takes beside its commands.
typedef struct aot_vk_needs_t {
  uint64_t block_bytes;  // of parameter blocks: whole windows
  uint64_t stores;       // values, of 8 bytes each
  uint64_t literals;     // likewise, that are always the same
  uint32_t launches;     // dispatches, copies and fills
  uint32_t windows;      // sets of dispatches with windows
} aot_vk_needs_t;

#define AOT_VK_VALUE_BYTES 8u

aot_vk_needs_t aot_vk_measure(const aot_device_t *device);

// Records the device's log.  The recording has handles and room for what measure said; its set is
// written.
aot_status_t aot_vk_record_log(aot_device_t *device, aot_vk_recording_t *recording,
                               const aot_vk_needs_t *needs, aot_error_t *error);

aot_status_t aot_vk_record_copy(aot_device_t *device, aot_vk_recording_t *recording,
                                const aot_vk_buffer_t *to, uint64_t to_offset,
                                const aot_vk_buffer_t *from, uint64_t from_offset, uint64_t bytes,
                                aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_RECORDER_H_
