// How long the states are that grow, and making them shorter.
#include "aot/state.h"
#include "pieces.h"
#include "program.h"
#include "status.h"

static uint64_t length_of(const aot_program_t *program, const aot_growth_t *growth) {
  return (uint64_t)program->states[growth->scalar];
}

uint64_t aot_program_length(const aot_program_t *program) {
  if (program == NULL) return 0;
  return aot_state_length(&program->entry->code, program->states);
}

uint64_t aot_program_capacity(const aot_program_t *program) {
  if (program == NULL) return 0;
  const aot_code_t *code = &program->entry->code;
  uint64_t shortest = code->growth_count > 0 ? UINT64_MAX : 0;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t capacity = code->growths[i].stride_bytes / code->growths[i].row_bytes;
    if (code->growths[i].window == 0 && capacity < shortest) shortest = capacity;
  }
  return shortest;
}

// How short a state of `found` rows can become.  One with a window that has lost its first rows has
// to keep as many as the window needs.
static uint64_t shortest_of(const aot_growth_t *growth, uint64_t found, uint64_t longest) {
  if (growth->window == 0 || found == longest) return 0;
  return growth->window < found ? growth->window : found;
}

aot_status_t aot_program_rewind(aot_program_t *program, uint64_t length, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  const aot_code_t *code = &program->entry->code;
  if (code->growth_count == 0 || code->growth_count != program->entry->state_count) {
    return aot_fail(
        error, AOT_ERROR_UNSUPPORTED, "cannot rewind: entry point \"%s\" keeps %s",
        program->entry->name,
        program->entry->state_count == 0 ? "no state" : "a state that does not grow; reset it");
  }
  const uint64_t longest = aot_program_length(program);
  uint64_t most_forgotten = longest;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t found = length_of(program, &code->growths[i]);
    const uint64_t kept = shortest_of(&code->growths[i], found, longest);
    if (code->growths[i].window == 0 && length > found) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "cannot rewind to %llu: the state has length %llu",
                      (unsigned long long)length, (unsigned long long)found);
    }
    if (found - kept < most_forgotten) most_forgotten = found - kept;
  }
  if (length > 0 && longest - length > most_forgotten) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "cannot rewind to %llu: of %llu rows the state's windows keep what the last "
                    "%llu need; reset the program",
                    (unsigned long long)length, (unsigned long long)longest,
                    (unsigned long long)most_forgotten);
  }
  int64_t *next = program->next_states;  // a run sets them before it reads them
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t found = length_of(program, &code->growths[i]);
    const bool is_all_known = length == 0 || code->growths[i].window == 0;
    const uint64_t rest = is_all_known ? length : found - (longest - length);
    next[code->growths[i].scalar] = (int64_t)rest;
  }
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    program->states[code->growths[i].scalar] = next[code->growths[i].scalar];
  }
  program->is_stale = code->state_key_count > 0;
  return AOT_OK;
}
