// Fuzzes code of chat templates from strangers: what is verified runs within its budget, inside of
// its memory.  An input is two bytes of the number of code words, a byte of the number of texts,
// the code, the ends of the texts, the texts, and behind a zero byte the variables.
#define _POSIX_C_SOURCE 200809L  // posix_memalign

#include <stdlib.h>
#include <string.h>

#include "../memory.h"
#include "aot/text.h"
#include "vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *copied(const void *data, size_t bytes) {
  void *memory = malloc(bytes > 0 ? bytes : 1);
  if (bytes > 0) memcpy(memory, data, bytes);
  return memory;
}

static void render(const aot_vocabulary_t *vocabulary, const char *text, size_t bytes) {
  const aot_render_options_t options = {.size = sizeof options,
                                        .max_steps = 20000,
                                        .max_bytes = (uint64_t)8 << 20,
                                        .is_strict = true,
                                        .has_clock = true,
                                        .local_seconds = 1772892309};
  aot_rendered_t made = {.size = sizeof made};
  aot_error_t error;
  if (aot_chat_render(vocabulary, text, bytes, &options, &error, &made) != AOT_OK) return;
  uint32_t sum = 0;
  for (size_t i = 0; i < made.bytes; ++i)
    sum += (uint8_t)made.text[i] + made.marks[i];
  if (sum == 1) abort();
  aot_rendered_release(vocabulary, &made);
}

static void run(const uint8_t *data, size_t size) {
  const size_t words = data[0] | (size_t)data[1] << 8, texts = data[2];
  const size_t fixed = 3 + 4 * (words + texts);
  if (size < fixed) return;
  const uint8_t *rest = data + fixed;
  const size_t left = size - fixed;
  const uint8_t *end = left > 0 ? memchr(rest, 0, left) : NULL;
  const size_t text_bytes = end == NULL ? left : (size_t)(end - rest);
  const size_t bytes = end == NULL ? 0 : left - text_bytes - 1;
  uint32_t *code = copied(data + 3, 4 * words);
  uint32_t *ends = copied(data + 3 + 4 * words, 4 * texts);
  uint8_t *text = copied(rest, text_bytes);
  char *variables = copied(rest + (end == NULL ? left : text_bytes + 1), bytes);
  aot_vocabulary_t vocabulary = {
      .allocator = fuzz_allocator,
      .bos = -1,
      .eos = -1,
      .chat_template = "",
      .chat_refusal = "",
      .chat = {code, (uint32_t)words, text, (uint32_t)text_bytes, ends, (uint32_t)texts}};
  aot_error_t error;
  if (aot_template_verify(&vocabulary.chat, &vocabulary.allocator, &error) == AOT_OK) {
    render(&vocabulary, variables, bytes);
  }
  free(variables);
  free(text);
  free(ends);
  free(code);
  if (fuzz_memory.in_use != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return size < 3 ? 0 : fuzz_run(run, data, size);
}
