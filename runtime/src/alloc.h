// Memory from the caller's allocator: single blocks, and a pool freed as a whole.
#ifndef AOT_ALLOC_H_
#define AOT_ALLOC_H_

#include "aot/aot.h"

#define AOT_ALIGNMENT 64u  // of constants, arena and scratch

// The hooks, or the default ones where they are NULL or zero.  Fails when only one of the two is
// there.
aot_status_t aot_allocator_choose(const aot_allocator_t *hooks, aot_error_t *error,
                                  aot_allocator_t *out_allocator);

// *Returns owned*; release with the same size.  Zero bytes are a valid request.  `what` is for the
// message.
aot_status_t aot_allocate(const aot_allocator_t *allocator, uint64_t bytes, const char *what,
                          aot_error_t *error, void **out_memory);
void aot_release(const aot_allocator_t *allocator, void *memory, size_t bytes);

// An allocator that counts what it has given, and gives no more than a limit.
typedef struct aot_meter_t {
  aot_allocator_t allocator;
  uint64_t bytes;  // held now
  uint64_t most_bytes;
  uint64_t limit;  // UINT64_MAX: none
} aot_meter_t;

void aot_meter_set(aot_meter_t *meter, const aot_allocator_t *allocator, uint64_t limit);
// *Borrows* the meter.
aot_allocator_t aot_meter_allocator(aot_meter_t *meter);

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
