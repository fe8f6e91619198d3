#include "unicode.h"

#include <string.h>

#include "unicode_classes.h"

unsigned aot_unicode_class(uint32_t character) {
  const uint32_t block = character >> 7;
  if (block >= AOT_UNICODE_BLOCKS) return AOT_OTHER;
  const uint32_t place = (character & 127) + ((uint32_t)aot_unicode_index[block] << 7);
  return (aot_unicode_classes[place >> 2] >> (2 * (place & 3))) & 3;
}

// Of a first byte: how many follow, and the bounds of the first of them (table 3-7 of the
// standard).
static size_t following(uint8_t first, uint8_t *out_low, uint8_t *out_high) {
  *out_low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  *out_high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first < 0x80) return 0;
  if (first >= 0xC2 && first < 0xE0) return 1;
  if (first >= 0xE0 && first < 0xF0) return 2;
  return first >= 0xF0 && first < 0xF5 ? 3 : SIZE_MAX;
}

// How many bytes fit together at the start, and how many the character has; 0 of a wrong first.
static size_t fitting(const uint8_t *text, size_t bytes, size_t *out_whole) {
  uint8_t low = 0;
  uint8_t high = 0;
  const size_t more = following(text[0], &low, &high);
  *out_whole = more + 1;  // 0 of a byte that is no first one
  if (more == SIZE_MAX) return 0;
  size_t count = 1;
  for (; count <= more && count < bytes; ++count) {
    if (text[count] < low || text[count] > high) break;
    low = 0x80;
    high = 0xBF;
  }
  return count;
}

size_t aot_utf8_read(const uint8_t *text, size_t bytes, uint32_t *out_character) {
  if (text[0] < 0x80) {
    *out_character = text[0];
    return 1;
  }
  size_t whole = 0;
  const size_t count = fitting(text, bytes, &whole);
  if (count != whole || count == 0) return 0;
  uint32_t character = text[0] & (0xFFu >> (whole + 1));
  for (size_t i = 1; i < whole; ++i)
    character = character << 6 | (text[i] & 0x3Fu);
  *out_character = character;
  return whole;
}

size_t aot_utf8_wrong(const uint8_t *text, size_t bytes) {
  size_t whole = 0;
  const size_t count = fitting(text, bytes, &whole);
  if (count == bytes && count < whole) return 0;
  return count == 0 ? 1 : count;
}

size_t aot_utf8_check(const uint8_t *text, size_t bytes) {
  size_t at = 0;
  while (at < bytes) {
    uint64_t word = 0;
    if (bytes - at >= sizeof word) {
      memcpy(&word, text + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    uint32_t character = 0;
    const size_t count = aot_utf8_read(text + at, bytes - at, &character);
    if (count == 0) return at;
    at += count;
  }
  return at;
}
