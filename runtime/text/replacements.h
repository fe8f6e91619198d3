// The characters that SentencePiece's normalisation replaces, and what by.
#ifndef AOT_REPLACEMENTS_H_
#define AOT_REPLACEMENTS_H_

#include "vocabulary.h"

// SentencePiece's table: the bytes of a double array, whose nodes are 32-bit words, the array, and
// the replacements, each ended by a zero.  The replacements are UTF-8, which a rule says; where the
// nodes lead is checked at each lookup.
typedef struct aot_replacements_t {
  const uint8_t *nodes;
  uint32_t node_count;
  const uint8_t *texts;
  uint32_t text_bytes;
} aot_replacements_t;

// The table of a vocabulary; without nodes where it has none.
aot_replacements_t aot_replacements_open(const aot_vocabulary_t *vocabulary);

// Whether the replacements are none, or SentencePiece's table with texts of UTF-8 of at most 1024
// bytes.
bool aot_is_replacement_table(const aot_vocabulary_t *vocabulary);

// The longest start of `text` that is replaced, whole characters by whole characters, and by what:
// the number of its bytes, 0 of none.
size_t aot_replaced(const aot_replacements_t *table, const uint8_t *text, size_t bytes,
                    const uint8_t **out_text, size_t *out_bytes);

#endif  // AOT_REPLACEMENTS_H_
