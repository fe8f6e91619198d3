// The device's buffers as the host sees them, which are copies where memory is not unified.
#ifndef AOT_DRIVERS_VULKAN_HOST_BUFFERS_H_
#define AOT_DRIVERS_VULKAN_HOST_BUFFERS_H_

#include "device.h"

// The buffer in which the host sees what the device has at the same place of `buffer_class`.
const aot_vk_buffer_t *aot_vk_host_buffer(const aot_device_t *device, uint32_t buffer_class);
// Around a submission: what the host wrote, and what it will read.
aot_status_t aot_vk_host_buffers_flush(aot_device_t *device, aot_error_t *error);
aot_status_t aot_vk_host_buffers_invalidate(const aot_device_t *device, aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_HOST_BUFFERS_H_
