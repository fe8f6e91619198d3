// A bounds-checked reader of flatbuffers.  The first fault stops it: what is read after that is
// zero or empty, and aot_fb_t.status says so, so that callers check once for a whole table.
#ifndef AOT_FLATBUFFER_H_
#define AOT_FLATBUFFER_H_

#include "aot/aot.h"

typedef struct aot_fb_t {
  const uint8_t *data;  // 8-byte aligned
  uint32_t bytes;
  // Bytes of tables and vectors that may still be visited.  Sharing could make a small buffer
  // describe a huge tree; no buffer may describe more than its own size.
  uint32_t budget;
  aot_status_t status;
  aot_error_t *error;
} aot_fb_t;

typedef struct aot_fb_table_t {
  const char *type;  // for messages
  uint32_t position;
  uint32_t vtable;
  uint16_t vtable_bytes;
  uint16_t table_bytes;
} aot_fb_table_t;

typedef struct aot_fb_vector_t {
  uint32_t position;  // of the first element
  uint32_t count;
} aot_fb_vector_t;

void aot_fb_init(aot_fb_t *fb, const uint8_t *data, uint32_t bytes, aot_error_t *error);

// The root table; checks the file identifier.
aot_fb_table_t aot_fb_root(aot_fb_t *fb, const char identifier[4], const char *type);

// `field` is the vtable offset, a constant of module_fbs.h.
uint64_t aot_fb_u64(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, uint64_t absent);
int64_t aot_fb_i64(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, int64_t absent);
uint32_t aot_fb_u32(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field);
uint8_t aot_fb_u8(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field);
// A fault when the value is not under `count`.
uint8_t aot_fb_enum(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, uint8_t count);

// Zero-terminated, in the buffer.  "" when absent, which is a fault when `is_required`.
const char *aot_fb_string(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                          bool is_required);

// False when absent, which is a fault when `is_required`.
bool aot_fb_child(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, bool is_required,
                  const char *type, aot_fb_table_t *out_child);

// Elements are `element_bytes` wide and aligned to it.  Empty when absent, a fault when required.
aot_fb_vector_t aot_fb_vector(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                              uint32_t element_bytes, bool is_required);
const uint32_t *aot_fb_vector_words(const aot_fb_t *fb, const aot_fb_vector_t *vector);
aot_fb_table_t aot_fb_vector_table(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index,
                                   const char *type);
const char *aot_fb_vector_string(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index);

#endif  // AOT_FLATBUFFER_H_
