// Fuzzes text of language models: a vocabulary from strangers, and any text.  An input is a byte of
// options, two of the text's length, the text, and the vocabulary's bytes.
#include <stdlib.h>
#include <string.h>

#include "aot/text.h"

static void sample(const float *logits, size_t count, uint8_t options) {
  const aot_logit_bias_t bias = {1, 2.0f};
  const aot_sampler_options_t chosen = {.size = sizeof chosen,
                                        .biases = &bias,
                                        .bias_count = options & 32 ? 1 : 0,
                                        .typical_p = options & 64 ? 0.6f : 0.0f,
                                        .dry_multiplier = options & 128 ? 0.8f : 0.0f,
                                        .temperature = options & 1 ? 0.7f : 0.0f,
                                        .top_k = options & 2 ? 3 : 0,
                                        .top_p = options & 4 ? 0.8f : 0.0f,
                                        .min_p = options & 8 ? 0.1f : 0.0f,
                                        .repetition_penalty = options & 16 ? 1.3f : 0.0f};
  aot_sampler_t *sampler = NULL;
  int32_t token = 0;
  if (aot_sampler_create(&chosen, NULL, NULL, &sampler) != AOT_OK) abort();
  for (int i = 0; i < 3; ++i) {
    if (aot_sampler_next(sampler, logits, count, NULL, &token) != AOT_OK) break;
    if (token < 0 || (size_t)token >= count) abort();
  }
  aot_sampler_destroy(sampler);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) return 0;
  const size_t text_bytes = data[1] | (size_t)data[2] << 8;
  if (size - 3 < text_bytes) return 0;
  const size_t bytes = size - 3 - text_bytes;
  // Copies of just their sizes: what is read behind them is found.
  char *text = malloc(text_bytes > 0 ? text_bytes : 1);
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  memcpy(text, data + 3, text_bytes);
  memcpy(memory, data + 3 + text_bytes, bytes);
  if (text_bytes >= 16) {
    float logits[4];
    memcpy(logits, text, sizeof logits);
    sample(logits, 4, data[0]);
  }
  aot_vocabulary_t *vocabulary = NULL;
  aot_error_t error;
  if (aot_vocabulary_open_memory(memory, bytes, NULL, &error, &vocabulary) == AOT_OK) {
    const aot_encode_options_t options = {.parses_control = data[0] & 1, .is_part = data[0] & 2};
    int32_t tokens[256];
    size_t count = 0;
    const aot_status_t status =
        aot_encode(vocabulary, text, text_bytes, &options, tokens, 256, &error, &count);
    if (status == AOT_OK) {
      char piece[4096];
      size_t written = 0;
      aot_decoder_t decoder = {.shows_control = data[0] & 4};
      (void)aot_decode(vocabulary, &decoder, tokens, count, piece, sizeof piece, &error, &written);
      (void)aot_decode_end(&decoder, piece);
    }
    (void)aot_vocabulary_find(vocabulary, text, text_bytes);
    aot_vocabulary_close(vocabulary);
  }
  free(memory);
  free(text);
  return 0;
}
