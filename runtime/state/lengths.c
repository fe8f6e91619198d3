// How long the states are that grow, and making them shorter.
#include "aot/state.h"
#include "program.h"
#include "status.h"

static uint64_t length_of(const aot_program_t *program, const aot_growth_t *growth) {
  return (uint64_t)program->states[growth->scalar];
}

uint64_t aot_program_length(const aot_program_t *program) {
  const aot_code_t *code = &program->entry->code;
  uint64_t longest = 0;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t length = length_of(program, &code->growths[i]);
    if (length > longest) longest = length;
  }
  return longest;
}

uint64_t aot_program_capacity(const aot_program_t *program) {
  const aot_code_t *code = &program->entry->code;
  uint64_t shortest = code->growth_count > 0 ? UINT64_MAX : 0;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t capacity = code->growths[i].stride_bytes / code->growths[i].row_bytes;
    if (capacity < shortest) shortest = capacity;
  }
  return shortest;
}

aot_status_t aot_program_rewind(aot_program_t *program, uint64_t length, aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  if (code->growth_count == 0 || code->growth_count != program->entry->state_count) {
    return aot_fail(
        error, AOT_ERROR_UNSUPPORTED, "cannot rewind: entry point \"%s\" keeps %s",
        program->entry->name,
        program->entry->state_count == 0 ? "no state" : "a state that does not grow; reset it");
  }
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t found = length_of(program, &code->growths[i]);
    if (length <= found) continue;
    return aot_fail(error, AOT_ERROR_ARGUMENT, "cannot rewind to %llu: the state has length %llu",
                    (unsigned long long)length, (unsigned long long)found);
  }
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    program->states[code->growths[i].scalar] = (int64_t)length;
  }
  program->is_stale = code->state_key_count > 0;
  return AOT_OK;
}
