// Fuzzes text of language models: a vocabulary from strangers, and any text.  An input is a byte of
// options, two of the text's length, the text, and the vocabulary's bytes.
#define _POSIX_C_SOURCE 200809L  // posix_memalign

#include <stdlib.h>
#include <string.h>

#include "../memory.h"
#include "../sampling.h"
#include "aot/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void sample(const float *logits, size_t count, uint8_t how) {
  const aot_sampler_options_t chosen = fuzz_sampling(how, NULL);
  aot_sampler_t *sampler = NULL;
  int32_t token = 0;
  if (aot_sampler_create(&chosen, &fuzz_allocator, NULL, &sampler) != AOT_OK) return;
  for (int i = 0; i < 9; ++i) {
    if (aot_sampler_next(sampler, logits, count, NULL, &token) != AOT_OK) break;
    if (token < 0 || (size_t)token >= count) abort();
  }
  aot_sampler_destroy(sampler);
}

static void run(const uint8_t *data, size_t size) {
  const size_t text_bytes = data[1] | (size_t)data[2] << 8;
  if (size - 3 < text_bytes) return;
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
  if (aot_vocabulary_open_memory(memory, bytes, &fuzz_allocator, &error, &vocabulary) == AOT_OK) {
    const aot_encode_options_t options = {
        .size = sizeof options, .parses_control = data[0] & 1, .is_part = data[0] & 2};
    int32_t tokens[256];
    size_t count = 0;
    const aot_status_t status =
        aot_encode(vocabulary, text, text_bytes, &options, tokens, 256, &error, &count);
    if (status == AOT_OK) {
      char piece[4096];
      size_t written = 0;
      aot_decoder_t decoder = {.size = sizeof decoder, .shows_control = data[0] & 4};
      (void)aot_decode(vocabulary, &decoder, tokens, count, piece, sizeof piece, &error, &written);
      (void)aot_decode_end(&decoder, piece);
    }
    (void)aot_vocabulary_find(vocabulary, text, text_bytes);
    aot_vocabulary_close(vocabulary);
  }
  free(memory);
  free(text);
  if (fuzz_memory.in_use != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return size < 3 ? 0 : fuzz_run(run, data, size);
}
