// Dispatches between two barriers in the opposite order, as a device may run them: they are kept
// until something else is recorded.  Behind vulkan_faults.c, which asks it for functions.
#include "vulkan_reversed.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PENDING = 4096, MOST_PUSHED = 256 };

typedef struct state_t {
  uint64_t pipeline;
  uint64_t layout;
  uint64_t set;
  uint32_t offset;
  uint32_t pushed_bytes;
  uint8_t pushed[MOST_PUSHED];
  uint32_t grid[3];
} state_t;

static int is_reversing;
static uint32_t reversed_count;
static state_t current;
static state_t pending[MOST_PENDING];
static uint32_t pending_count;

static void (*real_pipeline)(void *, uint32_t, uint64_t);
static void (*real_sets)(void *, uint32_t, uint64_t, uint32_t, uint32_t, const uint64_t *, uint32_t,
                         const uint32_t *);
static void (*real_push)(void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *);
static void (*real_dispatch)(void *, uint32_t, uint32_t, uint32_t);
static void (*real_barrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, const void *, uint32_t,
                            const void *, uint32_t, const void *);
static void (*real_copy)(void *, uint64_t, uint64_t, uint32_t, const void *);
static void (*real_fill)(void *, uint64_t, uint64_t, uint64_t, uint32_t);
static int32_t (*real_end)(void *);

enum { COMPUTE = 1, COMPUTE_STAGE = 0x20 };

static void flush(void *commands) {
  if (pending_count > 1) reversed_count += pending_count;
  while (pending_count > 0) {
    const state_t *state = &pending[--pending_count];
    real_pipeline(commands, COMPUTE, state->pipeline);
    real_sets(commands, COMPUTE, state->layout, 0, 1, &state->set, 1, &state->offset);
    if (state->pushed_bytes > 0) {
      real_push(commands, state->layout, COMPUTE_STAGE, 0, state->pushed_bytes, state->pushed);
    }
    real_dispatch(commands, state->grid[0], state->grid[1], state->grid[2]);
  }
}

static void bind_pipeline(void *commands, uint32_t point, uint64_t pipeline) {
  if (!is_reversing) real_pipeline(commands, point, pipeline);
  current.pipeline = pipeline;
}

static void bind_sets(void *commands, uint32_t point, uint64_t layout, uint32_t first,
                      uint32_t count, const uint64_t *sets, uint32_t offset_count,
                      const uint32_t *offsets) {
  if (!is_reversing) {
    real_sets(commands, point, layout, first, count, sets, offset_count, offsets);
    return;
  }
  if (first != 0 || count != 1 || offset_count != 1) abort();  // more than is kept
  current.layout = layout;
  current.set = sets[0];
  current.offset = offsets[0];
}

static void push(void *commands, uint64_t layout, uint32_t stages, uint32_t offset, uint32_t bytes,
                 const void *values) {
  if (!is_reversing) {
    real_push(commands, layout, stages, offset, bytes, values);
    return;
  }
  if (offset != 0 || bytes > MOST_PUSHED) abort();
  memcpy(current.pushed, values, bytes);
  current.pushed_bytes = bytes;
}

static void dispatch(void *commands, uint32_t x, uint32_t y, uint32_t z) {
  if (!is_reversing) {
    real_dispatch(commands, x, y, z);
    return;
  }
  if (pending_count == MOST_PENDING) flush(commands);
  state_t *state = &pending[pending_count++];
  *state = current;
  state->grid[0] = x;
  state->grid[1] = y;
  state->grid[2] = z;
}

static void barrier(void *commands, uint32_t from, uint32_t to, uint32_t flags, uint32_t count,
                    const void *memory, uint32_t buffer_count, const void *buffers,
                    uint32_t image_count, const void *images) {
  flush(commands);
  real_barrier(commands, from, to, flags, count, memory, buffer_count, buffers, image_count,
               images);
}

static void copy(void *commands, uint64_t from, uint64_t to, uint32_t count, const void *regions) {
  flush(commands);
  real_copy(commands, from, to, count, regions);
}

static void fill(void *commands, uint64_t to, uint64_t offset, uint64_t bytes, uint32_t pattern) {
  flush(commands);
  real_fill(commands, to, offset, bytes, pattern);
}

static int32_t end(void *commands) {
  flush(commands);
  return real_end(commands);
}

#define REPLACE(function, real_one, own)       \
  if (strcmp(name, function) == 0) {           \
    memcpy(&(real_one), &found, sizeof found); \
    return (reversed_function_t)(own);         \
  }

reversed_function_t reversed_find(const char *name, reversed_function_t found) {
  if (found == NULL) return NULL;
  REPLACE("vkCmdBindPipeline", real_pipeline, bind_pipeline)
  REPLACE("vkCmdBindDescriptorSets", real_sets, bind_sets)
  REPLACE("vkCmdPushConstants", real_push, push)
  REPLACE("vkCmdDispatch", real_dispatch, dispatch)
  REPLACE("vkCmdPipelineBarrier", real_barrier, barrier)
  REPLACE("vkCmdCopyBuffer", real_copy, copy)
  REPLACE("vkCmdFillBuffer", real_fill, fill)
  REPLACE("vkEndCommandBuffer", real_end, end)
  return found;
}

// For what is recorded from now on.
__attribute__((visibility("default"))) void faults_reverse(int is_wanted) {
  is_reversing = is_wanted;
  reversed_count = 0;
  memset(&current, 0, sizeof current);
}

// How many dispatches were recorded in the opposite order since then.
__attribute__((visibility("default"))) uint32_t faults_reversed(void) {
  return reversed_count;
}
