// Fuzzes .npy files, as aot-run reads them: what is taken has as many bytes as its dims say.
#define _GNU_SOURCE 1  // memfd_create

#include "../../../tools/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[64];
  if (file < 0) {
    file = memfd_create("npy", 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size) abort();
  char message[512] = "";
  npy_array_t array;
  if (!npy_read(path, message, sizeof message, &array)) {
    if (message[0] == '\0') abort();
    return 0;
  }
  size_t bytes = 0;
  if (!npy_size(&array, &bytes) || bytes != array.bytes || bytes > size) abort();
  for (size_t i = 0; i < bytes; ++i)
    sink ^= ((const uint8_t *)array.data)[i];
  npy_free(&array);
  return 0;
}
