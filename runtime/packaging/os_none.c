// What the runtime asks of the operating system where there is none: memory comes from malloc or
// the caller's allocator, modules from memory, and code runs where it lies.
#include <stdlib.h>

#include "os.h"
#include "status.h"

void *aot_os_allocate(void *user, size_t bytes, size_t alignment) {
  (void)user;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  if (bytes > PTRDIFF_MAX - alignment - sizeof(void *)) return NULL;
  void *whole = malloc(bytes + alignment + sizeof(void *));
  if (whole == NULL) return NULL;
  const uintptr_t start = (uintptr_t)whole + sizeof(void *);
  void **memory = (void **)((start + alignment - 1) & ~(uintptr_t)(alignment - 1));
  memory[-1] = whole;
  return memory;
}

void aot_os_release(void *user, void *pointer, size_t bytes, size_t alignment) {
  (void)user;
  (void)bytes;
  (void)alignment;
  if (pointer != NULL) free(((void **)pointer)[-1]);
}

void aot_os_use_small_pages(uint8_t *address, size_t bytes) {
  (void)address;
  (void)bytes;
}

static aot_status_t no_files(aot_error_t *error) {
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "this build has no files: open a module in memory");
}

aot_status_t aot_os_open(const char *path, aot_error_t *error, int *out_fd) {
  (void)path;
  *out_fd = -1;
  return no_files(error);
}

void aot_os_close(int fd) {
  (void)fd;
}

aot_status_t aot_os_file_bytes(int fd, aot_error_t *error, uint64_t *out_bytes) {
  (void)fd;
  *out_bytes = 0;
  return no_files(error);
}

aot_status_t aot_os_read(int fd, uint64_t offset, void *memory, size_t bytes, aot_error_t *error) {
  (void)fd;
  (void)offset;
  (void)memory;
  (void)bytes;
  return no_files(error);
}

// No clock: launches of a profile all take no time.
uint64_t aot_os_now_ns(void) {
  return 0;
}

bool aot_os_map_file(int fd, uint64_t offset, size_t bytes, aot_file_map_t *out_map) {
  (void)fd;
  (void)offset;
  (void)bytes;
  *out_map = (aot_file_map_t){NULL, NULL, 0};
  return false;
}

void aot_os_unmap_file(aot_file_map_t *map) {
  (void)map;
}

size_t aot_os_page_bytes(void) {
  return 64;
}

bool aot_os_make_executable(const uint8_t *address, size_t bytes) {
  (void)address;
  (void)bytes;
  return true;
}

aot_status_t aot_os_copy_code(const uint8_t *code, size_t bytes, aot_error_t *error,
                              const uint8_t **out_code) {
  (void)bytes;
  (void)error;
  *out_code = code;
  return AOT_OK;
}

void aot_os_free_code(const uint8_t *code, size_t bytes) {
  (void)code;
  (void)bytes;
}

void aot_os_flush_code(const uint8_t *code, size_t bytes) {
  (void)code;
  (void)bytes;
}
