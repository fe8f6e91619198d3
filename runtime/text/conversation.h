// The messages of a conversation as JSON, which chat templates are rendered with.
#ifndef AOT_CONVERSATION_H_
#define AOT_CONVERSATION_H_

#include "aot/text.h"

// Text that grows.  All zero is an empty one.
typedef struct aot_buffer_t {
  char *bytes;
  size_t count;
  size_t capacity;
} aot_buffer_t;

// Makes room for so many bytes more; nothing fails in them then.
aot_status_t aot_buffer_reserve(aot_buffer_t *buffer, size_t more, const aot_allocator_t *allocator,
                                aot_error_t *error);
void aot_buffer_release(aot_buffer_t *buffer, const aot_allocator_t *allocator);

aot_status_t aot_buffer_add(aot_buffer_t *buffer, const char *text, size_t bytes,
                            const aot_allocator_t *allocator, aot_error_t *error);
// The text of a string of JSON.
aot_status_t aot_buffer_add_escaped(aot_buffer_t *buffer, const char *text, size_t bytes,
                                    const aot_allocator_t *allocator, aot_error_t *error);

// Adds a message to a list of them, whose end is left open.  `is_escaped`: the text is JSON's.
aot_status_t aot_buffer_add_message(aot_buffer_t *buffer, const char *role, const char *text,
                                    size_t bytes, bool is_escaped, const aot_allocator_t *allocator,
                                    aot_error_t *error);

// What the local clock says: seconds since 1970-01-01T00:00:00 of its own.  False: there is none.
bool aot_local_seconds(int64_t *out_seconds);

#endif  // AOT_CONVERSATION_H_
