// Submits what a device's log says, from recordings of the logs before.
#ifndef AOT_DRIVERS_VULKAN_RECORDING_H_
#define AOT_DRIVERS_VULKAN_RECORDING_H_

#include "device.h"

// Does what the log says and waits; the log is empty then.
aot_status_t aot_vk_submit(aot_device_t *device, aot_error_t *error);

// Before anything is added that a program may ask for any number of times: submits a log that is
// long.
aot_status_t aot_vk_make_room(aot_device_t *device, aot_error_t *error);

// Forgets what was recorded: buffers are about to change.
void aot_vk_forget_recordings(aot_device_t *device);
void aot_vk_free_recordings(aot_device_t *device);

// Waits for all that the device was given, by other programs too.
VkResult aot_vk_wait_idle(const aot_device_t *device);

// Records, submits and waits for a few copies that no program asks for.
aot_status_t aot_vk_copy_now(aot_device_t *device, const aot_vk_buffer_t *to, uint64_t to_offset,
                             const aot_vk_buffer_t *from, uint64_t from_offset, uint64_t bytes,
                             aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_RECORDING_H_
