// What crosses the border between compiler and runtime: the file header and the dispatch ABI.
// Standalone, fixed width, little endian.  The file's structure is runtime/module.fbs.
#ifndef AOT_ABI_H_
#define AOT_ABI_H_

#include <stdint.h>

#define AOT_FILE_MAGIC 0x4d544f41u  // "AOTM"
#define AOT_FILE_VERSION 0u

// The first 64 bytes of a module file.  The checksum covers the structure's bytes; header_checksum
// covers the bytes of this header before it.
typedef struct aot_file_header_t {
  uint32_t magic;
  uint32_t version;
  uint64_t file_bytes;        // of the whole file; a shorter file is truncated
  uint64_t structure_offset;  // 64
  uint64_t structure_bytes;
  uint64_t structure_checksum;  // XXH64, seed 0
  uint64_t reserved[2];         // 0
  uint64_t header_checksum;     // XXH64, seed 0, of the 56 bytes before
} aot_file_header_t;

// A dispatch has four buffers, by class (BufferClass in module.fbs).  Kernels add byte offsets that
// stand in the parameter block; these may be any value modulo the pointer's width, because inputs
// and outputs are the caller's own memory, addressed relative to the first.
typedef struct aot_dispatch_t {
  const uint8_t *constants;
  uint8_t *arena;
  const uint8_t *inputs;
  uint8_t *outputs;
  const void *params;  // words of Variant.word_bytes, floats in a word's low bits
  uint8_t *scratch;    // Executable.scratch_bytes, 64-byte aligned, private to the calling worker
} aot_dispatch_t;

// A kernel runs one workgroup.  It calls nothing, keeps no state, and may run on any thread.
typedef void (*aot_kernel_t)(const aot_dispatch_t *dispatch, uint32_t x, uint32_t y, uint32_t z);

#if defined(__cplusplus)
static_assert(sizeof(aot_file_header_t) == 64, "file header");
static_assert(sizeof(aot_dispatch_t) == 6 * sizeof(void *), "dispatch");
#else
_Static_assert(sizeof(aot_file_header_t) == 64, "file header");
_Static_assert(sizeof(aot_dispatch_t) == 6 * sizeof(void *), "dispatch");
#endif

#endif  // AOT_ABI_H_
