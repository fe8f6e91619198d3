// The map of characters that a vocabulary has: lower case, accents removed, spaces between.
#include "characters.h"

#include "unicode.h"

#define MAP_WORDS 3u
#define IS_REMOVED 0xFFFFFFFFu
#define MOST_CHARACTER 0x10FFFFu

static bool is_character(uint32_t character) {
  return character <= MOST_CHARACTER && (character & 0xFFFFF800u) != 0xD800u;
}

bool aot_is_character_map(const aot_vocabulary_t *vocabulary) {
  const uint32_t *map = vocabulary->character_map;
  if (vocabulary->character_map_count % MAP_WORDS != 0) return false;
  for (uint32_t at = 0; at < vocabulary->character_map_count; at += MAP_WORDS) {
    if (map[at] > map[at + 1] || map[at + 1] > MOST_CHARACTER) return false;
    if (at > 0 && map[at] <= map[at - MAP_WORDS + 1]) return false;
    if (map[at + 2] == IS_REMOVED) continue;
    const uint32_t last = map[at + 2] + (map[at + 1] - map[at]);
    if (!is_character(map[at + 2]) || !is_character(last)) return false;
  }
  return true;
}

// What a character becomes: IS_REMOVED of none.
static uint32_t mapped(const aot_vocabulary_t *vocabulary, uint32_t character) {
  const uint32_t *map = vocabulary->character_map;
  uint32_t begin = 0;
  uint32_t end = vocabulary->character_map_count / MAP_WORDS;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (map[MAP_WORDS * middle + 1] < character) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  const uint32_t *own = map + (size_t)MAP_WORDS * begin;
  if (begin == vocabulary->character_map_count / MAP_WORDS || own[0] > character) return character;
  const uint32_t found = own[2] == IS_REMOVED ? IS_REMOVED : own[2] + (character - own[0]);
  return found == IS_REMOVED || is_character(found) ? found : character;
}

static size_t write_character(uint32_t character, uint8_t *out) {
  if (character < 0x80) {
    out[0] = (uint8_t)character;
    return 1;
  }
  const size_t count = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  for (size_t i = count; i-- > 1; character >>= 6)
    out[i] = (uint8_t)(0x80 | (character & 0x3F));
  out[0] = (uint8_t)((0xF00u >> count) | character);
  return count;
}

size_t aot_characters_replace(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                              uint8_t *out) {
  size_t count = 0;
  for (size_t at = 0; at < bytes;) {
    uint32_t character = 0;
    const size_t own = aot_utf8_read(text + at, bytes - at, &character);
    at += own == 0 ? 1 : own;
    const uint32_t found = mapped(vocabulary, character);
    if (found != IS_REMOVED) count += write_character(found, out + count);
  }
  return count;
}
