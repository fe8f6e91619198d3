// What writing a value of a chat template writes: Python's str(), repr() and json.dumps().
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template_value.h"

static void build_format(aot_builder_t *builder, uint8_t mark, const char *format, ...)
    AOT_PRINTF(3, 4);

static void build_format(aot_builder_t *builder, uint8_t mark, const char *format, ...) {
  char text[32];
  va_list arguments;
  va_start(arguments, format);
  const size_t count = aot_text_format(text, sizeof text, format, arguments);
  va_end(arguments);
  aot_build(builder, text, count, mark);
}

// ---- floats ----

// The point that this process's locale has in numbers; one character of it at least.
static char point_of_locale(void) {
  char text[16] = "";
  (void)snprintf(text, sizeof text, "%.1f", 0.5);
  return text[1];
}

// The fewest digits from which the number comes back, as Python's repr has them.
static void shortest(double number, char text[40]) {
  for (int digits = 1; digits <= 17; ++digits) {
    (void)snprintf(text, 40, "%.*e", digits - 1, number);
    if (strtod(text, NULL) == number) return;
  }
}

void aot_write_float(aot_builder_t *builder, double number) {
  if (!aot_render_work(builder->render, 128)) return;
  if (number != number) {
    aot_build_text(builder, "nan");
    return;
  }
  if (number - number != 0) {
    aot_build_text(builder, number > 0 ? "inf" : "-inf");
    return;
  }
  char text[40];
  shortest(number, text);
  char digits[20];
  int count = 0;
  const char *at = text;
  if (*at == '-') {
    aot_build_text(builder, "-");
    ++at;
  }
  for (; *at != 'e' && *at != '\0' && count < 18; ++at)
    if (*at >= '0' && *at <= '9') digits[count++] = *at;
  const int exponent = *at == 'e' ? (int)strtol(at + 1, NULL, 10) : 0;
  if (exponent < -4 || exponent >= 16) {
    aot_build(builder, digits, 1, 0);
    if (count > 1) aot_build_text(builder, ".");
    if (count > 1) aot_build(builder, digits + 1, (size_t)count - 1, 0);
    build_format(builder, 0, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    return;
  }
  if (exponent < 0) {
    aot_build_text(builder, "0.");
    for (int i = -1; i > exponent; --i)
      aot_build_text(builder, "0");
    aot_build(builder, digits, (size_t)count, 0);
    return;
  }
  for (int i = 0; i < count || i <= exponent + 1; ++i) {
    if (i == exponent + 1) aot_build_text(builder, ".");
    aot_build(builder, i < count ? &digits[i] : "0", 1, 0);
  }
}

bool aot_read_float(const char *text, size_t bytes, double *out_number) {
  char own[64];
  if (bytes == 0 || bytes >= sizeof own) return false;
  const char point = point_of_locale();
  for (size_t i = 0; i < bytes; ++i)
    own[i] = text[i] == '.' ? point : text[i];
  own[bytes] = '\0';
  char *end = NULL;
  *out_number = strtod(own, &end);
  return end == own + bytes;
}

// ---- str() and repr() ----

static void write_quoted(aot_builder_t *builder, const aot_string_t *string) {
  const bool has_single = string->length > 0 && memchr(string->bytes, '\'', string->length) != NULL;
  const bool has_double = string->length > 0 && memchr(string->bytes, '"', string->length) != NULL;
  const char quote = has_single && !has_double ? '"' : '\'';
  aot_build(builder, &quote, 1, 0);
  for (uint32_t at = 0; at < string->length && aot_render_work(builder->render, 1);) {
    const uint8_t mark = aot_mark_at(string, at);
    const uint32_t character = aot_read_character(string, &at);
    const char *escape = character == '\n'   ? "\\n"
                         : character == '\r' ? "\\r"
                         : character == '\t' ? "\\t"
                         : character == '\\' ? "\\\\"
                                             : NULL;
    if (escape != NULL) {
      aot_build(builder, escape, 2, mark);
    } else if (character == (uint8_t)quote) {
      build_format(builder, mark, "\\%c", quote);
    } else if (aot_is_printable(character)) {
      aot_build_character(builder, character, mark);
    } else {
      const char *format = character < 0x100     ? "\\x%02" PRIx32
                           : character < 0x10000 ? "\\u%04" PRIx32
                                                 : "\\U%08" PRIx32;
      char text[16];
      (void)aot_render_work(builder->render, 3);
      (void)snprintf(text, sizeof text, format, character);
      aot_build(builder, text, strlen(text), mark);
    }
  }
  aot_build(builder, &quote, 1, 0);
}

static void write_in(aot_builder_t *builder, aot_value_t value, bool is_quoted, unsigned depth);

static void write_list(aot_builder_t *builder, const aot_list_t *list, unsigned depth) {
  if (list->sort > AOT_IS_TUPLE) {
    (void)aot_render_fail(builder->render, "a range, view or generator cannot be written");
    return;
  }
  const bool is_tuple = list->sort == AOT_IS_TUPLE;
  aot_build_text(builder, is_tuple ? "(" : "[");
  for (uint32_t i = 0; i < list->count && builder->render->status == AOT_OK; ++i) {
    if (i > 0) aot_build_text(builder, ", ");
    write_in(builder, list->items[i], true, depth);
  }
  if (is_tuple && list->count == 1) aot_build_text(builder, ",");
  aot_build_text(builder, is_tuple ? ")" : "]");
}

static void write_map(aot_builder_t *builder, const aot_map_t *map, unsigned depth) {
  aot_build_text(builder, "{");
  for (uint32_t i = 0; i < map->count && builder->render->status == AOT_OK; ++i) {
    if (i > 0) aot_build_text(builder, ", ");
    write_in(builder, map->pairs[2 * (size_t)i], true, depth);
    aot_build_text(builder, ": ");
    write_in(builder, map->pairs[2 * (size_t)i + 1], true, depth);
  }
  aot_build_text(builder, "}");
}

static void write_in(aot_builder_t *builder, aot_value_t value, bool is_quoted, unsigned depth) {
  if (!aot_render_work(builder->render, 1)) return;
  if (depth == 0) {
    (void)aot_render_fail(builder->render, "its values are nested too deep");
    return;
  }
  switch (value.kind) {
    case AOT_UNDEFINED:
      aot_build_text(builder, is_quoted ? "Undefined" : "");
      break;
    case AOT_NONE:
      aot_build_text(builder, "None");
      break;
    case AOT_BOOL:
      aot_build_text(builder, value.as.boolean ? "True" : "False");
      break;
    case AOT_INT:
      (void)aot_render_work(builder->render, 8);
      build_format(builder, 0, "%" PRId64, value.as.integer);
      break;
    case AOT_FLOAT:
      aot_write_float(builder, value.as.number);
      break;
    case AOT_STRING:
      if (is_quoted) {
        write_quoted(builder, value.as.string);
      } else {
        aot_build_string(builder, value.as.string);
      }
      break;
    case AOT_LIST:
      write_list(builder, value.as.list, depth - 1);
      break;
    case AOT_MAP:
      write_map(builder, value.as.map, depth - 1);
      break;
    default:
      (void)aot_render_fail(builder->render, "a %s cannot be written", aot_type_name(value));
  }
}

void aot_write(aot_builder_t *builder, aot_value_t value) {
  write_in(builder, value, false, AOT_MOST_NESTING);
}

aot_string_t *aot_as_string(aot_render_t *render, aot_value_t value) {
  if (aot_is(value, AOT_STRING)) return value.as.string;
  aot_builder_t builder = {.render = render};
  aot_write(&builder, value);
  return aot_built(&builder).as.string;
}

// ---- json.dumps() ----

static void write_escape(aot_builder_t *builder, uint32_t unit, uint8_t mark) {
  build_format(builder, mark, "\\u%04x", (unsigned)unit);
}

static void write_json_string(aot_builder_t *builder, const aot_string_t *string, bool is_ascii) {
  static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
  aot_build_text(builder, "\"");
  for (uint32_t at = 0; at < string->length && aot_render_work(builder->render, 1);) {
    const uint8_t mark = aot_mark_at(string, at);
    const uint32_t character = aot_read_character(string, &at);
    const char *escape = NULL;
    for (const char *pair = shorts; *pair != '\0'; pair += 2)
      if (character == (uint8_t)*pair) escape = pair + 1;
    if (escape != NULL) {
      build_format(builder, mark, "\\%c", *escape);
    } else if (character < 0x20 || (is_ascii && character >= 0x7F && character < 0x10000)) {
      write_escape(builder, character, mark);
    } else if (is_ascii && character >= 0x10000) {
      write_escape(builder, 0xD800 + ((character - 0x10000) >> 10), mark);
      write_escape(builder, 0xDC00 + ((character - 0x10000) & 0x3FF), mark);
    } else {
      aot_build_character(builder, character, mark);
    }
  }
  aot_build_text(builder, "\"");
}

typedef struct json_t {
  aot_builder_t *builder;
  const aot_json_options_t *options;
} json_t;

static void json_in(const json_t *json, aot_value_t value, unsigned level);

static void json_line(const json_t *json, unsigned level) {
  if (json->options->indent == NULL) return;
  aot_build_text(json->builder, "\n");
  for (unsigned i = 0; i < level; ++i)
    aot_build_string(json->builder, json->options->indent);
}

static void json_list(const json_t *json, const aot_list_t *list, unsigned level) {
  aot_build_text(json->builder, "[");
  for (uint32_t i = 0; i < list->count && json->builder->render->status == AOT_OK; ++i) {
    if (i > 0) aot_build_string(json->builder, json->options->between);
    json_line(json, level + 1);
    json_in(json, list->items[i], level + 1);
  }
  if (list->count > 0) json_line(json, level);
  aot_build_text(json->builder, "]");
}

static void json_key(const json_t *json, aot_value_t key) {
  if (aot_is(key, AOT_STRING)) {
    write_json_string(json->builder, key.as.string, json->options->is_ascii);
    return;
  }
  const bool is_key = aot_is(key, AOT_INT) || aot_is(key, AOT_BOOL) || aot_is(key, AOT_NONE) ||
                      aot_is(key, AOT_FLOAT);
  if (!is_key) {
    (void)aot_render_fail(json->builder->render, "a %s is no key of JSON", aot_type_name(key));
    return;
  }
  aot_build_text(json->builder, "\"");
  json_in(json, key, 0);
  aot_build_text(json->builder, "\"");
}

static aot_value_t sorted_pairs(aot_render_t *render, aot_map_t *map) {
  const aot_list_t *pairs = aot_pairs(render, map, AOT_IS_LIST).as.list;
  return aot_sorted(render, pairs, aot_int(0), true, false);
}

static void json_map(const json_t *json, aot_map_t *map, unsigned level) {
  aot_render_t *render = json->builder->render;
  const aot_list_t *sorted = json->options->sorts_keys ? sorted_pairs(render, map).as.list : NULL;
  if (render->status != AOT_OK) return;
  aot_build_text(json->builder, "{");
  for (uint32_t i = 0; i < map->count && render->status == AOT_OK; ++i) {
    const aot_value_t *pair =
        sorted == NULL ? &map->pairs[2 * (size_t)i] : sorted->items[i].as.list->items;
    if (i > 0) aot_build_string(json->builder, json->options->between);
    json_line(json, level + 1);
    json_key(json, pair[0]);
    aot_build_string(json->builder, json->options->behind_key);
    json_in(json, pair[1], level + 1);
  }
  if (map->count > 0) json_line(json, level);
  aot_build_text(json->builder, "}");
}

static void json_float(aot_builder_t *builder, double number) {
  if (number - number == 0) {
    aot_write_float(builder, number);
  } else {
    aot_build_text(builder, number != number ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
  }
}

static void json_in(const json_t *json, aot_value_t value, unsigned level) {
  aot_builder_t *builder = json->builder;
  if (!aot_render_work(builder->render, 1)) return;
  if (level > AOT_MOST_NESTING) {
    (void)aot_render_fail(builder->render, "its values are nested too deep");
    return;
  }
  switch (value.kind) {
    case AOT_NONE:
      aot_build_text(builder, "null");
      return;
    case AOT_BOOL:
      aot_build_text(builder, value.as.boolean ? "true" : "false");
      return;
    case AOT_INT:
      aot_write(builder, value);
      return;
    case AOT_FLOAT:
      json_float(builder, value.as.number);
      return;
    case AOT_STRING:
      write_json_string(builder, value.as.string, json->options->is_ascii);
      return;
    case AOT_LIST:
      if (value.as.list->sort > AOT_IS_TUPLE) break;
      json_list(json, value.as.list, level);
      return;
    case AOT_MAP:
      json_map(json, value.as.map, level);
      return;
    default:
      break;
  }
  (void)aot_render_fail(builder->render, "a %s is no JSON", aot_type_name(value));
}

void aot_write_json(aot_builder_t *builder, aot_value_t value, const aot_json_options_t *options) {
  const json_t json = {builder, options};
  json_in(&json, value, 0);
}
