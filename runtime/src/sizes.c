#include "sizes.h"

#include <string.h>

#include "status.h"

// No structure will ever be so large: what is, was not set.
#define MOST_BYTES 4096u

static aot_status_t check_size(const void *structure, const char *type, aot_error_t *error,
                               size_t *out_size) {
  if (structure == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the %s is NULL", type);
  memcpy(out_size, structure, sizeof *out_size);
  if (*out_size >= sizeof *out_size && *out_size <= MOST_BYTES) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT, "the %s has size %zu, sizeof(%s) expected", type,
                  *out_size, type);
}

aot_status_t aot_struct_take(const void *from, const char *type, void *to, size_t known,
                             aot_error_t *error) {
  size_t size = 0;
  AOT_TRY(check_size(from, type, error, &size));
  for (size_t i = known; i < size; ++i) {
    if (((const uint8_t *)from)[i] != 0) {
      return aot_fail(error, AOT_ERROR_ARGUMENT,
                      "the %s has a field at byte %zu, which runtime %s does not know", type, i,
                      aot_runtime_version());
    }
  }
  memset(to, 0, known);
  memcpy(to, from, size < known ? size : known);
  return AOT_OK;
}

aot_status_t aot_struct_clear(void *to, const char *type, aot_error_t *error) {
  size_t size = 0;
  AOT_TRY(check_size(to, type, error, &size));
  memset((uint8_t *)to + sizeof size, 0, size - sizeof size);
  return AOT_OK;
}

void aot_struct_give(const void *from, size_t known, void *to) {
  size_t size = 0;
  memcpy(&size, to, sizeof size);
  if (size > known) size = known;  // what is behind is zero already
  memcpy((uint8_t *)to + sizeof size, (const uint8_t *)from + sizeof size, size - sizeof size);
}
