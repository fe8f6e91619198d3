// What the CPU runs of a program.
#ifndef AOT_DRIVERS_VULKAN_HOST_H_
#define AOT_DRIVERS_VULKAN_HOST_H_

#include "device.h"

// Where it runs nothing, check, open and close do nothing.
aot_status_t aot_vk_host_check(const aot_variant_t *variant, aot_error_t *error);
aot_status_t aot_vk_host_open(aot_device_t *device, const aot_program_options_t *options,
                              aot_error_t *error);
void aot_vk_host_close(aot_device_t *device);
// Once the buffers of a run are there.
aot_status_t aot_vk_host_begin(aot_device_t *device, aot_error_t *error);
// Submits what is logged, and runs the executable where the host sees the buffers.
aot_status_t aot_vk_host_dispatch(aot_device_t *device, uint32_t executable, const void *params,
                                  aot_grid_t grid, aot_error_t *error);
aot_status_t aot_vk_host_hand_over(aot_device_t *device, aot_place_t place, size_t bytes,
                                   bool to_host, aot_error_t *error);

#endif  // AOT_DRIVERS_VULKAN_HOST_H_
