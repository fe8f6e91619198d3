// Runs the module fuzzer's target on files, where there is no libFuzzer: on emulated CPUs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most);

size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most) {
  (void)data;
  (void)most;
  return bytes;
}

int main(int count, char **paths) {
  for (int i = 1; i < count; ++i) {
    FILE *file = fopen(paths[i], "rb");
    uint8_t *data = malloc(1 << 20);
    if (file == NULL || data == NULL) return 1;
    const size_t bytes = fread(data, 1, 1 << 20, file);
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(data, bytes);
    free(data);
  }
  return 0;
}
