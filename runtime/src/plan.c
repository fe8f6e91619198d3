// Plans: what is known once input shapes are.  Runs prepare, checks bounds, sizes and places.
#include <string.h>

#include "program.h"
#include "status.h"

// What a plan is made for: the inputs' dims, and the state scalars behind them that prepare reads.
static size_t key_words(const aot_entry_t *entry) {
  return (size_t)entry->input_dim_count + entry->code.state_key_count;
}

static uint64_t plan_words(const aot_entry_t *entry) {
  return (uint64_t)entry->code.register_count + key_words(entry) + entry->output_dim_count +
         entry->output_count;
}

static aot_status_t allocate_plan(aot_program_t *program, aot_plan_t *plan, aot_error_t *error) {
  if (plan->memory != NULL) return AOT_OK;
  const aot_entry_t *entry = program->entry;
  AOT_TRY(aot_allocate(&program->allocator, plan_words(entry) * sizeof(int64_t), "a plan", error,
                       &plan->memory));
  plan->registers = plan->memory;
  plan->output_dims = plan->registers + entry->code.register_count;
  plan->input_dims = plan->output_dims + entry->output_dim_count;
  plan->output_bytes = (uint64_t *)(plan->input_dims + key_words(entry));
  return AOT_OK;
}

void aot_plan_free(aot_program_t *program, aot_plan_t *plan) {
  if (plan->memory == NULL) return;
  aot_release(&program->allocator, plan->memory,
              (size_t)(plan_words(program->entry) * sizeof(int64_t)));
  plan->memory = NULL;
}

// The plan of the shapes that are set, or the slot to make it in: an unused one, else the oldest.
static aot_plan_t *find_slot(aot_program_t *program, bool *out_is_planned) {
  const size_t bytes = key_words(program->entry) * sizeof(int64_t);
  aot_plan_t *slot = &program->plans[0];
  for (uint32_t i = 0; i < program->plan_count; ++i) {
    aot_plan_t *plan = &program->plans[i];
    if (plan->is_valid && memcmp(plan->input_dims, program->input_dims, bytes) == 0) {
      *out_is_planned = true;
      return plan;
    }
    if (slot->is_valid && (!plan->is_valid || plan->last_use < slot->last_use)) slot = plan;
  }
  *out_is_planned = false;
  return slot;
}

uint64_t aot_tensor_bytes(const aot_tensor_info_t *info, const int64_t *dims) {
  uint64_t bytes = aot_dtype_bytes(info->dtype);
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    if (__builtin_mul_overflow(bytes, (uint64_t)dims[axis], &bytes)) return UINT64_MAX;
  }
  return bytes;
}

// Checks what prepare declared for an output and computes its bytes.
static aot_status_t measure_output(const aot_program_t *program, aot_plan_t *plan, uint32_t index,
                                   aot_error_t *error) {
  const aot_tensor_info_t *info = &program->entry->outputs[index];
  int64_t *dims = plan->output_dims + program->outputs[index].first_dim;
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    const aot_dim_info_t *dim = &info->dims[axis];
    const bool is_static = dim->extent >= 0;
    const int64_t least = is_static ? dim->extent : dim->min;
    const int64_t most = is_static ? dim->extent : dim->max;
    if (dims[axis] < least || (most >= 0 && dims[axis] > most)) {
      return aot_fail(error, AOT_ERROR_SHAPE,
                      "output \"%s\": axis %u has extent %lld, outside what the module declares",
                      info->name, (unsigned)axis, (long long)dims[axis]);
    }
  }
  plan->output_bytes[index] = aot_tensor_bytes(info, dims);
  if (plan->output_bytes[index] <= PTRDIFF_MAX) return AOT_OK;
  return aot_fail(error, AOT_ERROR_MEMORY, "output \"%s\" does not fit the address space",
                  info->name);
}

static void reset_output_dims(const aot_program_t *program, aot_plan_t *plan) {
  const aot_entry_t *entry = program->entry;
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    for (uint32_t axis = 0; axis < entry->outputs[i].rank; ++axis) {
      plan->output_dims[program->outputs[i].first_dim + axis] = entry->outputs[i].dims[axis].extent;
    }
  }
}

// Places the buffers for the sizes that prepare gave.  Greedy placing may end behind the bound:
// what takes least at the largest sizes may take more at others.  Then the offsets for those serve.
static aot_status_t place_buffers(aot_program_t *program, aot_plan_t *plan, uint64_t *work,
                                  aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  AOT_TRY(aot_arena_place(code->buffers, code->buffer_count, code->arena_bytes, program->placements,
                          work, error, &plan->arena_bytes));
  const uint64_t bound = code->arena_bound_bytes;
  const bool is_above = bound != 0 && plan->arena_bytes > bound;
  if (is_above) plan->arena_bytes = bound;
  for (uint32_t i = 0; i < code->buffer_count; ++i) {
    const aot_arena_buffer_t *buffer = &code->buffers[i];
    aot_placement_t *placement = &program->placements[i];
    if (is_above) placement->offset = buffer->bound_offset;
    if (is_above && (placement->bytes > bound || placement->offset > bound - placement->bytes)) {
      return aot_fail(error, AOT_ERROR_BOUNDS, "arena buffer %u of %llu bytes is above its bound",
                      (unsigned)i, (unsigned long long)placement->bytes);
    }
    plan->registers[buffer->offset_register] = (int64_t)placement->offset;
  }
  return AOT_OK;
}

static aot_status_t make(aot_program_t *program, aot_plan_t *plan, aot_error_t *error) {
  const aot_entry_t *entry = program->entry;
  const aot_code_t *code = &entry->code;
  AOT_TRY(allocate_plan(program, plan, error));
  memcpy(plan->input_dims, program->input_dims, key_words(entry) * sizeof(int64_t));
  reset_output_dims(program, plan);
  for (uint32_t i = 0; i < code->buffer_count; ++i)
    program->placements[i].bytes = 0;
  plan->arena_bytes = code->arena_bytes;
  ++program->prepare_count;
  uint64_t work = program->work_budget;
  AOT_TRY(aot_interpret_prepare(program, plan, &work, error));
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    AOT_TRY(measure_output(program, plan, i, error));
  }
  return place_buffers(program, plan, &work, error);
}

// Makes the arena large enough, its state kept.  One with a state that grows gets all that it can
// ever need, where that is known: what is not used is not touched, and nothing moves.  A program
// whose shapes follow from its state needs a little more from run to run: it gets half as much
// again at once, up to what it can ever need.
aot_status_t aot_program_reserve(aot_program_t *program, uint64_t needed, aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  const uint64_t kept_bytes = program->is_reset ? 0 : code->state_bytes;
  uint64_t bytes = needed;
  if (code->growth_count > 0 && code->state_key_count == 0) {
    if (bytes < code->arena_bound_bytes) bytes = code->arena_bound_bytes;
  } else if (code->state_key_count > 0 && bytes > program->arena_bytes) {
    const uint64_t bound = code->arena_bound_bytes != 0 ? code->arena_bound_bytes : UINT64_MAX;
    bytes += (bytes - code->state_bytes) / 2;
    if (bytes > bound) bytes = bound > needed ? bound : needed;
  }
  aot_status_t status = program->driver->reserve(program->device, bytes, kept_bytes, error);
  if (status != AOT_OK && bytes > needed) {
    bytes = needed;
    status = program->driver->reserve(program->device, bytes, kept_bytes, error);
  }
  if (status == AOT_OK && bytes > program->arena_bytes) program->arena_bytes = bytes;
  if (status != AOT_OK && kept_bytes == 0) program->arena_bytes = 0;
  return status;
}

aot_status_t aot_plan_make(aot_program_t *program, aot_error_t *error) {
  bool is_planned = false;
  aot_plan_t *plan = find_slot(program, &is_planned);
  if (!is_planned) {
    plan->is_valid = false;
    AOT_TRY(make(program, plan, error));
    plan->is_valid = true;
  }
  AOT_TRY(aot_program_reserve(program, plan->arena_bytes, error));
  plan->last_use = ++program->use_count;
  program->current = plan;
  program->is_stale = false;
  return AOT_OK;
}
