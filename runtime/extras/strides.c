// Inputs and outputs with strides: gathered before a run, scattered after it.
#include "aot/strides.h"

#include <string.h>

#include "program.h"
#include "shapes.h"
#include "sizes.h"
#include "status.h"

// An input or output with strides.
typedef struct aot_strided_t {
  uint8_t *data;  // the caller's
  // Two numbers an axis: dims that there is room for, then strides.
  int64_t *numbers;
  void *dense;  // of an input
  size_t dense_bytes;
} aot_strided_t;

// One block of memory: those of the inputs, of the outputs, and their numbers.
typedef struct aot_strides_t {
  size_t bytes;
  aot_strided_t *inputs;
  aot_strided_t *outputs;
} aot_strides_t;

// ---- copying ----

typedef struct aot_copy_t {
  const int64_t *dims;
  const int64_t *strides;
  uint32_t rank;
  size_t element;
  bool gathers;
} aot_copy_t;

// A size that the compiler knows is a move, not a call.
static void copy_element(uint8_t *to, const uint8_t *from, size_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      break;
    case 2:
      memcpy(to, from, 2);
      break;
    case 4:
      memcpy(to, from, 4);
      break;
    default:
      memcpy(to, from, 8);
      break;
  }
}

static void copy_bytes(uint8_t *strided, uint8_t *dense, size_t bytes, bool gathers) {
  if (gathers) {
    memcpy(dense, strided, bytes);
  } else {
    memcpy(strided, dense, bytes);
  }
}

// Copies the last axis; returns what is behind it in the dense tensor.
static uint8_t *copy_row(const aot_copy_t *copy, uint8_t *strided, uint8_t *dense) {
  const uint32_t last = copy->rank - 1;
  const size_t extent = (size_t)copy->dims[last];
  const size_t stride = (size_t)copy->strides[last];
  if (stride == copy->element) {
    copy_bytes(strided, dense, extent * stride, copy->gathers);
    return dense + extent * stride;
  }
  for (size_t i = 0; i < extent; ++i, strided += stride, dense += copy->element) {
    copy_element(copy->gathers ? dense : strided, copy->gathers ? strided : dense, copy->element);
  }
  return dense;
}

// Copies all elements, in the order of the dense tensor.  `position` has room for each axis.
static void copy_all(const aot_copy_t *copy, uint8_t *strided, uint8_t *dense, int64_t *position) {
  if (copy->rank == 0) {
    copy_bytes(strided, dense, copy->element, copy->gathers);
    return;
  }
  for (uint32_t axis = 0; axis < copy->rank; ++axis) {
    if (copy->dims[axis] == 0) return;
    position[axis] = 0;
  }
  uint32_t axis = copy->rank - 1;
  do {
    dense = copy_row(copy, strided, dense);
    for (axis = copy->rank - 1; axis-- > 0;) {
      strided += copy->strides[axis];
      if (++position[axis] < copy->dims[axis]) break;
      strided -= copy->strides[axis] * copy->dims[axis];
      position[axis] = 0;
    }
  } while (axis < copy->rank);
}

// ---- runs ----

static int64_t *strides_of(const aot_strided_t *strided, uint32_t rank) {
  return strided->numbers + rank;
}

static int64_t *position_of(const aot_strided_t *strided, uint32_t rank) {
  return strided->numbers + 2 * (size_t)rank;
}

static aot_status_t check_room(const aot_program_t *program, uint32_t index, aot_error_t *error) {
  const aot_strides_t *state = program->hooks_state;
  const aot_tensor_info_t *info = &program->entry->outputs[index];
  const int64_t *room = state->outputs[index].numbers;
  const int64_t *dims = program->output_dims + program->outputs[index].first_dim;
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    if (dims[axis] <= room[axis]) continue;
    return aot_fail(error, AOT_ERROR_CAPACITY,
                    "output \"%s\" has extent %lld along axis %u, its memory has room for %lld",
                    info->name, (long long)dims[axis], (unsigned)axis, (long long)room[axis]);
  }
  return AOT_OK;
}

static aot_status_t before_run(aot_program_t *program, aot_error_t *error) {
  const aot_strides_t *state = program->hooks_state;
  const aot_entry_t *entry = program->entry;
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    if (program->outputs[i].is_strided) AOT_TRY(check_room(program, i, error));
  }
  for (uint32_t i = 0; i < entry->input_count; ++i) {
    if (!program->inputs[i].is_strided) continue;
    const uint32_t rank = entry->inputs[i].rank;
    const aot_strided_t *strided = &state->inputs[i];
    const aot_copy_t copy = {strided->numbers, strides_of(strided, rank), rank,
                             aot_dtype_bytes(entry->inputs[i].dtype), true};
    copy_all(&copy, strided->data, strided->dense, position_of(strided, rank));
  }
  return AOT_OK;
}

static void after_run(aot_program_t *program) {
  const aot_strides_t *state = program->hooks_state;
  const aot_entry_t *entry = program->entry;
  for (uint32_t i = 0; i < entry->output_count; ++i) {
    const aot_output_t *output = &program->outputs[i];
    if (!output->is_strided) continue;
    const uint32_t rank = entry->outputs[i].rank;
    const aot_strided_t *strided = &state->outputs[i];
    const int64_t *dims = program->output_dims + output->first_dim;  // of the run
    const aot_copy_t copy = {dims, strides_of(strided, rank), rank,
                             aot_dtype_bytes(entry->outputs[i].dtype), false};
    copy_all(&copy, strided->data, output->owned, position_of(strided, rank));
  }
}

static void release(aot_program_t *program) {
  aot_strides_t *state = program->hooks_state;
  for (uint32_t i = 0; i < program->entry->input_count; ++i) {
    aot_release(&program->allocator, state->inputs[i].dense, state->inputs[i].dense_bytes);
  }
  aot_release(&program->allocator, state, state->bytes);
  program->hooks = NULL;
  program->hooks_state = NULL;
}

static const aot_run_hooks_t hooks = {before_run, after_run, release};

// ---- setting ----

static size_t numbers_of(const aot_tensor_info_t *tensors, uint32_t count) {
  size_t numbers = 0;
  for (uint32_t i = 0; i < count; ++i)
    numbers += 3 * (size_t)tensors[i].rank;
  return numbers;
}

static int64_t *place_numbers(const aot_tensor_info_t *tensors, uint32_t count, int64_t *numbers,
                              aot_strided_t *out_strided) {
  for (uint32_t i = 0; i < count; ++i) {
    out_strided[i].numbers = numbers;
    numbers += 3 * (size_t)tensors[i].rank;
  }
  return numbers;
}

static aot_status_t begin(aot_program_t *program, aot_error_t *error) {
  if (program->hooks != NULL) return AOT_OK;
  const aot_entry_t *entry = program->entry;
  const size_t numbers = numbers_of(entry->inputs, entry->input_count) +
                         numbers_of(entry->outputs, entry->output_count);
  const size_t count = (size_t)entry->input_count + entry->output_count;
  const size_t bytes =
      sizeof(aot_strides_t) + count * sizeof(aot_strided_t) + numbers * sizeof(int64_t);
  void *memory = NULL;
  AOT_TRY(aot_allocate(&program->allocator, bytes, "strides", error, &memory));
  memset(memory, 0, bytes);
  aot_strides_t *state = memory;
  state->bytes = bytes;
  int64_t *first = (int64_t *)(state + 1);
  state->inputs = (aot_strided_t *)(first + numbers);
  state->outputs = state->inputs + entry->input_count;
  first = place_numbers(entry->inputs, entry->input_count, first, state->inputs);
  (void)place_numbers(entry->outputs, entry->output_count, first, state->outputs);
  program->hooks = &hooks;
  program->hooks_state = state;
  return AOT_OK;
}

// What a check of strides is about.
typedef struct aot_subject_t {
  const char *kind;
  const aot_tensor_info_t *info;
  const aot_tensor_t *tensor;
  const int64_t *strides;
} aot_subject_t;

// The bytes from the first element's to the last one's end; fails where strides are no multiples of
// the element, or what they span does not fit.
static aot_status_t measure(const aot_subject_t *s, aot_error_t *error, uint64_t *out_span) {
  const uint64_t element = aot_dtype_bytes(s->info->dtype);
  uint64_t span = element;
  bool is_empty = false;
  for (uint32_t axis = 0; axis < s->info->rank; ++axis) {
    const int64_t stride = s->strides[axis];
    const int64_t extent = s->tensor->dims[axis];
    if (stride < 0 || (uint64_t)stride % element != 0) {
      return aot_fail(
          error, AOT_ERROR_ARGUMENT,
          "%s \"%s\": stride %lld along axis %u, expected 0 or a multiple of %llu bytes", s->kind,
          s->info->name, (long long)stride, (unsigned)axis, (unsigned long long)element);
    }
    uint64_t more = 0;
    is_empty = is_empty || extent == 0;
    if (extent > 0 && (__builtin_mul_overflow((uint64_t)extent - 1, (uint64_t)stride, &more) ||
                       __builtin_add_overflow(span, more, &span))) {
      span = UINT64_MAX;
      break;
    }
  }
  *out_span = is_empty ? 0 : span;
  if (*out_span <= s->tensor->bytes) return AOT_OK;
  return aot_fail(error, AOT_ERROR_CAPACITY, "%s \"%s\": its memory has %zu bytes, its strides %s",
                  s->kind, s->info->name, s->tensor->bytes, "go beyond them");
}

// Takes the caller's tensor; checks what set_input does not.
static aot_status_t take(const aot_program_t *program, const aot_tensor_t *callers,
                         aot_subject_t *subject, aot_tensor_t *own, aot_error_t *error) {
  const aot_tensor_info_t *info = subject->info;
  AOT_TRY(aot_struct_take(callers, "aot_tensor_t", own, sizeof *own, error));
  subject->tensor = own;
  const bool has_axes = own->dims != NULL && subject->strides != NULL;
  if (own->data == NULL || (own->rank > 0 && !has_axes)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s \"%s\": strides, dims or data is NULL",
                    subject->kind, info->name);
  }
  if (own->dtype != info->dtype) {
    return aot_fail(error, AOT_ERROR_DTYPE, "%s \"%s\": dtype %s expected", subject->kind,
                    info->name, aot_dtype_name(info->dtype));
  }
  if (own->rank != info->rank) {
    return aot_fail(error, AOT_ERROR_SHAPE, "%s \"%s\": rank %u, expected %u", subject->kind,
                    info->name, (unsigned)own->rank, (unsigned)info->rank);
  }
  for (uint32_t axis = 0; axis < own->rank; ++axis) {
    if (own->dims[axis] >= 0) continue;
    return aot_fail(error, AOT_ERROR_SHAPE, "%s \"%s\": extent %lld along axis %u", subject->kind,
                    info->name, (long long)own->dims[axis], (unsigned)axis);
  }
  if ((uintptr_t)own->data % aot_dtype_bytes(info->dtype) != 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s \"%s\": its memory is not aligned to %zu bytes",
                    subject->kind, info->name, aot_dtype_bytes(info->dtype));
  }
  uint64_t span = 0;
  AOT_TRY(measure(subject, error, &span));
  return aot_program_check_own(program, subject->kind, info->name, own->data, (size_t)span, error);
}

static void keep(aot_strided_t *strided, const aot_subject_t *subject) {
  const size_t bytes = subject->info->rank * sizeof(int64_t);
  strided->data = subject->tensor->data;
  if (bytes == 0) return;
  memcpy(strided->numbers, subject->tensor->dims, bytes);
  memcpy(strides_of(strided, subject->info->rank), subject->strides, bytes);
}

static bool is_written(const aot_program_t *program, size_t input) {
  for (size_t i = 0; i < aot_program_output_count(program); ++i) {
    size_t updated = 0;
    if (aot_program_get_update(program, i, &updated) && updated == input) return true;
  }
  return false;
}

// Memory for the dense copy of an input; what it had stays where there is none.
static aot_status_t make_dense(aot_program_t *program, aot_strided_t *strided, uint64_t bytes,
                               const char *name, aot_error_t *error) {
  if (strided->dense != NULL && strided->dense_bytes >= bytes) return AOT_OK;
  void *memory = NULL;
  AOT_TRY(aot_allocate(&program->allocator, bytes, name, error, &memory));
  aot_release(&program->allocator, strided->dense, strided->dense_bytes);
  strided->dense = memory;
  strided->dense_bytes = (size_t)bytes;
  return AOT_OK;
}

aot_status_t aot_program_set_input_strided(aot_program_t *program, size_t index,
                                           const aot_tensor_t *tensor, const int64_t *strides,
                                           aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_tensor_info_t *info = aot_program_input_info(program, index);
  if (info == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no input %zu", index);
  aot_subject_t subject = {"input", info, NULL, strides};
  aot_tensor_t own;
  AOT_TRY(take(program, tensor, &subject, &own, error));
  if (is_written(program, index)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "input \"%s\" is written by the program: it must be dense", info->name);
  }
  uint64_t bytes = 0;
  AOT_TRY(aot_program_check_shape(info, &own, error, &bytes));
  AOT_TRY(begin(program, error));
  aot_strides_t *state = program->hooks_state;
  aot_strided_t *strided = &state->inputs[index];
  AOT_TRY(make_dense(program, strided, bytes, info->name, error));
  const aot_tensor_t dense = {sizeof dense, own.dtype,      own.rank,
                              own.dims,     strided->dense, (size_t)bytes};
  AOT_TRY(aot_program_set_input(program, index, &dense, error));
  keep(strided, &subject);
  program->inputs[index].is_strided = true;
  return AOT_OK;
}

// Whether no two elements have one place: each axis steps over all that smaller strides reach.
static bool is_apart(const aot_subject_t *s) {
  const uint64_t element = aot_dtype_bytes(s->info->dtype);
  for (uint32_t axis = 0; axis < s->info->rank; ++axis) {
    if (s->tensor->dims[axis] <= 1) continue;
    uint64_t reached = element;
    for (uint32_t other = 0; other < s->info->rank; ++other) {
      const bool is_inner = s->strides[other] < s->strides[axis] ||
                            (s->strides[other] == s->strides[axis] && other > axis);
      if (is_inner && s->tensor->dims[other] > 0) {
        reached += (uint64_t)(s->tensor->dims[other] - 1) * (uint64_t)s->strides[other];
      }
    }
    if ((uint64_t)s->strides[axis] < reached) return false;
  }
  return true;
}

aot_status_t aot_program_set_output_strided(aot_program_t *program, size_t index,
                                            const aot_tensor_t *tensor, const int64_t *strides,
                                            aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_tensor_info_t *info = aot_program_output_info(program, index);
  if (info == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no output %zu", index);
  aot_subject_t subject = {"output", info, NULL, strides};
  aot_tensor_t own;
  AOT_TRY(take(program, tensor, &subject, &own, error));
  if (!is_apart(&subject)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "output \"%s\": two elements have the same place",
                    info->name);
  }
  AOT_TRY(begin(program, error));
  AOT_TRY(aot_program_set_output(program, index, NULL, 0, error));
  aot_strides_t *state = program->hooks_state;
  keep(&state->outputs[index], &subject);
  program->outputs[index].is_strided = true;
  return AOT_OK;
}
