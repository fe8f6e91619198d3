// Failing: one function fills the caller's error and returns the status.
#ifndef AOT_STATUS_H_
#define AOT_STATUS_H_

#include <stdarg.h>

#include "aot/aot.h"

#if defined(__GNUC__)
#define AOT_PRINTF(text, first) __attribute__((__format__(__printf__, text, first), cold, noinline))
#else
#define AOT_PRINTF(text, first)
#endif

// Writes the message to `error` unless it is NULL, and returns `status`.
aot_status_t aot_fail(aot_error_t *error, aot_status_t status, const char *format, ...)
    AOT_PRINTF(3, 4);

// Text that grows to the right in a fixed buffer and ends where a part doesn't fit, with a whole
// character of it.
typedef struct aot_text_t {
  char bytes[sizeof((aot_error_t *)0)->message];
  size_t length;
} aot_text_t;

void aot_text_append(aot_text_t *text, const char *format, ...) AOT_PRINTF(2, 3);

// vsnprintf whose text, where it doesn't fit, ends with a whole character.  Returns what it takes
// of the room: all but a byte where it doesn't fit, so that nothing is appended to it.
size_t aot_text_format(char *text, size_t room, const char *format, va_list arguments);

// Shortens a text, whose memory has `most` + 1 bytes, to `most` bytes at most, and without a last
// character of UTF-8 whose end is missing.  Returns its bytes, with those of that character.
size_t aot_text_cut(char *text, size_t most);

#define AOT_TRY(expression)                    \
  do {                                         \
    const aot_status_t status_ = (expression); \
    if (status_ != AOT_OK) return status_;     \
  } while (0)

#endif  // AOT_STATUS_H_
