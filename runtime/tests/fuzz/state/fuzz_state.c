// Fuzzes state files: what a program makes of any file, and of one with right checksums, and how it
// runs then.  An input is a byte that says how much of the header is made right, and the file.  The
// module, $AOT_FUZZ_MODULE or the file beside the fuzzer, has inputs that are i32 or f32 of two
// rows at most; its code is not run.
#define _GNU_SOURCE 1  // memfd_create

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../memory.h"
#include "../module_path.h"
#include "aot/abi.h"
#include "aot/state.h"
#include "program.h"
#include "xxh64.h"

#define MOST_INPUT_BYTES 4096u

// As runtime/state/state.c has it.
typedef struct header_t {
  char magic[4];
  uint32_t version;
  uint64_t module;
  uint64_t entry;
  uint64_t bytes;
  uint64_t checksum;
  uint64_t header_checksum;
} header_t;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static aot_program_t *program;
static char path[64];
static int file = -1;

static void fail(const char *what) {
  (void)fprintf(stderr, "fuzz_state.c: %s\n", what);
  abort();
}

static void set_inputs(void) {
  static uint8_t zeros[MOST_INPUT_BYTES];
  aot_error_t error;
  for (size_t i = 0; i < aot_program_input_count(program); ++i) {
    const aot_tensor_info_t *info = aot_program_input_info(program, i);
    int64_t dims[8];
    size_t bytes = aot_dtype_bytes(info->dtype);
    for (uint32_t axis = 0; axis < info->rank; ++axis) {
      dims[axis] = info->dims[axis].extent >= 0 ? info->dims[axis].extent : 2;
      bytes *= (size_t)dims[axis];
    }
    const aot_tensor_t tensor = {sizeof tensor, info->dtype, info->rank, dims, zeros, bytes};
    if (bytes > sizeof zeros || aot_program_set_input(program, i, &tensor, &error) != AOT_OK) {
      fail("the module's inputs are others");
    }
  }
}

static void open_program(void) {
  aot_error_t error;
  aot_module_t *module = NULL;
  const aot_module_options_t options = {.size = sizeof options, .allocator = fuzz_allocator};
  fuzz_memory.fails_at = UINT64_MAX;
  if (aot_module_open_path(fuzz_module_path, &options, &error, &module) != AOT_OK ||
      aot_program_create(module, NULL, &error, &program) != AOT_OK) {
    fail(error.message);
  }
  set_inputs();
  file = memfd_create("state", 0);
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
}

// The checksum that a file's pieces have by the lengths in it; of fewer where they are not there.
static uint64_t checksum_of(const uint8_t *bytes, size_t size) {
  const aot_code_t *code = &program->entry->code;
  const size_t scalar_bytes = code->state_count * sizeof(int64_t);
  const uint64_t kept = aot_code_reset_bytes(code);
  if (size < scalar_bytes + kept) return 0;
  uint64_t sum = aot_xxh64(bytes, scalar_bytes, 0);
  size_t at = scalar_bytes;
  sum = aot_xxh64(bytes + at, (size_t)kept, sum);
  at += (size_t)kept;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const aot_growth_t *growth = &code->growths[i];
    uint64_t length = 0;
    memcpy(&length, bytes + growth->scalar * sizeof length, sizeof length);
    for (uint32_t block = 0; block < growth->blocks; ++block) {
      const uint64_t rows = length * growth->row_bytes;
      if (rows > size - at) return sum;
      sum = aot_xxh64(bytes + at, (size_t)rows, sum);
      at += (size_t)rows;
    }
  }
  return sum;
}

static void stamp(uint8_t *bytes, size_t size, uint8_t how) {
  header_t header;
  if (size < sizeof header) return;
  memcpy(&header, bytes, sizeof header);
  if (how & 1) {
    const char *name = program->entry->name;
    memcpy(header.magic, "AOTS", sizeof header.magic);
    header.version = 1;
    memcpy(&header.module, program->module->data + offsetof(aot_file_header_t, structure_checksum),
           sizeof header.module);
    header.entry = aot_xxh64(name, strlen(name), 0);
  }
  if (how & 2) header.bytes = size - sizeof header;
  if (how & 4) header.checksum = checksum_of(bytes + sizeof header, size - sizeof header);
  if (how & 7) {
    header.header_checksum = aot_xxh64(&header, offsetof(header_t, header_checksum), 0);
  }
  memcpy(bytes, &header, sizeof header);
}

static void run(const uint8_t *data, size_t size) {
  const size_t bytes = size - 1;
  uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
  if (copy == NULL) return;
  memcpy(copy, data + 1, bytes);
  stamp(copy, bytes, data[0]);
  if (ftruncate(file, 0) != 0 || pwrite(file, copy, bytes, 0) != (ssize_t)bytes) fail("no file");
  free(copy);
  aot_error_t error = {.message = ""};
  const uint64_t before = aot_program_length(program);
  const aot_status_t status = aot_program_load_state(program, path, &error);
  if (status != AOT_OK && aot_program_length(program) != before) fail("a failure left a change");
  if (status != AOT_OK && error.message[0] == '\0') fail("a failure without a message");
  const uint64_t most = aot_program_capacity(program);
  if (aot_program_length(program) > most && most > 0) fail("longer than the program has room");
  (void)aot_program_run(program, &error);
  (void)aot_program_rewind(program, bytes % 7, &error);
  if (bytes % 5 == 0 && aot_program_reset(program, &error) != AOT_OK) fail(error.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (program == NULL) open_program();
  return size == 0 ? 0 : fuzz_run(run, data, size);
}
