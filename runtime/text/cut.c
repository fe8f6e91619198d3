// Where text is cut before its parts become tokens: the regular expressions of models, by hand.
//
//   GPT2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   SMOLLM   \p{N}, and GPT2's between those
//   LLAMA3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//            ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   QWEN2    LLAMA3's with single numbers, \p{N}
//   SEED_CODER  QWEN2's, whose other characters take no ends of lines along:  ?[^\s\p{L}\p{N}\r\n]+
//   TEKKEN   [^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])*((?=\p{L})[^A-Z])+|
//            [^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])+((?=\p{L})[^A-Z])*|\p{N}|
//             ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   GPT4O    TEKKEN's, with \p{N}{1,3}, and behind letters (?i:'s|'t|'re|'ve|'m|'ll|'d)?
#include "cut.h"

#include <stdbool.h>
#include <string.h>

#include "module_fbs.h"
#include "unicode.h"

enum { END = 4 };  // a class of its own: no character, or one that is cut off before

typedef struct cursor_t {
  const uint8_t *text;
  size_t bytes;
  bool ends_at_numbers;
} cursor_t;

// The class of the character at `at`, and where the next one is.
static unsigned class_at(const cursor_t *cursor, size_t at, size_t *out_next) {
  *out_next = at;
  if (at >= cursor->bytes) return END;
  uint32_t character = 0;
  const size_t count = aot_utf8_read(cursor->text + at, cursor->bytes - at, &character);
  *out_next = at + (count == 0 ? 1 : count);
  const unsigned found = aot_unicode_class(character);
  return found == AOT_NUMBER && cursor->ends_at_numbers ? END : found;
}

// Where characters of a class end that begin at `at`.
static size_t run_end(const cursor_t *cursor, size_t at, unsigned class) {
  size_t next = at;
  while (class_at(cursor, at, &next) == class)
    at = next;
  return at;
}

// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start; 0 of none.
static size_t contraction(const cursor_t *cursor, bool ignores_case) {
  const uint8_t case_bit = ignores_case ? 0x20 : 0;
  if (cursor->bytes < 2 || cursor->text[0] != '\'') return 0;
  const uint8_t first = cursor->text[1] | case_bit;
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (cursor->bytes < 3) return 0;
  const uint8_t second = cursor->text[2] | case_bit;
  const bool is_one =
      (second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l');
  return is_one ? 3 : 0;
}

// \s+(?!\S)|\s+: white space without its last character, which belongs to what is behind it.
static size_t cut_spaces(const cursor_t *cursor, bool ends_at_lines) {
  size_t last = 0;
  size_t at = 0;
  size_t next = 0;
  size_t line_end = 0;
  unsigned class = class_at(cursor, 0, &next);
  while (class == AOT_SPACE) {
    if (cursor->text[at] == '\r' || cursor->text[at] == '\n') line_end = next;
    last = at;
    at = next;
    class = class_at(cursor, at, &next);
  }
  if (ends_at_lines && line_end > 0) return line_end;
  return last > 0 && class != END ? last : at;
}

static size_t cut_gpt2(const cursor_t *cursor) {
  const size_t short_end = contraction(cursor, false);
  if (short_end > 0) return short_end;
  size_t next = 0;
  const size_t begin = cursor->text[0] == ' ' ? 1 : 0;
  const unsigned class = class_at(cursor, begin, &next);
  if (class != AOT_SPACE && class != END) return run_end(cursor, next, class);
  return cut_spaces(cursor, false);
}

// Where letters begin, of which at most one character is before: SIZE_MAX where there are none.
static size_t letters_begin(const cursor_t *cursor) {
  size_t next = 0;
  size_t behind = 0;
  const uint8_t byte = cursor->text[0];
  const unsigned class = class_at(cursor, 0, &next);
  if (class == AOT_LETTER) return 0;
  if (byte == '\r' || byte == '\n' || class == AOT_NUMBER) return SIZE_MAX;
  return class_at(cursor, next, &behind) == AOT_LETTER ? next : SIZE_MAX;
}

// Numbers, other characters with those of `line` behind them, and white space.
static size_t cut_others(const cursor_t *cursor, unsigned most_numbers, const char *line) {
  size_t next = 0;
  const uint8_t byte = cursor->text[0];
  unsigned class = class_at(cursor, 0, &next);
  if (class == AOT_NUMBER) {
    size_t at = next;
    for (unsigned count = 1; count < most_numbers; ++count, at = next) {
      if (class_at(cursor, at, &next) != AOT_NUMBER) break;
    }
    return at;
  }
  if (byte == ' ') class = class_at(cursor, 1, &next);
  if (class != AOT_OTHER) return cut_spaces(cursor, true);
  size_t at = run_end(cursor, next, AOT_OTHER);
  while (at < cursor->bytes && cursor->text[at] != '\0' && strchr(line, cursor->text[at]) != NULL)
    ++at;
  return at;
}

static size_t cut_llama3(const cursor_t *cursor, unsigned most_numbers, const char *line) {
  const size_t short_end = contraction(cursor, true);
  if (short_end > 0) return short_end;
  const size_t letters = letters_begin(cursor);
  if (letters != SIZE_MAX) return run_end(cursor, letters, AOT_LETTER);
  return cut_others(cursor, most_numbers, line);
}

static bool is_between(uint8_t byte, char first, char last) {
  return byte >= (uint8_t)first && byte <= (uint8_t)last;
}

// Where a word of letters ends: letters other than a to z, then those other than A to Z, of which
// there is one at least unless all are A to Z.
static size_t word_end(const cursor_t *cursor, size_t at) {
  size_t next = at;
  size_t last_other = SIZE_MAX;  // the end of the last letter that is of neither
  while (class_at(cursor, at, &next) == AOT_LETTER && !is_between(cursor->text[at], 'a', 'z')) {
    if (cursor->text[at] >= 0x80) last_other = next;
    at = next;
  }
  const bool has_small = class_at(cursor, at, &next) == AOT_LETTER;
  if (!has_small) return last_other != SIZE_MAX ? last_other : at;
  while (class_at(cursor, at, &next) == AOT_LETTER && !is_between(cursor->text[at], 'A', 'Z'))
    at = next;
  return at;
}

static size_t cut_gpt4o(const cursor_t *cursor, unsigned most_numbers, bool has_contractions) {
  const size_t letters = letters_begin(cursor);
  if (letters == SIZE_MAX) return cut_others(cursor, most_numbers, "\r\n/");
  const size_t end = word_end(cursor, letters);
  if (!has_contractions || end >= cursor->bytes) return end;
  const cursor_t behind = {cursor->text + end, cursor->bytes - end, false};
  return end + contraction(&behind, true);
}

size_t aot_cut(uint8_t pre_tokeniser, const uint8_t *text, size_t bytes) {
  cursor_t cursor = {text, bytes, false};
  size_t next = 0;
  switch (pre_tokeniser) {
    case AOT_FBS_PRE_TOKENISER_GPT2:
      return cut_gpt2(&cursor);
    case AOT_FBS_PRE_TOKENISER_LLAMA3:
      return cut_llama3(&cursor, 3, "\r\n");
    case AOT_FBS_PRE_TOKENISER_QWEN2:
      return cut_llama3(&cursor, 1, "\r\n");
    case AOT_FBS_PRE_TOKENISER_SEED_CODER:
      return cut_llama3(&cursor, 1, "");
    case AOT_FBS_PRE_TOKENISER_GPT4O:
      return cut_gpt4o(&cursor, 3, true);
    case AOT_FBS_PRE_TOKENISER_TEKKEN:
      return cut_gpt4o(&cursor, 1, false);
    case AOT_FBS_PRE_TOKENISER_SMOLLM:
      if (class_at(&cursor, 0, &next) == AOT_NUMBER) return next;
      cursor.ends_at_numbers = true;
      return cut_gpt2(&cursor);
    default:
      return bytes;
  }
}
