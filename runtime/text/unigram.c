// SentencePiece's unigram: text is normalised, and becomes the pieces of the highest sum of scores.
#include "unigram.h"

#include <string.h>

#include "module_fbs.h"
#include "replacements.h"
#include "status.h"
#include "unicode.h"

// ---- normalising ----

typedef struct writer_t {
  uint8_t *out;  // NULL: only counts
  size_t count;
} writer_t;

static void write_byte(writer_t *writer, uint8_t byte) {
  if (writer->out != NULL) writer->out[writer->count] = byte;
  ++writer->count;
}

static void write_space(const aot_vocabulary_t *vocabulary, writer_t *writer) {
  if (vocabulary->escapes_spaces) {
    write_byte(writer, 0xE2);
    write_byte(writer, 0x96);
    write_byte(writer, 0x81);
  } else {
    write_byte(writer, ' ');
  }
}

static void normalise(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                      bool adds_space, writer_t *writer) {
  const aot_replacements_t table = aot_replacements_open(vocabulary);
  const bool is_suffix = vocabulary->space_is_suffix != 0;
  const bool trims = vocabulary->trims_spaces != 0;
  bool is_prefix_due = adds_space && !is_suffix;
  bool is_in_word = false;
  for (size_t at = 0; at < bytes;) {
    const uint8_t *own = text + at;
    size_t own_bytes = aot_utf8_bytes(text[at]);
    const size_t taken = aot_replaced(&table, text + at, bytes - at, &own, &own_bytes);
    at += taken == 0 ? own_bytes : taken;
    for (size_t i = 0; i < own_bytes; ++i) {
      if (own[i] == ' ') {
        is_in_word = false;
        if (!trims) write_space(vocabulary, writer);
        continue;
      }
      if (!is_in_word && (is_prefix_due || trims)) {
        write_space(vocabulary, writer);
        is_prefix_due = false;
      }
      is_in_word = true;
      write_byte(writer, own[i]);
    }
  }
  if (adds_space && is_suffix) write_space(vocabulary, writer);
}

// ---- pieces ----

// The best way to the end of a stretch of text: its last piece.
typedef struct best_t {
  double score;
  uint32_t token;
  uint32_t begin;  // of that piece; once the whole is known, where the next piece ends
} best_t;

static void offer(best_t *best, double score, uint32_t token, uint32_t begin) {
  if (score > best->score) *best = (best_t){score, token, begin};
}

// Offers all pieces that begin at `at`; the unknown one where none is the character there.
static void offer_pieces(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                         uint32_t at, best_t *best) {
  const aot_sorted_t *sorted = &vocabulary->by_piece;
  const uint32_t width = (uint32_t)aot_utf8_bytes(text[at]);
  const double score = best[at].score;
  bool is_known = false;
  aot_range_t range = aot_sorted_begin(sorted, text[at]);
  for (uint32_t length = 1; range.begin < range.end; ++length) {
    const uint32_t token = sorted->tokens[range.begin];
    uint32_t own_bytes = 0;
    (void)aot_symbol_text(vocabulary, token, &own_bytes);
    if (own_bytes == length && aot_is_token(vocabulary, token)) {
      const uint32_t type = vocabulary->token_types[token] & AOT_TYPE_MASK;
      const bool is_added = type == AOT_FBS_TOKEN_TYPE_USER_DEFINED;
      is_known = is_known || length == width;
      offer(&best[at + length],
            score + (is_added ? 0.0 : (double)aot_token_score(vocabulary, token)), token, at);
    }
    if (at + length >= bytes) break;
    range = aot_sorted_narrow(vocabulary, sorted, range, length, text[at + length]);
  }
  if (!is_known) {
    offer(&best[at + width], score + vocabulary->unknown_score, AOT_NO_SYMBOL, at);
  }
}

aot_status_t aot_unigram(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                         bool adds_space) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  writer_t writer = {NULL, 0};
  normalise(vocabulary, text, bytes, adds_space, &writer);
  const size_t length = writer.count;
  if (length == 0) return AOT_OK;
  if (length >= UINT32_MAX / 2) {
    return aot_fail(encoder->error, AOT_ERROR_ARGUMENT, "the text is too long: %zu bytes", length);
  }
  void *memory = NULL;
  AOT_TRY(aot_encoder_memory(encoder, (length + 1) * (sizeof(best_t) + 1), &memory));
  best_t *best = memory;
  writer = (writer_t){(uint8_t *)(best + length + 1), 0};
  normalise(vocabulary, text, bytes, adds_space, &writer);
  for (size_t i = 0; i <= length; ++i)
    best[i] = (best_t){i == 0 ? 0.0 : -1.7976931348623157e308, AOT_NO_SYMBOL, 0};
  for (uint32_t at = 0; at < length; at += (uint32_t)aot_utf8_bytes(writer.out[at]))
    offer_pieces(vocabulary, writer.out, length, at, best);
  // Turn the way round: each piece's begin says where the piece behind it ends.
  uint32_t following = 0;
  for (uint32_t end = (uint32_t)length; end > 0;) {
    const uint32_t begin = best[end].begin;
    best[end].begin = following;
    following = end;
    end = begin;
  }
  bool was_unknown = false;
  for (uint32_t end = following; end > 0; end = best[end].begin) {
    const uint32_t token = best[end].token;
    const bool is_unknown = token == AOT_NO_SYMBOL || token == vocabulary->unknown;
    if (!is_unknown) {
      aot_push(encoder, token);
    } else if (!was_unknown && vocabulary->unknown >= 0) {
      aot_push(encoder, (uint32_t)vocabulary->unknown);
    }
    was_unknown = is_unknown;
  }
  return AOT_OK;
}
