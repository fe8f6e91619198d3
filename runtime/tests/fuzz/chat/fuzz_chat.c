// Fuzzes conversations: any messages, any logits, in any order of calls.  An input is a byte that
// says how the chat is made, one of the sampling, and steps: a byte that says which, and what it
// takes.  The module, $AOT_FUZZ_MODULE or the file beside the fuzzer, is a language model whose
// logits are f32[1, V] of few tokens; its code is not run, the input has the logits.
#define _POSIX_C_SOURCE 200809L  // posix_memalign

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../text/unicode.h"
#include "../memory.h"
#include "../module_path.h"
#include "../sampling.h"
#include "aot/chat.h"
#include "aot/state.h"
#include "program.h"

#define MOST_LOGITS 64u
#define MOST_MESSAGE_BYTES 31u  // with those around it more than there is room for
#define MOST_MESSAGES 10u       // of an input: each renders all before it again

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static aot_program_t *program;
static float logits[MOST_LOGITS];

static void fail(const char *what) {
  (void)fprintf(stderr, "fuzz_chat.c: %s\n", what);
  abort();
}

static void open_program(void) {
  aot_error_t error = {AOT_OK, ""};
  aot_module_t *module = NULL;
  const aot_module_options_t module_options = {.size = sizeof module_options,
                                               .allocator = fuzz_allocator};
  const aot_program_options_t options = {.size = sizeof options, .caller_outputs = true};
  fuzz_memory.fails_at = UINT64_MAX;
  if (aot_module_open_path(fuzz_module_path, &module_options, &error, &module) != AOT_OK ||
      aot_program_create(module, &options, &error, &program) != AOT_OK ||
      aot_program_set_output(program, 0, logits, sizeof logits, &error) != AOT_OK) {
    fail(error.message);
  }
}

typedef struct reader_t {
  const uint8_t *at;
  const uint8_t *end;
  uint32_t messages;
} reader_t;

static uint8_t next_byte(reader_t *reader) {
  return reader->at < reader->end ? *reader->at++ : 0;
}

static void check(aot_status_t status, const aot_error_t *error) {
  if (status != AOT_OK && (error->status != status || error->message[0] == '\0')) {
    fail("a status without a message");
  }
  if (aot_program_length(program) > aot_program_capacity(program)) fail("more than there is room");
}

// A message in memory of just its size.
static void say(aot_chat_t *chat, reader_t *reader) {
  if (reader->messages++ >= MOST_MESSAGES) return;
  size_t bytes = next_byte(reader) % (MOST_MESSAGE_BYTES + 1);
  if (bytes > (size_t)(reader->end - reader->at)) bytes = (size_t)(reader->end - reader->at);
  char *text = malloc(bytes > 0 ? bytes : 1);
  if (text == NULL) return;
  memcpy(text, reader->at, bytes);
  reader->at += bytes;
  aot_error_t error = {AOT_OK, ""};
  check(aot_chat_say(chat, text, bytes, &error), &error);
  free(text);
}

// Where the input ends, all logits are equal.
static void next(aot_chat_t *chat, reader_t *reader) {
  const size_t count = next_byte(reader) % MOST_LOGITS;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t byte = next_byte(reader);
    const uint32_t whole = (uint32_t)byte << 24 | next_byte(reader);
    memcpy(&logits[i], &whole, sizeof whole);
    if (byte % 4 != 0) logits[i] = (float)byte - 128;
  }
  aot_error_t error = {AOT_OK, ""};
  const char *piece = NULL;
  size_t bytes = 0;
  const aot_status_t status = aot_chat_next(chat, &error, &piece, &bytes);
  check(status, &error);
  if (status != AOT_OK) return;
  if (piece == NULL && bytes != 0) fail("bytes of no piece");
  if (piece != NULL &&
      (piece[bytes] != '\0' || aot_utf8_check((const uint8_t *)piece, bytes) < bytes)) {
    fail("a piece that is no text");
  }
}

static void step(aot_chat_t *chat, reader_t *reader) {
  const uint8_t how = next_byte(reader);
  aot_error_t error = {AOT_OK, ""};
  aot_chat_info_t info = {.size = sizeof info};
  switch (how % 8) {
    case 0:
    case 1:
      say(chat, reader);
      break;
    case 2:
      check(aot_chat_settle(chat, &error), &error);
      break;
    case 3:
      if (how & 8) {
        check(aot_program_reset(program, &error), &error);
      } else {
        check(aot_program_rewind(program, how >> 4, &error), &error);
      }
      break;
    default:
      next(chat, reader);
      break;
  }
  check(aot_chat_get_info(chat, &error, &info), &error);
}

static void run(const uint8_t *data, size_t size) {
  static const char *const variables[] = {NULL, "{\"long\": true}", " { } ", "{", "[1]"};
  static const char *const stops[] = {"bc", "a\xc3\xa9"};
  aot_error_t error = {AOT_OK, ""};
  reader_t reader = {data, data + size, 0};
  const uint8_t how = next_byte(&reader);
  const uint8_t sampling = next_byte(&reader);
  const aot_sampler_options_t chosen = fuzz_sampling(sampling, NULL);
  const aot_chat_options_t options = {.size = sizeof options,
                                      .system = how & 1 ? "be \xc3\xa9" : NULL,
                                      .variables = variables[(how >> 1) % 5],
                                      .is_raw = how >= 192,
                                      .max_tokens = how & 16 ? 3 : 0,
                                      .sampling = &chosen,
                                      .stops = stops,
                                      .stop_count = how & 8 ? 2 : 0,
                                      .logprobs = how & 32 ? 3 : 0};
  aot_chat_t *chat = NULL;
  const aot_status_t status = aot_chat_create(program, &options, &fuzz_allocator, &error, &chat);
  check(status, &error);
  while (status == AOT_OK && reader.at < reader.end)
    step(chat, &reader);
  aot_chat_destroy(chat);
  fuzz_memory.fails_at = UINT64_MAX;
  if (aot_program_reset(program, &error) != AOT_OK) fail(error.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (program == NULL) open_program();
  return fuzz_run(run, data, size);
}
