// Characters of UTF-8 (table 3-7 of the Unicode standard): whole ones, and what is none.
#ifndef AOT_UTF8_H_
#define AOT_UTF8_H_

#include <stddef.h>
#include <stdint.h>

// Of a first byte: how many follow, and the bounds of the first of them; SIZE_MAX of a wrong one.
static inline size_t aot_utf8_following(uint8_t first, uint8_t *out_low, uint8_t *out_high) {
  *out_low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  *out_high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first < 0x80) return 0;
  if (first >= 0xC2 && first < 0xE0) return 1;
  if (first >= 0xE0 && first < 0xF0) return 2;
  return first >= 0xF0 && first < 0xF5 ? 3 : SIZE_MAX;
}

// How many bytes fit together at the start of `text`, which has one, and how many the character
// has; 0 of both where its first byte is wrong.
static inline size_t aot_utf8_fitting(const uint8_t *text, size_t bytes, size_t *out_whole) {
  uint8_t low = 0;
  uint8_t high = 0;
  const size_t more = aot_utf8_following(text[0], &low, &high);
  *out_whole = more + 1;
  if (more == SIZE_MAX) return 0;
  size_t count = 1;
  for (; count <= more && count < bytes; ++count) {
    if (text[count] < low || text[count] > high) break;
    low = 0x80;
    high = 0xBF;
  }
  return count;
}

// The number of bytes of the character at the start of `text`, of which there is one, or 0 where
// that is no UTF-8: too long, a surrogate, above U+10FFFF or cut off.
static inline size_t aot_utf8_read(const uint8_t *text, size_t bytes, uint32_t *out_character) {
  if (text[0] < 0x80) {
    *out_character = text[0];
    return 1;
  }
  size_t whole = 0;
  const size_t count = aot_utf8_fitting(text, bytes, &whole);
  if (count != whole || count == 0) return 0;
  uint32_t character = text[0] & (0xFFu >> (whole + 1));
  for (size_t i = 1; i < whole; ++i)
    character = character << 6 | (text[i] & 0x3Fu);
  *out_character = character;
  return whole;
}

// The bytes of a character that begins with `first`, in text that was checked.
static inline size_t aot_utf8_bytes(uint8_t first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

#endif  // AOT_UTF8_H_
