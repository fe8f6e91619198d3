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

// `field` is the vtable offset, a constant of module_fbs.h; of an unsigned number of so many bytes.
uint64_t aot_fb_number(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, uint32_t bytes,
                       uint64_t absent);

// Zero-terminated, in the buffer.  "" when absent, which is a fault when `is_required`.
const char *aot_fb_string(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                          bool is_required);

// False when absent, which is a fault when `is_required`.
bool aot_fb_child(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, bool is_required,
                  const char *type, aot_fb_table_t *out_child);

// Elements are `element_bytes` wide and aligned to it.  Empty when absent, a fault when required.
aot_fb_vector_t aot_fb_vector(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                              uint32_t element_bytes, bool is_required);
aot_fb_table_t aot_fb_vector_table(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index,
                                   const char *type);
const char *aot_fb_vector_string(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index);

// How a field of a table becomes a member of a struct.
typedef enum aot_fb_kind_t {
  AOT_FB_NUMBER,
  AOT_FB_ENUM,
  AOT_FB_STRING,
  AOT_FB_WORDS,  // numbers of 32 bits: a pointer to them, and how many
} aot_fb_kind_t;

typedef struct aot_fb_field_t {
  uint16_t field;
  uint16_t member;        // its offset in the struct
  uint16_t count_member;  // words: that of their number
  uint8_t kind;
  uint8_t bytes;     // of the member, and of a number in the file
  uint8_t values;    // enum: a fault when the value is not under it
  int8_t absent;     // number: its value where the field is absent
  bool is_required;  // string, words
} aot_fb_field_t;

// Reads the fields of a table into the members of `out`.
void aot_fb_read(aot_fb_t *fb, const aot_fb_table_t *table, const aot_fb_field_t *fields,
                 uint32_t count, void *out);

#endif  // AOT_FLATBUFFER_H_
