// Failing: one function fills the caller's error and returns the status.
#ifndef AOT_STATUS_H_
#define AOT_STATUS_H_

#include "aot/aot.h"

#if defined(__GNUC__)
#define AOT_PRINTF(text, first) __attribute__((__format__(__printf__, text, first), cold, noinline))
#else
#define AOT_PRINTF(text, first)
#endif

// Writes the message to `error` unless it is NULL, and returns `status`.
aot_status_t aot_fail(aot_error_t *error, aot_status_t status, const char *format, ...)
    AOT_PRINTF(3, 4);

// Text that grows to the right in a fixed buffer and is cut off where it doesn't fit.
typedef struct aot_text_t {
  char bytes[sizeof((aot_error_t *)0)->message];
  size_t length;
} aot_text_t;

void aot_text_append(aot_text_t *text, const char *format, ...) AOT_PRINTF(2, 3);

#define AOT_TRY(expression)                    \
  do {                                         \
    const aot_status_t status_ = (expression); \
    if (status_ != AOT_OK) return status_;     \
  } while (0)

#endif  // AOT_STATUS_H_
