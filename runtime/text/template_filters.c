// Jinja's filters.
#include <string.h>

#include "module_fbs.h"
#include "template_value.h"

#define FILTER(name) AOT_FBS_TEMPLATE_FILTER_##name
#define OP(name) AOT_FBS_TEMPLATE_OP_##name

static bool is_given(aot_value_t argument) {
  return !aot_is(argument, AOT_MISSING);
}

static bool is_true(aot_value_t argument) {
  return aot_truth(argument);
}

// ---- order ----

static aot_value_t sorted_items(aot_render_t *render, aot_value_t value,
                                const aot_value_t *arguments) {
  if (!aot_is(value, AOT_MAP)) {
    (void)aot_render_fail(render, "a %s is no dict to be sorted", aot_type_name(value));
    return aot_list(&render->no_items);
  }
  int64_t by = 0;
  if (is_given(arguments[1])) {
    const aot_string_t *word = aot_as_string(render, arguments[1]);
    by = word->length == 5 && memcmp(word->bytes, "value", 5) == 0;
    if (by == 0 && !(word->length == 3 && memcmp(word->bytes, "key", 3) == 0)) {
      (void)aot_render_fail(render, "dictsort is by key or value");
    }
  }
  const aot_value_t pairs = aot_pairs(render, value.as.map, AOT_IS_LIST);
  return aot_sorted(render, pairs.as.list, aot_int(by), is_true(arguments[0]),
                    is_true(arguments[2]));
}

// The least element, or the largest; the first of equal ones.
static aot_value_t extreme(aot_render_t *render, aot_value_t value, const aot_value_t *arguments,
                           int sign) {
  const aot_list_t *list = aot_elements(render, value);
  aot_value_t best = aot_undefined(NULL), best_key = aot_none();
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i) {
    const aot_value_t key = aot_key_of(render, list->items[i], arguments[1], is_true(arguments[0]));
    if (i > 0 && sign * aot_order(render, key, best_key) <= 0) continue;
    best = list->items[i];
    best_key = key;
  }
  return best;
}

static aot_value_t unique(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  const aot_list_t *list = aot_elements(render, value);
  aot_list_t *made = aot_list_new(render, 0, AOT_IS_GENERATOR);
  aot_map_t *seen = aot_map_new(render, 0);
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i) {
    const aot_value_t key = aot_key_of(render, list->items[i], arguments[1], is_true(arguments[0]));
    const uint32_t before = seen->count;
    aot_map_set(render, seen, key, aot_none());
    if (seen->count > before) aot_list_push(render, made, list->items[i]);
  }
  return aot_list(made);
}

// ---- sequences ----

static aot_value_t first(aot_render_t *render, aot_value_t value) {
  if (aot_is(value, AOT_LIST) && value.as.list->sort == AOT_IS_GENERATOR) {
    aot_list_t *rest = value.as.list;
    if (rest->count == 0) return aot_undefined(NULL);
    const aot_value_t taken = rest->items[0];
    ++rest->items;
    --rest->count;
    --rest->capacity;
    return taken;
  }
  const aot_list_t *list = aot_elements(render, value);
  return list->count > 0 ? list->items[0] : aot_undefined(NULL);
}

static aot_value_t last(aot_render_t *render, aot_value_t value) {
  if (aot_is(value, AOT_LIST) && value.as.list->sort == AOT_IS_GENERATOR) {
    (void)aot_render_fail(render, "a generator has no last element");
    return aot_none();
  }
  const aot_list_t *list = aot_elements(render, value);
  return list->count > 0 ? list->items[list->count - 1] : aot_undefined(NULL);
}

static aot_value_t join(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  const aot_list_t *list = aot_elements(render, value);
  const aot_string_t *between =
      is_given(arguments[0]) ? aot_as_string(render, arguments[0]) : &render->empty;
  aot_builder_t builder = {.render = render};
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i) {
    aot_value_t item = list->items[i];
    if (i > 0) aot_build_string(&builder, between);
    if (is_given(arguments[1]) && !aot_is(arguments[1], AOT_NONE)) {
      item = aot_path(render, item, arguments[1]);
    }
    aot_write(&builder, item);
  }
  return aot_built(&builder);
}

static aot_value_t length(aot_render_t *render, aot_value_t value) {
  int64_t count = 0;
  if (aot_is(value, AOT_STRING)) (void)aot_render_work(render, value.as.string->length / 8);
  if (!aot_length(value, &count)) {
    (void)aot_render_fail(render, "a %s has no length", aot_type_name(value));
  }
  return aot_int(count);
}

static aot_value_t list_of(aot_render_t *render, aot_value_t value, bool is_reverse) {
  const aot_list_t *list = aot_elements(render, value);
  const bool is_view = aot_is(value, AOT_LIST) && value.as.list->sort == AOT_IS_GENERATOR;
  aot_list_t *made =
      aot_list_new(render, list->count, is_reverse && !is_view ? AOT_IS_GENERATOR : AOT_IS_LIST);
  for (uint32_t i = 0; i < list->count; ++i)
    aot_list_push(render, made, list->items[is_reverse ? list->count - 1 - i : i]);
  return aot_list(made);
}

static aot_value_t reversed(aot_render_t *render, aot_value_t value) {
  if (!aot_is(value, AOT_STRING)) return list_of(render, value, true);
  const aot_list_t *characters = aot_elements(render, value);
  aot_builder_t builder = {.render = render};
  for (uint32_t i = characters->count; i-- > 0 && render->status == AOT_OK;)
    aot_build_string(&builder, characters->items[i].as.string);
  return aot_built(&builder);
}

static aot_value_t sum(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  const aot_list_t *list = aot_elements(render, value);
  aot_value_t total = is_given(arguments[1]) ? arguments[1] : aot_int(0);
  for (uint32_t i = 0; i < list->count && aot_render_work(render, 1); ++i) {
    aot_value_t item = list->items[i];
    if (is_given(arguments[0]) && !aot_is(arguments[0], AOT_NONE)) {
      item = aot_path(render, item, arguments[0]);
    }
    total = aot_operate(render, OP(ADD), total, item);
  }
  return total;
}

static aot_value_t items(aot_render_t *render, aot_value_t value) {
  if (aot_is(value, AOT_UNDEFINED)) return aot_list(aot_list_new(render, 0, AOT_IS_GENERATOR));
  if (aot_is(value, AOT_MAP)) return aot_pairs(render, value.as.map, AOT_IS_GENERATOR);
  (void)aot_render_fail(render, "a %s has no items", aot_type_name(value));
  return aot_none();
}

// ---- numbers ----

static aot_value_t absolute(aot_render_t *render, aot_value_t value) {
  int64_t whole = 0;
  double number = 0;
  if (aot_whole(value, &whole)) {
    return whole < 0 ? aot_operate(render, OP(SUBTRACT), aot_int(0), value) : aot_int(whole);
  }
  if (aot_number(value, &number)) return aot_float(number <= 0 ? 0 - number : number);
  (void)aot_render_fail(render, "a %s has no absolute value", aot_type_name(value));
  return aot_none();
}

// Fails where the integer is too large; false where the number is none.
static bool truncated(aot_render_t *render, double number, int64_t *out_whole) {
  if (number != number) return false;
  if (!(number >= -0x1p63 && number < 0x1p63)) {
    return aot_render_fail(render, "an integer has more than 64 bits");
  }
  *out_whole = (int64_t)number;
  return true;
}

// An integer of decimal digits, with a sign; fails where it is too large.
static bool read_whole(aot_render_t *render, const aot_string_t *string, int64_t *out_whole) {
  uint32_t at = 0;
  const bool has_sign = string->length > 0 && (string->bytes[0] == '-' || string->bytes[0] == '+');
  const bool is_negative = has_sign && string->bytes[0] == '-';
  bool is_large = false;
  *out_whole = 0;
  for (at = has_sign; at < string->length && aot_render_work(render, 1); ++at) {
    const int digit = string->bytes[at] - '0';
    if (digit < 0 || digit > 9) return false;
    is_large = is_large || __builtin_mul_overflow(*out_whole, 10, out_whole) ||
               __builtin_add_overflow(*out_whole, is_negative ? -digit : digit, out_whole);
  }
  if (is_large) return aot_render_fail(render, "an integer has more than 64 bits");
  return string->length > (has_sign ? 1u : 0u);
}

static bool read_number(aot_render_t *render, aot_string_t *string, double *out_number) {
  const aot_string_t *own = aot_stripped(render, string, NULL, AOT_STRIP_BEGIN | AOT_STRIP_END);
  for (uint32_t i = 0; i < own->length && aot_render_work(render, 1); ++i) {
    const uint8_t byte = own->bytes[i];
    const bool is_of_number = (byte >= '0' && byte <= '9') || byte == '.' || byte == '-' ||
                              byte == '+' || byte == 'e' || byte == 'E';
    if (!is_of_number) return false;
  }
  return aot_read_float((const char *)own->bytes, own->length, out_number);
}

static aot_value_t integer(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  int64_t whole = 0, base = 10;
  double number = 0;
  if (is_given(arguments[1]) && (!aot_whole(arguments[1], &base) || base != 10)) {
    (void)aot_render_fail(render, "integers are read with the base 10");
  }
  if (aot_is(value, AOT_UNDEFINED))
    (void)aot_render_fail(render, "an undefined value is no number");
  if (aot_whole(value, &whole)) return aot_int(whole);
  if (aot_is(value, AOT_STRING)) {
    const aot_string_t *own =
        aot_stripped(render, value.as.string, NULL, AOT_STRIP_BEGIN | AOT_STRIP_END);
    if (read_whole(render, own, &whole)) return aot_int(whole);
    if (read_number(render, value.as.string, &number) && truncated(render, number, &whole)) {
      return aot_int(whole);
    }
  } else if (aot_number(value, &number) && truncated(render, number, &whole)) {
    return aot_int(whole);
  }
  return is_given(arguments[0]) ? arguments[0] : aot_int(0);
}

static aot_value_t floating(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  double number = 0;
  if (aot_is(value, AOT_UNDEFINED))
    (void)aot_render_fail(render, "an undefined value is no number");
  if (aot_number(value, &number)) return aot_float(number);
  if (aot_is(value, AOT_STRING) && read_number(render, value.as.string, &number)) {
    return aot_float(number);
  }
  return is_given(arguments[0]) ? arguments[0] : aot_float(0);
}

// ---- text ----

static aot_value_t escaped(aot_render_t *render, aot_value_t value) {
  const aot_string_t *string = aot_as_string(render, value);
  aot_builder_t builder = {.render = render};
  for (uint32_t i = 0; i < string->length && aot_render_work(render, 1); ++i) {
    const uint8_t byte = string->bytes[i], mark = aot_mark_at(string, i);
    const char *by = byte == '&'    ? "&amp;"
                     : byte == '<'  ? "&lt;"
                     : byte == '>'  ? "&gt;"
                     : byte == '\'' ? "&#39;"
                     : byte == '"'  ? "&#34;"
                                    : NULL;
    aot_build(&builder, by == NULL ? (const void *)&byte : by, by == NULL ? 1 : strlen(by), mark);
  }
  return aot_built(&builder);
}

// So many spaces, or the text that is given.
static const aot_string_t *margin(aot_render_t *render, aot_value_t width, int64_t usual) {
  if (aot_is(width, AOT_STRING)) return width.as.string;
  int64_t count = usual;
  if (is_given(width) && !aot_whole(width, &count)) {
    (void)aot_render_fail(render, "a %s is no width", aot_type_name(width));
  }
  aot_builder_t builder = {.render = render};
  for (; count > 0 && aot_render_work(render, 1); --count)
    aot_build_text(&builder, " ");
  return aot_built(&builder).as.string;
}

static aot_value_t indented(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  if (!aot_is(value, AOT_STRING)) {
    (void)aot_render_fail(render, "a %s cannot be indented", aot_type_name(value));
    return aot_none();
  }
  const aot_string_t *own = margin(render, arguments[0], 4);
  aot_builder_t whole = {.render = render};
  aot_build_string(&whole, value.as.string);
  aot_build_text(&whole, "\n");
  const aot_list_t *lines = aot_lines(render, aot_built(&whole).as.string, false).as.list;
  aot_builder_t builder = {.render = render};
  for (uint32_t i = 0; i < lines->count && render->status == AOT_OK; ++i) {
    const aot_string_t *line = lines->items[i].as.string;
    const bool has_margin =
        i == 0 ? is_true(arguments[1]) : line->length > 0 || is_true(arguments[2]);
    if (i > 0) aot_build_text(&builder, "\n");
    if (has_margin) aot_build_string(&builder, own);
    aot_build_string(&builder, line);
  }
  return aot_built(&builder);
}

static aot_value_t to_json(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  static const uint8_t comma[] = ", ", colon[] = ": ";
  const bool has_lines = is_given(arguments[1]) && !aot_is(arguments[1], AOT_NONE);
  const aot_string_t between = {.bytes = comma, .length = has_lines ? 1 : 2};
  const aot_string_t behind_key = {.bytes = colon, .length = 2};
  aot_json_options_t options = {
      .indent = has_lines ? margin(render, arguments[1], 0) : NULL,
      .between = &between,
      .behind_key = &behind_key,
      .is_ascii = is_true(arguments[0]),
      .sorts_keys = is_true(arguments[3]),
  };
  if (is_given(arguments[2]) && !aot_is(arguments[2], AOT_NONE)) {
    const aot_list_t *own = aot_elements(render, arguments[2]);
    if (own->count != 2 || !aot_is(own->items[0], AOT_STRING) ||
        !aot_is(own->items[1], AOT_STRING)) {
      (void)aot_render_fail(render, "the separators of JSON are two strings");
      return aot_none();
    }
    options.between = own->items[0].as.string;
    options.behind_key = own->items[1].as.string;
  }
  aot_builder_t builder = {.render = render};
  aot_write_json(&builder, value, &options);
  return aot_built(&builder);
}

static aot_value_t replace(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  int64_t most = -1;
  if (is_given(arguments[2]) && !aot_is(arguments[2], AOT_NONE) &&
      !aot_whole(arguments[2], &most)) {
    (void)aot_render_fail(render, "a %s is no count", aot_type_name(arguments[2]));
  }
  if (!is_given(arguments[0]) || !is_given(arguments[1])) {
    (void)aot_render_fail(render, "replace needs two texts");
    return aot_none();
  }
  return aot_with_replaced(render, aot_as_string(render, value),
                           aot_as_string(render, arguments[0]), aot_as_string(render, arguments[1]),
                           most);
}

static aot_value_t trimmed(aot_render_t *render, aot_value_t value, const aot_value_t *arguments) {
  aot_string_t *characters = NULL;
  if (is_given(arguments[0]) && !aot_is(arguments[0], AOT_NONE)) {
    characters = aot_as_string(render, arguments[0]);
  }
  return aot_string(aot_stripped(render, aot_as_string(render, value), characters,
                                 AOT_STRIP_BEGIN | AOT_STRIP_END));
}

static aot_value_t in_case(aot_render_t *render, aot_value_t value, int how) {
  return aot_in_case(render, aot_as_string(render, value), how);
}

static aot_value_t usual(aot_value_t value, const aot_value_t *arguments, aot_string_t *empty) {
  const bool is_left_out = aot_is(value, AOT_UNDEFINED) ||
                           (is_given(arguments[1]) && is_true(arguments[1]) && !aot_truth(value));
  if (!is_left_out) return value;
  return is_given(arguments[0]) ? arguments[0] : aot_string(empty);
}

static aot_value_t of_text(aot_render_t *render, uint32_t filter, aot_value_t value,
                           const aot_value_t *arguments) {
  switch (filter) {
    case FILTER(CAPITALIZE):
      return in_case(render, value, AOT_CAPITALIZED);
    case FILTER(ESCAPE):
      return escaped(render, value);
    case FILTER(INDENT):
      return indented(render, value, arguments);
    case FILTER(LOWER):
      return in_case(render, value, AOT_LOWER);
    case FILTER(REPLACE):
      return replace(render, value, arguments);
    case FILTER(TITLE):
      return in_case(render, value, AOT_TITLE_OF_WORDS);
    case FILTER(TOJSON):
      return to_json(render, value, arguments);
    case FILTER(TRIM):
      return trimmed(render, value, arguments);
    case FILTER(UPPER):
      return in_case(render, value, AOT_UPPER);
    default:  // SAFE and STRING
      return aot_string(aot_as_string(render, value));
  }
}

aot_value_t aot_filter(aot_render_t *render, uint32_t filter, aot_value_t value,
                       const aot_value_t *arguments) {
  switch (filter) {
    case FILTER(ABS):
      return absolute(render, value);
    case FILTER(DEFAULT):
      return usual(value, arguments, &render->empty);
    case FILTER(DICTSORT):
      return sorted_items(render, value, arguments);
    case FILTER(FIRST):
      return first(render, value);
    case FILTER(FLOAT):
      return floating(render, value, arguments);
    case FILTER(INT):
      return integer(render, value, arguments);
    case FILTER(ITEMS):
      return items(render, value);
    case FILTER(JOIN):
      return join(render, value, arguments);
    case FILTER(LAST):
      return last(render, value);
    case FILTER(LENGTH):
      return length(render, value);
    case FILTER(LIST):
      return list_of(render, value, false);
    case FILTER(MAX):
      return extreme(render, value, arguments, 1);
    case FILTER(MIN):
      return extreme(render, value, arguments, -1);
    case FILTER(REVERSE):
      return reversed(render, value);
    case FILTER(SORT):
      return aot_sorted(render, aot_elements(render, value), arguments[2], is_true(arguments[1]),
                        is_true(arguments[0]));
    case FILTER(SUM):
      return sum(render, value, arguments);
    case FILTER(UNIQUE):
      return unique(render, value, arguments);
    default:
      return of_text(render, filter, value, arguments);
  }
}
