// Structures that callers make, which begin with their size: shorter ones of callers that were
// compiled with an earlier header, and longer ones of a later header.
#ifndef AOT_SIZES_H_
#define AOT_SIZES_H_

#include "aot/aot.h"

// Copies what there is of the caller's structure into one of `known` bytes, zero behind that.
// Fails with AOT_ERROR_ARGUMENT where its size is none, or where a field is set that is not known
// here.  `type` is for the message.
aot_status_t aot_struct_take(const void *from, const char *type, void *to, size_t known,
                             aot_error_t *error);

// Zeroes the caller's structure behind its size.  Fails with AOT_ERROR_ARGUMENT where it is NULL or
// its size is none.
aot_status_t aot_struct_clear(void *to, const char *type, aot_error_t *error);

// Fills the caller's structure, of a right size, from one of `known` bytes.
void aot_struct_give(const void *from, size_t known, void *to);

#endif  // AOT_SIZES_H_
