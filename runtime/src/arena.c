#include "arena.h"

#include <string.h>

#include "status.h"

// Sizes and offsets stay below this, so that sums of two don't overflow.
#define AOT_ARENA_LIMIT ((uint64_t)1 << 62)
// To look at as many takes about as long as a unit of other work.
#define PLACED_PER_UNIT 64u

// True when buffer a is placed after buffer b.
static bool comes_after(const aot_placement_t *placements, uint32_t a, uint32_t b) {
  if (placements[a].bytes != placements[b].bytes) return placements[a].bytes < placements[b].bytes;
  return a > b;
}

// Lets the element at `root` sink in the heap of `count` elements, whose top comes last.
static void sift_down(aot_placement_t *placements, uint32_t root, uint32_t count) {
  for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
    if (child + 1 < count &&
        comes_after(placements, placements[child + 1].order, placements[child].order)) {
      ++child;
    }
    const uint32_t parent = placements[root].order;
    if (!comes_after(placements, placements[child].order, parent)) return;
    placements[root].order = placements[child].order;
    placements[child].order = parent;
  }
}

// Heap sort: libc's qsort may allocate.
static void sort_by_size(aot_placement_t *placements, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    placements[i].order = i;
  for (uint32_t i = count / 2; i-- > 0;)
    sift_down(placements, i, count);
  for (uint32_t end = count; end-- > 1;) {
    const uint32_t top = placements[0].order;
    placements[0].order = placements[end].order;
    placements[end].order = top;
    sift_down(placements, 0, end);
  }
}

static uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// The lowest offset for a buffer among `placed` others, which are in order of their offsets.
static uint64_t find_offset(const aot_arena_buffer_t *buffers, const aot_placement_t *placements,
                            uint32_t index, uint32_t placed, uint64_t begin) {
  const aot_arena_buffer_t *buffer = &buffers[index];
  uint64_t offset = align_up(begin, buffer->alignment);
  for (uint32_t i = 0; i < placed; ++i) {
    const uint32_t other = placements[i].placed;
    if (buffers[other].first > buffer->last || buffers[other].last < buffer->first) continue;
    if (offset + placements[index].bytes <= placements[other].offset) break;
    const uint64_t after =
        align_up(placements[other].offset + placements[other].bytes, buffer->alignment);
    if (after > offset) offset = after;
  }
  return offset;
}

aot_status_t aot_arena_place(const aot_arena_buffer_t *buffers, uint32_t count, uint64_t begin,
                             aot_placement_t *placements, uint64_t *work, aot_error_t *error,
                             uint64_t *out_end) {
  *out_end = begin;
  uint64_t total = begin;
  for (uint32_t i = 0; i < count && total <= AOT_ARENA_LIMIT; ++i) {
    const uint64_t bytes = placements[i].bytes;
    total = bytes > AOT_ARENA_LIMIT ? bytes : total + bytes + AOT_ALIGNMENT;
  }
  if (total > AOT_ARENA_LIMIT) {
    return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: the arena does not fit 62 bits");
  }
  sort_by_size(placements, count);
  uint32_t placed = 0;
  uint64_t end = begin;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = placements[i].order;
    placements[index].offset = align_up(begin, buffers[index].alignment);
    if (placements[index].bytes == 0) continue;
    // It looks at those that are placed, or moves them, once each.
    const uint64_t units = 1 + placed / PLACED_PER_UNIT;
    if (units > *work) {
      return aot_fail(error, AOT_ERROR_BUDGET,
                      "the work budget is used up: arena buffer %u of %u to be placed",
                      (unsigned)i + 1, (unsigned)count);
    }
    if (*work != UINT64_MAX) *work -= units;
    const uint64_t offset = find_offset(buffers, placements, index, placed, begin);
    placements[index].offset = offset;
    if (offset + placements[index].bytes > end) end = offset + placements[index].bytes;
    uint32_t at = placed++;
    for (; at > 0 && placements[placements[at - 1].placed].offset > offset; --at) {
      placements[at].placed = placements[at - 1].placed;
    }
    placements[at].placed = index;
  }
  *out_end = end;
  return AOT_OK;
}
