// Everything the runtime asks of the operating system.  One implementation a system: os_posix.c.
#ifndef AOT_OS_H_
#define AOT_OS_H_

#include "aot/aot.h"

// The default allocator.
void *aot_os_allocate(void *user, size_t bytes, size_t alignment);
void aot_os_release(void *user, void *pointer, size_t bytes, size_t alignment);
// Memory of which few bytes here and there will be used.  Where systems have no such hint, nothing.
void aot_os_use_small_pages(uint8_t *address, size_t bytes);

// What the system's error `code` means, in words that are the same everywhere.
const char *aot_os_reason(int code);

aot_status_t aot_os_open(const char *path, aot_error_t *error, int *out_fd);
void aot_os_close(int fd);
aot_status_t aot_os_file_bytes(int fd, aot_error_t *error, uint64_t *out_bytes);
// Reads exactly `bytes` at `offset`.
aot_status_t aot_os_read(int fd, uint64_t offset, void *memory, size_t bytes, aot_error_t *error);

// Nanoseconds of a clock that never goes back.
uint64_t aot_os_now_ns(void);

// A read-only view of a part of a file.
typedef struct aot_file_map_t {
  const uint8_t *data;  // the byte asked for; the mapping starts at or before it
  void *base;           // NULL: nothing is mapped
  size_t base_bytes;
} aot_file_map_t;

// False where the file can't be mapped.  *Returns owned*.
bool aot_os_map_file(int fd, uint64_t offset, size_t bytes, aot_file_map_t *out_map);
void aot_os_unmap_file(aot_file_map_t *map);

size_t aot_os_page_bytes(void);

// Makes pages of a file mapping executable.  `address` is page aligned.  False if forbidden.
bool aot_os_make_executable(const uint8_t *address, size_t bytes);

// A copy of the code in memory of its own, readable and executable.  *Returns owned*.
aot_status_t aot_os_copy_code(const uint8_t *code, size_t bytes, aot_error_t *error,
                              const uint8_t **out_code);
void aot_os_free_code(const uint8_t *code, size_t bytes);

// Tells the instruction cache.
void aot_os_flush_code(const uint8_t *code, size_t bytes);

#endif  // AOT_OS_H_
