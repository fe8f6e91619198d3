// The tokens that may come next, and what of them the options leave.
#ifndef AOT_CHOICE_H_
#define AOT_CHOICE_H_

#include "aot/text.h"

// A token that may be chosen.
typedef struct aot_logit_t {
  float logit;
  uint32_t token;
} aot_logit_t;

// Candidates, from `begin` to `end` of `all`.  Sorted ones have the most probable at the end.
typedef struct aot_choice_t {
  aot_logit_t *all;
  size_t begin;
  size_t end;
  bool is_sorted;
  float largest;  // logit among them; weights are relative to it
} aot_choice_t;

// Whether a candidate comes before another: the larger logit, of equal ones the lesser token.
bool aot_is_before(aot_logit_t a, aot_logit_t b);

// The first of the candidates.
aot_logit_t aot_choice_best(const aot_choice_t *choice);

void aot_choice_sort(aot_choice_t *choice);

// Leaves what top_k, typical_p, top_p and min_p of the options do, and with `excludes_top` XTC.
void aot_choice_narrow(aot_choice_t *choice, const aot_sampler_options_t *options,
                       bool excludes_top);

// Leaves the candidates whose surprise, the negative logarithm of their probability, base 2, is at
// most `most` bits, or the first one.
void aot_choice_limit_surprise(aot_choice_t *choice, float temperature, double most);

// What all candidates weigh.
uint64_t aot_choice_weight(const aot_choice_t *choice, float temperature);

#endif  // AOT_CHOICE_H_
