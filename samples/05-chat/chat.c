// A reply of a language model, in C: cc chat.c -laot_runtime -lpthread -lm -ldl, then
// ./a.out chat.aotm "What is the capital of France?"
#include <stdio.h>
#include <string.h>

#include "aot/chat.h"

int main(int count, char **arguments) {
  aot_error_t error = {0};
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  aot_chat_t *chat = NULL;
  const char *piece = "";
  size_t bytes = 0;
  if (count != 3) return 2;
  if (aot_module_open_path(arguments[1], NULL, &error, &module) == AOT_OK &&
      aot_program_create(module, NULL, &error, &program) == AOT_OK &&
      aot_chat_create(program, NULL, NULL, &error, &chat) == AOT_OK &&
      aot_chat_say(chat, arguments[2], strlen(arguments[2]), &error) == AOT_OK)
    while (aot_chat_next(chat, &error, &piece, &bytes) == AOT_OK && piece != NULL)
      (void)fwrite(piece, 1, bytes, stdout);
  (void)fputs(error.status == AOT_OK ? "\n" : error.message,
              error.status == AOT_OK ? stdout : stderr);
  aot_chat_destroy(chat);
  aot_program_destroy(program);
  aot_module_close(module);
  return error.status != AOT_OK;
}
