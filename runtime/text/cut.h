// Cutting text into the parts that are encoded one by one, by a vocabulary's tables of patterns.
#ifndef AOT_CUT_H_
#define AOT_CUT_H_

#include "encoder.h"

#define AOT_MOST_CUTS 8u

typedef struct aot_cut_stage_t {
  const uint8_t *forward;
  const uint8_t *backward;  // NULL: nothing is looked for ahead
  uint32_t states;
  uint32_t backward_states;
  uint32_t looks;
  bool has_start;
  bool drops_rest;
  uint32_t place;  // of its bits in those of a byte
  size_t end;      // of the part that it is cutting
} aot_cut_stage_t;

typedef struct aot_cutter_t {
  const uint8_t *text;
  size_t at;
  uint32_t class_count;
  uint32_t block_count;
  uint32_t rest_class;  // of characters behind the blocks
  const uint8_t *blocks;
  const uint8_t *classes;
  uint32_t different_count;
  uint32_t stage_count;
  uint64_t steps;  // that are left; 0: what was cut is wrong
  aot_cut_stage_t stages[AOT_MOST_CUTS];
  uint8_t *bits;  // of each byte of the text that begins a character, or NULL
} aot_cutter_t;

// Whether a vocabulary's tables have the lengths that they say; also where it has none.
bool aot_are_cuts(const aot_vocabulary_t *vocabulary);

// Begins to cut a text, which aot_cut_end ends.
aot_status_t aot_cut_begin(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                           aot_error_t *error, aot_cutter_t *out_cutter);

// The end of the part that begins at `cutter->at`, which has not reached the end of the text; and
// whether it becomes no tokens.
size_t aot_cut_next(aot_cutter_t *cutter, bool *out_is_dropped);

// Releases what a cutter has of a text of `bytes`; an error where steps ran out before its end.
aot_status_t aot_cut_end(const aot_vocabulary_t *vocabulary, aot_cutter_t *cutter, size_t bytes,
                         aot_error_t *error);

#endif  // AOT_CUT_H_
