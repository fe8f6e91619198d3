#define _POSIX_C_SOURCE 200809L

#include "conversation.h"

#include <string.h>
#include <time.h>

#include "alloc.h"
#include "status.h"

#define LEAST_BYTES ((size_t)8192)

aot_status_t aot_buffer_reserve(aot_buffer_t *buffer, size_t more, const aot_allocator_t *allocator,
                                aot_error_t *error) {
  if (more <= buffer->capacity - buffer->count) return AOT_OK;
  if (more > SIZE_MAX / 4 - buffer->count) {
    return aot_fail(error, AOT_ERROR_MEMORY, "the conversation is too long");
  }
  size_t wanted = 2 * buffer->capacity;
  if (wanted < buffer->count + more) wanted = buffer->count + more;
  if (wanted < LEAST_BYTES) wanted = LEAST_BYTES;
  void *grown = NULL;
  AOT_TRY(aot_allocate(allocator, wanted, "a conversation", error, &grown));
  if (buffer->count > 0) memcpy(grown, buffer->bytes, buffer->count);
  aot_release(allocator, buffer->bytes, buffer->capacity);
  buffer->bytes = grown;
  buffer->capacity = wanted;
  return AOT_OK;
}

void aot_buffer_release(aot_buffer_t *buffer, const aot_allocator_t *allocator) {
  aot_release(allocator, buffer->bytes, buffer->capacity);
  *buffer = (aot_buffer_t){NULL, 0, 0};
}

aot_status_t aot_buffer_add(aot_buffer_t *buffer, const char *text, size_t bytes,
                            const aot_allocator_t *allocator, aot_error_t *error) {
  AOT_TRY(aot_buffer_reserve(buffer, bytes, allocator, error));
  if (bytes > 0) memcpy(buffer->bytes + buffer->count, text, bytes);
  buffer->count += bytes;
  return AOT_OK;
}

aot_status_t aot_buffer_add_escaped(aot_buffer_t *buffer, const char *text, size_t bytes,
                                    const aot_allocator_t *allocator, aot_error_t *error) {
  static const char digits[] = "0123456789abcdef";
  if (bytes > SIZE_MAX / 8) return aot_fail(error, AOT_ERROR_MEMORY, "the message is too long");
  size_t needed = 0;
  for (size_t i = 0; i < bytes; ++i)
    needed += (uint8_t)text[i] < 0x20 ? 6 : text[i] == '"' || text[i] == '\\' ? 2 : 1;
  AOT_TRY(aot_buffer_reserve(buffer, needed, allocator, error));
  char *at = buffer->bytes + buffer->count;
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t byte = (uint8_t)text[i];
    if (byte < 0x20) {
      memcpy(at, "\\u00", 4);
      at[4] = digits[byte >> 4];
      at[5] = digits[byte & 15];
      at += 6;
      continue;
    }
    if (byte == '"' || byte == '\\') *at++ = '\\';
    *at++ = (char)byte;
  }
  buffer->count += needed;
  return AOT_OK;
}

aot_status_t aot_buffer_add_message(aot_buffer_t *buffer, const char *role, const char *text,
                                    size_t bytes, bool is_escaped, const aot_allocator_t *allocator,
                                    aot_error_t *error) {
  const char *begin = buffer->count == 0 ? "[{\"role\":\"" : ",{\"role\":\"";
  static const char between[] = "\",\"content\":\"", end[] = "\"}";
  AOT_TRY(aot_buffer_add(buffer, begin, strlen(begin), allocator, error));
  AOT_TRY(aot_buffer_add_escaped(buffer, role, strlen(role), allocator, error));
  AOT_TRY(aot_buffer_add(buffer, between, sizeof between - 1, allocator, error));
  AOT_TRY(is_escaped ? aot_buffer_add(buffer, text, bytes, allocator, error)
                     : aot_buffer_add_escaped(buffer, text, bytes, allocator, error));
  return aot_buffer_add(buffer, end, sizeof end - 1, allocator, error);
}

bool aot_local_seconds(int64_t *out_seconds) {
  *out_seconds = 0;
  const time_t now = time(NULL);
  struct tm local;
  if (now == (time_t)-1 || localtime_r(&now, &local) == NULL) return false;
  // Days since 1970 by years that begin in March.
  const int64_t month = (local.tm_mon + 10) % 12;
  const int64_t year = (int64_t)local.tm_year + 1900 - (month >= 10 ? 1 : 0);
  const int64_t days = 365 * year + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 +
                       (local.tm_mday - 1) - 719468;
  *out_seconds = days * 86400 + local.tm_hour * 3600L + local.tm_min * 60L + local.tm_sec;
  return true;
}
