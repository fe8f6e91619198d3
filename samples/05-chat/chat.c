// A reply of a language model, in C: cc chat.c -laot_runtime -lpthread -lm -ldl, then
// ./a.out chat.aotm "What is the capital of France?"
#include <stdio.h>
#include <string.h>

#include "aot/text.h"

int main(int count, char **arguments) {
  aot_error_t error = {0};
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  aot_vocabulary_t *words = NULL;
  aot_sampler_t *sampler = NULL;
  const char *role, *before, *after;
  aot_vocabulary_info_t info;
  if (count != 3) return 2;
  if (aot_module_open_path(arguments[1], NULL, &error, &module) != AOT_OK ||
      aot_program_create(module, NULL, &error, &program) != AOT_OK ||
      aot_vocabulary_open(module, NULL, &error, &words) != AOT_OK ||
      aot_sampler_create(NULL, NULL, &error, &sampler) != AOT_OK)
    return fprintf(stderr, "%s\n", error.message), 1;
  aot_vocabulary_get_info(words, &info);
  for (uint32_t i = 0; aot_vocabulary_get_chat_role(words, i, &role, &before, &after); ++i)
    if (strcmp(role, "user") == 0) break;
  // What the template writes may name control tokens; what the user wrote is plain text.
  const char *parts[] = {info.chat_begin, info.chat_default, before, arguments[2],
                         after,           info.chat_reply};
  int32_t tokens[512], next = 0;
  size_t length = 0, added = 0, bytes = 0;
  for (int i = 0; i < 6; ++i, length += added) {
    const aot_encode_options_t how = {.parses_control = i != 3, .is_part = true};
    if (aot_encode(words, parts[i], strlen(parts[i]), &how, tokens + length, 512 - length, &error,
                   &added) != AOT_OK)
      return fprintf(stderr, "%s\n", error.message), 1;
  }
  aot_decoder_t decoder = {.is_begun = true};
  for (int64_t dims = (int64_t)length;; tokens[0] = next, dims = 1) {
    const aot_tensor_t input = {AOT_DTYPE_I32, 1, &dims, tokens, (size_t)dims * 4};
    aot_tensor_t logits;
    char text[256];
    if (aot_program_set_input(program, 0, &input, &error) != AOT_OK ||
        aot_program_run(program, &error) != AOT_OK ||
        aot_program_get_output(program, 0, &error, &logits) != AOT_OK ||
        aot_sampler_next(sampler, logits.data, (size_t)logits.dims[1], &error, &next) != AOT_OK)
      return fprintf(stderr, "%s\n", error.message), 1;
    if (aot_vocabulary_is_end(words, next)) break;
    if (aot_decode(words, &decoder, &next, 1, text, sizeof text, &error, &bytes) != AOT_OK)
      return fprintf(stderr, "%s\n", error.message), 1;
    (void)fwrite(text, 1, bytes, stdout);
    (void)fflush(stdout);
  }
  (void)putchar('\n');
  aot_sampler_destroy(sampler);
  aot_vocabulary_close(words);
  aot_program_destroy(program);
  aot_module_close(module);
  return 0;
}
