// SentencePiece's unigram: text is normalised, and becomes the pieces of the highest sum of scores.
#include <string.h>

#include "encode.h"
#include "module_fbs.h"
#include "status.h"
#include "unicode.h"

// ---- characters and what replaces them ----

// SentencePiece's table: the bytes of a double array, whose nodes are 32-bit words, the array, and
// the replacements, each ended by a zero.  The replacements are UTF-8, which a rule says; where the
// nodes lead is checked here.
typedef struct table_t {
  const uint8_t *nodes;
  uint32_t node_count;
  const uint8_t *texts;
  uint32_t text_bytes;
} table_t;

static table_t open_table(const aot_vocabulary_t *vocabulary) {
  table_t table = {NULL, 0, NULL, 0};
  const uint8_t *data = vocabulary->replacements;
  if (vocabulary->replacement_bytes <= 4) return table;
  uint32_t bytes = 0;
  memcpy(&bytes, data, sizeof bytes);
  const uint32_t rest = vocabulary->replacement_bytes - 4;
  if (bytes >= rest || bytes % 4 != 0) return table;
  return (table_t){data + 4, bytes / 4, data + 4 + bytes, rest - bytes};
}

bool aot_is_replacement_table(const aot_vocabulary_t *vocabulary) {
  if (vocabulary->replacement_bytes == 0) return true;
  const table_t table = open_table(vocabulary);
  return table.text_bytes > 0 && table.texts[table.text_bytes - 1] == 0 &&
         aot_utf8_check(table.texts, table.text_bytes) == table.text_bytes;
}

// Whether a character may begin at a byte of a text, or the text end before it.
static bool is_boundary(uint8_t byte) {
  return (byte & 0xC0) != 0x80;
}

static bool node_at(const table_t *table, uint32_t index, uint32_t *out_node) {
  if (index >= table->node_count) return false;
  memcpy(out_node, table->nodes + 4 * (size_t)index, sizeof *out_node);
  return true;
}

static uint32_t base_of(uint32_t node) {
  return (node >> 10) << ((node & (1u << 9)) >> 6);
}

// The longest start of `text` that is replaced, whole characters by whole characters, and by what:
// the number of its bytes, 0 of none.
static size_t replaced(const table_t *table, const uint8_t *text, size_t bytes,
                       const uint8_t **out_text, size_t *out_bytes) {
  size_t longest = 0;
  uint32_t place = 0;
  uint32_t node = 0;
  if (!node_at(table, 0, &node)) return 0;
  uint32_t index = base_of(node);
  for (size_t i = 0; i < bytes && text[i] != 0; ++i) {
    index ^= text[i];
    if (!node_at(table, index, &node) || (node & 0x800000FFu) != text[i]) break;
    index ^= base_of(node);
    if ((node >> 8 & 1) == 0) continue;
    if (i + 1 < bytes && !is_boundary(text[i + 1])) continue;
    if (!node_at(table, index, &node)) break;
    longest = i + 1;
    place = node & 0x7FFFFFFFu;
  }
  if (longest == 0 || place >= table->text_bytes || !is_boundary(table->texts[place])) return 0;
  const uint8_t *end = memchr(table->texts + place, 0, table->text_bytes - place);
  if (end == NULL) return 0;
  *out_text = table->texts + place;
  *out_bytes = (size_t)(end - *out_text);
  return longest;
}

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
  const table_t table = open_table(vocabulary);
  const bool is_suffix = vocabulary->space_is_suffix != 0;
  const bool trims = vocabulary->trims_spaces != 0;
  bool is_prefix_due = adds_space && !is_suffix;
  bool is_in_word = false;
  for (size_t at = 0; at < bytes;) {
    const uint8_t *own = text + at;
    size_t own_bytes = aot_utf8_bytes(text[at]);
    const size_t taken = replaced(&table, text + at, bytes - at, &own, &own_bytes);
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
