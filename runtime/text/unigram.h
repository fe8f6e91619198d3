// Encoding as the pieces of the highest sum of scores.
#ifndef AOT_UNIGRAM_H_
#define AOT_UNIGRAM_H_

#include "encoder.h"

aot_status_t aot_unigram(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                         bool adds_space);

#endif  // AOT_UNIGRAM_H_
