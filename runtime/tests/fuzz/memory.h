// The allocator of the fuzzers: it counts what is in use, has a limit, and fails where it is told
// to.  An input says by its hash which of its allocations fails: mostly none.  With
// AOT_FUZZ_ALLOCATIONS in the environment each input runs again for each of its allocations, which
// fails then.
#ifndef AOT_TESTS_FUZZ_MEMORY_H_
#define AOT_TESTS_FUZZ_MEMORY_H_

#define FUZZ_MEMORY_LIMIT ((size_t)256 << 20)
#define FUZZ_MOST_ALLOCATIONS 2000u

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/aot.h"
#include "xxh64.h"

static struct {
  size_t in_use;
  uint64_t calls;     // of the run so far
  uint64_t fails_at;  // the call that fails
} fuzz_memory;

static void *fuzz_allocate(void *user, size_t bytes, size_t alignment) {
  void *memory = NULL;
  (void)user;
  if (fuzz_memory.calls++ == fuzz_memory.fails_at) return NULL;
  if (bytes > FUZZ_MEMORY_LIMIT - fuzz_memory.in_use) return NULL;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  if (posix_memalign(&memory, alignment, bytes) != 0) return NULL;
  memset(memory, 0xbe, bytes < 4096 ? bytes : 4096);
  fuzz_memory.in_use += bytes;
  return memory;
}

static void fuzz_release(void *user, void *memory, size_t bytes, size_t alignment) {
  (void)user;
  (void)alignment;
  fuzz_memory.in_use -= bytes;
  free(memory);
}

static const aot_allocator_t fuzz_allocator = {NULL, fuzz_allocate, fuzz_release};

// Runs an input as said above.
static int fuzz_run(void (*run)(const uint8_t *data, size_t size), const uint8_t *data,
                    size_t size) {
  const uint64_t hash = aot_xxh64(data, size, 11);
  fuzz_memory.calls = 0;
  fuzz_memory.fails_at = hash % 8 == 0 ? (hash >> 3) % 64 : UINT64_MAX;
  run(data, size);
  if (getenv("AOT_FUZZ_ALLOCATIONS") == NULL) return 0;
  for (uint64_t at = 0; at < FUZZ_MOST_ALLOCATIONS; ++at) {
    fuzz_memory.calls = 0;
    fuzz_memory.fails_at = at;
    run(data, size);
    if (fuzz_memory.calls <= at) return 0;
  }
  (void)fprintf(stderr, "memory.h: more than %u allocations\n", FUZZ_MOST_ALLOCATIONS);
  abort();
}

#endif  // AOT_TESTS_FUZZ_MEMORY_H_
