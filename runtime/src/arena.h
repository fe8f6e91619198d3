// Where the buffers of a plan lie in the arena.
#ifndef AOT_ARENA_H_
#define AOT_ARENA_H_

#include "module.h"

typedef struct aot_placement_t {
  uint64_t bytes;   // in: 0 takes no room
  uint64_t offset;  // out
  uint32_t order;   // scratch: i-th largest buffer
  uint32_t placed;  // scratch: i-th placed buffer by offset
} aot_placement_t;

// Greedy by size, first fit: the largest buffer first (the lower index when equal), each at the
// lowest offset from `begin` on where it meets no placed buffer whose lifetime, inclusive,
// overlaps. Takes O(count^2) steps at most and no memory; each 64 of them take one unit of *work,
// which ends with AOT_ERROR_BUDGET where there are no more, unless it is UINT64_MAX.  out_end is
// the first byte behind them all.
aot_status_t aot_arena_place(const aot_arena_buffer_t *buffers, uint32_t count, uint64_t begin,
                             aot_placement_t *placements, uint64_t *work, aot_error_t *error,
                             uint64_t *out_end);

#endif  // AOT_ARENA_H_
