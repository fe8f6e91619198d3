// Memory of an encoder, and the tokens of single bytes.
#include "encoder.h"

#include "alloc.h"
#include "status.h"

aot_status_t aot_encoder_memory(aot_encoder_t *encoder, uint64_t bytes, void **out_memory) {
  const aot_allocator_t *allocator = &encoder->vocabulary->allocator;
  *out_memory = encoder->memory;
  if (bytes <= encoder->memory_bytes) return AOT_OK;
  aot_release(allocator, encoder->memory, encoder->memory_bytes);
  encoder->memory = NULL;
  encoder->memory_bytes = 0;
  AOT_TRY(aot_allocate(allocator, bytes, "encoding a part of the text", encoder->error,
                       &encoder->memory));
  encoder->memory_bytes = (size_t)bytes;
  *out_memory = encoder->memory;
  return AOT_OK;
}

void aot_push_bytes(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  bool has_all = vocabulary->byte_symbol_count > 0;
  for (size_t i = 0; i < bytes && has_all; ++i)
    has_all = aot_is_token(vocabulary, vocabulary->byte_symbols[text[i]]);
  for (size_t i = 0; i < bytes && has_all; ++i)
    aot_push(encoder, vocabulary->byte_symbols[text[i]]);
  if (!has_all && vocabulary->unknown >= 0) aot_push(encoder, (uint32_t)vocabulary->unknown);
}
