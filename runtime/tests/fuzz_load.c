// Loads damaged modules and runs what loads.  Built with sanitizers, a crash is a failure; besides,
// damage that the checksums cover must give a status.
//
//   aot-fuzz-load MODULE truncate                     every shorter length
//   aot-fuzz-load MODULE flip COUNT SEED BEGIN END..  COUNT single bits in [BEGIN, END) ranges,
//                                                     checksums left as they are
//   aot-fuzz-load MODULE restamp COUNT SEED           1 to 4 bits in the structure, checksums made
//                                                     right again; what loads is run
//
// Prints how often each status came up, one "NAME COUNT" a line.  Exit status 1: damage went
// unnoticed.  Kernels of such a module must be harmless wherever they are entered.
#define _POSIX_C_SOURCE 200809L  // posix_memalign

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/abi.h"
#include "aot/aot.h"
#include "xxh64.h"

#define MEMORY_LIMIT ((size_t)64 << 20)
#define WORK_BUDGET 20000
#define MOST_RANGES 8
#define MOST_RANK 8

typedef struct fuzzer_t {
  const uint8_t *original;
  size_t bytes;
  size_t in_use;  // of the allocator
  size_t counts[AOT_ERROR_COUNT];
} fuzzer_t;

static void *allocate(void *user, size_t bytes, size_t alignment) {
  fuzzer_t *fuzzer = user;
  if (bytes > MEMORY_LIMIT - fuzzer->in_use) return NULL;
  void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory != NULL) fuzzer->in_use += bytes;
  return memory;
}

static void release(void *user, void *pointer, size_t bytes, size_t alignment) {
  fuzzer_t *fuzzer = user;
  (void)alignment;
  fuzzer->in_use -= bytes;
  free(pointer);
}

static uint64_t next_random(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

static uint64_t random_below(uint64_t *state, uint64_t limit) {
  return next_random(state) % limit;
}

// Sets an input to the smallest shape that is at least `extent` long where it is free.  The data is
// *owned* by the caller, and of exactly the size that the runtime may read.
static aot_status_t set_input(aot_program_t *program, size_t index, int64_t extent,
                              void **out_data) {
  const aot_tensor_info_t *info = aot_program_input_info(program, index);
  int64_t dims[MOST_RANK];
  size_t bytes = aot_dtype_bytes(info->dtype);
  *out_data = NULL;
  if (info->rank > MOST_RANK) return AOT_ERROR_SHAPE;
  for (uint32_t i = 0; i < info->rank; ++i) {
    const aot_dim_info_t *dim = &info->dims[i];
    dims[i] = dim->extent >= 0 ? dim->extent : dim->min > extent ? dim->min : extent;
    if (dims[i] > (1 << 20)) return AOT_ERROR_SHAPE;
    bytes *= (size_t)dims[i];
    if (bytes > (1 << 20)) return AOT_ERROR_SHAPE;
  }
  *out_data = calloc(1, bytes > 0 ? bytes : 1);
  if (*out_data == NULL) return AOT_ERROR_MEMORY;
  const aot_tensor_t tensor = {info->dtype, info->rank, dims, *out_data, bytes};
  return aot_program_set_input(program, index, &tensor, NULL);
}

static aot_status_t run_at(aot_program_t *program, int64_t extent) {
  const size_t count = aot_program_input_count(program);
  void **data = calloc(count + 1, sizeof *data);
  if (data == NULL) return AOT_ERROR_MEMORY;
  aot_status_t status = AOT_OK;
  for (size_t i = 0; i < count && status == AOT_OK; ++i) {
    status = set_input(program, i, extent, &data[i]);
  }
  if (status == AOT_OK) status = aot_program_run(program, NULL);
  if (status == AOT_OK) status = aot_program_run(program, NULL);  // now planned
  for (size_t i = 0; i < count; ++i)
    free(data[i]);
  free(data);
  return status;
}

static aot_status_t run_module(const aot_module_t *module) {
  aot_program_t *program = NULL;
  aot_error_t error;
  const aot_program_options_t options = {.work_budget = WORK_BUDGET, .plan_count = 2};
  aot_status_t status = aot_program_create(module, &options, &error, &program);
  if (status != AOT_OK) return status;
  // The first extent comes back when both plan slots are taken.
  static const int64_t extents[] = {1, 7, 3, 1};
  for (size_t i = 0; i < sizeof extents / sizeof extents[0]; ++i) {
    const aot_status_t run_status = run_at(program, extents[i]);
    if (status == AOT_OK) status = run_status;
    if (i == 1) (void)aot_program_reset(program, NULL);
  }
  (void)aot_program_state_count(program);
  aot_program_destroy(program);
  return status;
}

// Loads and runs `bytes` bytes, which lie in a block of just that size.
static aot_status_t try(fuzzer_t *fuzzer, const uint8_t *data, size_t bytes) {
  const aot_module_options_t options = {.allocator = {fuzzer, allocate, release}};
  aot_module_t *module = NULL;
  aot_error_t error = {AOT_OK, ""};
  aot_status_t status = aot_module_open_memory(data, bytes, &options, &error, &module);
  if (status == AOT_OK) {
    status = run_module(module);
    (void)aot_module_verify_segments(module, NULL);
  } else if (error.status != status || error.message[0] == '\0') {
    (void)fprintf(stderr, "status %s without a message\n", aot_status_name(status));
    exit(1);
  }
  aot_module_close(module);
  if (fuzzer->in_use != 0) {
    (void)fprintf(stderr, "%zu bytes leaked\n", fuzzer->in_use);
    exit(1);
  }
  ++fuzzer->counts[status];
  return status;
}

// A copy of the first `bytes` of the module, 64-byte aligned, with nothing behind it.
static uint8_t *copy_module(const fuzzer_t *fuzzer, size_t bytes, void **out_block) {
  // Only the start of a block can be aligned and its end be exact at once, if the size is odd.
  const size_t alignment = 64;
  *out_block = NULL;
  if (posix_memalign(out_block, alignment, bytes > 0 ? bytes : 1) != 0) exit(1);
  if (bytes > 0) memcpy(*out_block, fuzzer->original, bytes);
  return *out_block;
}

static bool truncate_all(fuzzer_t *fuzzer) {
  for (size_t bytes = 0; bytes < fuzzer->bytes; ++bytes) {
    void *block = NULL;
    const uint8_t *data = copy_module(fuzzer, bytes, &block);
    const aot_status_t status = try(fuzzer, data, bytes);
    free(block);
    if (status == AOT_OK) {
      (void)fprintf(stderr, "truncation to %zu bytes went unnoticed\n", bytes);
      return false;
    }
  }
  return true;
}

static void flip_bit(uint8_t *data, uint64_t byte, uint64_t bit) {
  data[byte] = (uint8_t)(data[byte] ^ 1u << bit);
}

static bool flip(fuzzer_t *fuzzer, uint64_t count, uint64_t seed, const uint64_t *ranges,
                 size_t range_count) {
  void *block = NULL;
  uint8_t *data = copy_module(fuzzer, fuzzer->bytes, &block);
  uint64_t total = 0;
  for (size_t i = 0; i < range_count; ++i)
    total += ranges[2 * i + 1] - ranges[2 * i];
  bool is_noticed = true;
  for (uint64_t i = 0; i < count && is_noticed; ++i) {
    uint64_t at = random_below(&seed, total);
    for (size_t r = 0; r < range_count; ++r) {
      const uint64_t length = ranges[2 * r + 1] - ranges[2 * r];
      if (at < length) {
        at += ranges[2 * r];
        break;
      }
      at -= length;
    }
    const uint64_t bit = random_below(&seed, 8);
    flip_bit(data, at, bit);
    if (try(fuzzer, data, fuzzer->bytes) == AOT_OK) {
      (void)fprintf(stderr, "a flip of bit %" PRIu64 " at byte %" PRIu64 " went unnoticed\n", bit,
                    at);
      is_noticed = false;
    }
    flip_bit(data, at, bit);
  }
  free(block);
  return is_noticed;
}

static void stamp(uint8_t *data) {
  aot_file_header_t header;
  memcpy(&header, data, sizeof header);
  header.structure_checksum =
      aot_xxh64(data + header.structure_offset, (size_t)header.structure_bytes, 0);
  header.header_checksum = aot_xxh64(&header, offsetof(aot_file_header_t, header_checksum), 0);
  memcpy(data, &header, sizeof header);
}

static void restamp(fuzzer_t *fuzzer, uint64_t count, uint64_t seed) {
  void *block = NULL;
  uint8_t *data = copy_module(fuzzer, fuzzer->bytes, &block);
  aot_file_header_t header;
  memcpy(&header, data, sizeof header);
  for (uint64_t i = 0; i < count; ++i) {
    memcpy(data, fuzzer->original, fuzzer->bytes);
    for (uint64_t flips = 1 + random_below(&seed, 4); flips > 0; --flips) {
      const uint64_t at = header.structure_offset + random_below(&seed, header.structure_bytes);
      flip_bit(data, at, random_below(&seed, 8));
    }
    stamp(data);
    (void)try(fuzzer, data, fuzzer->bytes);
  }
  free(block);
}

static uint8_t *read_file(const char *path, size_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  uint8_t *data = NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    const long bytes = ftell(file);
    rewind(file);
    data = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (data != NULL && fread(data, 1, (size_t)bytes, file) == (size_t)bytes) {
      *out_bytes = (size_t)bytes;
    }
  }
  (void)fclose(file);
  return data;
}

int main(int count, char **arguments) {
  fuzzer_t fuzzer = {.in_use = 0};
  uint8_t *original = count >= 3 ? read_file(arguments[1], &fuzzer.bytes) : NULL;
  if (fuzzer.bytes == 0) {
    (void)fprintf(stderr, "usage: aot-fuzz-load MODULE truncate|flip|restamp ...\n");
    return 2;
  }
  fuzzer.original = original;
  const uint64_t tries = count > 3 ? strtoull(arguments[3], NULL, 10) : 0;
  const uint64_t seed = count > 4 ? strtoull(arguments[4], NULL, 10) * 2 + 1 : 1;
  bool is_good = true;
  if (strcmp(arguments[2], "truncate") == 0) {
    is_good = truncate_all(&fuzzer);
  } else if (strcmp(arguments[2], "flip") == 0) {
    uint64_t ranges[2 * MOST_RANGES];
    size_t numbers = 0;
    for (int i = 5; i < count && numbers < 2 * MOST_RANGES; ++i) {
      ranges[numbers++] = strtoull(arguments[i], NULL, 10);
    }
    is_good = numbers >= 2 && flip(&fuzzer, tries, seed, ranges, numbers / 2);
  } else {
    restamp(&fuzzer, tries, seed);
  }
  for (int i = 0; i < AOT_ERROR_COUNT; ++i) {
    if (fuzzer.counts[i] > 0) {
      (void)printf("%s %zu\n", aot_status_name((aot_status_t)i), fuzzer.counts[i]);
    }
  }
  free(original);
  return is_good ? 0 : 1;
}
