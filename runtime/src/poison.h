// Finding reads of what nobody wrote, and writes to what is nobody's: builds with AOT_POISON fill
// memory with a pattern and check zones around it (tests/poison.c). All of this is nothing in other
// builds, and no package can have it: docs/internals/memory-checks.md.
#ifndef AOT_POISON_H_
#define AOT_POISON_H_

#include "aot/aot.h"
#include "status.h"

#ifdef AOT_POISON

#include <stdlib.h>
#include <string.h>

// Around the arena, and before and behind each thread's scratch.
#define AOT_POISON_ZONE ((size_t)4096)

// The byte that memory is filled with: what the environment says, else 0xA5.
uint8_t aot_poison_byte(void);

// Fills a zone with bytes that differ from their neighbours, so that no fill passes for them.
void aot_poison_set_zone(uint8_t *zone);
// How many of a zone's bytes there are up to the last that was written, counted from its start; 0
// where none was.
size_t aot_poison_written(const uint8_t *zone);

// A buffer of the arena whose offset is fixed, and the positions at which it is needed, inclusive.
typedef struct aot_poison_buffer_t {
  uint64_t offset;
  uint64_t bytes;
  uint32_t first;
  uint32_t last;
} aot_poison_buffer_t;

// The position of a DISPATCH instruction.
typedef struct aot_poison_site_t {
  uint32_t word;
  uint32_t position;
} aot_poison_site_t;

// What compilers know of a program and modules don't say.
typedef struct aot_poison_plan_t {
  const aot_poison_site_t *sites;
  const aot_poison_buffer_t *buffers;
  uint32_t site_count;
  uint32_t buffer_count;
} aot_poison_plan_t;

// Has the runs of a program fill what is dead at each dispatch of a site, and refuse writes to it.
// *Borrows* the plan's arrays until the program is destroyed.
AOT_API void aot_poison_set_plan(aot_program_t *program, const aot_poison_plan_t *plan);

struct aot_plan_t;
// Before a run: fills what none before it has left: the arena but for states, rows of states that
// are not in use, outputs.
void aot_poison_begin(aot_program_t *program);
// Before the dispatch at a word: fills what no live buffer has.
void aot_poison_before(aot_program_t *program, uint32_t word);
// After it: nobody has written there.
aot_status_t aot_poison_after(aot_program_t *program, uint32_t word, uint32_t executable,
                              aot_error_t *error);

#else

#define AOT_POISON_ZONE ((size_t)0)
#define aot_poison_begin(program) ((void)(program))
#define aot_poison_before(program, word) ((void)(program), (void)(word))
#define aot_poison_after(program, word, executable, error) AOT_OK

#endif

// Memory inside its zones, and the block that was allocated with them.
static inline void *aot_poison_inside(void *block) {
  return block == NULL ? NULL : (uint8_t *)block + AOT_POISON_ZONE;
}
static inline void *aot_poison_block(void *memory) {
  return memory == NULL ? NULL : (uint8_t *)memory - AOT_POISON_ZONE;
}

#endif  // AOT_POISON_H_
