// What the parts of encoding share: where tokens go, and memory that is used again and again.
#ifndef AOT_ENCODER_H_
#define AOT_ENCODER_H_

#include "vocabulary.h"

typedef struct aot_encoder_t {
  const aot_vocabulary_t *vocabulary;
  int32_t *tokens;
  size_t capacity;
  size_t count;  // also of those that did not fit
  void *memory;
  size_t memory_bytes;
  aot_error_t *error;
} aot_encoder_t;

static inline void aot_push(aot_encoder_t *encoder, uint32_t token) {
  if (encoder->count < encoder->capacity) encoder->tokens[encoder->count] = (int32_t)token;
  ++encoder->count;
}

// Memory of so many bytes, *borrowed* until the next call; what it held before is lost.
aot_status_t aot_encoder_memory(aot_encoder_t *encoder, uint64_t bytes, void **out_memory);

// Tokens of bytes that no other token is for: those of the bytes, or the unknown token.
void aot_push_bytes(aot_encoder_t *encoder, const uint8_t *text, size_t bytes);

#endif  // AOT_ENCODER_H_
