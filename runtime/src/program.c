// Programs: creation, bindings, prepare and run.
#include "program.h"

#include <string.h>

#include "module_fbs.h"
#include "sizes.h"
#include "status.h"

static void append_name(aot_text_t *text, const char *name) {
  aot_text_append(text, "%s\"%s\"", text->length > 0 ? ", " : "", name);
}

// Hands out parts of one block of memory; with a NULL base it only measures.
typedef struct aot_carver_t {
  uint8_t *base;
  uint64_t used;
} aot_carver_t;

static void *carve(aot_carver_t *carver, uint64_t count, size_t bytes_each) {
  void *part = carver->base != NULL ? carver->base + carver->used : NULL;
  // Counts are below 2^32, so that the sum of these few products fits.
  carver->used += (count * bytes_each + 15) / 16 * 16;
  return part;
}

static void lay_out(aot_program_t *program, aot_carver_t *carver) {
  const aot_entry_t *entry = program->entry;
  const aot_code_t *code = &entry->code;
  program->inputs = carve(carver, entry->input_count, sizeof *program->inputs);
  program->outputs = carve(carver, entry->output_count, sizeof *program->outputs);
  program->bindings.inputs = carve(carver, entry->input_count, sizeof(aot_binding_t));
  program->bindings.outputs = carve(carver, entry->output_count, sizeof(aot_binding_t));
  program->input_dims = carve(carver, (uint64_t)entry->input_dim_count + code->state_count,
                              sizeof *program->input_dims);
  program->next_states = carve(carver, code->state_count, sizeof *program->next_states);
  program->registers = carve(carver, (uint64_t)code->register_count + entry->output_dim_count,
                             sizeof *program->registers);
  program->params = carve(carver, code->most_param_words, sizeof *program->params);
  program->placements = carve(carver, code->buffer_count, sizeof *program->placements);
}

// Inputs of static shape have it from the start.
static void set_up_tensors(aot_program_t *program) {
  const aot_entry_t *entry = program->entry;
  uint32_t dim = 0;
  for (uint32_t i = 0; i < entry->input_count; ++i) {
    aot_input_t *input = &program->inputs[i];
    input->first_dim = dim;
    input->has_shape = true;
    for (uint32_t axis = 0; axis < entry->inputs[i].rank; ++axis, ++dim) {
      program->input_dims[dim] = entry->inputs[i].dims[axis].extent;
      if (program->input_dims[dim] < 0) input->has_shape = false;
    }
  }
  dim = 0;
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    program->outputs[i].first_dim = dim;
    dim += entry->outputs[i].rank;
  }
  program->states = program->input_dims + entry->input_dim_count;
  program->is_reset = true;
  program->bindings.input_count = entry->input_count;
  program->bindings.output_count = entry->output_count;
  program->bindings.scratch_offset = entry->code.scratch_offset;
}

aot_status_t aot_program_enter(const aot_program_t *program, aot_error_t *error) {
  if (program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "program is NULL");
  if (!program->is_busy) return AOT_OK;
  return aot_fail(error, AOT_ERROR_BUSY, "the program is running");
}

static aot_status_t set_up(aot_program_t *program, const aot_program_options_t *options,
                           uint32_t first, aot_error_t *error) {
  aot_choice_t choice;
  AOT_TRY(aot_variant_open(program->module, options, first, &program->allocator, error, &choice));
  program->variant = choice.variant;
  program->driver = choice.driver;
  program->device = choice.device;
  program->skipped = choice.skipped;
  AOT_TRY(aot_variant_find_entry(program->variant, options->entry, error, &program->entry));
  aot_carver_t carver = {NULL, 0};
  lay_out(program, &carver);
  AOT_TRY(aot_allocate(&program->allocator, carver.used, "the program", error, &program->memory));
  program->memory_bytes = (size_t)carver.used;
  memset(program->memory, 0, program->memory_bytes);
  carver = (aot_carver_t){program->memory, 0};
  lay_out(program, &carver);
  set_up_tensors(program);
  // Even with nothing in it the arena has an address.
  return program->driver->reserve(program->device, 0, 0, error);
}

static aot_status_t plan(aot_program_t *program, aot_error_t *error);
static void tear_down(aot_program_t *program);

#if defined(AOT_VULKAN)
static const aot_making_t making = {set_up, plan, tear_down};
#endif

aot_status_t aot_program_create(const aot_module_t *module, const aot_program_options_t *options,
                                aot_error_t *error, aot_program_t **out_program) {
  if (out_program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_program is NULL");
  *out_program = NULL;
  if (module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "module is NULL");
  aot_program_options_t own;
  memset(&own, 0, sizeof own);
  if (options != NULL) {
    AOT_TRY(aot_struct_take(options, "aot_program_options_t", &own, sizeof own, error));
  }
  if (own.plan_count > AOT_MOST_PLANS) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "plan_count is %u, at most %u expected",
                    (unsigned)own.plan_count, AOT_MOST_PLANS);
  }
  aot_meter_t meter;
  aot_meter_set(&meter, &module->pool.allocator,
                own.memory_limit != 0 ? own.memory_limit : UINT64_MAX);
  const aot_allocator_t first = aot_meter_allocator(&meter);
  void *memory = NULL;
  AOT_TRY(aot_allocate(&first, sizeof(aot_program_t), "the program", error, &memory));
  memset(memory, 0, sizeof(aot_program_t));
  aot_program_t *program = memory;
  program->meter = meter;
  program->allocator = aot_meter_allocator(&program->meter);
  program->module = module;
  aot_module_retain(module);
  program->work_budget = own.work_budget != 0 ? own.work_budget : UINT64_MAX;
  program->caller_outputs = own.caller_outputs;
  program->plan_count = own.plan_count != 0 ? own.plan_count : AOT_DEFAULT_PLANS;
  program->is_busy = true;  // the allocator may look for the handle
  aot_status_t status = set_up(program, &own, 0, error);
#if defined(AOT_VULKAN)
  if (status == AOT_OK) status = aot_fallback_keep(program, &own, &making, error);
#endif
  program->is_busy = false;
  if (status != AOT_OK) {
    (void)aot_program_destroy(program);
    return status;
  }
  *out_program = program;
  return AOT_OK;
}

static void tear_down(aot_program_t *program) {
  const aot_allocator_t *allocator = &program->allocator;
  if (program->device != NULL) program->driver->close(program->device);
  for (uint32_t i = 0; i < program->plan_count; ++i)
    aot_plan_free(program, &program->plans[i]);
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    aot_release(allocator, program->outputs[i].owned, program->outputs[i].owned_bytes);
  }
  aot_release(allocator, program->memory, program->memory_bytes);
}

aot_status_t aot_program_destroy(aot_program_t *program) {
  if (program == NULL) return AOT_OK;
  AOT_TRY(aot_program_enter(program, NULL));
  program->is_busy = true;
  if (program->hooks != NULL) program->hooks->close(program);
  tear_down(program);
#if defined(AOT_VULKAN)
  aot_fallback_free(program);
#endif
  aot_module_t *module = (aot_module_t *)(uintptr_t)program->module;
  aot_release(&module->pool.allocator, program, sizeof *program);
  aot_module_close(module);
  return AOT_OK;
}

aot_status_t aot_program_get_info(const aot_program_t *program, aot_error_t *error,
                                  aot_program_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_program_info_t", error));
  if (program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "program is NULL");
  aot_program_info_t info = {.entry = program->entry->name,
                             .target = program->variant->target,
                             .device = program->driver->name,
                             .variant = (uint32_t)(program->variant - program->module->variants),
                             .code_bytes = program->variant->code.length,
                             .prepare_count = program->prepare_count,
                             .skipped = program->skipped.bytes,
                             .memory_bytes = program->meter.bytes,
                             .most_memory_bytes = program->meter.most_bytes};
  info.arena_bound_bytes = aot_code_arena_bound(&program->entry->code);
  program->driver->get_info(program->device, &info);
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}

static aot_status_t plan(aot_program_t *program, aot_error_t *error) {
  if (program->is_stale) program->current = NULL;
  if (program->current == NULL) {
    aot_text_t missing = {.length = 0};
    for (uint32_t i = 0; i < program->bindings.input_count; ++i) {
      if (!program->inputs[i].has_shape) append_name(&missing, program->entry->inputs[i].name);
    }
    if (missing.length > 0) {
      return aot_fail(error, AOT_ERROR_NOT_READY, "inputs without a shape: %s", missing.bytes);
    }
    AOT_TRY(aot_plan_make(program, error));
  }
  program->output_dims = program->current->output_dims;
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    aot_output_t *output = &program->outputs[i];
    if (program->caller_outputs && !output->is_strided) continue;
    const size_t bytes = (size_t)program->current->output_bytes[i];
    if (output->is_callers || (output->owned != NULL && output->owned_bytes >= bytes)) continue;
    aot_release(&program->allocator, output->owned, output->owned_bytes);
    output->owned = NULL;
    output->owned_bytes = 0;
    AOT_TRY(aot_allocate(&program->allocator, bytes, program->entry->outputs[i].name, error,
                         &output->owned));
    output->owned_bytes = bytes;
  }
  return AOT_OK;
}

// On another device where the program's own can't.
static aot_status_t prepare(aot_program_t *program, aot_error_t *error) {
  const aot_status_t status = plan(program, error);
#if defined(AOT_VULKAN)
  if (status != AOT_OK && aot_fallback_take(program, status, error)) return AOT_OK;
#endif
  return status;
}

aot_status_t aot_program_prepare(aot_program_t *program, aot_error_t *error) {
  aot_error_t own;
  if (error == NULL) error = &own;
  AOT_TRY(aot_program_enter(program, error));
  program->is_busy = true;
  const aot_status_t status = prepare(program, error);
  program->is_busy = false;
  return status;
}

aot_status_t aot_program_set_cancelled(aot_program_t *program, bool is_cancelled,
                                       aot_error_t *error) {
  if (program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "program is NULL");
  __atomic_store_n(&program->is_cancelled, is_cancelled, __ATOMIC_RELAXED);
  return AOT_OK;
}

uint64_t aot_runtime_now_ns(void) {
  return aot_os_now_ns();
}

aot_status_t aot_program_set_deadline(aot_program_t *program, uint64_t time_ns,
                                      aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  if (time_ns != 0 && aot_os_now_ns() == 0) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "this build has no clock: no deadline would pass");
  }
  program->deadline_ns = time_ns;
  return AOT_OK;
}

bool aot_overlaps(const aot_binding_t *a, const aot_binding_t *b) {
#if defined(AOT_VULKAN)
  if (a->outside.buffer != b->outside.buffer) return false;
#endif
  return a->bytes > 0 && b->bytes > 0 && a->address < b->address + b->bytes &&
         b->address < a->address + a->bytes;
}

// Kernels are compiled on the promise that an output shares memory with nothing.
static aot_status_t check_overlap(const aot_program_t *program, uint32_t index,
                                  aot_error_t *error) {
  const aot_bindings_t *bindings = &program->bindings;
  const aot_entry_t *entry = program->entry;
  const aot_binding_t *output = &bindings->outputs[index];
  for (uint32_t i = 0; i < bindings->input_count; ++i) {
    if (aot_overlaps(output, &bindings->inputs[i])) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "output \"%s\" overlaps input \"%s\" in memory",
                      entry->outputs[index].name, entry->inputs[i].name);
    }
  }
  for (uint32_t i = 0; i < index; ++i) {
    if (aot_overlaps(output, &bindings->outputs[i])) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "output \"%s\" overlaps output \"%s\" in memory",
                      entry->outputs[index].name, entry->outputs[i].name);
    }
  }
  return AOT_OK;
}

// The input that an output is written to after a run, or NULL.
static const aot_binding_t *updated(const aot_program_t *program, uint32_t output) {
  const aot_code_t *code = &program->entry->code;
  const uint32_t number = output < code->update_count ? code->updates[output] : 0;
  return number > 0 ? &program->bindings.inputs[number - 1] : NULL;
}

// What is written after the run is no other input, and takes all of the output.
static aot_status_t check_update(const aot_program_t *program, uint32_t index, aot_error_t *error) {
  const aot_bindings_t *bindings = &program->bindings;
  const aot_entry_t *entry = program->entry;
  const aot_binding_t *input = updated(program, index);
  if (input == NULL) return AOT_OK;
  const char *name = entry->inputs[input - bindings->inputs].name;
  for (uint32_t i = 0; i < bindings->input_count; ++i) {
    if (input != &bindings->inputs[i] && aot_overlaps(input, &bindings->inputs[i])) {
      return aot_fail(error, AOT_ERROR_ARGUMENT,
                      "input \"%s\", which the program writes, overlaps input \"%s\" in memory",
                      name, entry->inputs[i].name);
    }
  }
  if (input->bytes == bindings->outputs[index].bytes) return AOT_OK;
  return aot_fail(error, AOT_ERROR_SHAPE, "output \"%s\" has %zu bytes, the input \"%s\" %zu",
                  entry->outputs[index].name, bindings->outputs[index].bytes, name, input->bytes);
}

static aot_status_t bind_outputs(aot_program_t *program, aot_error_t *error) {
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    const aot_output_t *output = &program->outputs[i];
    const char *name = program->entry->outputs[i].name;
    aot_binding_t *binding = &program->bindings.outputs[i];
    const size_t bytes = (size_t)program->current->output_bytes[i];
    if (!output->is_callers && program->caller_outputs && !output->is_strided) {
      return aot_fail(error, AOT_ERROR_NOT_READY, "output \"%s\" has no memory", name);
    }
    if (output->is_callers && output->capacity < bytes) {
      return aot_fail(error, AOT_ERROR_CAPACITY,
                      "output \"%s\" needs %zu bytes, its memory has %zu", name, bytes,
                      output->capacity);
    }
    binding->address = (uintptr_t)(output->is_callers ? output->data : output->owned);
    binding->bytes = bytes;
#if defined(AOT_VULKAN)
    binding->outside = output->outside;
#endif
    if (output->is_callers) AOT_TRY(check_overlap(program, i, error));
    AOT_TRY(check_update(program, i, error));
  }
  return AOT_OK;
}

aot_status_t aot_program_reset(aot_program_t *program, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_code_t *code = &program->entry->code;
  memset(program->states, 0, code->state_count * sizeof *program->states);
  program->is_reset = true;
  program->is_stale = code->state_key_count > 0;
  return AOT_OK;
}

static aot_status_t execute(aot_program_t *program, aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  const size_t reset_bytes = (size_t)aot_code_reset_bytes(code);
  if (program->is_reset && reset_bytes > 0) {
    const aot_place_t start = {AOT_FBS_BUFFER_CLASS_ARENA, 0};
    AOT_TRY(program->driver->fill(program->device, start, reset_bytes, 0, error));
  }
  aot_poison_begin(program);
  memcpy(program->next_states, program->states, code->state_count * sizeof *program->states);
  return aot_interpret_execute(program, program->current, error);
}

// After a run that has ended well: what it set is what the next one, and the caller, sees.
static void take_results(aot_program_t *program) {
  const aot_code_t *code = &program->entry->code;
  program->output_dims = program->registers + code->register_count;
  const size_t key_bytes = code->state_key_count * sizeof *program->states;
  program->is_reset = false;  // not before: a run that failed may not have come to it
  program->is_stale = memcmp(program->states, program->next_states, key_bytes) != 0;
  memcpy(program->states, program->next_states, code->state_count * sizeof *program->states);
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    const aot_binding_t *input = updated(program, i);
    const aot_binding_t *output = &program->bindings.outputs[i];
    if (input != NULL && output->bytes > 0) {
      memcpy((void *)input->address, (const void *)output->address, output->bytes);
    }
  }
}

static aot_status_t run(aot_program_t *program, aot_error_t *error) {
  aot_text_t missing = {.length = 0};
  for (uint32_t i = 0; i < program->bindings.input_count; ++i) {
    if (!program->inputs[i].has_data) append_name(&missing, program->entry->inputs[i].name);
  }
  if (missing.length > 0) {
    return aot_fail(error, AOT_ERROR_NOT_READY, "inputs not set: %s", missing.bytes);
  }
  AOT_TRY(prepare(program, error));
  if (program->hooks != NULL) AOT_TRY(program->hooks->before(program, error));
  AOT_TRY(bind_outputs(program, error));
  const aot_driver_t *driver = program->driver;
  AOT_TRY(driver->begin(program->device, &program->bindings, error));
  const aot_status_t status = execute(program, error);
  // The device must come to rest even after a failure.
  const aot_status_t end_status = driver->end(program->device, status == AOT_OK ? error : NULL);
  if (status != AOT_OK) return status;
  if (end_status == AOT_OK) take_results(program);
  if (end_status == AOT_OK && program->hooks != NULL) program->hooks->after(program);
  return end_status;
}

aot_status_t aot_program_run(aot_program_t *program, aot_error_t *error) {
  aot_error_t own;
  if (error == NULL) error = &own;
  AOT_TRY(aot_program_enter(program, error));
  program->is_busy = true;
  aot_status_t status = run(program, error);
#if defined(AOT_VULKAN)
  while (status == AOT_ERROR_DEVICE && aot_fallback_take(program, status, error))
    status = run(program, error);
  if (status == AOT_OK) aot_fallback_note_run(program);
#endif
  program->is_busy = false;
  return status;
}
