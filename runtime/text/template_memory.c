// Memory of a template that is being run: from one place to the next, given back as a whole; and
// what grows in it.
#include <string.h>

#include "alloc.h"
#include "template_value.h"

#define CHUNK_BYTES ((uint64_t)1 << 16)
#define MOST_STRING ((uint64_t)1 << 30)

struct aot_chunk_t {
  aot_chunk_t *next;
  uint64_t bytes;  // of all of it
  uint64_t used;
};

bool aot_render_fail(aot_render_t *render, const char *format, ...) {
  if (render->status != AOT_OK) return false;
  char text[sizeof render->error->message];
  va_list arguments;
  va_start(arguments, format);
  (void)aot_text_format(text, sizeof text, format, arguments);
  va_end(arguments);
  render->status =
      aot_fail(render->error, AOT_ERROR_ARGUMENT, "the chat template cannot be rendered: %s", text);
  return false;
}

bool aot_render_work(aot_render_t *render, uint64_t steps) {
  if (steps <= render->steps) {
    render->steps -= steps;
    return render->status == AOT_OK;
  }
  render->steps = 0;
  return aot_render_fail(render, "it takes too many steps");
}

void *aot_render_allocate(aot_render_t *render, uint64_t bytes) {
  if (render->status != AOT_OK) return NULL;
  const uint64_t needed = (bytes + 15) & ~(uint64_t)15;
  aot_chunk_t *chunk = render->chunks;
  if (chunk == NULL || chunk->bytes - chunk->used < needed) {
    const uint64_t own = sizeof(aot_chunk_t) + 16 + needed;
    const uint64_t size = own > CHUNK_BYTES ? own : CHUNK_BYTES;
    if (size > render->bytes) {
      (void)aot_render_fail(render, "it takes too much memory");
      return NULL;
    }
    void *memory = NULL;
    render->status =
        aot_allocate(render->allocator, size, "a chat template", render->error, &memory);
    if (render->status != AOT_OK) return NULL;
    render->bytes -= size;
    chunk = memory;
    *chunk = (aot_chunk_t){render->chunks, size, (sizeof(aot_chunk_t) + 15) & ~(uint64_t)15};
    render->chunks = chunk;
  }
  void *found = (uint8_t *)chunk + chunk->used;
  chunk->used += needed;
  memset(found, 0, (size_t)needed);
  return found;
}

void aot_render_free(aot_render_t *render) {
  for (aot_chunk_t *chunk = render->chunks; chunk != NULL;) {
    aot_chunk_t *next = chunk->next;
    aot_release(render->allocator, chunk, (size_t)chunk->bytes);
    chunk = next;
  }
  render->chunks = NULL;
}

bool aot_grow(aot_render_t *render, void **items, uint32_t count, uint32_t *capacity, size_t size) {
  if (count < *capacity) return true;
  const uint32_t wanted = *capacity < 4 ? 8 : *capacity > UINT32_MAX / 4 ? 0 : 2 * *capacity;
  void *grown = wanted == 0 ? NULL : aot_render_allocate(render, (uint64_t)wanted * size);
  if (grown == NULL) return aot_render_fail(render, "it takes too much memory");
  if (count > 0) memcpy(grown, *items, count * size);
  *items = grown;
  *capacity = wanted;
  return true;
}

// ---- lists and maps ----

aot_list_t *aot_list_new(aot_render_t *render, uint32_t capacity, uint8_t sort) {
  aot_list_t *list = aot_render_allocate(render, sizeof *list);
  if (list == NULL) return &render->no_items;
  if (capacity > 0) {
    list->items = aot_render_allocate(render, (uint64_t)capacity * sizeof *list->items);
    if (list->items == NULL) return &render->no_items;
  }
  list->capacity = capacity;
  list->sort = sort;
  return list;
}

void aot_list_push(aot_render_t *render, aot_list_t *list, aot_value_t value) {
  if (render->status != AOT_OK) return;
  void *items = list->items;
  if (!aot_grow(render, &items, list->count, &list->capacity, sizeof value)) return;
  list->items = items;
  list->items[list->count++] = value;
}

aot_map_t *aot_map_new(aot_render_t *render, uint32_t capacity) {
  aot_map_t *map = aot_render_allocate(render, sizeof *map);
  if (map == NULL) return &render->no_pairs;
  if (capacity > 0) {
    map->pairs = aot_render_allocate(render, 2 * (uint64_t)capacity * sizeof *map->pairs);
    if (map->pairs == NULL) return &render->no_pairs;
  }
  map->capacity = capacity;
  return map;
}

// ---- text that grows ----

static bool reserve(aot_builder_t *builder, size_t count) {
  aot_render_t *render = builder->render;
  if (render->status != AOT_OK) return false;
  const uint64_t needed = (uint64_t)builder->length + count;
  if (needed <= builder->capacity) return true;
  uint64_t wanted = 2 * (uint64_t)builder->capacity;
  if (wanted < needed) wanted = needed < 32 ? 32 : needed;
  if (wanted > MOST_STRING) return aot_render_fail(render, "it takes too much memory");
  uint8_t *bytes = aot_render_allocate(render, wanted);
  uint8_t *marks = builder->marks == NULL ? NULL : aot_render_allocate(render, wanted);
  if (render->status != AOT_OK) return false;
  if (builder->length > 0) {
    memcpy(bytes, builder->bytes, builder->length);
    if (marks != NULL) memcpy(marks, builder->marks, builder->length);
  }
  builder->bytes = bytes;
  builder->marks = marks;
  builder->capacity = (uint32_t)wanted;
  return true;
}

// Gives each byte a mark of its own.
static bool mark_apart(aot_builder_t *builder) {
  if (builder->marks != NULL) return true;
  builder->marks = aot_render_allocate(builder->render, builder->capacity);
  if (builder->marks == NULL) return false;
  memset(builder->marks, builder->mark, builder->length);
  return true;
}

void aot_build(aot_builder_t *builder, const void *bytes, size_t count, uint8_t mark) {
  if (count == 0 || !aot_render_work(builder->render, count / 64) || !reserve(builder, count)) {
    return;
  }
  if (builder->length == 0 && builder->marks == NULL) builder->mark = mark;
  if (mark != builder->mark && !mark_apart(builder)) return;
  memcpy(builder->bytes + builder->length, bytes, count);
  if (builder->marks != NULL) memset(builder->marks + builder->length, mark, count);
  builder->length += (uint32_t)count;
}

void aot_build_string(aot_builder_t *builder, const aot_string_t *string) {
  if (string->marks == NULL) {
    aot_build(builder, string->bytes, string->length, string->mark);
    return;
  }
  if (string->length == 0 || !aot_render_work(builder->render, string->length / 32)) return;
  if (!reserve(builder, string->length) || !mark_apart(builder)) return;
  memcpy(builder->bytes + builder->length, string->bytes, string->length);
  memcpy(builder->marks + builder->length, string->marks, string->length);
  builder->length += string->length;
}

void aot_build_character(aot_builder_t *builder, uint32_t character, uint8_t mark) {
  uint8_t bytes[4];
  size_t count = 1;
  if (character < 0x80) {
    bytes[0] = (uint8_t)character;
  } else {
    count = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = count; i-- > 1; character >>= 6)
      bytes[i] = (uint8_t)(0x80 | (character & 0x3F));
    bytes[0] = (uint8_t)((0xF00 >> count & 0xFF) | character);
  }
  aot_build(builder, bytes, count, mark);
}

void aot_build_text(aot_builder_t *builder, const char *text) {
  aot_build(builder, text, strlen(text), 0);
}

aot_value_t aot_built(aot_builder_t *builder) {
  aot_string_t *string = aot_render_allocate(builder->render, sizeof *string);
  if (string == NULL) return aot_string(&builder->render->empty);
  *string =
      (aot_string_t){builder->bytes, builder->marks, builder->length, UINT32_MAX, builder->mark};
  if (string->bytes == NULL) string->bytes = builder->render->empty.bytes;
  return aot_string(string);
}
