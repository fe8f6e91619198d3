// aot/vulkan_buffers.h: inputs and outputs in buffers of the application's.
#include "aot/vulkan_buffers.h"

#include <string.h>

#include "imports.h"
#include "program.h"
#include "shapes.h"
#include "sizes.h"
#include "status.h"
#include "system.h"

static aot_status_t enter(const aot_program_t *program, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  if (program->driver->device != AOT_FBS_DEVICE_VULKAN) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "the program is on the %s, not on vulkan",
                    program->driver->name);
  }
  // A device that hangs may use what the input or output has still.
  const aot_device_t *device = program->device;
  if (!device->is_lost && device->shared->process == aot_vk_process()) return AOT_OK;
  return aot_fail(error, AOT_ERROR_DEVICE,
                  device->is_lost
                      ? "vulkan: the device is lost"
                      : "vulkan: the device of a program is not in the child of a fork: "
                        "make the program there");
}

static aot_status_t check_given(const void *given, const char *what, aot_error_t *error) {
  return given != NULL ? AOT_OK : aot_fail(error, AOT_ERROR_ARGUMENT, "the %s is NULL", what);
}

// ---- what an input or output needs ----

// Of an input that is written, and of an output that is written to one: that is done by the host.
static bool is_updated(const aot_program_t *program, bool is_input, size_t index) {
  const aot_code_t *code = &program->entry->code;
  for (uint32_t i = 0; i < code->update_count; ++i) {
    const bool is_this = is_input ? code->updates[i] == index + 1 : i == index;
    if (is_this && code->updates[i] != 0) return true;
  }
  return false;
}

static aot_status_t find(const aot_program_t *program, bool is_input, size_t index,
                         aot_error_t *error, const aot_tensor_info_t **out_info) {
  const char *kind = is_input ? "input" : "output";
  *out_info =
      is_input ? aot_program_input_info(program, index) : aot_program_output_info(program, index);
  if (*out_info == NULL)
    return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no %s %zu", kind, index);
  if (!is_updated(program, is_input, index)) return AOT_OK;
  return aot_fail(
      error, AOT_ERROR_ARGUMENT,
      "%s \"%s\": the program writes an input in place, which must be the host's memory", kind,
      (*out_info)->name);
}

static aot_status_t check_tensor(const aot_tensor_info_t *info, const aot_tensor_t *callers,
                                 aot_error_t *error, aot_tensor_t *tensor, uint64_t *out_bytes) {
  AOT_TRY(aot_struct_take(callers, "aot_tensor_t", tensor, sizeof *tensor, error));
  if (tensor->data != NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "input \"%s\": data is set, beside a buffer of the device", info->name);
  }
  if (tensor->rank > 0 && tensor->dims == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "input \"%s\": dims is NULL", info->name);
  }
  tensor->size = sizeof *tensor;
  return aot_program_check_shape(info, tensor, error, out_bytes);
}

static aot_status_t check_place(const char *kind, const aot_tensor_info_t *info, uint64_t offset,
                                uint64_t needed, uint64_t bytes, aot_error_t *error) {
  if (offset <= bytes && needed <= bytes - offset && offset <= UINTPTR_MAX) return AOT_OK;
  return aot_fail(error, kind[0] == 'i' ? AOT_ERROR_CAPACITY : AOT_ERROR_ARGUMENT,
                  "%s \"%s\" needs %llu bytes from byte %llu on, the buffer has %llu", kind,
                  info->name, (unsigned long long)needed, (unsigned long long)offset,
                  (unsigned long long)bytes);
}

// ---- binding ----

static aot_outside_t outside_of(aot_device_t *device, uint64_t buffer, bool is_foreign) {
  return (aot_outside_t){buffer, ++device->outside_count, is_foreign};
}

// All was checked but the dtype.
static aot_status_t bind_input(aot_program_t *program, size_t index, const aot_tensor_t *tensor,
                               uint64_t bytes, uint64_t offset, aot_outside_t outside,
                               aot_error_t *error) {
  AOT_TRY(aot_program_set_input(program, index, tensor, error));
  program->inputs[index].has_data = true;
  program->bindings.inputs[index] =
      (aot_binding_t){.address = (uintptr_t)offset, .bytes = (size_t)bytes, .outside = outside};
  return AOT_OK;
}

static aot_status_t bind_output(aot_program_t *program, size_t index, uint64_t bytes,
                                uint64_t offset, aot_outside_t outside, aot_error_t *error) {
  AOT_TRY(aot_program_set_output(program, index, NULL, 0, error));
  aot_output_t *output = &program->outputs[index];
  const uint64_t room = bytes - offset;
  output->is_callers = true;
  output->data = (void *)(uintptr_t)offset;
  output->capacity = room <= SIZE_MAX ? (size_t)room : SIZE_MAX;
  output->outside = outside;
  return AOT_OK;
}

// ---- buffers of the caller's device ----

static aot_status_t take_buffer(const aot_program_t *program, const aot_vulkan_buffer_t *callers,
                                aot_error_t *error, aot_vulkan_buffer_t *buffer) {
  AOT_TRY(aot_struct_take(callers, "aot_vulkan_buffer_t", buffer, sizeof *buffer, error));
  if (!program->device->gpu.is_callers) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the program is on a device of its own, which has no buffers of others "
                    "(own_device of aot_vulkan_options_t)");
  }
  if (buffer->buffer != 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT, "the buffer of the aot_vulkan_buffer_t is null");
}

aot_status_t aot_vulkan_set_input_buffer(aot_program_t *program, size_t index,
                                         const aot_tensor_t *tensor,
                                         const aot_vulkan_buffer_t *buffer, aot_error_t *error) {
  const aot_tensor_info_t *info = NULL;
  aot_tensor_t own;
  aot_vulkan_buffer_t taken;
  uint64_t bytes = 0;
  AOT_TRY(check_given(tensor, "aot_tensor_t", error));
  AOT_TRY(check_given(buffer, "aot_vulkan_buffer_t", error));
  AOT_TRY(enter(program, error));
  AOT_TRY(find(program, true, index, error, &info));
  AOT_TRY(check_tensor(info, tensor, error, &own, &bytes));
  AOT_TRY(take_buffer(program, buffer, error, &taken));
  AOT_TRY(check_place("input", info, taken.offset, bytes, taken.bytes, error));
  AOT_TRY(bind_input(program, index, &own, bytes, taken.offset,
                     outside_of(program->device, taken.buffer, false), error));
  aot_vk_import_keep(program->device, true, index, NULL);
  return AOT_OK;
}

aot_status_t aot_vulkan_set_output_buffer(aot_program_t *program, size_t index,
                                          const aot_vulkan_buffer_t *buffer, aot_error_t *error) {
  const aot_tensor_info_t *info = NULL;
  aot_vulkan_buffer_t taken;
  AOT_TRY(check_given(buffer, "aot_vulkan_buffer_t", error));
  AOT_TRY(enter(program, error));
  AOT_TRY(find(program, false, index, error, &info));
  AOT_TRY(take_buffer(program, buffer, error, &taken));
  AOT_TRY(check_place("output", info, taken.offset, 0, taken.bytes, error));
  AOT_TRY(bind_output(program, index, taken.bytes, taken.offset,
                      outside_of(program->device, taken.buffer, false), error));
  aot_vk_import_keep(program->device, false, index, NULL);
  return AOT_OK;
}

// ---- AHardwareBuffers ----

static uint64_t handle_of(const aot_vk_import_t *import) {
  uint64_t handle = 0;
  memcpy(&handle, &import->buffer, sizeof import->buffer);
  return handle;
}

// Of what was imported: the last steps, whose failure releases it.
static aot_status_t keep(aot_program_t *program, bool is_input, size_t index, aot_status_t status,
                         aot_vk_import_t *import) {
  if (status == AOT_OK) {
    aot_vk_import_keep(program->device, is_input, index, import);
  } else {
    aot_vk_import_release(program->device, import);
  }
  return status;
}

aot_status_t aot_vulkan_set_input_hardware_buffer(aot_program_t *program, size_t index,
                                                  const aot_tensor_t *tensor,
                                                  struct AHardwareBuffer *buffer, uint64_t offset,
                                                  aot_error_t *error) {
  const aot_tensor_info_t *info = NULL;
  aot_tensor_t own;
  uint64_t needed = 0;
  uint64_t bytes = 0;
  aot_vk_import_t *import = NULL;
  AOT_TRY(check_given(tensor, "aot_tensor_t", error));
  AOT_TRY(check_given(buffer, "AHardwareBuffer", error));
  AOT_TRY(enter(program, error));
  AOT_TRY(find(program, true, index, error, &info));
  AOT_TRY(check_tensor(info, tensor, error, &own, &needed));
  AOT_TRY(aot_vk_import(program->device, buffer, error, &import, &bytes));
  aot_status_t status = check_place("input", info, offset, needed, bytes, error);
  if (status == AOT_OK) {
    status = bind_input(program, index, &own, needed, offset,
                        outside_of(program->device, handle_of(import), true), error);
  }
  return keep(program, true, index, status, import);
}

aot_status_t aot_vulkan_set_output_hardware_buffer(aot_program_t *program, size_t index,
                                                   struct AHardwareBuffer *buffer, uint64_t offset,
                                                   aot_error_t *error) {
  const aot_tensor_info_t *info = NULL;
  uint64_t bytes = 0;
  aot_vk_import_t *import = NULL;
  AOT_TRY(check_given(buffer, "AHardwareBuffer", error));
  AOT_TRY(enter(program, error));
  AOT_TRY(find(program, false, index, error, &info));
  AOT_TRY(aot_vk_import(program->device, buffer, error, &import, &bytes));
  aot_status_t status = check_place("output", info, offset, 0, bytes, error);
  if (status == AOT_OK) {
    status = bind_output(program, index, bytes, offset,
                         outside_of(program->device, handle_of(import), true), error);
  }
  return keep(program, false, index, status, import);
}
