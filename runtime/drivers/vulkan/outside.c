#include "outside.h"

#include "status.h"

bool aot_vk_has_hosts(const aot_binding_t *bindings, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (bindings[i].bytes > 0 && bindings[i].outside.buffer == 0) return true;
  }
  return false;
}

static aot_status_t add(aot_device_t *device, aot_vk_op_t op, uint32_t place,
                        const aot_binding_t *binding, aot_error_t *error) {
  uint32_t *operands = NULL;
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, op, AOT_VK_OUTSIDE_OPERANDS, error,
                         &operands));
  operands[0] = place;
  aot_vk_put_u64(operands + 1, binding->offset);
  aot_vk_put_u64(operands + 3, binding->bytes);
  aot_vk_put_u64(operands + 5, binding->outside.buffer);
  aot_vk_put_u64(operands + 7, binding->address);
  operands[9] = binding->outside.number;
  operands[10] = binding->outside.is_foreign;
  return AOT_OK;
}

// The CPU, where it runs a part, reads inputs from the upload buffer if memory is not unified.
aot_status_t aot_vk_add_imports(aot_device_t *device, aot_error_t *error) {
  const aot_bindings_t *bindings = device->bindings;
  const uint32_t places = device->host != NULL && !device->is_unified ? 2 : 1;
  device->has_imports = false;
  for (uint32_t i = 0; i < bindings->input_count; ++i) {
    const aot_binding_t *input = &bindings->inputs[i];
    if (input->outside.buffer == 0 || input->bytes == 0) continue;
    device->has_imports = true;
    for (uint32_t place = 0; place < places; ++place)
      AOT_TRY(add(device, AOT_VK_OP_IMPORT, place, input, error));
  }
  return AOT_OK;
}

aot_status_t aot_vk_add_exports(aot_device_t *device, aot_error_t *error) {
  const aot_bindings_t *bindings = device->bindings;
  for (uint32_t i = 0; i < bindings->output_count; ++i) {
    const aot_binding_t *output = &bindings->outputs[i];
    if (output->outside.buffer == 0 || output->bytes == 0) continue;
    AOT_TRY(add(device, AOT_VK_OP_EXPORT, 0, output, error));
  }
  return AOT_OK;
}

aot_status_t aot_vk_imports_invalidate(const aot_device_t *device, aot_error_t *error) {
  if (!device->has_imports) return AOT_OK;
  if (device->is_unified) {
    return aot_vk_buffer_invalidate(&device->gpu, &device->buffers[AOT_FBS_BUFFER_CLASS_INPUTS],
                                    error);
  }
  return device->host != NULL ? aot_vk_buffer_invalidate(&device->gpu, &device->upload, error)
                              : AOT_OK;
}
