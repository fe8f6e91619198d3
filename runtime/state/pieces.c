#include "pieces.h"

#include <string.h>

#include "status.h"

#define MOST_EMPTY_BLOCKS 4096u

// Of each block of a growth.
static uint64_t bytes_in_use(const aot_growth_t *growth, const int64_t *scalars) {
  return (uint64_t)scalars[growth->scalar] * growth->row_bytes;
}

void aot_state_visit(aot_walk_t *walk, const aot_code_t *code, const int64_t *scalars,
                     aot_visit_t visit) {
  visit(walk, 0, aot_code_reset_bytes(code));
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const aot_growth_t *growth = &code->growths[i];
    const uint64_t bytes = bytes_in_use(growth, scalars);
    if (bytes == 0 && growth->blocks > MOST_EMPTY_BLOCKS) continue;
    for (uint32_t b = 0; b < growth->blocks; ++b) {
      visit(walk, growth->offset + (uint64_t)b * growth->stride_bytes, bytes);
    }
  }
}

uint64_t aot_state_length(const aot_code_t *code, const int64_t *scalars) {
  uint64_t longest = 0;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const uint64_t length = (uint64_t)scalars[code->growths[i].scalar];
    if (length > longest) longest = length;
  }
  return longest;
}

// There are no more pieces than stored bytes then, but for empty ones.
bool aot_state_read_scalars(aot_program_t *program, const uint8_t *bytes, uint64_t count) {
  const aot_code_t *code = &program->entry->code;
  int64_t *scalars = program->next_states;  // a run sets them before it reads them
  const uint64_t scalar_bytes = code->state_count * sizeof *scalars;
  if (count < scalar_bytes) return false;
  memcpy(scalars, bytes, (size_t)scalar_bytes);
  uint64_t all = scalar_bytes + aot_code_reset_bytes(code);
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const aot_growth_t *growth = &code->growths[i];
    const int64_t length = scalars[growth->scalar];
    if (length < 0 || length > (int64_t)(growth->stride_bytes / growth->row_bytes)) return false;
    const uint64_t own = growth->blocks * bytes_in_use(growth, scalars);  // inside of the state
    if (__builtin_add_overflow(all, own, &all)) return false;
  }
  return all == count;
}

aot_status_t aot_state_open_arena(aot_program_t *program, aot_error_t *error, uint8_t **out_arena) {
  *out_arena = NULL;
  if (program->driver->arena == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "the state of a program on %s cannot be saved or loaded, only on a CPU",
                    program->driver->name);
  }
  AOT_TRY(aot_program_reserve(program, program->entry->code.arena_bytes, error));
  *out_arena = program->driver->arena(program->device);
  return AOT_OK;
}

static void read_piece(aot_walk_t *walk, uint64_t offset, uint64_t bytes) {
  memcpy(walk->arena + offset, walk->bytes + walk->done, (size_t)bytes);
  walk->done += bytes;
}

void aot_state_adopt(aot_program_t *program, uint8_t *arena, const uint8_t *bytes) {
  const aot_code_t *code = &program->entry->code;
  const uint64_t scalar_bytes = code->state_count * sizeof *program->states;
  aot_walk_t walk = {.arena = arena, .bytes = bytes, .done = scalar_bytes};
  aot_state_visit(&walk, code, program->next_states, read_piece);
  memcpy(program->states, program->next_states, (size_t)scalar_bytes);
  program->is_reset = false;
  program->is_stale = code->state_key_count > 0;
}
