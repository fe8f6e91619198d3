// Reads the variables of a chat template, JSON (RFC 8259).  Strings know which message they are of.
#include <string.h>

#include "template_value.h"
#include "unicode.h"

#define OTHERS 255u  // the mark of what is no message's, or a late one's

typedef struct reader_t {
  aot_render_t *render;
  const uint8_t *text;
  size_t bytes;
  size_t at;
  uint8_t mark;
} reader_t;

static bool fail_at(reader_t *reader, const char *what) {
  return aot_render_fail(reader->render, "its variables are no JSON: byte %zu: %s", reader->at,
                         what);
}

static void skip_white(reader_t *reader) {
  while (reader->at < reader->bytes && reader->text[reader->at] != '\0' &&
         strchr(" \t\r\n", reader->text[reader->at]) != NULL)
    ++reader->at;
}

// The next byte that is no white space; 0 at the end.
static uint8_t peek(reader_t *reader) {
  skip_white(reader);
  return reader->at < reader->bytes ? reader->text[reader->at] : 0;
}

static bool take(reader_t *reader, const char *word) {
  const size_t count = strlen(word);
  if (reader->bytes - reader->at < count || memcmp(reader->text + reader->at, word, count) != 0) {
    return false;
  }
  reader->at += count;
  return true;
}

// ---- strings ----

static bool read_unit(reader_t *reader, uint32_t *out_unit) {
  *out_unit = 0;
  if (reader->bytes - reader->at < 4) return fail_at(reader, "an escape is not whole");
  for (int i = 0; i < 4; ++i) {
    const uint8_t byte = reader->text[reader->at++];
    const uint32_t digit = byte >= '0' && byte <= '9'   ? byte - (uint32_t)'0'
                           : byte >= 'a' && byte <= 'f' ? byte - (uint32_t)'a' + 10
                           : byte >= 'A' && byte <= 'F' ? byte - (uint32_t)'A' + 10
                                                        : 16;
    if (digit > 15) return fail_at(reader, "an escape has other than hexadecimal digits");
    *out_unit = *out_unit << 4 | digit;
  }
  return true;
}

static bool read_escape(reader_t *reader, aot_builder_t *builder) {
  static const char pairs[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
  const uint8_t kind = reader->at < reader->bytes ? reader->text[reader->at++] : 0;
  for (const char *pair = pairs; *pair != '\0'; pair += 2) {
    if (kind != (uint8_t)*pair) continue;
    aot_build(builder, pair + 1, 1, reader->mark);
    return true;
  }
  if (kind != 'u') return fail_at(reader, "there is no such escape");
  uint32_t unit = 0, low = 0;
  if (!read_unit(reader, &unit)) return false;
  if (unit >= 0xD800 && unit < 0xDC00) {
    if (!take(reader, "\\u") || !read_unit(reader, &low) || low < 0xDC00 || low > 0xDFFF) {
      return fail_at(reader, "half of a surrogate pair");
    }
    unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  } else if (unit >= 0xDC00 && unit < 0xE000) {
    return fail_at(reader, "half of a surrogate pair");
  }
  aot_build_character(builder, unit, reader->mark);
  return true;
}

static aot_value_t read_string(reader_t *reader) {
  aot_builder_t builder = {.render = reader->render};
  ++reader->at;
  while (reader->render->status == AOT_OK) {
    const size_t begin = reader->at;
    while (reader->at < reader->bytes && reader->text[reader->at] >= 0x20 &&
           reader->text[reader->at] != '"' && reader->text[reader->at] != '\\')
      ++reader->at;
    aot_build(&builder, reader->text + begin, reader->at - begin, reader->mark);
    if (reader->at >= reader->bytes || reader->text[reader->at] < 0x20) {
      (void)fail_at(reader, "a string has no end");
    } else if (reader->text[reader->at++] == '"') {
      return aot_built(&builder);
    } else {
      (void)read_escape(reader, &builder);
    }
  }
  return aot_none();
}

// ---- values ----

static aot_value_t read_number(reader_t *reader) {
  const size_t begin = reader->at;
  const bool is_negative = reader->at < reader->bytes && reader->text[reader->at] == '-';
  const uint64_t most = (uint64_t)INT64_MAX + (is_negative ? 1 : 0);
  bool is_float = false, is_large = false;
  uint64_t whole = 0;
  for (; reader->at < reader->bytes; ++reader->at) {
    const uint8_t byte = reader->text[reader->at];
    if (byte >= '0' && byte <= '9') {
      is_large = is_large || whole > (most - (uint64_t)(byte - '0')) / 10;
      if (!is_large) whole = 10 * whole + (uint64_t)(byte - '0');
    } else if (byte == '.' || byte == 'e' || byte == 'E' || byte == '+') {
      is_float = true;
    } else if (byte != '-') {
      break;
    } else if (reader->at > begin) {
      is_float = true;
    }
  }
  const char *text = (const char *)reader->text + begin;
  const size_t count = reader->at - begin;
  if (count == (is_negative ? 1u : 0u)) {
    (void)fail_at(reader, "expected a value");
    return aot_none();
  }
  double number = 0;
  if (is_float) {
    const uint8_t last = (uint8_t)text[count - 1], first = (uint8_t)text[is_negative ? 1 : 0];
    const bool is_whole = last >= '0' && last <= '9' && first >= '0' && first <= '9';
    if (!is_whole || !aot_read_float(text, count, &number)) (void)fail_at(reader, "no number");
    return aot_float(number);
  }
  if (is_large) (void)fail_at(reader, "an integer of more than 64 bits");
  return aot_int((int64_t)(is_negative ? 0 - whole : whole));
}

static aot_value_t read_value(reader_t *reader, unsigned depth);

// The elements of a list; of "messages", each with a mark of its own.
static aot_value_t read_list(reader_t *reader, unsigned depth, bool is_messages) {
  aot_list_t *list = aot_list_new(reader->render, 0, AOT_IS_LIST);
  ++reader->at;
  if (peek(reader) == ']') {
    ++reader->at;
    return aot_list(list);
  }
  while (reader->render->status == AOT_OK) {
    if (is_messages) reader->mark = (uint8_t)(list->count < 254 ? list->count + 1 : OTHERS);
    aot_list_push(reader->render, list, read_value(reader, depth - 1));
    const uint8_t next = peek(reader);
    ++reader->at;
    if (next == ']') break;
    if (next != ',') (void)fail_at(reader, "expected , or ]");
  }
  if (is_messages) reader->mark = OTHERS;
  return aot_list(list);
}

static bool is_text(aot_value_t value, const char *text) {
  const aot_string_t *own = value.as.string;
  return own->length == strlen(text) && memcmp(own->bytes, text, own->length) == 0;
}

// Roles are the application's, and part of the names of some models' control tokens.
static aot_value_t read_member(reader_t *reader, aot_value_t key, unsigned depth) {
  const bool is_outermost = depth == AOT_MOST_NESTING;
  if (is_outermost && is_text(key, "messages") && peek(reader) == '[') {
    return read_list(reader, depth - 1, true);
  }
  const uint8_t mark = reader->mark;
  const bool is_role = is_text(key, "role");
  const bool is_token = is_outermost && (is_text(key, "bos_token") || is_text(key, "eos_token"));
  if (is_role || is_token) reader->mark = 0;
  const aot_value_t value = read_value(reader, depth - 1);
  reader->mark = mark;
  return value;
}

static aot_value_t read_map(reader_t *reader, unsigned depth) {
  aot_map_t *map = aot_map_new(reader->render, 0);
  ++reader->at;
  if (peek(reader) == '}') {
    ++reader->at;
    return aot_map(map);
  }
  while (reader->render->status == AOT_OK) {
    if (peek(reader) != '"') {
      (void)fail_at(reader, "expected the name of a member");
      break;
    }
    const aot_value_t key = read_string(reader);
    if (!aot_is(key, AOT_STRING)) break;
    if (peek(reader) != ':') {
      (void)fail_at(reader, "expected :");
      break;
    }
    ++reader->at;
    aot_map_set(reader->render, map, key, read_member(reader, key, depth));
    const uint8_t next = peek(reader);
    ++reader->at;
    if (next == '}') break;
    if (next != ',') (void)fail_at(reader, "expected , or }");
  }
  return aot_map(map);
}

static aot_value_t read_value(reader_t *reader, unsigned depth) {
  if (!aot_render_work(reader->render, 1)) return aot_none();
  if (depth == 0) {
    (void)aot_render_fail(reader->render, "its variables are nested too deep");
    return aot_none();
  }
  const uint8_t first = peek(reader);
  if (first == '"') return read_string(reader);
  if (first == '{') return read_map(reader, depth);
  if (first == '[') return read_list(reader, depth, false);
  if (take(reader, "null")) return aot_none();
  if (take(reader, "true")) return aot_bool(true);
  if (take(reader, "false")) return aot_bool(false);
  return read_number(reader);
}

bool aot_read_json(aot_render_t *render, const char *text, size_t bytes, aot_value_t *out_value) {
  reader_t reader = {render, (const uint8_t *)text, bytes, 0, OTHERS};
  *out_value = aot_none();
  const size_t wrong = bytes == 0 ? 0 : aot_utf8_check(reader.text, bytes);
  if (wrong < bytes) {
    render->status =
        aot_fail(render->error, AOT_ERROR_TEXT, "the conversation is not UTF-8: byte %zu is 0x%02x",
                 wrong, reader.text[wrong]);
    return false;
  }
  *out_value = read_value(&reader, AOT_MOST_NESTING);
  if (peek(&reader) != 0 || reader.at < bytes) (void)fail_at(&reader, "more than one value");
  return render->status == AOT_OK;
}
