#include "shapes.h"

#include <string.h>

#include "program.h"
#include "status.h"

static const char *dim_text(const aot_dim_info_t *dim) {
  return dim->text[0] != '\0' ? dim->text : "?";
}

// "[1, 3, H, 192]", symbolic extents by their text, and by a question mark where there is none.
static void append_declared(aot_text_t *text, const aot_tensor_info_t *info) {
  if (info->rank == 0) aot_text_append(text, "a scalar");
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    const aot_dim_info_t *dim = &info->dims[axis];
    const char *separator = axis > 0 ? ", " : "[";
    if (dim->extent >= 0) {
      aot_text_append(text, "%s%lld", separator, (long long)dim->extent);
    } else {
      aot_text_append(text, "%s%s", separator, dim_text(dim));
    }
  }
  if (info->rank > 0) aot_text_append(text, "]");
}

static void append_dims(aot_text_t *text, const int64_t *dims, uint32_t rank) {
  if (rank == 0) aot_text_append(text, "a scalar");
  for (uint32_t axis = 0; axis < rank; ++axis) {
    aot_text_append(text, "%s%lld", axis > 0 ? ", " : "[", (long long)dims[axis]);
  }
  if (rank > 0) aot_text_append(text, "]");
}

static aot_status_t reject_shape(const aot_tensor_info_t *info, const aot_tensor_t *tensor,
                                 const char *why, aot_error_t *error) {
  aot_text_t expected = {.length = 0};
  aot_text_t found = {.length = 0};
  append_declared(&expected, info);
  append_dims(&found, tensor->dims, tensor->rank);
  (void)aot_text_cut(expected.bytes, 200);
  return aot_fail(error, AOT_ERROR_SHAPE, "input \"%s\": expected shape %s, found %.150s%s",
                  info->name, expected.bytes, found.bytes, why);
}

aot_status_t aot_program_check_shape(const aot_tensor_info_t *info, const aot_tensor_t *tensor,
                                     aot_error_t *error, uint64_t *out_bytes) {
  if (tensor->rank != info->rank) return reject_shape(info, tensor, "", error);
  for (uint32_t axis = 0; axis < info->rank; ++axis) {
    const aot_dim_info_t *dim = &info->dims[axis];
    const int64_t extent = tensor->dims[axis];
    if (dim->extent >= 0 ? extent != dim->extent : extent < 0) {
      return reject_shape(info, tensor, "", error);
    }
    if (dim->extent < 0 && (extent < dim->min || (dim->max >= 0 && extent > dim->max))) {
      aot_text_t why = {.length = 0};
      aot_text_append(&why, ": axis %u, %s", (unsigned)axis, dim_text(dim));
      (void)aot_text_cut(why.bytes, 90);
      why.length = strlen(why.bytes);
      aot_text_append(&why, ", must be");
      if (dim->min > 0) aot_text_append(&why, " at least %lld", (long long)dim->min);
      if (dim->min > 0 && dim->max >= 0) aot_text_append(&why, " and");
      if (dim->max >= 0) aot_text_append(&why, " at most %lld", (long long)dim->max);
      return reject_shape(info, tensor, why.bytes, error);
    }
  }
  *out_bytes = aot_tensor_bytes(info, tensor->dims);
  if (*out_bytes <= PTRDIFF_MAX) return AOT_OK;
  return reject_shape(info, tensor, ": it does not fit the address space", error);
}
