// A program whose device fails: the same variant again on a device that is lost for the first time
// or the first time in long, else the next variant of the module that can do what is asked.
#include <string.h>

#include "device.h"
#include "program.h"
#include "shapes.h"
#include "sizes.h"
#include "tell.h"

// ---- the options ----

// The strings that a program's options name for its Vulkan driver.
#define STRINGS 3u

static void strings_of(aot_vulkan_options_t *options, const char **strings[STRINGS]) {
  strings[0] = &options->device;
  strings[1] = &options->library;
  strings[2] = &options->cache_dir;
}

// The caller's strings are gone after the program's creation.
static aot_status_t keep_strings(aot_program_t *program, aot_error_t *error) {
  aot_fallback_t *fallback = &program->fallback;
  const char **strings[STRINGS];
  strings_of(&fallback->vulkan, strings);
  for (uint32_t i = 0; i < STRINGS; ++i) {
    if (*strings[i] != NULL) fallback->bytes += strlen(*strings[i]) + 1;
  }
  if (fallback->bytes == 0) return AOT_OK;
  AOT_TRY(
      aot_allocate(&program->allocator, fallback->bytes, "the options", error, &fallback->memory));
  char *to = fallback->memory;
  for (uint32_t i = 0; i < STRINGS; ++i) {
    if (*strings[i] == NULL) continue;
    const size_t bytes = strlen(*strings[i]) + 1;
    *strings[i] = memcpy(to, *strings[i], bytes);
    to += bytes;
  }
  return AOT_OK;
}

aot_status_t aot_fallback_keep(aot_program_t *program, const aot_program_options_t *options,
                               const aot_making_t *making, aot_error_t *error) {
  aot_fallback_t *fallback = &program->fallback;
  fallback->making = making;
  if (program->driver != &aot_vulkan_driver) return AOT_OK;
  AOT_TRY(aot_vulkan_take_options(options, error, &fallback->vulkan));
  AOT_TRY(keep_strings(program, error));
  fallback->vulkan.size = sizeof fallback->vulkan;
  if (fallback->vulkan.own_device != NULL) {
    AOT_TRY(aot_struct_take(fallback->vulkan.own_device, "aot_vulkan_device_t",
                            &fallback->own_device, sizeof fallback->own_device, error));
    fallback->vulkan.own_device = &fallback->own_device;
  }
  fallback->options = *options;
  fallback->options.vulkan = &fallback->vulkan;
  fallback->options.entry = program->entry->name;
  fallback->options.target = NULL;
  fallback->may_leave = options->device == AOT_DEVICE_ANY && options->target == NULL;
  return AOT_OK;
}

void aot_fallback_forget(aot_program_t *program) {
  aot_fallback_t *fallback = &program->fallback;
  while (fallback->former != NULL) {
    aot_program_t *former = fallback->former;
    fallback->former = former->fallback.former;
    fallback->making->tear_down(former);
    aot_release(&program->allocator, former, sizeof *former);
  }
  fallback->former_count = 0;
}

void aot_fallback_free(aot_program_t *program) {
  aot_fallback_forget(program);
  aot_release(&program->allocator, program->fallback.memory, program->fallback.bytes);
}

// ---- another device ----

static bool has_same_tensors(const aot_tensor_info_t *a, const aot_tensor_info_t *b,
                             uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (a[i].rank != b[i].rank || a[i].dtype != b[i].dtype) return false;
  }
  return true;
}

static bool is_same(const aot_entry_t *a, const aot_entry_t *b) {
  return a->input_count == b->input_count && a->output_count == b->output_count &&
         has_same_tensors(a->inputs, b->inputs, a->input_count) &&
         has_same_tensors(a->outputs, b->outputs, a->output_count);
}

// Whether the shapes that are set are ones that another variant's entry point takes.
static bool takes_shapes(const aot_entry_t *entry, const aot_program_t *program) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < entry->input_count; ++i) {
    if (!program->inputs[i].has_shape) continue;
    const aot_tensor_t tensor = {.dims = program->input_dims + program->inputs[i].first_dim,
                                 .rank = entry->inputs[i].rank};
    if (aot_program_check_shape(&entry->inputs[i], &tensor, NULL, &bytes) != AOT_OK) return false;
  }
  return true;
}

// What the caller has set.
static void copy_bindings(const aot_program_t *from, aot_program_t *to) {
  const aot_entry_t *entry = from->entry;
  memcpy(to->input_dims, from->input_dims, entry->input_dim_count * sizeof *to->input_dims);
  memcpy(to->inputs, from->inputs, entry->input_count * sizeof *to->inputs);
  memcpy(to->bindings.inputs, from->bindings.inputs,
         entry->input_count * sizeof *to->bindings.inputs);
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    to->outputs[i] = from->outputs[i];
    to->outputs[i].owned = NULL;
    to->outputs[i].owned_bytes = 0;
  }
}

// A program that is as this one, from variant `first` on, prepared for the same shapes.  It shares
// the allocator.  NULL: there is none.
static aot_program_t *make_other(aot_program_t *program, const aot_program_options_t *options,
                                 uint32_t first) {
  const aot_making_t *making = program->fallback.making;
  void *memory = NULL;
  if (aot_allocate(&program->allocator, sizeof(aot_program_t), "the program", NULL, &memory) !=
      AOT_OK) {
    return NULL;
  }
  aot_program_t *other = memory;
  memset(other, 0, sizeof *other);
  other->allocator = program->allocator;
  other->module = program->module;
  other->work_budget = program->work_budget;
  other->caller_outputs = program->caller_outputs;
  other->plan_count = program->plan_count;
  aot_status_t status = making->set_up(other, options, first, NULL);
  if (status == AOT_OK &&
      !(is_same(program->entry, other->entry) && takes_shapes(other->entry, program))) {
    status = AOT_ERROR_UNSUPPORTED;
  }
  if (status == AOT_OK) {
    copy_bindings(program, other);
    status = making->plan(other, NULL);
  }
  if (status == AOT_OK) return other;
  making->tear_down(other);
  aot_release(&program->allocator, other, sizeof *other);
  return NULL;
}

// All of a program that is its device's, with that of another one.
static void swap(aot_program_t *a, aot_program_t *b) {
  aot_program_t before;
  const size_t begin = offsetof(aot_program_t, variant);
  const size_t bytes = sizeof before - begin;
  const ptrdiff_t plan = b->current - b->plans;
  memcpy((char *)&before + begin, (const char *)a + begin, bytes);
  memcpy((char *)a + begin, (const char *)b + begin, bytes);
  memcpy((char *)b + begin, (const char *)&before + begin, bytes);
  a->current = &a->plans[plan];
}

// The memory of outputs, which the caller may know, stays the program's.
static void keep_outputs(aot_program_t *program, aot_program_t *other) {
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    aot_output_t *own = &program->outputs[i], *made = &other->outputs[i];
    if (own->owned_bytes < made->owned_bytes) continue;
    aot_release(&program->allocator, made->owned, made->owned_bytes);
    made->owned = own->owned;
    made->owned_bytes = own->owned_bytes;
    own->owned = NULL;
    own->owned_bytes = 0;
  }
}

static bool move(aot_program_t *program, const aot_program_options_t *options, uint32_t first,
                 const char *why) {
  aot_program_t *other = make_other(program, options, first);
  if (other == NULL) return false;
  const char *target = program->variant->target;
  aot_text_t skipped = program->skipped;
  if (first > (uint32_t)(program->variant - program->module->variants)) {
    aot_text_append(&skipped, "%s%s: %s", skipped.length > 0 ? "; " : "", target, why);
  }
  keep_outputs(program, other);
  swap(program, other);
  program->skipped = skipped;
  other->driver->close(other->device);
  other->device = NULL;
  other->fallback.former = program->fallback.former;
  program->fallback.former = other;
  ++program->fallback.former_count;
  aot_vk_tell(
      &program->fallback.vulkan, AOT_VULKAN_WARNING, "%s: %s; the program goes on %s", target, why,
      program->variant->target == target ? "on the device, made anew" : program->variant->target);
  return true;
}

// A device that was made anew counts as sound after so many runs.
#define SOUND_RUNS 100u
// Devices that failed, of which the caller may know dims still.
#define MOST_FORMER 8u

void aot_fallback_note_run(aot_program_t *program) {
  aot_fallback_t *fallback = &program->fallback;
  if (fallback->runs_to_sound > 0) --fallback->runs_to_sound;
}

// Whether a device that was lost is made anew, and not given up.
static bool may_rebuild(const aot_program_t *program) {
  const aot_fallback_t *fallback = &program->fallback;
  return fallback->vulkan.own_device == NULL && fallback->runs_to_sound == 0 &&
         fallback->former_count < MOST_FORMER && !program->device->is_hung;
}

// A run of a state's next step can't be done without what the device has kept.
static bool keeps_something(const aot_program_t *program) {
  return program->entry->state_count > 0 && !program->is_reset;
}

// Whether an input or output is in a buffer of the device.
static bool is_bound(const aot_program_t *program) {
  for (uint32_t i = 0; i < program->bindings.input_count; ++i) {
    if (program->bindings.inputs[i].outside.buffer != 0) return true;
  }
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    if (program->outputs[i].outside.buffer != 0) return true;
  }
  return false;
}

bool aot_fallback_take(aot_program_t *program, aot_status_t status, aot_error_t *error) {
  aot_fallback_t *fallback = &program->fallback;
  if (program->driver != &aot_vulkan_driver || keeps_something(program) || is_bound(program)) {
    return false;
  }
  if (status != AOT_ERROR_DEVICE && status != AOT_ERROR_MEMORY && status != AOT_ERROR_UNSUPPORTED &&
      status != AOT_ERROR_CHECK) {
    return false;
  }
  const uint32_t index = (uint32_t)(program->variant - program->module->variants);
  bool is_taken = false;
  if (status == AOT_ERROR_DEVICE && may_rebuild(program)) {
    fallback->runs_to_sound = SOUND_RUNS;
    aot_program_options_t same = fallback->options;
    same.target = program->variant->target;
    is_taken = move(program, &same, index, error->message);
  }
  if (!is_taken && fallback->may_leave) {
    is_taken = move(program, &fallback->options, index + 1, error->message);
  }
  if (is_taken) *error = (aot_error_t){AOT_OK, ""};
  return is_taken;
}
