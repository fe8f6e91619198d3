// What the runtime asks of other systems than this one, with the calls that differ there replaced.
// Link with -Wl,--wrap=pread,--wrap=pread64,--wrap=getauxval.
//
//   wrapped_calls read: reads 5 GiB where a read of more than INT_MAX bytes is refused
//   wrapped_calls environment NAME: prints a variable, of a process with the rights of another user
#define _GNU_SOURCE 1

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/types.h>

#include "../../runtime/drivers/vulkan/system.h"
#include "os.h"

#define BYTES ((uint64_t)5 << 30)

ssize_t __wrap_pread(int fd, void *memory, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int fd, void *memory, size_t bytes, off_t offset);
unsigned long __wrap_getauxval(unsigned long type);
unsigned long __real_getauxval(unsigned long type);

static uint64_t read_bytes;

// As Apple's systems have it.  No byte of the memory is touched.
ssize_t __wrap_pread(int fd, void *memory, size_t bytes, off_t offset) {
  (void)fd;
  (void)memory;
  if (bytes > INT_MAX || (uint64_t)offset != read_bytes) {
    errno = EINVAL;
    return -1;
  }
  read_bytes += bytes;
  return (ssize_t)bytes;
}

ssize_t __wrap_pread64(int fd, void *memory, size_t bytes, off_t offset) {
  return __wrap_pread(fd, memory, bytes, offset);
}

unsigned long __wrap_getauxval(unsigned long type) {
  return type == AT_SECURE ? 1 : __real_getauxval(type);
}

int main(int count, char **words) {
  static uint8_t memory[1];
  aot_error_t error = {AOT_OK, ""};
  if (count == 3) {
    const char *name = words[2];
    const char *value = aot_vk_environment(name);
    return puts(value == NULL ? "(unset)" : value) >= 0 ? 0 : 1;
  }
  const aot_status_t status = aot_os_read(3, 0, memory, (size_t)BYTES, &error);
  (void)puts(status == AOT_OK ? "ok" : error.message);
  return read_bytes == BYTES ? 0 : 1;
}
