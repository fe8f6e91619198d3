// The pieces of a program's arena that its state is, in the order in which state files have them:
// what is before the growths, then the rows in use of each growth's blocks.
#ifndef AOT_PIECES_H_
#define AOT_PIECES_H_

#include "program.h"

// What a visit does with the pieces, one after the other.
typedef struct aot_walk_t {
  uint8_t *arena;
  const uint8_t *bytes;  // that the state is read or checked from
  void *file;            // that it is written to
  uint64_t checksum;
  uint64_t done;  // bytes of the pieces visited so far
  bool failed;
} aot_walk_t;

typedef void (*aot_visit_t)(aot_walk_t *walk, uint64_t offset, uint64_t bytes);

// A piece without bytes is one too, since checksums know of it; but no state has so many of them
// that they are the work.
void aot_state_visit(aot_walk_t *walk, const aot_code_t *code, const int64_t *scalars,
                     aot_visit_t visit);

// The length of the longest growth by these scalars; 0 where there is none.
uint64_t aot_state_length(const aot_code_t *code, const int64_t *scalars);

// Copies the scalars that stored bytes begin with into program->next_states.  False where no run
// leaves such scalars, or where the pieces that follow them have another size.
bool aot_state_read_scalars(aot_program_t *program, const uint8_t *bytes, uint64_t count);

// The arena in the host's memory, large enough for the state.  Fails with AOT_ERROR_UNSUPPORTED on
// a GPU.
aot_status_t aot_state_open_arena(aot_program_t *program, aot_error_t *error, uint8_t **out_arena);

// Makes stored bytes the program's state, of which aot_state_read_scalars has read the scalars.
void aot_state_adopt(aot_program_t *program, uint8_t *arena, const uint8_t *bytes);

#endif  // AOT_PIECES_H_
