#define _DEFAULT_SOURCE 1  // MAP_POPULATE

#include "npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "status.h"

#define MOST_HEADER_BYTES 65536u
#ifndef MAP_POPULATE
#define MAP_POPULATE 0  // Linux only
#endif

static const char *const descriptions[AOT_DTYPE_COUNT] = {
    "<f4", "<f2", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1", "<V2",
};

bool npy_size(const npy_array_t *array, size_t *out_bytes) {
  size_t bytes = aot_dtype_bytes(array->dtype);
  for (uint32_t i = 0; i < array->rank; ++i) {
    if (array->dims[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)array->dims[i], &bytes) ||
        bytes > PTRDIFF_MAX) {
      return false;
    }
  }
  *out_bytes = bytes;
  return true;
}

// The text after `key` and its colon in the header's dictionary, or NULL.
static const char *find_value(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) return NULL;
  at += strlen(key);
  at += strspn(at, " ");
  if (*at != ':') return NULL;
  ++at;
  return at + strspn(at, " ");
}

static bool parse_dtype(const char *text, aot_dtype_t *out_dtype) {
  const char quote = text[0];
  if ((quote != '\'' && quote != '"') || memchr(text, '\0', 5) != NULL || text[4] != quote)
    return false;
  for (int i = 0; i < AOT_DTYPE_COUNT; ++i) {
    const char *known = descriptions[i];
    // Single bytes have no order, so either sign stands before them.
    const bool is_order_right = text[1] == known[0] || (known[0] == '|' && text[1] == '<');
    if (is_order_right && memcmp(text + 2, known + 1, 2) == 0) {
      *out_dtype = (aot_dtype_t)i;
      return true;
    }
  }
  return false;
}

static bool parse_shape(const char *text, npy_array_t *array) {
  if (*text++ != '(') return false;
  for (array->rank = 0;; ++array->rank) {
    text += strspn(text, " ");
    if (*text == ')') return true;
    if (*text < '0' || *text > '9' || array->rank == NPY_MOST_RANK) return false;
    char *end = NULL;
    errno = 0;
    const long long extent = strtoll(text, &end, 10);
    if (errno != 0) return false;
    array->dims[array->rank] = extent;
    text = end + strspn(end, " ");
    if (*text == ',') {
      ++text;
    } else if (*text != ')') {
      return false;
    }
  }
}

// Parses the header, a Python dictionary as NumPy prints it.  Returns what is wrong, or NULL.
static const char *parse_header(const char *header, npy_array_t *array) {
  const char *dtype = find_value(header, "'descr'");
  const char *order = find_value(header, "'fortran_order'");
  const char *shape = find_value(header, "'shape'");
  if (dtype == NULL || order == NULL || shape == NULL) return "its header is not understood";
  if (!parse_dtype(dtype, &array->dtype)) return "its dtype is not one of f2 f4 f8 i1-i8 u1-u8 b1";
  if (strncmp(order, "False", 5) != 0) return "it is in Fortran order, C order expected";
  if (!parse_shape(shape, array)) return "its shape is not understood";
  if (!npy_size(array, &array->bytes)) return "its shape does not fit the address space";
  return NULL;
}

static const char *read_header(FILE *file, char *header, npy_array_t *array) {
  uint8_t start[12];
  if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0) {
    return "not a .npy file";
  }
  size_t bytes = (size_t)start[8] | (size_t)start[9] << 8;
  if (start[6] >= 2) {
    if (fread(start + 10, 1, 2, file) != 2) return "truncated";
    bytes |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
  }
  if (start[6] < 1 || start[6] > 3 || bytes >= MOST_HEADER_BYTES) {
    return "its version or header length is not known";
  }
  if (fread(header, 1, bytes, file) != bytes) return "truncated";
  header[bytes] = '\0';
  return parse_header(header, array);
}

void npy_free(npy_array_t *array) {
  if (array->map != NULL) {
    (void)munmap(array->map, array->map_bytes);
  } else {
    free(array->data);
  }
  array->data = array->map = NULL;
}

// Maps the data that begins where the file stands now, so that it is neither copied nor faulted in
// page by page; leaves `map` NULL where that can't be, as with a pipe.
static const char *map_array(FILE *file, npy_array_t *array) {
  const long begin = ftell(file);
  struct stat info;
  if (begin < 0 || array->bytes == 0 || fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
    return NULL;
  }
  const uint64_t size = (uint64_t)info.st_size;
  if (size < (uint64_t)begin || size - (uint64_t)begin < array->bytes) return "truncated";
  const size_t bytes = (size_t)begin + array->bytes;
  void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fileno(file), 0);
  if (map == MAP_FAILED) return NULL;
  array->map = map;
  array->map_bytes = bytes;
  array->data = (uint8_t *)map + begin;
  return NULL;
}

static const char *read_array(FILE *file, char *header, npy_array_t *array) {
  const char *problem = read_header(file, header, array);
  if (problem != NULL) return problem;
  problem = map_array(file, array);
  if (problem != NULL || array->map != NULL) return problem;
  array->data = malloc(array->bytes > 0 ? array->bytes : 1);
  if (array->data == NULL) return "out of memory";
  if (fread(array->data, 1, array->bytes, file) != array->bytes) return "truncated";
  return NULL;
}

// Says in `message` what is wrong with a file.
static bool npy_fail(char *message, size_t room, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)aot_text_format(message, room, format, arguments);
  va_end(arguments);
  return false;
}

bool npy_read(const char *path, char *message, size_t room, npy_array_t *out_array) {
  npy_array_t array = {.data = NULL};
  *out_array = array;
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    return npy_fail(message, room, "cannot open %s: %s", path, strerror(errno));
  }
  char *header = malloc(MOST_HEADER_BYTES);
  const char *problem = header == NULL ? "out of memory" : read_array(file, header, &array);
  free(header);
  (void)fclose(file);
  if (problem != NULL) {
    npy_free(&array);
    return npy_fail(message, room, "%s: %s", path, problem);
  }
  *out_array = array;
  return true;
}

bool npy_write(const char *path, const aot_tensor_t *tensor, char *message, size_t room) {
  char header[1024];
  int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                        descriptions[tensor->dtype]);
  for (uint32_t i = 0; i < tensor->rank && length < (int)sizeof header - 64; ++i) {
    length +=
        snprintf(header + length, sizeof header - (size_t)length, "%" PRId64 "%s", tensor->dims[i],
                 tensor->rank == 1      ? ","
                 : i + 1 < tensor->rank ? ", "
                                        : "");
  }
  if (length >= (int)sizeof header - 128) {
    return npy_fail(message, room, "%s: too many dims", path);
  }
  length += snprintf(header + length, sizeof header - (size_t)length, "), }");
  // The data starts at a multiple of 64; the header ends with a line feed.
  while ((10 + length + 1) % 64 != 0)
    header[length++] = ' ';
  header[length++] = '\n';
  FILE *file = fopen(path, "wb");
  bool is_written = file != NULL;
  if (is_written) {
    const uint8_t start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)(length & 0xff), (uint8_t)(length >> 8)};
    is_written = fwrite(start, 1, sizeof start, file) == sizeof start &&
                 fwrite(header, 1, (size_t)length, file) == (size_t)length &&
                 fwrite(tensor->data, 1, tensor->bytes, file) == tensor->bytes;
    is_written = fclose(file) == 0 && is_written;
  }
  return is_written || npy_fail(message, room, "cannot write %s: %s", path, strerror(errno));
}
