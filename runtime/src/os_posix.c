#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1     // MAP_ANONYMOUS
#define _DARWIN_C_SOURCE 1    // the same, on Apple's systems
#define _FILE_OFFSET_BITS 64  // a module may be larger than 2 GiB on 32-bit systems too

#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

// Large pages, where the system has them: the first run touches most of an arena, and a fault for
// each small page takes a tenth of its time.  What a last one may take more than was asked for:
#define AOT_LARGE_PAGE_BYTES ((size_t)2 << 20)
#define AOT_LARGE_PAGE_WASTE (AOT_LARGE_PAGE_BYTES / 4)

// Of one read: Apple's systems refuse more than INT_MAX bytes.
#define MOST_READ_BYTES ((size_t)1 << 30)

void *aot_os_allocate(void *user, size_t bytes, size_t alignment) {
  (void)user;
  void *memory = NULL;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
#ifdef MADV_HUGEPAGE
  const size_t large =
      bytes > SIZE_MAX / 2 ? 0 : (bytes + AOT_LARGE_PAGE_WASTE) & ~(AOT_LARGE_PAGE_BYTES - 1);
  if (sizeof(void *) >= 8 && large > 0) {
    if (posix_memalign(&memory, AOT_LARGE_PAGE_BYTES, bytes > large ? bytes : large) != 0) {
      return NULL;
    }
    (void)madvise(memory, large, MADV_HUGEPAGE);
    return memory;
  }
#endif
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

void aot_os_release(void *user, void *pointer, size_t bytes, size_t alignment) {
  (void)user;
  (void)bytes;
  (void)alignment;
  free(pointer);
}

void aot_os_use_small_pages(uint8_t *address, size_t bytes) {
#ifdef MADV_NOHUGEPAGE
  const size_t page = aot_os_page_bytes();
  const size_t skipped = (page - (uintptr_t)address % page) % page;
  if (bytes > skipped)
    (void)madvise(address + skipped, (bytes - skipped) & ~(page - 1), MADV_NOHUGEPAGE);
#else
  (void)address;
  (void)bytes;
#endif
}

// strerror is not thread-safe, and strerror_r has two signatures.
const char *aot_os_reason(int code) {
  switch (code) {
    case ENOENT:
      return "no such file or directory";
    case EACCES:
    case EPERM:
      return "permission denied";
    case EISDIR:
      return "is a directory";
    case ENOTDIR:
      return "a part of the path is not a directory";
    case EMFILE:
    case ENFILE:
      return "too many open files";
    case ENOSPC:
      return "no space left on the device";
    case ENAMETOOLONG:
      return "the name is too long";
    case ENXIO:
      return "is a socket, expected a regular file";
    case EBADF:
      return "bad file descriptor";
    case EIO:
      return "input/output error";
    default:
      return "system error";
  }
}

aot_status_t aot_os_open(const char *path, aot_error_t *error, int *out_fd) {
  *out_fd = -1;
  // A pipe is opened at once too, and refused as it is no regular file.
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const int code = errno;
    return aot_fail(error, AOT_ERROR_IO, "cannot open %s: %s (errno %d)", path, aot_os_reason(code),
                    code);
  }
  *out_fd = fd;
  return AOT_OK;
}

void aot_os_close(int fd) {
  (void)close(fd);
}

aot_status_t aot_os_file_bytes(int fd, aot_error_t *error, uint64_t *out_bytes) {
  *out_bytes = 0;
  struct stat info;
  if (fstat(fd, &info) != 0) {
    const int code = errno;
    return aot_fail(error, AOT_ERROR_IO, "cannot ask for the file's size: %s (errno %d)",
                    aot_os_reason(code), code);
  }
  if (!S_ISREG(info.st_mode)) {
    return aot_fail(error, AOT_ERROR_IO, "%s, expected a regular file",
                    S_ISDIR(info.st_mode) ? "is a directory" : "not a regular file");
  }
  *out_bytes = (uint64_t)info.st_size;
  return AOT_OK;
}

aot_status_t aot_os_read(int fd, uint64_t offset, void *memory, size_t bytes, aot_error_t *error) {
  uint8_t *target = memory;
  while (bytes > 0) {
    const size_t part = bytes < MOST_READ_BYTES ? bytes : MOST_READ_BYTES;
    const ssize_t got = pread(fd, target, part, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int code = errno;
      return aot_fail(error, AOT_ERROR_IO, "cannot read %zu bytes at offset %llu: %s (errno %d)",
                      bytes, (unsigned long long)offset, aot_os_reason(code), code);
    }
    if (got == 0) {
      return aot_fail(error, AOT_ERROR_TRUNCATED, "the file ends at offset %llu, %zu bytes early",
                      (unsigned long long)offset, bytes);
    }
    target += got;
    offset += (uint64_t)got;
    bytes -= (size_t)got;
  }
  return AOT_OK;
}

uint64_t aot_os_now_ns(void) {
  struct timespec now = {0, 0};
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t aot_os_page_bytes(void) {
  const long bytes = sysconf(_SC_PAGESIZE);
  return bytes > 0 ? (size_t)bytes : 4096;
}

bool aot_os_map_file(int fd, uint64_t offset, size_t bytes, aot_file_map_t *out_map) {
  *out_map = (aot_file_map_t){NULL, NULL, 0};
  const size_t before = (size_t)(offset & (aot_os_page_bytes() - 1));
  if (bytes == 0 || bytes > PTRDIFF_MAX - before) return false;
  void *base = mmap(NULL, bytes + before, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - before));
  if (base == MAP_FAILED) return false;
  *out_map = (aot_file_map_t){(const uint8_t *)base + before, base, bytes + before};
  return true;
}

void aot_os_unmap_file(aot_file_map_t *map) {
  if (map->base != NULL) (void)munmap(map->base, map->base_bytes);
  *map = (aot_file_map_t){NULL, NULL, 0};
}

bool aot_os_make_executable(const uint8_t *address, size_t bytes) {
  return mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_EXEC) == 0;
}

aot_status_t aot_os_copy_code(const uint8_t *code, size_t bytes, aot_error_t *error,
                              const uint8_t **out_code) {
  *out_code = NULL;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: %zu bytes for code", bytes);
  }
  memcpy(memory, code, bytes);
  if (mprotect(memory, bytes, PROT_READ | PROT_EXEC) != 0) {
    const int code_number = errno;
    (void)munmap(memory, bytes);
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "this system does not let code be loaded: %s (errno %d); link the module into "
                    "the program (aotc package --format executable or static-library)",
                    aot_os_reason(code_number), code_number);
  }
  aot_os_flush_code(memory, bytes);
  *out_code = memory;
  return AOT_OK;
}

void aot_os_free_code(const uint8_t *code, size_t bytes) {
  if (code != NULL) (void)munmap((void *)(uintptr_t)code, bytes);
}

void aot_os_flush_code(const uint8_t *code, size_t bytes) {
  char *begin = (char *)(uintptr_t)code;
  __builtin___clear_cache(begin, begin + bytes);
}
