// The longest token at each place of a text: RWKV's bytes, and BERT's words.
#include "longest.h"

#include <string.h>

#include "characters.h"
#include "cut.h"
#include "status.h"

#define SPACE_BYTES 3u  // of U+2581, which the first piece of a word begins with

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
  const size_t count = aot_characters_replace(encoder->vocabulary, text, bytes, own);
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
