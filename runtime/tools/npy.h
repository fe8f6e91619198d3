// NumPy's .npy files, versions 1 to 3: dense arrays in C order, little endian.
#ifndef AOT_TOOLS_NPY_H_
#define AOT_TOOLS_NPY_H_

#include "aot/aot.h"

#define NPY_MOST_RANK 32u

typedef struct npy_array_t {
  aot_dtype_t dtype;
  uint32_t rank;
  int64_t dims[NPY_MOST_RANK];
  size_t bytes;
  void *data;  // owned: malloc, or within the mapping
  void *map;   // NULL: nothing is mapped
  size_t map_bytes;
} npy_array_t;

// Releases the data.
void npy_free(npy_array_t *array);

// Bytes that the dims take, or false when they don't fit.
bool npy_size(const npy_array_t *array, size_t *out_bytes);

// Reads a file, or maps it; on failure writes a message of at most `room` bytes.  The data is to be
// read only.  *Returns owned*.
bool npy_read(const char *path, char *message, size_t room, npy_array_t *out_array);

// Writes a file.
bool npy_write(const char *path, const aot_tensor_t *tensor, char *message, size_t room);

#endif  // AOT_TOOLS_NPY_H_
