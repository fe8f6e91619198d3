// Memory from the caller's allocator: single blocks, and a pool freed as a whole.
#ifndef AOT_ALLOC_H_
#define AOT_ALLOC_H_

#include "aot/aot.h"

#define AOT_ALIGNMENT 64u  // of constants, arena and scratch

// The hooks of `options`, or the default ones.  Fails when only one of the two is there.
aot_status_t aot_allocator_choose(const aot_allocator_t *hooks, aot_error_t *error,
                                  aot_allocator_t *out_allocator);

// *Returns owned*; release with the same size.  Zero bytes are a valid request.  `what` is for the
// message.
aot_status_t aot_allocate(const aot_allocator_t *allocator, uint64_t bytes, const char *what,
                          aot_error_t *error, void **out_memory);
void aot_release(const aot_allocator_t *allocator, void *memory, size_t bytes);

// Zeroed memory that lives as long as its pool.  A pool is ready when all is zero but its
// allocator.
typedef struct aot_pool_chunk_t aot_pool_chunk_t;
typedef struct aot_pool_t {
  aot_allocator_t allocator;
  aot_pool_chunk_t *chunks;
} aot_pool_t;

aot_status_t aot_pool_allocate(aot_pool_t *pool, uint64_t count, size_t bytes_each,
                               aot_error_t *error, void **out_memory);
void aot_pool_free(aot_pool_t *pool);

#endif  // AOT_ALLOC_H_
