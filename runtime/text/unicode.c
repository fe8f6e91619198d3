#include "unicode.h"

#include <string.h>

#include "unicode_classes.h"

unsigned aot_unicode_class(uint32_t character) {
  const uint32_t block = character >> 7;
  if (block >= AOT_UNICODE_BLOCKS) return AOT_OTHER;
  const uint32_t place = (character & 127) + ((uint32_t)aot_unicode_index[block] << 7);
  return (aot_unicode_classes[place >> 2] >> (2 * (place & 3))) & 3;
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
