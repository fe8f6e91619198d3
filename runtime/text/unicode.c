#include "unicode.h"

#include <string.h>

bool aot_is_space(uint32_t character) {
  switch (character) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return (character >= 0x09 && character <= 0x0D) ||
             (character >= 0x2000 && character <= 0x200A);
  }
}

size_t aot_utf8_wrong(const uint8_t *text, size_t bytes) {
  size_t whole = 0;
  const size_t count = aot_utf8_fitting(text, bytes, &whole);
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
