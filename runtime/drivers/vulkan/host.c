// What the CPU runs of a program: executables without a shader, by the CPU driver, on the buffers
// that the device has, or on their images in the host's memory.
#include "host.h"

#include "host_buffers.h"
#include "recording.h"
#include "status.h"

aot_status_t aot_vk_host_check(const aot_variant_t *variant, aot_error_t *error) {
  if (variant->host == NULL) return AOT_OK;
  aot_error_t reason = {AOT_OK, ""};
  const aot_status_t status = aot_cpu_driver.check(variant->host, &reason);
  if (status == AOT_OK) return AOT_OK;
  return aot_fail(error, status, "for what the CPU runs of it: %s", reason.message);
}

aot_status_t aot_vk_host_open(aot_device_t *device, const aot_program_options_t *options,
                              aot_error_t *error) {
  const aot_variant_t *host = device->variant->host;
  if (host == NULL) return AOT_OK;
  return aot_cpu_driver.open(device->module, host, options, &device->allocator, error,
                             &device->host);
}

void aot_vk_host_close(aot_device_t *device) {
  if (device->host != NULL) aot_cpu_driver.close(device->host);
  device->host = NULL;
}

static void bind(aot_device_t *device, uint32_t buffer_class, aot_binding_t *binding) {
  const aot_vk_buffer_t *buffer = aot_vk_host_buffer(device, buffer_class);
  *binding = (aot_binding_t){.address = (uintptr_t)buffer->mapped, .bytes = (size_t)buffer->bytes};
}

aot_status_t aot_vk_host_begin(aot_device_t *device, aot_error_t *error) {
  if (device->host == NULL) return AOT_OK;
  bind(device, AOT_FBS_BUFFER_CLASS_INPUTS, &device->host_inputs);
  bind(device, AOT_FBS_BUFFER_CLASS_OUTPUTS, &device->host_outputs);
  device->host_bindings =
      (aot_bindings_t){.inputs = &device->host_inputs,
                       .outputs = &device->host_outputs,
                       .input_count = 1,
                       .output_count = 1,
                       .scratch_offset = -1,
                       .arena = aot_vk_host_buffer(device, AOT_FBS_BUFFER_CLASS_ARENA)->mapped};
  return aot_cpu_driver.begin(device->host, &device->host_bindings, error);
}

aot_status_t aot_vk_host_dispatch(aot_device_t *device, uint32_t executable, const void *params,
                                  aot_grid_t grid, aot_error_t *error) {
  AOT_TRY(aot_vk_submit(device, error));
  device->has_host_written = true;
  device->host_bindings.word = device->bindings->word;
  return aot_cpu_driver.dispatch(device->host, executable, params, grid, error);
}

aot_status_t aot_vk_host_hand_over(aot_device_t *device, aot_place_t place, size_t bytes,
                                   bool to_host, aot_error_t *error) {
  // Inputs and constants are in the host's memory, and nothing writes them.
  const bool is_written = place.buffer_class == AOT_FBS_BUFFER_CLASS_ARENA ||
                          place.buffer_class == AOT_FBS_BUFFER_CLASS_OUTPUTS;
  if (device->host == NULL || device->is_unified || !is_written) return AOT_OK;
  uint32_t *operands = NULL;
  AOT_TRY(aot_vk_make_room(device, error));
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator,
                         to_host ? AOT_VK_OP_TO_HOST : AOT_VK_OP_TO_DEVICE, 5, error, &operands));
  operands[0] = place.buffer_class;
  aot_vk_put_u64(operands + 1, place.offset);
  aot_vk_put_u64(operands + 3, bytes);
  return AOT_OK;
}
