// The order of a list's elements and of a dict's items.
#include <string.h>

#include "template_value.h"

static bool is_given(aot_value_t value) {
  return !aot_is(value, AOT_MISSING);
}

aot_value_t aot_key_of(aot_render_t *render, aot_value_t item, aot_value_t attribute,
                       bool has_case) {
  if (is_given(attribute) && !aot_is(attribute, AOT_NONE)) {
    const bool is_several = aot_is(attribute, AOT_STRING) && attribute.as.string->length > 0 &&
                            memchr(attribute.as.string->bytes, ',', attribute.as.string->length);
    if (is_several) (void)aot_render_fail(render, "several attributes have no order");
    item = aot_path(render, item, attribute);
  }
  if (has_case || !aot_is(item, AOT_STRING)) return item;
  return aot_in_case(render, item.as.string, AOT_LOWER);
}

typedef struct entry_t {
  aot_value_t key;
  aot_value_t value;
} entry_t;

// A stable merge sort; the other way round, equal ones stay as they are too.
static void sort_entries(aot_render_t *render, entry_t *entries, uint32_t count, bool is_reverse) {
  entry_t *other = aot_render_allocate(render, (uint64_t)count * sizeof *entries);
  for (uint64_t width = 1; width < count && render->status == AOT_OK; width *= 2) {
    for (uint64_t begin = 0; begin < count; begin += 2 * width) {
      const uint64_t middle = begin + width < count ? begin + width : count;
      const uint64_t end = begin + 2 * width < count ? begin + 2 * width : count;
      uint64_t left = begin, right = middle;
      for (uint64_t at = begin; at < end; ++at) {
        bool takes_left = left < middle;
        if (takes_left && right < end) {
          const int order = aot_order(render, entries[right].key, entries[left].key);
          takes_left = is_reverse ? order <= 0 : order >= 0;
        }
        other[at] = takes_left ? entries[left++] : entries[right++];
      }
    }
    if (render->status == AOT_OK) memcpy(entries, other, count * sizeof *entries);
  }
}

aot_value_t aot_sorted(aot_render_t *render, const aot_list_t *list, aot_value_t attribute,
                       bool has_case, bool is_reverse) {
  entry_t *entries = aot_render_allocate(render, (uint64_t)list->count * sizeof *entries);
  aot_list_t *made = aot_list_new(render, list->count, AOT_IS_LIST);
  if (render->status != AOT_OK) return aot_list(made);
  for (uint32_t i = 0; i < list->count; ++i)
    entries[i] = (entry_t){aot_key_of(render, list->items[i], attribute, has_case), list->items[i]};
  sort_entries(render, entries, list->count, is_reverse);
  for (uint32_t i = 0; i < list->count; ++i)
    aot_list_push(render, made, entries[i].value);
  return aot_list(made);
}

aot_value_t aot_pairs(aot_render_t *render, const aot_map_t *map, uint8_t sort) {
  aot_list_t *pairs = aot_list_new(render, map->count, sort);
  for (uint32_t i = 0; i < map->count && render->status == AOT_OK; ++i) {
    aot_list_t *pair = aot_list_new(render, 2, AOT_IS_TUPLE);
    aot_list_push(render, pair, map->pairs[2 * (size_t)i]);
    aot_list_push(render, pair, map->pairs[2 * (size_t)i + 1]);
    aot_list_push(render, pairs, aot_list(pair));
  }
  return aot_list(pairs);
}
