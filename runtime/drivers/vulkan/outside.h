// Inputs and outputs that are in buffers outside of the program: the copies of a run, and buffers
// that were imported.
#ifndef AOT_DRIVERS_VULKAN_OUTSIDE_H_
#define AOT_DRIVERS_VULKAN_OUTSIDE_H_

#include "device.h"

// Whether some bytes of the bindings are in the host's memory.
bool aot_vk_has_hosts(const aot_binding_t *bindings, uint32_t count);

// At the beginning of a run, behind the upload: logs the copies of inputs.
aot_status_t aot_vk_add_imports(aot_device_t *device, aot_error_t *error);
// At its end, before the last submission: logs the copies of outputs.
aot_status_t aot_vk_add_exports(aot_device_t *device, aot_error_t *error);

// Before the host reads what was imported.
aot_status_t aot_vk_imports_invalidate(const aot_device_t *device, aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_OUTSIDE_H_
