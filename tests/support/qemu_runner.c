// Runs kernels of a code image on the CPU it was compiled for; built statically for QEMU by
// tests/support/qemu.py, which writes the files.
//
//   qemu_runner IMAGE JOBS OUT
//
// JOBS: u32 count, then for each job u64 entry, u32 grid[3], u32 guards, u64 bytes[6] of constants,
// arena, inputs, outputs, parameters and scratch, for each guard u64 buffer and u64 offset, and the
// bytes of the first five.
// OUT: for each job the arena's bytes, then the outputs'.
//
// Every buffer ends where a page without access begins, so that reading past one is a fault; a
// guard is another such page, inside a buffer of whole pages.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "aot/abi.h"

enum { CONSTANTS, ARENA, INPUTS, OUTPUTS, PARAMS, SCRATCH, BUFFER_COUNT };

static void fail(const char *what) {
  perror(what);
  exit(2);
}

static uint8_t *map_pages(size_t bytes) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) fail("mmap");
  return base;
}

static size_t round_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

static size_t page_bytes(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

// Memory whose end is the end of its last page.
static uint8_t *map_guarded(size_t bytes) {
  const size_t page = page_bytes();
  const size_t room = round_up(bytes ? bytes : 1, page);
  uint8_t *base = map_pages(room + page);
  if (mprotect(base + room, page, PROT_NONE)) fail("mprotect");
  return base + room - bytes;
}

static void unmap_guarded(uint8_t *data, size_t bytes) {
  const size_t page = page_bytes();
  const size_t room = round_up(bytes ? bytes : 1, page);
  munmap(data + bytes - room, room + page);
}

enum { MOST_GUARDS = 64 };

// Lets a page of 4096 bytes be accessed, or not.
static void protect(uint8_t *page, int protection) {
  if (mprotect(page, 4096, protection)) fail("mprotect");
}

static void read_exactly(FILE *file, void *to, size_t bytes) {
  if (bytes && fread(to, 1, bytes, file) != bytes) fail("read");
}

static void write_exactly(FILE *file, const void *from, size_t bytes) {
  if (bytes && fwrite(from, 1, bytes, file) != bytes) fail("write");
}

static uint8_t *load_image(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(path);
  if (fseek(file, 0, SEEK_END)) fail(path);
  const size_t bytes = (size_t)ftell(file);
  rewind(file);
  // 64 KiB: a multiple of every target's page.
  const size_t alignment = 65536;
  const size_t room = round_up(bytes, alignment);
  uint8_t *base = map_pages(room + alignment);
  uint8_t *image = base + (alignment - (uintptr_t)base % alignment) % alignment;
  read_exactly(file, image, bytes);
  fclose(file);
  if (mprotect(image, room, PROT_READ | PROT_EXEC)) fail("mprotect");
  __builtin___clear_cache((char *)image, (char *)image + bytes);
  return image;
}

static void run_job(FILE *jobs, FILE *out, const uint8_t *image) {
  uint64_t entry, bytes[BUFFER_COUNT];
  uint32_t grid[4];
  read_exactly(jobs, &entry, sizeof entry);
  read_exactly(jobs, grid, sizeof grid);
  read_exactly(jobs, bytes, sizeof bytes);
  uint64_t guards[MOST_GUARDS][2];
  const uint32_t guard_count = grid[3];
  if (guard_count > MOST_GUARDS) fail("too many guards");
  read_exactly(jobs, guards, guard_count * sizeof guards[0]);
  uint8_t *data[BUFFER_COUNT];
  for (int i = 0; i < BUFFER_COUNT; ++i) {
    data[i] = map_guarded((size_t)bytes[i]);
    if (i != SCRATCH) read_exactly(jobs, data[i], (size_t)bytes[i]);
  }
  for (uint32_t i = 0; i < guard_count; ++i)
    protect(data[guards[i][0]] + guards[i][1], PROT_NONE);
  const aot_dispatch_t dispatch = {data[CONSTANTS], data[ARENA],  data[INPUTS],
                                   data[OUTPUTS],   data[PARAMS], data[SCRATCH]};
  aot_kernel_t kernel;
  const uint8_t *code = image + entry;
  memcpy(&kernel, &code, sizeof kernel);
  for (uint32_t z = 0; z < grid[2]; ++z)
    for (uint32_t y = 0; y < grid[1]; ++y)
      for (uint32_t x = 0; x < grid[0]; ++x)
        kernel(&dispatch, x, y, z);
  for (uint32_t i = 0; i < guard_count; ++i)
    protect(data[guards[i][0]] + guards[i][1], PROT_READ | PROT_WRITE);
  write_exactly(out, data[ARENA], (size_t)bytes[ARENA]);
  write_exactly(out, data[OUTPUTS], (size_t)bytes[OUTPUTS]);
  for (int i = 0; i < BUFFER_COUNT; ++i)
    unmap_guarded(data[i], (size_t)bytes[i]);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s IMAGE JOBS OUT\n", argv[0]);
    return 2;
  }
  const uint8_t *image = load_image(argv[1]);
  FILE *jobs = fopen(argv[2], "rb");
  if (!jobs) fail(argv[2]);
  FILE *out = fopen(argv[3], "wb");
  if (!out) fail(argv[3]);
  uint32_t count;
  read_exactly(jobs, &count, sizeof count);
  for (uint32_t i = 0; i < count; ++i) {
    // Flushed, so that a fault's message says which job it was.
    printf("%u\n", i);
    fflush(stdout);
    run_job(jobs, out, image);
  }
  fclose(jobs);
  if (fclose(out)) fail(argv[3]);
  return 0;
}
