// The longest token at each place of a text: RWKV's bytes, and BERT's words.
#include "longest.h"

#include <string.h>

#include "cut.h"
#include "status.h"
#include "unicode.h"

#define SPACE_BYTES 3u  // of U+2581, which the first piece of a word begins with
#define MAP_WORDS 3u
#define IS_REMOVED 0xFFFFFFFFu
#define MOST_CHARACTER 0x10FFFFu

static const uint8_t space[SPACE_BYTES] = {0xE2, 0x96, 0x81};

// The longest token that a text begins with, and its length; AOT_NO_SYMBOL where none is.
static uint32_t longest_at(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                           size_t *out_length) {
  const aot_sorted_t *sorted = &vocabulary->by_piece;
  aot_range_t range = aot_sorted_begin(sorted, text[0]);
  uint32_t found = AOT_NO_SYMBOL;
  for (uint32_t length = 1; range.begin < range.end; ++length) {
    const uint32_t token = sorted->tokens[range.begin];
    uint32_t own_bytes = 0;
    (void)aot_symbol_text(vocabulary, token, &own_bytes);
    if (own_bytes == length && aot_is_token(vocabulary, token)) {
      found = token;
      *out_length = length;
    }
    if (length >= bytes) break;
    range = aot_sorted_narrow(vocabulary, sorted, range, length, text[length]);
  }
  return found;
}

void aot_longest(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  for (size_t at = 0; at < bytes;) {
    size_t length = 1;
    const uint32_t token = longest_at(vocabulary, text + at, bytes - at, &length);
    if (token != AOT_NO_SYMBOL) {
      aot_push(encoder, token);
    } else if (vocabulary->unknown >= 0) {
      aot_push(encoder, (uint32_t)vocabulary->unknown);
    }
    at += length;
  }
}

// ---- the map of characters ----

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

// Writes a text with its characters replaced; at most four times as long.
static size_t replace(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
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

// ---- words ----

// Encodes a word, of which `text` has room for a space before it.
static void push_word(aot_encoder_t *encoder, uint8_t *text, size_t bytes) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  const size_t count = encoder->count;
  memcpy(text, space, SPACE_BYTES);
  bytes += SPACE_BYTES;
  for (size_t at = 0; at < bytes;) {
    size_t length = 0;
    const uint32_t token = longest_at(vocabulary, text + at, bytes - at, &length);
    if (token == AOT_NO_SYMBOL) {
      encoder->count = count;
      if (vocabulary->unknown >= 0) aot_push(encoder, (uint32_t)vocabulary->unknown);
      return;
    }
    aot_push(encoder, token);
    at += length;
  }
}

aot_status_t aot_word_pieces(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  void *memory = NULL;
  // The text as it becomes, and a word of it behind a space.
  AOT_TRY(aot_encoder_memory(encoder, 8 * (uint64_t)bytes + SPACE_BYTES, &memory));
  uint8_t *word = memory;
  uint8_t *own = word + 4 * bytes + SPACE_BYTES;
  const size_t count = replace(encoder->vocabulary, text, bytes, own);
  if (count == 0) return AOT_OK;
  aot_cutter_t cutter;
  AOT_TRY(aot_cut_begin(encoder->vocabulary, own, count, encoder->error, &cutter));
  while (cutter.at < count) {
    bool is_dropped = false;
    const size_t begin = cutter.at;
    const size_t end = aot_cut_next(&cutter, &is_dropped);
    if (is_dropped) continue;
    memcpy(word + SPACE_BYTES, own + begin, end - begin);
    push_word(encoder, word, end - begin);
  }
  return aot_cut_end(encoder->vocabulary, &cutter, count, encoder->error);
}
