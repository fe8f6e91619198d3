#include "alloc.h"

#include <string.h>

#include "os.h"
#include "status.h"

aot_status_t aot_allocator_choose(const aot_allocator_t *hooks, aot_error_t *error,
                                  aot_allocator_t *out_allocator) {
  static const aot_allocator_t none;
  if (hooks == NULL) hooks = &none;
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

void aot_meter_set(aot_meter_t *meter, const aot_allocator_t *allocator, uint64_t limit) {
  *meter = (aot_meter_t){*allocator, 0, 0, limit};
}

static void *allocate_metered(void *user, size_t bytes, size_t alignment) {
  aot_meter_t *meter = user;
  if (bytes > meter->limit - meter->bytes) return NULL;
  void *memory = meter->allocator.allocate(meter->allocator.user, bytes, alignment);
  if (memory != NULL) meter->bytes += bytes;
  if (meter->bytes > meter->most_bytes) meter->most_bytes = meter->bytes;
  return memory;
}

static void release_metered(void *user, void *pointer, size_t bytes, size_t alignment) {
  aot_meter_t *meter = user;
  meter->bytes -= bytes;
  meter->allocator.release(meter->allocator.user, pointer, bytes, alignment);
}

aot_allocator_t aot_meter_allocator(aot_meter_t *meter) {
  return (aot_allocator_t){meter, allocate_metered, release_metered};
}

static aot_status_t fail_memory(const aot_allocator_t *allocator, uint64_t bytes, const char *what,
                                aot_error_t *error) {
  const aot_meter_t *meter = allocator->allocate == allocate_metered ? allocator->user : NULL;
  if (meter != NULL && bytes + (bytes == 0) > meter->limit - meter->bytes) {
    return aot_fail(error, AOT_ERROR_MEMORY,
                    "the memory limit of %llu bytes: %llu are in use, %llu more for %s",
                    (unsigned long long)meter->limit, (unsigned long long)meter->bytes,
                    (unsigned long long)bytes, what);
  }
  return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: %llu bytes for %s",
                  (unsigned long long)bytes, what);
}

aot_status_t aot_allocate(const aot_allocator_t *allocator, uint64_t bytes, const char *what,
                          aot_error_t *error, void **out_memory) {
  *out_memory = NULL;
  void *memory = NULL;
  if (bytes <= PTRDIFF_MAX - AOT_ALIGNMENT) {
    memory = allocator->allocate(allocator->user, bytes == 0 ? 1 : (size_t)bytes, AOT_ALIGNMENT);
  }
  if (memory == NULL) return fail_memory(allocator, bytes, what, error);
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
