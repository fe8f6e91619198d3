// libFuzzer's target for modules: what loads is run, with kernels that only touch what a kernel
// may, on the CPU's driver and on a fake Vulkan (fake_vulkan.c).  Seeds are modules; a mutation
// changes fields of the structure, and the checksums are made right again.  Built with sanitizers
// and with FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION, by which code of a module is never run and
// segments are taken whatever their checksums.
//
//   aot-fuzz-module SEEDS -runs=COUNT -seed=NUMBER
#define _POSIX_C_SOURCE 200809L  // posix_memalign

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/abi.h"
#include "aot/aot.h"
#include "fuzz.h"
#include "memory.h"
#include "module.h"
#include "module_fbs.h"
#include "xxh64.h"

#define WORK_BUDGET 20000
#define MOST_RANK 8
#define MOST_TENSORS 64
#define MOST_INPUT_BYTES ((size_t)1 << 18)
// A module may take this much more than its file, and this much anyway.
#define MOST_TIMES 64
#define SMALL_BYTES 65536u

size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned int seed);

static void fail(const char *what) {
  (void)fprintf(stderr, "fuzz_module.c: %s\n", what);
  abort();
}

// ---- kernels ----

static const aot_executable_t *running;
static uint64_t rodata_bytes;

// What any kernel may do: it uses all its scratch, reads its parameters and the constants.
static void kernel(const aot_dispatch_t *dispatch, uint32_t x, uint32_t y, uint32_t z) {
  (void)y;
  (void)z;
  if (x == 0 && running->scratch_bytes > 0) {
    dispatch->scratch[0] = 1;
    dispatch->scratch[running->scratch_bytes - 1] = 1;
  }
  const uint8_t *params = dispatch->params;
  for (uint32_t i = 0; i < running->param_words * running->word_bytes; ++i)
    aot_fuzz_sink ^= params[i];
  if (rodata_bytes > 0) {
    aot_fuzz_sink ^= dispatch->constants[0] ^ dispatch->constants[rodata_bytes - 1];
  }
}

aot_kernel_t aot_fuzz_kernel(const aot_executable_t *executable) {
  running = executable;
  return kernel;
}

// ---- runs ----

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
    if (dims[i] > (int64_t)MOST_INPUT_BYTES) return AOT_ERROR_SHAPE;
    bytes *= (size_t)dims[i];
    if (bytes > MOST_INPUT_BYTES) return AOT_ERROR_SHAPE;
  }
  uint8_t *data = calloc(1, bytes > 0 ? bytes : 1);
  if (data == NULL) return AOT_ERROR_MEMORY;
  if (bytes > 0) data[0] = (uint8_t)extent;
  *out_data = data;
  const aot_tensor_t tensor = {sizeof tensor, info->dtype, info->rank, dims, data, bytes};
  aot_error_t error;
  return aot_program_set_input(program, index, &tensor, &error);
}

static void read_outputs(aot_program_t *program) {
  aot_error_t error;
  for (size_t i = 0; i < aot_program_output_count(program) && i < MOST_TENSORS; ++i) {
    aot_tensor_t tensor = {.size = sizeof tensor};
    if (aot_program_get_output(program, i, &error, &tensor) != AOT_OK) continue;
    const uint8_t *data = tensor.data;
    if (data == NULL || tensor.bytes == 0) continue;
    aot_fuzz_sink ^= data[0] ^ data[tensor.bytes - 1];
  }
}

static void run_at(aot_program_t *program, int64_t extent) {
  const size_t count = aot_program_input_count(program);
  void *data[MOST_TENSORS] = {NULL};
  aot_error_t error;
  aot_status_t status = count > MOST_TENSORS ? AOT_ERROR_SHAPE : AOT_OK;
  for (size_t i = 0; i < count && status == AOT_OK; ++i) {
    status = set_input(program, i, extent, &data[i]);
  }
  if (status == AOT_OK) status = aot_program_run(program, &error);
  if (status == AOT_OK) status = aot_program_run(program, &error);  // now planned
  if (status == AOT_OK) read_outputs(program);
  for (size_t i = 0; i < count && i < MOST_TENSORS; ++i)
    free(data[i]);
}

static void run_entry(const aot_module_t *module, const aot_variant_t *variant,
                      const aot_entry_t *entry, bool caller_outputs) {
  const aot_program_options_t options = {.size = sizeof options,
                                         .work_budget = WORK_BUDGET,
                                         .plan_count = 2,
                                         .entry = entry->name,
                                         .target = variant->target,
                                         .caller_outputs = caller_outputs};
  aot_program_t *program = NULL;
  aot_program_info_t info = {.size = sizeof info};
  aot_error_t error;
  if (aot_program_create(module, &options, &error, &program) != AOT_OK) return;
  (void)aot_program_get_info(program, NULL, &info);
  // The first extent comes back when both plan slots are taken.
  static const int64_t extents[] = {1, 7, 3, 1, 16};
  for (size_t i = 0; i < sizeof extents / sizeof extents[0]; ++i) {
    run_at(program, extents[i]);
    if (i == 1) (void)aot_program_reset(program, &error);
  }
  size_t index = 0;
  (void)aot_program_find_input(program, "x", &error, &index);
  aot_program_destroy(program);
}

static void run_module(const aot_module_t *module, bool caller_outputs) {
  rodata_bytes = module->rodata.length;
  for (uint32_t v = 0; v < module->variant_count && v < 4; ++v) {
    const aot_variant_t *variant = &module->variants[v];
    aot_error_t error;
    (void)aot_module_check_variant(module, v, &error);
    for (uint32_t e = 0; e < variant->entry_count && e < 2; ++e) {
      run_entry(module, variant, &variant->entries[e], caller_outputs);
    }
  }
}

// Makes the checksums right, and the header fit the bytes that there are.
static void stamp(uint8_t *data, size_t bytes) {
  aot_file_header_t header;
  memcpy(&header, data, sizeof header);
  header.magic = AOT_FILE_MAGIC;
  header.version = AOT_FILE_VERSION;
  header.structure_offset = sizeof header;
  if (header.file_bytes > bytes || header.file_bytes < sizeof header) header.file_bytes = bytes;
  if (header.structure_bytes > header.file_bytes - sizeof header) {
    header.structure_bytes = header.file_bytes - sizeof header;
  }
  header.structure_checksum = aot_xxh64(data + sizeof header, (size_t)header.structure_bytes, 0);
  header.header_checksum = aot_xxh64(&header, offsetof(aot_file_header_t, header_checksum), 0);
  memcpy(data, &header, sizeof header);
}

// What is chosen beside the module follows from its bytes, so that a finding can be repeated.
static void run_file(const uint8_t *data, size_t bytes) {
  const uint64_t choice = aot_xxh64(data, bytes, 7);
  void *block = NULL;
  if (posix_memalign(&block, 64, bytes > 0 ? bytes : 1) != 0) return;
  if (bytes > 0) memcpy(block, data, bytes);
  if (bytes >= sizeof(aot_file_header_t) && choice % 64 != 0) stamp(block, bytes);
  aot_fuzz_is_unified = (choice >> 6 & 1) != 0;
  const aot_module_options_t options = {
      .size = sizeof options, .allocator = fuzz_allocator, .copy = (choice >> 7) % 16 == 0};
  aot_module_t *module = NULL;
  aot_error_t error = {AOT_OK, ""};
  const aot_status_t status = aot_module_open_memory(block, bytes, &options, &error, &module);
  if (status != AOT_OK && (error.status != status || error.message[0] == '\0')) {
    fail("a status without a message");
  }
  if (status == AOT_OK) {
    if (fuzz_memory.in_use > MOST_TIMES * bytes + SMALL_BYTES)
      fail("a small file makes a large module");
    run_module(module, (choice >> 11) % 8 == 0);
    (void)aot_module_verify_segments(module, &error);
  }
  aot_module_close(module);
  if (fuzz_memory.in_use != 0) fail("memory is left");
  free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  return fuzz_run(run_file, data, bytes);
}

// ---- mutations ----

static uint64_t next_random(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

static const uint64_t edges[] = {
    0,          1,          2,          3,          4,          5,         7,          8,
    15,         16,         31,         63,         64,         65,        127,        128,
    255,        256,        1024,       4095,       4096,       65535,     0x7fffffff, 0x80000000,
    0xfffffffe, 0xffffffff, 1ull << 32, 1ull << 40, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX};
#define EDGE_COUNT (sizeof edges / sizeof edges[0])

// Changes the `width` bytes at `field`: to an edge, or by a little.
static void change_number(uint8_t *field, size_t width, uint64_t *random) {
  uint64_t value = 0;
  memcpy(&value, field, width);
  const uint64_t choice = next_random(random);
  value = choice % 8 < 5 ? edges[(choice >> 3) % EDGE_COUNT] : value + (choice >> 3) % 33 - 16;
  memcpy(field, &value, width);
}

static void change(uint8_t *structure, size_t bytes, uint64_t *random) {
  const uint64_t how = next_random(random) % 20;
  uint8_t *word = structure + next_random(random) % (bytes / 4) * 4;
  const uint8_t *other = structure + next_random(random) % (bytes / 4) * 4;
  if (how < 8) {
    change_number(word, 4, random);
  } else if (how < 13) {
    change_number(structure + next_random(random) % (bytes / 8) * 8, 8, random);
  } else if (how < 15) {
    memmove(word, other, 4);
  } else if (how < 16) {
    const size_t count = (1 + next_random(random) % 16) * 4;
    const uint8_t *end = structure + bytes;
    if (count <= (size_t)(end - word) && count <= (size_t)(end - other)) {
      memmove(word, other, count);
    }
  } else if (how < 18) {
    word[0] = (uint8_t)(next_random(random) % AOT_FBS_OPCODE_COUNT);  // if it is an instruction
  } else if (how < 19) {
    structure[next_random(random) % bytes] ^= (uint8_t)(1u << next_random(random) % 8);
  } else {
    const size_t at = next_random(random) % bytes;
    const size_t most = bytes - at < 64 ? bytes - at : 64;
    (void)LLVMFuzzerMutate(structure + at, most, most);
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned int seed) {
  uint64_t random = seed * 0x9e3779b97f4a7c15ull + 1;
  aot_file_header_t header;
  if (bytes < 2 * sizeof header) return LLVMFuzzerMutate(data, bytes, most);
  memcpy(&header, data, sizeof header);
  size_t structure_bytes = bytes - sizeof header;
  if (header.structure_bytes < structure_bytes) structure_bytes = (size_t)header.structure_bytes;
  if (structure_bytes < 32) return LLVMFuzzerMutate(data, bytes, most);
  for (uint64_t rounds = 1 + next_random(&random) % 4; rounds > 0; --rounds) {
    change(data + sizeof header, structure_bytes, &random);
  }
  return bytes;
}
