#include "status.h"

#include <stdarg.h>
#include <stdio.h>

#ifndef AOT_VERSION
#define AOT_VERSION "0.0.0"
#endif

uint32_t aot_runtime_interface(void) {
  return AOT_INTERFACE;
}

const char *aot_runtime_version(void) {
  return AOT_VERSION;
}

const char *aot_status_name(aot_status_t status) {
  static const char *const names[AOT_ERROR_COUNT] = {
      "ok",        "argument",  "memory",     "io",          "not_a_module", "version", "truncated",
      "checksum",  "malformed", "not_found",  "unsupported", "dtype",        "shape",   "capacity",
      "not_ready", "check",     "arithmetic", "bounds",      "budget",       "device",  "text",
  };
  return (unsigned)status < AOT_ERROR_COUNT ? names[status] : "unknown";
}

static const struct {
  const char *name;
  size_t bytes;
} aot_dtypes[AOT_DTYPE_COUNT] = {
    {"f32", 4}, {"f16", 2}, {"f64", 8}, {"i8", 1},  {"i16", 2},  {"i32", 4},  {"i64", 8},
    {"u8", 1},  {"u16", 2}, {"u32", 4}, {"u64", 8}, {"bool", 1}, {"bf16", 2},
};

const char *aot_dtype_name(aot_dtype_t dtype) {
  return (unsigned)dtype < AOT_DTYPE_COUNT ? aot_dtypes[dtype].name : NULL;
}

size_t aot_dtype_bytes(aot_dtype_t dtype) {
  return (unsigned)dtype < AOT_DTYPE_COUNT ? aot_dtypes[dtype].bytes : 0;
}

aot_status_t aot_fail(aot_error_t *error, aot_status_t status, const char *format, ...) {
  if (error != NULL) {
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    error->message[0] = '\0';
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}

void aot_text_append(aot_text_t *text, const char *format, ...) {
  const size_t room = sizeof text->bytes - text->length;
  if (room <= 1) return;
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(text->bytes + text->length, room, format, arguments);
  va_end(arguments);
  if (written < 0) return;
  text->length += (size_t)written < room ? (size_t)written : room - 1;
}
