// A vocabulary as the library holds it: the vectors of its flatbuffer, in place.  Their lengths,
// and the texts that text is cut at or made of, are checked once (vocabulary_rules.h); the numbers
// in the large tables where they are used.
#ifndef AOT_VOCABULARY_H_
#define AOT_VOCABULARY_H_

#include "aot/text.h"
#include "template.h"

#define AOT_NO_SYMBOL UINT32_MAX
#define AOT_SYMBOL_BITS 21u  // of a symbol in a slot of merges
#define AOT_NO_MERGE UINT64_MAX

// The parts of a token's type.
#define AOT_TYPE_MASK 15u
#define AOT_STRIP_LEFT 16u
#define AOT_STRIP_RIGHT 32u

typedef struct aot_range_t {
  uint32_t begin;
  uint32_t end;
} aot_range_t;

// Tokens in the order of their bytes; `first` has those that begin with a byte, or a lesser one.
typedef struct aot_sorted_t {
  const uint32_t *tokens;
  uint32_t count;
  uint32_t first[257];
} aot_sorted_t;

struct aot_vocabulary_t {
  aot_allocator_t allocator;
  const uint8_t *data;  // the flatbuffer
  uint32_t data_bytes;
  uint8_t scheme;
  uint8_t adds_bos;
  uint8_t adds_eos;
  uint8_t adds_space;
  uint8_t ignores_merges;
  uint8_t escapes_spaces;
  uint8_t trims_spaces;
  uint8_t space_is_suffix;
  uint32_t token_count;
  int64_t bos;
  int64_t eos;
  int64_t unknown;
  const uint32_t *end_tokens;
  uint32_t end_token_count;
  const uint32_t *symbol_ends;
  uint32_t symbol_count;
  const uint8_t *symbol_text;
  uint32_t text_bytes;
  const uint8_t *token_types;
  uint32_t token_type_count;
  const uint32_t *token_scores;
  uint32_t token_score_count;
  const uint32_t *byte_symbols;
  uint32_t byte_symbol_count;
  const uint32_t *lookup;
  uint32_t lookup_count;
  const uint32_t *merges;
  uint32_t merge_word_count;
  const uint32_t *merge_results;
  uint32_t merge_count;
  const uint32_t *specials;
  uint32_t special_count;
  const uint32_t *sorted_tokens;
  uint32_t sorted_token_count;
  const uint8_t *replacements;
  uint32_t replacement_bytes;
  const uint8_t *cuts;  // tables of patterns
  uint32_t cut_bytes;
  const uint32_t *character_map;
  uint32_t character_map_count;
  const char *prefix;
  uint8_t prefix_is_raw;
  const uint32_t *prefix_tokens;
  uint32_t prefix_token_count;
  const char *chat_template;
  const char *chat_refusal;
  aot_template_t chat;
  aot_sorted_t by_special;
  aot_sorted_t by_piece;
  double unknown_score;  // UNIGRAM's
};

// The text of a symbol; empty where the vocabulary's places are not valid.
const uint8_t *aot_symbol_text(const aot_vocabulary_t *vocabulary, uint32_t symbol,
                               uint32_t *out_bytes);

// The token of a text, AOT_NO_SYMBOL where there is none.
uint32_t aot_symbol_find(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes);

// The rank of the merge of two symbols, and what it makes; UINT32_MAX where there is none.
uint32_t aot_merge_find(const aot_vocabulary_t *vocabulary, uint32_t left, uint32_t right,
                        uint32_t *out_result);

// The score of a token.
float aot_token_score(const aot_vocabulary_t *vocabulary, uint32_t token);

// The tokens of `range` whose byte `at` is `byte`; those of a whole order at byte 0.
aot_range_t aot_sorted_begin(const aot_sorted_t *sorted, uint8_t byte);
aot_range_t aot_sorted_narrow(const aot_vocabulary_t *vocabulary, const aot_sorted_t *sorted,
                              aot_range_t range, uint32_t at, uint8_t byte);

static inline bool aot_is_token(const aot_vocabulary_t *vocabulary, uint32_t symbol) {
  return symbol < vocabulary->token_count;
}

#endif  // AOT_VOCABULARY_H_
