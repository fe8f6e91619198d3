// AHardwareBuffers of Android as buffers of a device.
#ifndef AOT_DRIVERS_VULKAN_IMPORTS_H_
#define AOT_DRIVERS_VULKAN_IMPORTS_H_

#include "device.h"

// A buffer for an input or output, which the device owns until aot_vk_import_keep gives another one
// to it.
aot_status_t aot_vk_import(aot_device_t *device, struct AHardwareBuffer *source, aot_error_t *error,
                           aot_vk_import_t **out_import, uint64_t *out_bytes);
void aot_vk_import_release(aot_device_t *device, aot_vk_import_t *import);

// Makes `import` that of the input or output, in place of what it had; NULL: it has none.
void aot_vk_import_keep(aot_device_t *device, bool is_input, size_t index, aot_vk_import_t *import);
void aot_vk_imports_free(aot_device_t *device);

#endif  // AOT_DRIVERS_VULKAN_IMPORTS_H_
