#include "alloc.h"

#include <string.h>

#include "os.h"
#include "status.h"

aot_status_t aot_allocator_choose(const aot_allocator_t *hooks, aot_error_t *error,
                                  aot_allocator_t *out_allocator) {
  if ((hooks->allocate == NULL) != (hooks->release == NULL)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "an allocator needs both functions, allocate and release");
  }
  if (hooks->allocate != NULL) {
    *out_allocator = *hooks;
  } else {
    *out_allocator = (aot_allocator_t){NULL, aot_os_allocate, aot_os_release};
  }
  return AOT_OK;
}

aot_status_t aot_allocate(const aot_allocator_t *allocator, uint64_t bytes, const char *what,
                          aot_error_t *error, void **out_memory) {
  *out_memory = NULL;
  void *memory = NULL;
  if (bytes <= PTRDIFF_MAX - AOT_ALIGNMENT) {
    memory = allocator->allocate(allocator->user, bytes == 0 ? 1 : (size_t)bytes, AOT_ALIGNMENT);
  }
  if (memory == NULL) {
    return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: %llu bytes for %s",
                    (unsigned long long)bytes, what);
  }
  *out_memory = memory;
  return AOT_OK;
}

void aot_release(const aot_allocator_t *allocator, void *memory, size_t bytes) {
  if (memory == NULL) return;
  allocator->release(allocator->user, memory, bytes == 0 ? 1 : bytes, AOT_ALIGNMENT);
}

#define AOT_POOL_CHUNK_BYTES 4096u
#define AOT_POOL_ALIGNMENT 16u

struct aot_pool_chunk_t {
  aot_pool_chunk_t *next;
  size_t bytes;  // of the whole chunk
  size_t used;
};

#define AOT_POOL_HEADER_BYTES \
  ((sizeof(aot_pool_chunk_t) + AOT_POOL_ALIGNMENT - 1) / AOT_POOL_ALIGNMENT * AOT_POOL_ALIGNMENT)

aot_status_t aot_pool_allocate(aot_pool_t *pool, uint64_t count, size_t bytes_each,
                               aot_error_t *error, void **out_memory) {
  *out_memory = NULL;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, (uint64_t)bytes_each, &bytes) || bytes > PTRDIFF_MAX / 2) {
    return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: %llu objects of %zu bytes",
                    (unsigned long long)count, bytes_each);
  }
  const size_t size = ((size_t)bytes + AOT_POOL_ALIGNMENT - 1) & ~(size_t)(AOT_POOL_ALIGNMENT - 1);
  aot_pool_chunk_t *chunk = pool->chunks;
  if (chunk == NULL || chunk->bytes - chunk->used < size) {
    const size_t needed = size + AOT_POOL_HEADER_BYTES;
    const size_t chunk_bytes = needed > AOT_POOL_CHUNK_BYTES ? needed : AOT_POOL_CHUNK_BYTES;
    void *memory = NULL;
    AOT_TRY(aot_allocate(&pool->allocator, chunk_bytes, "descriptions", error, &memory));
    chunk = memory;
    chunk->next = pool->chunks;
    chunk->bytes = chunk_bytes;
    chunk->used = AOT_POOL_HEADER_BYTES;
    pool->chunks = chunk;
  }
  void *memory = (uint8_t *)chunk + chunk->used;
  chunk->used += size;
  memset(memory, 0, size);
  *out_memory = memory;
  return AOT_OK;
}

void aot_pool_free(aot_pool_t *pool) {
  while (pool->chunks != NULL) {
    aot_pool_chunk_t *next = pool->chunks->next;
    aot_release(&pool->allocator, pool->chunks, pool->chunks->bytes);
    pool->chunks = next;
  }
}
