// Encoding by merges of neighbouring symbols.
#ifndef AOT_MERGES_H_
#define AOT_MERGES_H_

#include "encoder.h"

// Encodes a part of text by merges of bytes.
aot_status_t aot_merge_bytes(aot_encoder_t *encoder, const uint8_t *text, size_t bytes);

// Encodes all of a text by merges of characters.
aot_status_t aot_merge_characters(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                  bool adds_space);

#endif  // AOT_MERGES_H_
