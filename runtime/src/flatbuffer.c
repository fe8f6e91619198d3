#include "flatbuffer.h"

#include <string.h>

#include "status.h"

static void fault(aot_fb_t *fb, uint32_t position, const char *type, const char *what) {
  if (fb->status != AOT_OK) return;
  fb->status =
      aot_fail(fb->error, AOT_ERROR_MALFORMED, "the structure is malformed: %s at byte %u: %s",
               type, (unsigned)position, what);
}

// True when [position, position + bytes) lies inside and `position` is aligned.
static bool is_inside(const aot_fb_t *fb, uint64_t position, uint64_t bytes, uint32_t alignment) {
  return position <= fb->bytes && bytes <= fb->bytes - position && position % alignment == 0;
}

static uint32_t read_u32(const aot_fb_t *fb, uint32_t position) {
  uint32_t value;
  memcpy(&value, fb->data + position, sizeof value);
  return value;
}

static uint16_t read_u16(const aot_fb_t *fb, uint32_t position) {
  uint16_t value;
  memcpy(&value, fb->data + position, sizeof value);
  return value;
}

static bool spend(aot_fb_t *fb, uint64_t bytes) {
  if (bytes > fb->budget) return false;
  fb->budget -= (uint32_t)bytes;
  return true;
}

void aot_fb_init(aot_fb_t *fb, const uint8_t *data, uint32_t bytes, aot_error_t *error) {
  *fb = (aot_fb_t){.data = data, .bytes = bytes, .budget = bytes, .status = AOT_OK, .error = error};
}

// Checks the table whose position is read from the uoffset at `from`, itself known to be inside.
static aot_fb_table_t table_at(aot_fb_t *fb, uint32_t from, const char *type) {
  aot_fb_table_t table = {.type = type};
  if (fb->status != AOT_OK) return table;
  const uint64_t position = (uint64_t)from + read_u32(fb, from);
  if (!is_inside(fb, position, 4, 4)) {
    fault(fb, from, type, "its offset points outside");
    return table;
  }
  int32_t back = 0;
  memcpy(&back, fb->data + position, sizeof back);
  const int64_t vtable = (int64_t)position - back;
  if (vtable < 0 || !is_inside(fb, (uint64_t)vtable, 4, 2)) {
    fault(fb, (uint32_t)position, type, "its vtable is outside");
    return table;
  }
  const uint16_t vtable_bytes = read_u16(fb, (uint32_t)vtable);
  const uint16_t table_bytes = read_u16(fb, (uint32_t)vtable + 2);
  if (vtable_bytes < 4 || vtable_bytes % 2 != 0 || table_bytes < 4 ||
      !is_inside(fb, (uint64_t)vtable, vtable_bytes, 2) ||
      !is_inside(fb, position, table_bytes, 4)) {
    fault(fb, (uint32_t)position, type, "its vtable or its length is not valid");
    return table;
  }
  if (!spend(fb, table_bytes)) {
    fault(fb, (uint32_t)position, type, "tables are shared too often");
    return table;
  }
  table.position = (uint32_t)position;
  table.vtable = (uint32_t)vtable;
  table.vtable_bytes = vtable_bytes;
  table.table_bytes = table_bytes;
  return table;
}

aot_fb_table_t aot_fb_root(aot_fb_t *fb, const char identifier[4], const char *type) {
  if (fb->bytes < 8 || memcmp(fb->data + 4, identifier, 4) != 0) {
    fault(fb, 0, type, "the file identifier is missing");
    return (aot_fb_table_t){.type = type};
  }
  return table_at(fb, 0, type);
}

// Where the field's `bytes` stand, or 0 when it is absent (no field is at 0).
static uint32_t field_at(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                         uint32_t bytes) {
  if (fb->status != AOT_OK || field + 2u > table->vtable_bytes) return 0;
  const uint32_t offset = read_u16(fb, table->vtable + field);
  if (offset == 0) return 0;
  if (offset < 4 || offset + bytes > table->table_bytes ||
      (table->position + offset) % bytes != 0) {
    fault(fb, table->position, table->type, "a field is outside the table or is misaligned");
    return 0;
  }
  return table->position + offset;
}

uint64_t aot_fb_number(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, uint32_t bytes,
                       uint64_t absent) {
  const uint32_t at = field_at(fb, table, field, bytes);
  if (at == 0) return absent;
  uint64_t value = 0;
  memcpy(&value, fb->data + at, bytes);
  return value;
}

static aot_fb_vector_t vector_at(aot_fb_t *fb, uint32_t from, uint32_t element_bytes,
                                 const char *type) {
  aot_fb_vector_t vector = {0, 0};
  const uint64_t position = (uint64_t)from + read_u32(fb, from);
  if (!is_inside(fb, position, 4, 4)) {
    fault(fb, from, type, "a vector's offset points outside");
    return vector;
  }
  const uint32_t count = read_u32(fb, (uint32_t)position);
  if (!is_inside(fb, position + 4, (uint64_t)count * element_bytes, element_bytes)) {
    fault(fb, (uint32_t)position, type, "a vector is longer than the structure or misaligned");
    return vector;
  }
  vector.position = (uint32_t)position + 4;
  vector.count = count;
  return vector;
}

static const char *string_at(aot_fb_t *fb, uint32_t from, const char *type) {
  if (fb->status != AOT_OK) return "";
  const aot_fb_vector_t text = vector_at(fb, from, 1, type);
  if (fb->status != AOT_OK) return "";
  if (!is_inside(fb, (uint64_t)text.position + text.count, 1, 1) ||
      fb->data[text.position + text.count] != 0) {
    fault(fb, text.position, type, "a string is not terminated");
    return "";
  }
  return (const char *)fb->data + text.position;
}

static bool find_required(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                          bool is_required, uint32_t *out_at) {
  *out_at = field_at(fb, table, field, 4);
  if (*out_at == 0 && is_required) {
    fault(fb, table->position, table->type, "a required field is missing");
  }
  return *out_at != 0;
}

const char *aot_fb_string(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                          bool is_required) {
  uint32_t at = 0;
  return find_required(fb, table, field, is_required, &at) ? string_at(fb, at, table->type) : "";
}

bool aot_fb_child(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field, bool is_required,
                  const char *type, aot_fb_table_t *out_child) {
  uint32_t at = 0;
  *out_child = (aot_fb_table_t){.type = type};
  if (!find_required(fb, table, field, is_required, &at)) return false;
  *out_child = table_at(fb, at, type);
  return fb->status == AOT_OK;
}

aot_fb_vector_t aot_fb_vector(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                              uint32_t element_bytes, bool is_required) {
  aot_fb_vector_t vector = {0, 0};
  uint32_t at = 0;
  if (!find_required(fb, table, field, is_required, &at)) return vector;
  vector = vector_at(fb, at, element_bytes, table->type);
  if (!spend(fb, (uint64_t)vector.count * element_bytes)) {
    fault(fb, vector.position, table->type, "vectors are shared too often");
    vector.count = 0;
  }
  return vector;
}

aot_fb_table_t aot_fb_vector_table(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index,
                                   const char *type) {
  return table_at(fb, vector->position + 4 * index, type);
}

const char *aot_fb_vector_string(aot_fb_t *fb, const aot_fb_vector_t *vector, uint32_t index) {
  return string_at(fb, vector->position + 4 * index, "strings");
}

static uint8_t read_enum(aot_fb_t *fb, const aot_fb_table_t *table, const aot_fb_field_t *field) {
  const uint8_t value = (uint8_t)aot_fb_number(fb, table, field->field, 1, 0);
  if (value < field->values) return value;
  fault(fb, table->position, table->type, "an enum has a value that this version doesn't know");
  return 0;
}

void aot_fb_read(aot_fb_t *fb, const aot_fb_table_t *table, const aot_fb_field_t *fields,
                 uint32_t count, void *out) {
  for (const aot_fb_field_t *field = fields; field != fields + count; ++field) {
    uint8_t *member = (uint8_t *)out + field->member;
    if (field->kind == AOT_FB_STRING) {
      const char *text = aot_fb_string(fb, table, field->field, field->is_required);
      memcpy(member, &text, sizeof text);
    } else if (field->kind == AOT_FB_WORDS) {
      const aot_fb_vector_t vector = aot_fb_vector(fb, table, field->field, 4, field->is_required);
      const uint8_t *words = fb->data + vector.position;
      memcpy(member, &words, sizeof words);
      memcpy((uint8_t *)out + field->count_member, &vector.count, sizeof vector.count);
    } else {
      const uint64_t value = field->kind == AOT_FB_ENUM
                                 ? read_enum(fb, table, field)
                                 : aot_fb_number(fb, table, field->field, field->bytes,
                                                 (uint64_t)(int64_t)field->absent);
      memcpy(member, &value, field->bytes);
    }
  }
}
