// The loop around a language model's program: what a message's tokens are, and the reply to it.
#include "aot/chat.h"

#include <stddef.h>
#include <string.h>

#include "aot/state.h"
#include "program.h"
#include "status.h"

#define MOST_PIECE_BYTES 1024u

struct aot_chat_t {
  aot_allocator_t allocator;
  aot_program_t *program;
  aot_chat_options_t options;
  aot_vocabulary_t *vocabulary;
  aot_sampler_t *sampler;
  aot_vocabulary_info_t words;
  aot_chat_info_t info;
  aot_decoder_t decoder;
  int32_t *tokens;  // of a message
  size_t token_count;
  size_t token_capacity;
  int64_t most_tokens;  // of one call
  int32_t pending;      // the last token of the reply, which was not run; -1: there is none
  char piece[MOST_PIECE_BYTES + 1];
};

static aot_status_t check_program(const aot_program_t *program, aot_error_t *error) {
  const aot_entry_t *entry = program->entry;
  const bool is_model = entry->input_count == 1 && entry->inputs[0].rank == 1 &&
                        entry->inputs[0].dtype == AOT_DTYPE_I32 && entry->output_count == 1 &&
                        entry->outputs[0].rank == 2 && entry->outputs[0].dtype == AOT_DTYPE_F32 &&
                        aot_program_capacity(program) > 0;
  if (is_model) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "entry point \"%s\" is no language model's: expected an input, tokens i32[T], an "
                  "output, logits f32[N, V], and a state that grows",
                  entry->name);
}

static aot_status_t open_chat(aot_chat_t *chat, aot_error_t *error) {
  const aot_allocator_t *allocator = &chat->allocator;
  AOT_TRY(aot_vocabulary_open(chat->program->module, allocator, error, &chat->vocabulary));
  AOT_TRY(aot_sampler_create(&chat->options.sampling, allocator, error, &chat->sampler));
  aot_vocabulary_get_info(chat->vocabulary, &chat->words);
  const aot_dim_info_t *dim = &chat->program->entry->inputs[0].dims[0];
  const int64_t bound = dim->extent >= 0 ? dim->extent : dim->max;
  chat->most_tokens = bound >= 0 ? bound : (int64_t)aot_program_capacity(chat->program);
  return AOT_OK;
}

aot_status_t aot_chat_create(aot_program_t *program, const aot_chat_options_t *options,
                             const aot_allocator_t *allocator, aot_error_t *error,
                             aot_chat_t **out_chat) {
  if (program == NULL || out_chat == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the program or out_chat is NULL");
  }
  *out_chat = NULL;
  AOT_TRY(check_program(program, error));
  const aot_allocator_t hooks = allocator != NULL ? *allocator : (aot_allocator_t){0};
  aot_allocator_t chosen;
  AOT_TRY(aot_allocator_choose(&hooks, error, &chosen));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&chosen, sizeof(aot_chat_t), "a chat", error, &memory));
  memset(memory, 0, sizeof(aot_chat_t));
  aot_chat_t *chat = memory;
  chat->allocator = chosen;
  chat->program = program;
  chat->pending = -1;
  if (options != NULL) chat->options = *options;
  const aot_status_t status = open_chat(chat, error);
  if (status != AOT_OK) {
    aot_chat_destroy(chat);
    return status;
  }
  *out_chat = chat;
  return AOT_OK;
}

void aot_chat_destroy(aot_chat_t *chat) {
  if (chat == NULL) return;
  const aot_allocator_t allocator = chat->allocator;
  aot_release(&allocator, chat->tokens, chat->token_capacity * sizeof *chat->tokens);
  aot_sampler_destroy(chat->sampler);
  aot_vocabulary_close(chat->vocabulary);
  aot_release(&allocator, chat, sizeof *chat);
}

// ---- a message ----

static aot_status_t reserve(aot_chat_t *chat, size_t count, aot_error_t *error) {
  const size_t needed = chat->token_count + count;
  if (needed <= chat->token_capacity) return AOT_OK;
  const size_t size = sizeof *chat->tokens;
  void *grown = NULL;
  AOT_TRY(aot_allocate(&chat->allocator, (uint64_t)needed * size, "a prompt", error, &grown));
  if (chat->token_count > 0) memcpy(grown, chat->tokens, chat->token_count * size);
  aot_release(&chat->allocator, chat->tokens, chat->token_capacity * size);
  chat->tokens = grown;
  chat->token_capacity = needed;
  return AOT_OK;
}

static aot_status_t add_text(aot_chat_t *chat, const char *text, size_t bytes,
                             aot_encode_options_t how, aot_error_t *error) {
  for (size_t room = bytes + 4;;) {
    AOT_TRY(reserve(chat, room, error));
    size_t count = 0;
    const aot_status_t status = aot_encode(chat->vocabulary, text, bytes, &how,
                                           chat->tokens + chat->token_count, room, error, &count);
    if (status == AOT_OK) chat->token_count += count;
    if (status != AOT_ERROR_CAPACITY || count <= room) return status;
    room = count;
  }
}

// What the template wrote may name control tokens; what a user wrote is plain text.
static aot_status_t add_template(aot_chat_t *chat, const char *text, aot_error_t *error) {
  const aot_encode_options_t how = {.parses_control = true, .is_part = true};
  return add_text(chat, text, strlen(text), how, error);
}

// A message; without a text, what stands behind one that is there.
static aot_status_t add_message(aot_chat_t *chat, const char *role, const char *text, size_t bytes,
                                aot_error_t *error) {
  const char *name = NULL, *before = NULL, *after = NULL;
  for (uint32_t i = 0; i < chat->words.chat_role_count; ++i) {
    if (!aot_vocabulary_get_chat_role(chat->vocabulary, i, &name, &before, &after)) break;
    if (strcmp(name, role) != 0) continue;
    if (text != NULL) {
      AOT_TRY(add_template(chat, before, error));
      AOT_TRY(add_text(chat, text, bytes, (aot_encode_options_t){.is_part = true}, error));
    }
    return add_template(chat, after, error);
  }
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "the model's chat template knows no message of role \"%s\"", role);
}

static aot_status_t begin_chat(aot_chat_t *chat, aot_error_t *error) {
  const aot_vocabulary_info_t *words = &chat->words;
  const char *system = chat->options.system;
  AOT_TRY(add_template(chat, words->chat_begin, error));
  const bool has_bos = chat->token_count > 0 && chat->tokens[0] == words->bos;
  if (words->adds_bos && words->bos >= 0 && !has_bos) {
    AOT_TRY(reserve(chat, 1, error));
    memmove(chat->tokens + 1, chat->tokens, chat->token_count * sizeof *chat->tokens);
    chat->tokens[0] = words->bos;
    ++chat->token_count;
  }
  if (system == NULL) return add_template(chat, words->chat_default, error);
  return add_message(chat, "system", system, strlen(system), error);
}

// The tokens of a message.  Behind a reply, what the template writes behind that comes first.
static aot_status_t encode_message(aot_chat_t *chat, const char *text, size_t bytes,
                                   aot_error_t *error) {
  const bool is_first = aot_program_length(chat->program) == 0;
  chat->token_count = 0;
  if (chat->options.is_raw || chat->words.chat_role_count == 0) {
    const aot_encode_options_t how = {.is_part = !is_first};
    AOT_TRY(add_text(chat, text, bytes, how, error));
    if (chat->token_count > 0) return AOT_OK;
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the prompt has no tokens");
  }
  AOT_TRY(is_first ? begin_chat(chat, error) : add_message(chat, "assistant", NULL, 0, error));
  AOT_TRY(add_message(chat, "user", text, bytes, error));
  return add_template(chat, chat->words.chat_reply, error);
}

static aot_status_t run_tokens(aot_chat_t *chat, int32_t *tokens, size_t count,
                               aot_error_t *error) {
  for (size_t done = 0; done < count;) {
    const size_t left = count - done;
    const int64_t part = left < (size_t)chat->most_tokens ? (int64_t)left : chat->most_tokens;
    const aot_tensor_t input = {.size = sizeof input,
                                .dtype = AOT_DTYPE_I32,
                                .rank = 1,
                                .dims = &part,
                                .data = tokens + done,
                                .bytes = (size_t)part * sizeof *tokens};
    AOT_TRY(aot_program_set_input(chat->program, 0, &input, error));
    AOT_TRY(aot_program_run(chat->program, error));
    done += (size_t)part;
  }
  return AOT_OK;
}

static aot_status_t run_message(aot_chat_t *chat, aot_error_t *error) {
  if (chat->pending >= 0) AOT_TRY(run_tokens(chat, &chat->pending, 1, error));
  return run_tokens(chat, chat->tokens, chat->token_count, error);
}

aot_status_t aot_chat_say(aot_chat_t *chat, const char *text, size_t bytes, aot_error_t *error) {
  if (chat == NULL || (text == NULL && bytes > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat or the text is NULL");
  }
  AOT_TRY(encode_message(chat, text == NULL ? "" : text, bytes, error));
  const uint64_t used = aot_program_length(chat->program);
  const uint64_t capacity = aot_program_capacity(chat->program);
  const uint64_t needed = chat->token_count + (chat->pending >= 0 ? 1u : 0u);
  if (needed > capacity - used) {
    return aot_fail(
        error, AOT_ERROR_CAPACITY,
        "the prompt is %llu tokens, and the context holds %llu, of which %llu are in use",
        (unsigned long long)needed, (unsigned long long)capacity, (unsigned long long)used);
  }
  const aot_status_t status = run_message(chat, error);
  if (status != AOT_OK) {
    if (aot_program_rewind(chat->program, used, NULL) != AOT_OK) {
      (void)aot_program_reset(chat->program, NULL);  // windows have moved on
    }
    return status;
  }
  for (size_t i = 0; i < chat->token_count; ++i)
    aot_sampler_accept(chat->sampler, chat->tokens[i]);
  chat->pending = -1;
  chat->decoder = (aot_decoder_t){.is_begun = true};
  chat->info = (aot_chat_info_t){.prompt_tokens = needed};
  return AOT_OK;
}

// ---- the reply ----

// Ends the reply: the last piece stands for a character that was cut off.
static void end_reply(aot_chat_t *chat, const char **out_piece, size_t *out_bytes) {
  chat->info.is_ended = true;
  *out_bytes = aot_decode_end(&chat->decoder, chat->piece);
  if (*out_bytes > 0) *out_piece = chat->piece;
}

static aot_status_t next_piece(aot_chat_t *chat, aot_error_t *error, const char **out_piece,
                               size_t *out_bytes) {
  if (chat->pending >= 0) {
    const uint64_t most = chat->options.max_tokens;
    const bool is_full = aot_program_length(chat->program) >= aot_program_capacity(chat->program);
    if (is_full || (most > 0 && chat->info.tokens >= most)) {
      end_reply(chat, out_piece, out_bytes);
      return AOT_OK;
    }
    AOT_TRY(run_tokens(chat, &chat->pending, 1, error));
    chat->pending = -1;
  }
  aot_tensor_t logits = {.size = sizeof logits};
  AOT_TRY(aot_program_get_output(chat->program, 0, error, &logits));
  if (logits.dims[0] < 1 || logits.dims[1] < 1) {
    return aot_fail(
        error, AOT_ERROR_SHAPE,
        "the model gave logits of shape [%lld, %lld], expected a row for a token or more",
        (long long)logits.dims[0], (long long)logits.dims[1]);
  }
  const size_t count = (size_t)logits.dims[1];
  const float *last = (const float *)logits.data + (size_t)(logits.dims[0] - 1) * count;
  int32_t token = 0;
  AOT_TRY(aot_sampler_next(chat->sampler, last, count, error, &token));
  if (aot_vocabulary_is_end(chat->vocabulary, token)) {
    end_reply(chat, out_piece, out_bytes);
    return AOT_OK;
  }
  AOT_TRY(aot_decode(chat->vocabulary, &chat->decoder, &token, 1, chat->piece, MOST_PIECE_BYTES,
                     error, out_bytes));
  chat->pending = token;
  ++chat->info.tokens;
  *out_piece = chat->piece;
  return AOT_OK;
}

aot_status_t aot_chat_next(aot_chat_t *chat, aot_error_t *error, const char **out_piece,
                           size_t *out_bytes) {
  if (chat == NULL || out_piece == NULL || out_bytes == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat, out_piece or out_bytes is NULL");
  }
  *out_piece = NULL;
  *out_bytes = 0;
  if (chat->info.prompt_tokens == 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "nothing was said that could be replied to");
  }
  if (chat->info.is_ended) return AOT_OK;
  AOT_TRY(next_piece(chat, error, out_piece, out_bytes));
  chat->piece[*out_bytes] = '\0';
  return AOT_OK;
}

aot_status_t aot_chat_settle(aot_chat_t *chat, aot_error_t *error) {
  if (chat == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat is NULL");
  const bool has_room = aot_program_length(chat->program) < aot_program_capacity(chat->program);
  if (chat->pending < 0 || !has_room) return AOT_OK;
  AOT_TRY(run_tokens(chat, &chat->pending, 1, error));
  chat->pending = -1;
  return AOT_OK;
}

void aot_chat_get_info(const aot_chat_t *chat, aot_chat_info_t *out_info) {
  *out_info = chat->info;
}
