// What values of a chat template are: their truth, order, elements and parts, as Python says.
#include "template_value.h"

#include <string.h>

const char *aot_type_name(aot_value_t value) {
  static const char *const names[] = {[AOT_MISSING] = "undefined", [AOT_UNDEFINED] = "undefined",
                                      [AOT_NONE] = "none",         [AOT_BOOL] = "bool",
                                      [AOT_INT] = "int",           [AOT_FLOAT] = "float",
                                      [AOT_STRING] = "string",     [AOT_LIST] = "list",
                                      [AOT_MAP] = "dict",          [AOT_NAMESPACE] = "namespace",
                                      [AOT_MACRO] = "macro",       [AOT_LOOP] = "loop",
                                      [AOT_FUNCTION] = "function", [AOT_METHOD] = "method"};
  return names[value.kind];
}

bool aot_whole(aot_value_t value, int64_t *out_integer) {
  if (aot_is(value, AOT_BOOL)) {
    *out_integer = value.as.boolean ? 1 : 0;
  } else if (aot_is(value, AOT_INT)) {
    *out_integer = value.as.integer;
  } else {
    return false;
  }
  return true;
}

bool aot_number(aot_value_t value, double *out_number) {
  int64_t whole = 0;
  if (aot_whole(value, &whole)) {
    *out_number = (double)whole;
    return true;
  }
  if (!aot_is(value, AOT_FLOAT)) return false;
  *out_number = value.as.number;
  return true;
}

bool aot_truth(aot_value_t value) {
  switch (value.kind) {
    case AOT_MISSING:
    case AOT_UNDEFINED:
    case AOT_NONE:
      return false;
    case AOT_BOOL:
      return value.as.boolean;
    case AOT_INT:
      return value.as.integer != 0;
    case AOT_FLOAT:
      return value.as.number != 0;
    case AOT_STRING:
      return value.as.string->length > 0;
    case AOT_LIST:
      return value.as.list->count > 0 || value.as.list->sort == AOT_IS_GENERATOR;
    case AOT_MAP:
      return value.as.map->count > 0;
    default:
      return true;
  }
}

// ---- two values ----

static bool equal_in(aot_render_t *render, aot_value_t left, aot_value_t right, unsigned depth);

static bool lists_equal(aot_render_t *render, const aot_list_t *left, const aot_list_t *right,
                        unsigned depth) {
  if (left == right) return true;
  if (left->sort != right->sort || left->count != right->count) return false;
  for (uint32_t i = 0; i < left->count && render->status == AOT_OK; ++i)
    if (!equal_in(render, left->items[i], right->items[i], depth)) return false;
  return true;
}

static bool maps_equal(aot_render_t *render, const aot_map_t *left, const aot_map_t *right,
                       unsigned depth) {
  if (left == right) return true;
  if (left->count != right->count) return false;
  for (uint32_t i = 0; i < left->count && render->status == AOT_OK; ++i) {
    bool is_found = false;
    for (uint32_t j = 0; j < right->count && !is_found && render->status == AOT_OK; ++j)
      is_found =
          equal_in(render, left->pairs[2 * (size_t)i], right->pairs[2 * (size_t)j], depth) &&
          equal_in(render, left->pairs[2 * (size_t)i + 1], right->pairs[2 * (size_t)j + 1], depth);
    if (!is_found) return false;
  }
  return true;
}

static bool numbers_equal(aot_value_t left, aot_value_t right) {
  int64_t a = 0, b = 0;
  double x = 0, y = 0;
  if (aot_whole(left, &a) && aot_whole(right, &b)) return a == b;
  return aot_number(left, &x) && aot_number(right, &y) && x == y;
}

static bool equal_in(aot_render_t *render, aot_value_t left, aot_value_t right, unsigned depth) {
  if (!aot_render_work(render, 1)) return false;
  if (depth == 0) return aot_render_fail(render, "its values are nested too deep");
  double number = 0;
  if (aot_number(left, &number)) return numbers_equal(left, right);
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case AOT_STRING:
      (void)aot_render_work(render, left.as.string->length / 64);
      return aot_strings_equal(left.as.string, right.as.string);
    case AOT_LIST:
      return lists_equal(render, left.as.list, right.as.list, depth - 1);
    case AOT_MAP:
      return maps_equal(render, left.as.map, right.as.map, depth - 1);
    case AOT_NAMESPACE:
      return left.as.map == right.as.map;
    case AOT_MACRO:
      return left.as.macro == right.as.macro;
    case AOT_LOOP:
      return left.as.loop == right.as.loop;
    case AOT_FUNCTION:
      return left.as.function == right.as.function;
    default:
      return left.kind != AOT_METHOD;
  }
}

bool aot_equal(aot_render_t *render, aot_value_t left, aot_value_t right) {
  return equal_in(render, left, right, AOT_MOST_NESTING);
}

static int strings_order(const aot_string_t *left, const aot_string_t *right) {
  const uint32_t least = left->length < right->length ? left->length : right->length;
  const int order = least > 0 ? memcmp(left->bytes, right->bytes, least) : 0;
  if (order != 0) return order;
  return left->length < right->length ? -1 : left->length > right->length;
}

static int order_in(aot_render_t *render, aot_value_t left, aot_value_t right, unsigned depth) {
  int64_t a = 0, b = 0;
  double x = 0, y = 0;
  if (!aot_render_work(render, 1)) return 0;
  if (aot_whole(left, &a) && aot_whole(right, &b)) return a < b ? -1 : a > b;
  if (aot_number(left, &x) && aot_number(right, &y)) return x < y ? -1 : x > y;
  if (aot_is(left, AOT_STRING) && aot_is(right, AOT_STRING)) {
    (void)aot_render_work(render, left.as.string->length / 64);
    return strings_order(left.as.string, right.as.string);
  }
  const bool has_order = aot_is(left, AOT_LIST) && aot_is(right, AOT_LIST) && depth > 0 &&
                         left.as.list->sort == right.as.list->sort &&
                         left.as.list->sort <= AOT_IS_TUPLE;
  if (!has_order) {
    (void)aot_render_fail(render, "a %s and a %s have no order", aot_type_name(left),
                          aot_type_name(right));
    return 0;
  }
  const aot_list_t *one = left.as.list, *two = right.as.list;
  for (uint32_t i = 0; i < one->count && i < two->count && render->status == AOT_OK; ++i) {
    if (equal_in(render, one->items[i], two->items[i], depth - 1)) continue;
    return order_in(render, one->items[i], two->items[i], depth - 1);
  }
  return one->count < two->count ? -1 : one->count > two->count;
}

int aot_order(aot_render_t *render, aot_value_t left, aot_value_t right) {
  return order_in(render, left, right, AOT_MOST_NESTING);
}

bool aot_contains(aot_render_t *render, aot_value_t whole, aot_value_t part) {
  switch (whole.kind) {
    case AOT_STRING:
      if (!aot_is(part, AOT_STRING)) {
        return aot_render_fail(render, "a %s is in no string", aot_type_name(part));
      }
      return aot_find(render, whole.as.string, part.as.string, 0, false) != UINT32_MAX;
    case AOT_MAP:
      return aot_map_find(render, whole.as.map, part) != NULL;
    default:
      break;
  }
  const aot_list_t *list = aot_elements(render, whole);
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i)
    if (aot_equal(render, list->items[i], part)) return true;
  return false;
}

// ---- elements ----

static aot_list_t *characters_of(aot_render_t *render, aot_string_t *string) {
  aot_list_t *list = aot_list_new(render, aot_characters(string), AOT_IS_LIST);
  for (uint32_t at = 0; at < string->length && render->status == AOT_OK;) {
    const uint32_t begin = at;
    (void)aot_read_character(string, &at);
    aot_list_push(render, list, aot_string(aot_part(render, string, begin, at)));
  }
  return list;
}

aot_list_t *aot_elements(aot_render_t *render, aot_value_t value) {
  switch (value.kind) {
    case AOT_UNDEFINED:
      return aot_list_new(render, 0, AOT_IS_LIST);
    case AOT_STRING:
      return characters_of(render, value.as.string);
    case AOT_MAP: {
      aot_list_t *keys = aot_list_new(render, value.as.map->count, AOT_IS_LIST);
      for (uint32_t i = 0; i < value.as.map->count; ++i)
        aot_list_push(render, keys, value.as.map->pairs[2 * (size_t)i]);
      return keys;
    }
    case AOT_LIST: {
      if (value.as.list->sort != AOT_IS_GENERATOR) return value.as.list;
      aot_list_t *taken = aot_list_new(render, 0, AOT_IS_LIST);
      if (taken == &render->no_items) return taken;
      *taken = *value.as.list;
      taken->sort = AOT_IS_LIST;
      value.as.list->count = 0;
      value.as.list->capacity = 0;
      return taken;
    }
    default:
      (void)aot_render_fail(render, "a %s has no elements", aot_type_name(value));
      return &render->no_items;
  }
}

bool aot_length(aot_value_t value, int64_t *out_length) {
  *out_length = 0;
  switch (value.kind) {
    case AOT_UNDEFINED:
      return true;
    case AOT_STRING:
      *out_length = aot_characters(value.as.string);
      return true;
    case AOT_LIST:
      *out_length = value.as.list->count;
      return value.as.list->sort != AOT_IS_GENERATOR;
    case AOT_MAP:
      *out_length = value.as.map->count;
      return true;
    default:
      return false;
  }
}

// ---- parts ----

static aot_value_t loop_attribute(const aot_loop_t *loop, const aot_string_t *name) {
  const int64_t count = loop->list->count;
  const int64_t at = (int64_t)loop->next - 1;
  const struct {
    const char *name;
    aot_value_t value;
  } numbers[] = {{"index", aot_int(at + 1)},
                 {"index0", aot_int(at)},
                 {"revindex", aot_int(count - at)},
                 {"revindex0", aot_int(count - at - 1)},
                 {"first", aot_bool(at == 0)},
                 {"last", aot_bool(at == count - 1)},
                 {"length", aot_int(count)},
                 {"depth", aot_int(1)},
                 {"depth0", aot_int(0)}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    const size_t length = strlen(numbers[i].name);
    if (length == name->length && memcmp(numbers[i].name, name->bytes, length) == 0) {
      return numbers[i].value;
    }
  }
  const bool is_previous = name->length == 8 && memcmp(name->bytes, "previtem", 8) == 0;
  const bool is_next = name->length == 8 && memcmp(name->bytes, "nextitem", 8) == 0;
  const int64_t wanted = at + (is_next ? 1 : -1);
  if ((is_previous || is_next) && wanted >= 0 && wanted < count) return loop->list->items[wanted];
  return aot_missing();
}

// Whether a type has an attribute of its own of that name: a method, or one that may not be used.
static bool own_attribute(aot_value_t value, uint32_t names, aot_string_t *name,
                          aot_value_t *out_value) {
  uint32_t bit = 0;
  if (aot_is(value, AOT_STRING)) bit = 1u;
  if (aot_is(value, AOT_LIST)) bit = value.as.list->sort == AOT_IS_TUPLE ? 4u : 2u;
  if (aot_is(value, AOT_LIST) && value.as.list->sort > AOT_IS_TUPLE) bit = 0;
  if (aot_is(value, AOT_MAP)) bit = 8u;
  if ((names & bit) != 0) {
    *out_value = (aot_value_t){.kind = AOT_METHOD};
    return true;
  }
  *out_value = aot_undefined(name);
  return (names & bit << 8) != 0;
}

static bool refuse_undefined(aot_render_t *render, aot_value_t value) {
  const aot_string_t *name = value.as.string;
  if (name == NULL) return aot_render_fail(render, "a value is undefined");
  return aot_render_fail(render, "'%.*s' is undefined", aot_shown(name), (const char *)name->bytes);
}

aot_value_t aot_attribute(aot_render_t *render, aot_value_t value, aot_string_t *name,
                          uint32_t names) {
  aot_value_t found;
  if (aot_is(value, AOT_UNDEFINED)) {
    (void)refuse_undefined(render, value);
    return aot_none();
  }
  if (own_attribute(value, names, name, &found)) return found;
  if (aot_is(value, AOT_LOOP)) {
    found = loop_attribute(value.as.loop, name);
    return aot_is(found, AOT_MISSING) ? aot_undefined(name) : found;
  }
  if (!aot_is(value, AOT_MAP) && !aot_is(value, AOT_NAMESPACE)) return aot_undefined(name);
  const aot_value_t *own = aot_map_find(render, value.as.map, aot_string(name));
  return own == NULL ? aot_undefined(name) : *own;
}

aot_value_t aot_item(aot_render_t *render, aot_value_t value, aot_value_t key, uint32_t names) {
  aot_string_t *name = aot_is(key, AOT_STRING) ? key.as.string : NULL;
  int64_t index = 0;
  if (aot_is(value, AOT_UNDEFINED)) {
    (void)refuse_undefined(render, value);
    return aot_none();
  }
  if (aot_is(value, AOT_MAP)) {
    const aot_value_t *own = aot_map_find(render, value.as.map, key);
    if (own != NULL) return *own;
  }
  if (name != NULL) return aot_attribute(render, value, name, names);
  int64_t count = 0;
  const bool has_items =
      aot_is(value, AOT_STRING) || (aot_is(value, AOT_LIST) && value.as.list->sort <= AOT_IS_RANGE);
  if (!has_items || !aot_whole(key, &index) || !aot_length(value, &count)) {
    return aot_undefined(NULL);
  }
  if (index < 0) index += count;
  if (index < 0 || index >= count) return aot_undefined(NULL);
  if (aot_is(value, AOT_LIST)) return value.as.list->items[index];
  aot_string_t *string = value.as.string;
  (void)aot_render_work(render, string->length / 8);
  const uint32_t begin = aot_character_at(string, (uint32_t)index);
  uint32_t end = begin;
  (void)aot_read_character(string, &end);
  return aot_string(aot_part(render, string, begin, end));
}

aot_value_t aot_path(aot_render_t *render, aot_value_t value, aot_value_t path) {
  if (!aot_is(path, AOT_STRING)) return aot_item(render, value, path, 0);
  const aot_string_t *string = path.as.string;
  (void)aot_render_work(render, string->length / 8);
  for (uint32_t begin = 0; begin <= string->length && render->status == AOT_OK;) {
    uint32_t end = begin;
    int64_t index = 0;
    bool is_index = true;
    for (; end < string->length && string->bytes[end] != '.'; ++end) {
      is_index = is_index && string->bytes[end] >= '0' && string->bytes[end] <= '9';
      if (is_index && index < INT32_MAX) index = 10 * index + (string->bytes[end] - '0');
    }
    is_index = is_index && end > begin;
    const aot_value_t key =
        is_index ? aot_int(index) : aot_string(aot_part(render, string, begin, end));
    value = aot_item(render, value, key, 0);
    begin = end + 1;
  }
  return value;
}

static bool bound_of(aot_render_t *render, aot_value_t bound, int64_t count, int64_t least,
                     int64_t most, int64_t usual, int64_t *out_bound) {
  *out_bound = usual;
  if (aot_is(bound, AOT_NONE)) return true;
  if (!aot_whole(bound, out_bound)) {
    return aot_render_fail(render, "a %s is no bound of a slice", aot_type_name(bound));
  }
  if (*out_bound < 0) *out_bound = *out_bound < -count ? least : *out_bound + count;
  if (*out_bound < least) *out_bound = least;
  if (*out_bound > most) *out_bound = most;
  return true;
}

aot_value_t aot_slice(aot_render_t *render, aot_value_t value, const aot_value_t bounds[3]) {
  int64_t count = 0, begin = 0, end = 0, step = 1;
  const bool has_parts =
      aot_is(value, AOT_STRING) || (aot_is(value, AOT_LIST) && value.as.list->sort <= AOT_IS_RANGE);
  if (aot_is(value, AOT_UNDEFINED)) {
    (void)refuse_undefined(render, value);
    return aot_none();
  }
  if (!has_parts || !aot_length(value, &count)) return aot_undefined(NULL);
  if (!aot_is(bounds[2], AOT_NONE) && (!aot_whole(bounds[2], &step) || step == 0)) {
    (void)aot_render_fail(render, "the step of a slice is no number other than 0");
    return aot_none();
  }
  if (step < -INT32_MAX) step = -INT32_MAX;
  if (step > INT32_MAX) step = INT32_MAX;
  const bool is_up = step > 0;
  const int64_t least = is_up ? 0 : -1, most = is_up ? count : count - 1;
  if (!bound_of(render, bounds[0], count, least, most, is_up ? least : most, &begin) ||
      !bound_of(render, bounds[1], count, least, most, is_up ? most : least, &end)) {
    return aot_none();
  }
  if (aot_is(value, AOT_STRING)) {
    aot_string_t *string = value.as.string;
    if (!aot_render_work(render, string->length / 8)) return aot_none();
    if (step == 1) {
      if (end < begin) end = begin;
      return aot_string(aot_part(render, string, aot_character_at(string, (uint32_t)begin),
                                 aot_character_at(string, (uint32_t)end)));
    }
    value = aot_list(aot_elements(render, value));
    if (render->status != AOT_OK) return aot_none();
    aot_builder_t builder = {.render = render};
    for (int64_t i = begin; is_up ? i < end : i > end; i += step)
      aot_build_string(&builder, value.as.list->items[i].as.string);
    return aot_built(&builder);
  }
  aot_list_t *part = aot_list_new(render, 0, value.as.list->sort);
  for (int64_t i = begin; is_up ? i < end : i > end; i += step)
    aot_list_push(render, part, value.as.list->items[i]);
  return aot_list(part);
}

// ---- maps ----

const aot_value_t *aot_map_find(aot_render_t *render, const aot_map_t *map, aot_value_t key) {
  if (!aot_render_work(render, map->count / 4)) return NULL;
  for (uint32_t i = 0; i < map->count; ++i)
    if (aot_equal(render, map->pairs[2 * (size_t)i], key)) return &map->pairs[2 * (size_t)i + 1];
  return NULL;
}

const aot_value_t *aot_map_find_text(aot_render_t *render, const aot_map_t *map, const char *key) {
  aot_string_t text = {.bytes = (const uint8_t *)key, .length = (uint32_t)strlen(key)};
  return aot_map_find(render, map, aot_string(&text));
}

void aot_map_set(aot_render_t *render, aot_map_t *map, aot_value_t key, aot_value_t value) {
  if (aot_is(key, AOT_MAP) || (aot_is(key, AOT_LIST) && key.as.list->sort == AOT_IS_LIST)) {
    (void)aot_render_fail(render, "a %s is no key", aot_type_name(key));
  }
  for (uint32_t i = 0; i < map->count && render->status == AOT_OK; ++i) {
    if (!aot_equal(render, map->pairs[2 * (size_t)i], key)) continue;
    map->pairs[2 * (size_t)i + 1] = value;
    return;
  }
  (void)aot_render_work(render, map->count / 4);
  if (render->status != AOT_OK) return;
  void *pairs = map->pairs;
  if (!aot_grow(render, &pairs, map->count, &map->capacity, 2 * sizeof value)) return;
  map->pairs = pairs;
  map->pairs[2 * (size_t)map->count] = key;
  map->pairs[2 * (size_t)map->count + 1] = value;
  ++map->count;
}
