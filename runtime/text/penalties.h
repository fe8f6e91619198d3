// What is subtracted from the logits of tokens that came lately.
#ifndef AOT_PENALTIES_H_
#define AOT_PENALTIES_H_

#include "choice.h"

// The last tokens: all zero is one that keeps none.
typedef struct aot_history_t {
  uint32_t *tokens;  // a ring
  uint32_t capacity;
  uint32_t count;
  uint32_t next;
  uint32_t *repeats;  // scratch: `capacity` numbers
  uint64_t *keys;     // and sort keys
  uint8_t *breakers;  // a bit for each token that no repetition goes beyond; NULL: none does
  size_t breaker_bytes;
} aot_history_t;

// Takes memory for so many tokens, and for the breakers of DRY where the options have a vocabulary.
// Fails with AOT_ERROR_ARGUMENT where a breaker is in no token.
aot_status_t aot_history_create(const aot_sampler_options_t *options, uint32_t capacity,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_history_t *out_history);
void aot_history_release(aot_history_t *history, const aot_allocator_t *allocator);
void aot_history_add(aot_history_t *history, uint32_t token);

// Changes the logits of tokens: candidate i is token i.
void aot_penalise(const aot_history_t *history, const aot_sampler_options_t *options,
                  aot_logit_t *candidates, size_t count);

#endif  // AOT_PENALTIES_H_
