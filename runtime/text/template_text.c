// Text of a chat template: parts, white space, what is found, cut, replaced, and its case.
#include <string.h>

#include "template_value.h"
#include "unicode.h"
#include "unicode_cases.h"

uint32_t aot_read_character(const aot_string_t *string, uint32_t *at) {
  uint32_t character = 0;
  const size_t count = aot_utf8_read(string->bytes + *at, string->length - *at, &character);
  *at += count == 0 ? 1 : (uint32_t)count;
  return character;
}

uint32_t aot_characters(aot_string_t *string) {
  if (string->characters != UINT32_MAX) return string->characters;
  uint32_t count = 0;
  for (uint32_t i = 0; i < string->length; ++i)
    count += (string->bytes[i] & 0xC0) != 0x80;
  string->characters = count;
  return count;
}

uint32_t aot_character_at(aot_string_t *string, uint32_t index) {
  if (aot_characters(string) == string->length) return index;
  uint32_t at = 0;
  for (; index > 0 && at < string->length; --index)
    (void)aot_read_character(string, &at);
  return at;
}

aot_string_t *aot_part(aot_render_t *render, const aot_string_t *string, uint32_t begin,
                       uint32_t end) {
  aot_string_t *part = aot_render_allocate(render, sizeof *part);
  if (part == NULL) return &render->empty;
  *part = *string;
  part->bytes += begin;
  if (part->marks != NULL) part->marks += begin;
  part->length = end - begin;
  part->characters = UINT32_MAX;
  return part;
}

bool aot_strings_equal(const aot_string_t *left, const aot_string_t *right) {
  return left->length == right->length &&
         (left->length == 0 || memcmp(left->bytes, right->bytes, left->length) == 0);
}

static bool is_at(const aot_string_t *string, const aot_string_t *part, uint32_t at) {
  return memcmp(string->bytes + at, part->bytes, part->length) == 0;
}

uint32_t aot_find(aot_render_t *render, const aot_string_t *string, const aot_string_t *part,
                  uint32_t begin, bool is_last) {
  if (part->length > string->length || begin > string->length - part->length) return UINT32_MAX;
  if (part->length == 0) return is_last ? string->length : begin;
  const uint32_t last = string->length - part->length;
  if (!aot_render_work(render, (last - begin) / 32 + 1)) return UINT32_MAX;
  if (is_last) {
    for (uint32_t at = last + 1; at-- > begin;) {
      if (string->bytes[at] != part->bytes[0]) continue;
      if (!aot_render_work(render, 1 + part->length / 64)) return UINT32_MAX;
      if (is_at(string, part, at)) return at;
    }
    return UINT32_MAX;
  }
  for (uint32_t at = begin; at <= last; ++at) {
    const void *next = memchr(string->bytes + at, part->bytes[0], last - at + 1);
    if (next == NULL) return UINT32_MAX;
    at = (uint32_t)((const uint8_t *)next - string->bytes);
    if (!aot_render_work(render, 1 + part->length / 64)) return UINT32_MAX;
    if (is_at(string, part, at)) return at;
  }
  return UINT32_MAX;
}

// ---- white space ----

bool aot_is_white(uint32_t character) {
  return aot_is_space(character) || (character >= 0x1C && character <= 0x1F);
}

static bool is_stripped(const aot_string_t *characters, uint32_t character) {
  if (characters == NULL) return aot_is_white(character);
  for (uint32_t at = 0; at < characters->length;)
    if (aot_read_character(characters, &at) == character) return true;
  return false;
}

aot_string_t *aot_stripped(aot_render_t *render, aot_string_t *string, aot_string_t *characters,
                           int sides) {
  uint32_t begin = 0, end = string->length;
  const uint64_t each = characters == NULL ? 1 : 1 + characters->length / 8;
  while ((sides & AOT_STRIP_BEGIN) != 0 && begin < end && aot_render_work(render, each)) {
    uint32_t at = begin;
    if (!is_stripped(characters, aot_read_character(string, &at))) break;
    begin = at;
  }
  while ((sides & AOT_STRIP_END) != 0 && begin < end && aot_render_work(render, each)) {
    uint32_t first = end - 1;
    while (first > begin && (string->bytes[first] & 0xC0) == 0x80)
      --first;
    uint32_t at = first;
    if (!is_stripped(characters, aot_read_character(string, &at))) break;
    end = first;
  }
  return aot_part(render, string, begin, end);
}

// ---- parts between others ----

aot_value_t aot_with_replaced(aot_render_t *render, const aot_string_t *string,
                              const aot_string_t *old, const aot_string_t *by, int64_t most) {
  aot_builder_t builder = {.render = render};
  uint32_t done = 0;
  for (uint32_t at = 0; most != 0 && render->status == AOT_OK; most -= most > 0) {
    uint32_t found = aot_find(render, string, old, at, false);
    if (found == UINT32_MAX) break;
    if (old->length == 0) {  // before each character, and at the end
      found = at;
      aot_build_string(&builder, by);
      if (at >= string->length) break;
      (void)aot_read_character(string, &at);
      aot_build_string(&builder, aot_part(render, string, found, at));
      done = at;
      continue;
    }
    aot_build_string(&builder, aot_part(render, string, done, found));
    aot_build_string(&builder, by);
    done = at = found + old->length;
  }
  if (done < string->length) {
    aot_build_string(&builder, aot_part(render, string, done, string->length));
  }
  return aot_built(&builder);
}

static void reverse_items(aot_list_t *list) {
  for (uint32_t i = 0; i < list->count / 2; ++i) {
    const aot_value_t other = list->items[i];
    list->items[i] = list->items[list->count - 1 - i];
    list->items[list->count - 1 - i] = other;
  }
}

static aot_value_t split_at(aot_render_t *render, const aot_string_t *string,
                            const aot_string_t *separator, int64_t most, bool is_from_end) {
  aot_list_t *parts = aot_list_new(render, 0, AOT_IS_LIST);
  uint32_t begin = 0, end = string->length;
  for (; most != 0 && render->status == AOT_OK; most -= most > 0) {
    const aot_string_t left = {.bytes = string->bytes, .length = end};
    const uint32_t found = aot_find(render, &left, separator, begin, is_from_end);
    if (found == UINT32_MAX) break;
    const uint32_t behind = found + separator->length;
    aot_string_t *part = is_from_end ? aot_part(render, string, behind, end)
                                     : aot_part(render, string, begin, found);
    aot_list_push(render, parts, aot_string(part));
    if (is_from_end) {
      end = found;
    } else {
      begin = behind;
    }
  }
  aot_list_push(render, parts, aot_string(aot_part(render, string, begin, end)));
  if (is_from_end) reverse_items(parts);
  return aot_list(parts);
}

static uint32_t skip(const aot_string_t *string, uint32_t at, bool is_white) {
  while (at < string->length) {
    uint32_t next = at;
    if (aot_is_white(aot_read_character(string, &next)) != is_white) break;
    at = next;
  }
  return at;
}

// The words between white space.
static aot_value_t split_white(aot_render_t *render, aot_string_t *string, int64_t most) {
  aot_list_t *words = aot_list_new(render, 0, AOT_IS_LIST);
  if (!aot_render_work(render, string->length / 8)) return aot_list(words);
  uint32_t at = skip(string, 0, true);
  for (; at < string->length && render->status == AOT_OK; at = skip(string, at, true)) {
    const uint32_t end = most == 0 ? string->length : skip(string, at, false);
    most -= most > 0;
    aot_list_push(render, words, aot_string(aot_part(render, string, at, end)));
    at = end;
  }
  return aot_list(words);
}

static aot_value_t split_white_end(aot_render_t *render, aot_string_t *string, int64_t most) {
  const aot_value_t all = split_white(render, string, -1);
  const aot_list_t *words = all.as.list;
  if (most < 0 || (int64_t)words->count <= most || render->status != AOT_OK) return all;
  aot_list_t *kept = aot_list_new(render, (uint32_t)most + 1, AOT_IS_LIST);
  const uint32_t first = words->count - (uint32_t)most;  // of those that are cut off
  const aot_string_t *last = words->items[first - 1].as.string;
  const uint32_t end = (uint32_t)(last->bytes + last->length - string->bytes);
  aot_list_push(render, kept, aot_string(aot_part(render, string, 0, end)));
  for (uint32_t i = first; i < words->count; ++i)
    aot_list_push(render, kept, words->items[i]);
  return aot_list(kept);
}

aot_value_t aot_split(aot_render_t *render, aot_string_t *string, const aot_string_t *separator,
                      int64_t most, bool is_from_end) {
  if (separator == NULL && is_from_end) return split_white_end(render, string, most);
  if (separator == NULL) return split_white(render, string, most);
  if (separator->length == 0) {
    (void)aot_render_fail(render, "the separator is empty");
    return aot_none();
  }
  return split_at(render, string, separator, most, is_from_end);
}

static bool ends_line(uint32_t character) {
  return (character >= 0x0A && character <= 0x0D) || (character >= 0x1C && character <= 0x1E) ||
         character == 0x85 || character == 0x2028 || character == 0x2029;
}

aot_value_t aot_lines(aot_render_t *render, aot_string_t *string, bool keeps_ends) {
  aot_list_t *lines = aot_list_new(render, 0, AOT_IS_LIST);
  uint32_t begin = 0;
  if (!aot_render_work(render, string->length / 8)) return aot_list(lines);
  for (uint32_t at = 0; at < string->length && render->status == AOT_OK;) {
    const uint32_t end = at;
    const uint32_t character = aot_read_character(string, &at);
    if (!ends_line(character)) continue;
    if (character == '\r' && at < string->length && string->bytes[at] == '\n') ++at;
    aot_list_push(render, lines,
                  aot_string(aot_part(render, string, begin, keeps_ends ? at : end)));
    begin = at;
  }
  if (begin < string->length) {
    aot_list_push(render, lines, aot_string(aot_part(render, string, begin, string->length)));
  }
  return aot_list(lines);
}

// ---- case ----

// A character of a list of those that become several; 0: it is none.
static unsigned special(const aot_case_special_t *specials, size_t special_count,
                        uint32_t character, uint32_t out[3]) {
  for (size_t i = 0; character >= 0x80 && i < special_count; ++i) {
    if (specials[i].character != character) continue;
    unsigned count = 0;
    for (; count < 3 && specials[i].to[count] != 0; ++count)
      out[count] = specials[i].to[count];
    return count;
  }
  return 0;
}

// A character in another case: up to three; returns how many.
static unsigned mapped(uint32_t character, bool is_upper, uint32_t out[3]) {
  out[0] = character;
  const unsigned several = is_upper
                               ? special(aot_upper_specials, AOT_UPPER_SPECIALS, character, out)
                               : special(aot_lower_specials, AOT_LOWER_SPECIALS, character, out);
  if (several > 0) return several;
  const aot_case_range_t *ranges = is_upper ? aot_upper_ranges : aot_lower_ranges;
  size_t low = 0, high = is_upper ? AOT_UPPER_RANGES : AOT_LOWER_RANGES;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].last < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const size_t count = is_upper ? AOT_UPPER_RANGES : AOT_LOWER_RANGES;
  if (low < count && ranges[low].first <= character &&
      (character - ranges[low].first) % ranges[low].step == 0) {
    out[0] = (uint32_t)((int32_t)character + ranges[low].delta);
  }
  return 1;
}

static bool is_cased(uint32_t character) {
  uint32_t other[3];
  return mapped(character, true, other) != 1 || other[0] != character ||
         mapped(character, false, other) != 1 || other[0] != character;
}

#define SIGMA 0x3A3u
#define FINAL_SIGMA 0x3C2u

static bool is_cased_at(const aot_string_t *string, uint32_t at) {
  return at < string->length && is_cased(aot_read_character(string, &at));
}

// Whether a word ends behind a sigma (Final_Sigma of SpecialCasing, without what case ignores).
static bool is_final(const aot_string_t *string, uint32_t begin, uint32_t end) {
  uint32_t before = begin;
  while (before > 0 && (string->bytes[--before] & 0xC0) == 0x80)
    continue;
  return begin > 0 && is_cased_at(string, before) && !is_cased_at(string, end);
}

static bool begins_word(uint32_t character) {
  return aot_is_white(character) || (character < 0x80 && strchr("-([{<", (int)character) != NULL);
}

aot_value_t aot_in_case(aot_render_t *render, aot_string_t *string, int how) {
  aot_builder_t builder = {.render = render};
  bool is_begin = true;
  for (uint32_t at = 0; at < string->length && aot_render_work(render, 1);) {
    const uint32_t begin = at;
    const uint32_t character = aot_read_character(string, &at);
    const uint8_t mark = aot_mark_at(string, begin);
    const bool is_upper = how == AOT_UPPER || (how != AOT_LOWER && is_begin);
    uint32_t to[3];
    const bool is_title = is_upper && (how == AOT_CAPITALIZED || how == AOT_TITLE);
    unsigned count = is_title ? special(aot_title_specials, AOT_TITLE_SPECIALS, character, to) : 0;
    if (count == 0) count = mapped(character, is_upper, to);
    if (!is_upper && character == SIGMA && aot_render_work(render, 8) &&
        is_final(string, begin, at)) {
      to[0] = FINAL_SIGMA;
    }
    for (unsigned i = 0; i < count; ++i)
      aot_build_character(&builder, to[i], mark);
    is_begin = how == AOT_TITLE            ? !is_cased(character)
               : how == AOT_TITLE_OF_WORDS ? begins_word(character)
                                           : false;
  }
  return aot_built(&builder);
}

bool aot_is_printable(uint32_t character) {
  size_t low = 0, high = AOT_UNPRINTABLE;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (aot_unprintable[middle].last < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == AOT_UNPRINTABLE || character < aot_unprintable[low].first;
}
