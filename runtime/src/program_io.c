// A program's inputs and outputs: names, shapes, checks, memory.
#include <string.h>

#include "program.h"
#include "shapes.h"
#include "sizes.h"
#include "status.h"

size_t aot_program_input_count(const aot_program_t *program) {
  return program != NULL ? program->entry->input_count : 0;
}

size_t aot_program_output_count(const aot_program_t *program) {
  return program != NULL ? program->entry->output_count : 0;
}

const aot_tensor_info_t *aot_program_input_info(const aot_program_t *program, size_t index) {
  return index < aot_program_input_count(program) ? &program->entry->inputs[index] : NULL;
}

const aot_tensor_info_t *aot_program_output_info(const aot_program_t *program, size_t index) {
  return index < aot_program_output_count(program) ? &program->entry->outputs[index] : NULL;
}

bool aot_program_get_update(const aot_program_t *program, size_t output, size_t *out_input) {
  if (out_input == NULL) return false;
  *out_input = 0;
  if (program == NULL) return false;
  const aot_code_t *code = &program->entry->code;
  if (output >= code->update_count || code->updates[output] == 0) return false;
  *out_input = code->updates[output] - 1;
  return true;
}

size_t aot_program_state_count(const aot_program_t *program) {
  return program != NULL ? program->entry->state_count : 0;
}

const aot_tensor_info_t *aot_program_state_info(const aot_program_t *program, size_t index) {
  return index < aot_program_state_count(program) ? &program->entry->states[index] : NULL;
}

static aot_status_t find(const aot_program_t *program, bool is_input, const char *name,
                         aot_error_t *error, size_t *out_index) {
  aot_text_t known = {.length = 0};
  if (out_index == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_index is NULL");
  *out_index = 0;
  if (program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "program is NULL");
  if (name == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "name is NULL");
  const aot_entry_t *entry = program->entry;
  const aot_tensor_info_t *tensors = is_input ? entry->inputs : entry->outputs;
  const uint32_t count = is_input ? entry->input_count : entry->output_count;
  for (uint32_t i = 0; i < count; ++i) {
    if (strcmp(tensors[i].name, name) == 0) {
      *out_index = i;
      return AOT_OK;
    }
    aot_text_append(&known, "%s\"%s\"", i > 0 ? ", " : "", tensors[i].name);
  }
  return aot_fail(error, AOT_ERROR_NOT_FOUND, "no %s \"%s\", the program has %s",
                  is_input ? "input" : "output", name, count > 0 ? known.bytes : "none");
}

aot_status_t aot_program_find_input(const aot_program_t *program, const char *name,
                                    aot_error_t *error, size_t *out_index) {
  return find(program, true, name, error, out_index);
}

aot_status_t aot_program_find_output(const aot_program_t *program, const char *name,
                                     aot_error_t *error, size_t *out_index) {
  return find(program, false, name, error, out_index);
}

static aot_status_t check_data(const aot_tensor_info_t *info, const aot_tensor_t *tensor,
                               uint64_t bytes, aot_error_t *error) {
  if (tensor->bytes != bytes) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "input \"%s\": %zu bytes, its shape takes %llu",
                    info->name, tensor->bytes, (unsigned long long)bytes);
  }
  if ((uintptr_t)tensor->data % aot_dtype_bytes(info->dtype) != 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "input \"%s\": its memory is not aligned to %zu bytes", info->name,
                    aot_dtype_bytes(info->dtype));
  }
  return AOT_OK;
}

aot_status_t aot_program_check_own(const aot_program_t *program, const char *kind, const char *name,
                                   const void *data, size_t bytes, aot_error_t *error) {
  for (uint32_t i = 0; i < program->entry->output_count; ++i) {
    const aot_output_t *output = &program->outputs[i];
    const aot_binding_t own = {.address = (uintptr_t)output->owned, .bytes = output->owned_bytes};
    const aot_binding_t given = {.address = (uintptr_t)data, .bytes = bytes};
    if (aot_overlaps(&own, &given)) {
      return aot_fail(
          error, AOT_ERROR_ARGUMENT,
          "%s \"%s\": its memory is the program's own, of output \"%s\"; copy it, or give "
          "that output memory by set_output",
          kind, name, program->entry->outputs[i].name);
    }
  }
  return AOT_OK;
}

// What a program was on devices that failed is kept for tensors that the caller got: until now.
static void end_borrowing(aot_program_t *program) {
#if defined(AOT_VULKAN)
  aot_fallback_forget(program);
#else
  (void)program;
#endif
}

aot_status_t aot_program_set_input(aot_program_t *program, size_t index,
                                   const aot_tensor_t *callers, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_tensor_info_t *info = aot_program_input_info(program, index);
  if (info == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no input %zu", index);
  aot_tensor_t own;
  const aot_tensor_t *tensor = &own;
  AOT_TRY(aot_struct_take(callers, "aot_tensor_t", &own, sizeof own, error));
  if (tensor->rank > 0 && tensor->dims == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "input \"%s\": dims is NULL", info->name);
  }
  if (tensor->dtype != info->dtype) {
    const char *found = aot_dtype_name(tensor->dtype);
    return aot_fail(error, AOT_ERROR_DTYPE, "input \"%s\": expected dtype %s, found %s", info->name,
                    aot_dtype_name(info->dtype), found != NULL ? found : "none that exists");
  }
  uint64_t bytes = 0;
  AOT_TRY(aot_program_check_shape(info, tensor, error, &bytes));
  const bool has_data = tensor->data != NULL || (bytes == 0 && tensor->bytes == 0);
  if (has_data) {
    AOT_TRY(check_data(info, tensor, bytes, error));
    AOT_TRY(
        aot_program_check_own(program, "input", info->name, tensor->data, tensor->bytes, error));
  }
  aot_input_t *input = &program->inputs[index];
  int64_t *dims = program->input_dims + input->first_dim;
  const size_t dims_bytes = info->rank * sizeof *dims;
  if (info->rank > 0 && (!input->has_shape || memcmp(dims, tensor->dims, dims_bytes) != 0)) {
    memcpy(dims, tensor->dims, dims_bytes);
    program->current = NULL;
  }
  input->has_shape = true;
  input->has_data = has_data;
  input->is_strided = false;
  program->bindings.inputs[index] =
      (aot_binding_t){.address = (uintptr_t)tensor->data, .bytes = has_data ? (size_t)bytes : 0};
  end_borrowing(program);
  return AOT_OK;
}

aot_status_t aot_program_set_output(aot_program_t *program, size_t index, void *data,
                                    size_t capacity, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_tensor_info_t *info = aot_program_output_info(program, index);
  if (info == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no output %zu", index);
  if ((uintptr_t)data % aot_dtype_bytes(info->dtype) != 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "output \"%s\": its memory is not aligned to %zu bytes", info->name,
                    aot_dtype_bytes(info->dtype));
  }
  if (data == NULL) capacity = 0;
  AOT_TRY(aot_program_check_own(program, "output", info->name, data, capacity, error));
  aot_output_t *output = &program->outputs[index];
  output->is_callers = data != NULL;
  output->is_strided = false;
  output->data = data;
  output->capacity = capacity;
#if defined(AOT_VULKAN)
  output->outside.buffer = 0;
#endif
  end_borrowing(program);
  return AOT_OK;
}

aot_status_t aot_program_get_output(const aot_program_t *program, size_t index, aot_error_t *error,
                                    aot_tensor_t *out_tensor) {
  AOT_TRY(aot_struct_clear(out_tensor, "aot_tensor_t", error));
  AOT_TRY(aot_program_enter(program, error));
  const aot_tensor_info_t *info = aot_program_output_info(program, index);
  if (info == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no output %zu", index);
  if (program->current == NULL) {
    return aot_fail(error, AOT_ERROR_NOT_READY, "output \"%s\" has no shape before prepare or run",
                    info->name);
  }
  const aot_output_t *output = &program->outputs[index];
  aot_tensor_t tensor = {
      .dtype = info->dtype, .rank = info->rank, .dims = program->output_dims + output->first_dim};
  tensor.bytes = (size_t)aot_tensor_bytes(info, tensor.dims);
  // It may be of other shapes, or set since.
  const size_t room = output->is_callers ? output->capacity : output->owned_bytes;
  if (room >= tensor.bytes) tensor.data = output->is_callers ? output->data : output->owned;
#if defined(AOT_VULKAN)
  if (output->outside.buffer != 0) tensor.data = NULL;
#endif
  aot_struct_give(&tensor, sizeof tensor, out_tensor);
  return AOT_OK;
}
