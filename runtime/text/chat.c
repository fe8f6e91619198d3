// The loop around a language model's program: what a message's tokens are, and the reply to it.
#include "aot/chat.h"

#include <stddef.h>
#include <string.h>

#include "alloc.h"
#include "aot/state.h"
#include "conversation.h"
#include "program.h"
#include "sizes.h"
#include "status.h"
#include "unicode.h"

#define MOST_PIECE_BYTES 2048u
#define LEAST_TOKENS ((size_t)1024)  // that memory is taken for at once

typedef struct token_list_t {
  int32_t *items;
  size_t count;
  size_t capacity;
} token_list_t;

struct aot_chat_t {
  aot_allocator_t allocator;
  aot_program_t *program;
  aot_chat_options_t options;
  aot_vocabulary_t *vocabulary;
  aot_sampler_t *sampler;
  aot_reply_t *replies;
  aot_vocabulary_info_t words;
  aot_prefix_info_t prefix;
  bool has_prefix;         // conversations begin with it
  uint64_t prompt_tokens;  // of the last message
  uint64_t prefix_tokens;  // before these, where their state was loaded for it
  // JSON: the messages that the model has read, the same with a new one, all variables of the
  // template; and the text of a reply.
  aot_buffer_t messages;
  aot_buffer_t next_messages;
  aot_buffer_t variables;
  aot_buffer_t reply;
  bool has_reply;        // to the last message
  token_list_t tokens;   // of a prompt
  token_list_t history;  // what the program has read, behind its first `base` tokens
  size_t forgotten;      // tokens of the conversation behind the first kept_tokens of the history
  bool is_behind;        // a shift has failed: of the history the program has read fewer tokens
  uint64_t read;         // then, how many
  uint64_t base;         // tokens of a state that was loaded: nobody knows their text
  int64_t most_tokens;   // of one call
  int32_t pending;       // the last token of the reply, which was not run; -1: there is none
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

static aot_status_t open_replies(aot_chat_t *chat, aot_error_t *error) {
  const aot_chat_options_t *options = &chat->options;
  const aot_allocator_t *allocator = &chat->allocator;
  aot_sampler_options_t sampling = {.size = sizeof sampling};
  if (options->sampling != NULL) {
    AOT_TRY(aot_struct_take(options->sampling, "aot_sampler_options_t", &sampling, sizeof sampling,
                            error));
    sampling.size = sizeof sampling;
  }
  sampling.vocabulary = chat->vocabulary;
  AOT_TRY(aot_sampler_create(&sampling, allocator, error, &chat->sampler));
  const aot_reply_options_t replies = {.size = sizeof replies,
                                       .max_tokens = options->max_tokens,
                                       .stops = options->stops,
                                       .stop_count = options->stop_count,
                                       .logprobs = options->logprobs};
  return aot_reply_create(chat->vocabulary, chat->sampler, &replies, allocator, error,
                          &chat->replies);
}

// Finds out whether conversations begin with the module's prefix: not with another system message,
// and not where its kind is the other one.
static aot_status_t find_prefix(aot_chat_t *chat, aot_error_t *error) {
  const char *system = chat->options.system;
  aot_prefix_info_t *prefix = &chat->prefix;
  prefix->size = sizeof *prefix;
  AOT_TRY(aot_vocabulary_get_prefix(chat->vocabulary, error, prefix));
  chat->has_prefix = prefix->token_count > 0 && prefix->is_raw == chat->options.is_raw &&
                     (system == NULL || strcmp(system, prefix->text) == 0);
  return AOT_OK;
}

static aot_status_t open_chat(aot_chat_t *chat, aot_error_t *error) {
  const aot_allocator_t *allocator = &chat->allocator;
  AOT_TRY(aot_vocabulary_open(chat->program->module, allocator, error, &chat->vocabulary));
  AOT_TRY(open_replies(chat, error));
  chat->words.size = sizeof chat->words;
  AOT_TRY(aot_vocabulary_get_info(chat->vocabulary, error, &chat->words));
  if (chat->words.chat_template[0] == '\0') chat->options.is_raw = true;
  if (chat->options.is_raw && chat->options.system != NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "a system message is written by the chat template: raw text has none");
  }
  if (chat->options.is_raw && chat->options.variables != NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "variables are the chat template's: raw text has none");
  }
  AOT_TRY(find_prefix(chat, error));
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
  aot_chat_options_t given = {.size = sizeof given};
  if (options != NULL)
    AOT_TRY(aot_struct_take(options, "aot_chat_options_t", &given, sizeof given, error));
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
  chat->options = given;
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
  aot_buffer_release(&chat->messages, &allocator);
  aot_buffer_release(&chat->next_messages, &allocator);
  aot_buffer_release(&chat->variables, &allocator);
  aot_buffer_release(&chat->reply, &allocator);
  aot_release(&allocator, chat->tokens.items, chat->tokens.capacity * sizeof(int32_t));
  aot_release(&allocator, chat->history.items, chat->history.capacity * sizeof(int32_t));
  aot_reply_destroy(chat->replies);
  aot_sampler_destroy(chat->sampler);
  aot_vocabulary_close(chat->vocabulary);
  aot_release(&allocator, chat, sizeof *chat);
}

// ---- a message ----

static aot_status_t reserve(aot_chat_t *chat, token_list_t *list, size_t more, aot_error_t *error) {
  if (more <= list->capacity - list->count) return AOT_OK;
  size_t wanted = 2 * list->capacity;
  if (wanted < list->count + more) wanted = list->count + more;
  if (wanted < LEAST_TOKENS) wanted = LEAST_TOKENS;
  const size_t size = sizeof *list->items;
  void *grown = NULL;
  AOT_TRY(aot_allocate(&chat->allocator, (uint64_t)wanted * size, "a prompt", error, &grown));
  if (list->count > 0) memcpy(grown, list->items, list->count * size);
  aot_release(&chat->allocator, list->items, list->capacity * size);
  list->items = grown;
  list->capacity = wanted;
  return AOT_OK;
}

// The tokens of text that goes on, or, with `marks`, of a conversation.
static aot_status_t encode(aot_chat_t *chat, const char *text, const uint8_t *marks, size_t bytes,
                           bool is_first, aot_error_t *error) {
  token_list_t *tokens = &chat->tokens;
  tokens->count = 0;
  for (size_t room = bytes + 4;;) {
    AOT_TRY(reserve(chat, tokens, room, error));
    size_t count = 0;
    const aot_encode_options_t how = {.size = sizeof how, .is_part = !is_first};
    const aot_status_t status =
        marks == NULL ? aot_encode(chat->vocabulary, text, bytes, &how, tokens->items,
                                   tokens->capacity, error, &count)
                      : aot_chat_tokens(chat->vocabulary, text, marks, bytes, is_first,
                                        tokens->items, tokens->capacity, error, &count);
    if (status == AOT_OK) tokens->count = count;
    if (status != AOT_ERROR_CAPACITY || count <= tokens->capacity) return status;
    room = count;
  }
}

static aot_status_t add_message(aot_chat_t *chat, aot_buffer_t *messages, const char *role,
                                const char *text, aot_error_t *error) {
  return aot_buffer_add_message(messages, role, text, strlen(text), false, &chat->allocator, error);
}

// Where the program is not where this chat has left it, begins anew: behind a state of which only
// the program knows what was said, as behind one reply.
static aot_status_t find_beginning(aot_chat_t *chat, aot_error_t *error) {
  const uint64_t length = aot_program_length(chat->program);
  if (chat->is_behind && length == chat->read) chat->history.count = (size_t)length;
  chat->is_behind = false;
  const bool is_known = chat->messages.count > 0 && chat->base + chat->history.count == length;
  if (is_known) return AOT_OK;
  chat->messages.count = 0;
  chat->history.count = 0;
  chat->forgotten = 0;
  chat->has_reply = false;
  chat->base = length;
  if (length > 0 && chat->options.system != NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "a system message begins a conversation, and the state has one already");
  }
  if (length > 0) {
    AOT_TRY(add_message(chat, &chat->messages, "user", "a", error));
    return add_message(chat, &chat->messages, "assistant", "b", error);
  }
  const char *system = chat->has_prefix ? chat->prefix.text : chat->options.system;
  return system == NULL ? AOT_OK : add_message(chat, &chat->messages, "system", system, error);
}

// The messages with the last reply and a new one.
static aot_status_t add_messages(aot_chat_t *chat, const char *text, size_t bytes,
                                 aot_error_t *error) {
  aot_buffer_t *next = &chat->next_messages;
  const aot_allocator_t *allocator = &chat->allocator;
  next->count = 0;
  AOT_TRY(aot_buffer_add(next, chat->messages.bytes, chat->messages.count, allocator, error));
  if (chat->has_reply) {
    AOT_TRY(aot_buffer_add_message(next, "assistant", chat->reply.bytes, chat->reply.count, true,
                                   allocator, error));
  }
  return aot_buffer_add_message(next, "user", text, bytes, false, allocator, error);
}

static bool is_white(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

// What is between the braces of the caller's variables; false where there are none.
static bool members(const char *text, const char **out_begin, size_t *out_bytes) {
  size_t end = strlen(text), begin = 0;
  while (begin < end && is_white(text[begin]))
    ++begin;
  while (end > begin && is_white(text[end - 1]))
    --end;
  if (end - begin < 2 || text[begin] != '{' || text[end - 1] != '}') return false;
  ++begin;
  --end;
  while (begin < end && is_white(text[begin]))
    ++begin;
  *out_begin = text + begin;
  *out_bytes = end - begin;
  return true;
}

// All variables of the template; the chat's own stand last, so that they hold.
static aot_status_t make_variables(aot_chat_t *chat, aot_error_t *error) {
  static const char messages[] = "\"messages\":", end[] = "],\"add_generation_prompt\":true}";
  aot_buffer_t *variables = &chat->variables;
  const aot_allocator_t *allocator = &chat->allocator;
  const char *own = "";
  size_t bytes = 0;
  if (chat->options.variables != NULL && !members(chat->options.variables, &own, &bytes)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the variables of the chat template are no JSON object");
  }
  variables->count = 0;
  AOT_TRY(aot_buffer_add(variables, "{", 1, allocator, error));
  AOT_TRY(aot_buffer_add(variables, own, bytes, allocator, error));
  if (bytes > 0) AOT_TRY(aot_buffer_add(variables, ",", 1, allocator, error));
  AOT_TRY(aot_buffer_add(variables, messages, sizeof messages - 1, allocator, error));
  const aot_buffer_t *next = &chat->next_messages;
  AOT_TRY(aot_buffer_add(variables, next->bytes, next->count, allocator, error));
  return aot_buffer_add(variables, end, sizeof end - 1, allocator, error);
}

// Of a state that was loaded: what the template writes behind the reply that stands for it.
static aot_status_t find_going_on(const aot_rendered_t *rendered, size_t *out_begin,
                                  aot_error_t *error) {
  size_t begin = rendered->bytes;
  while (begin > 0 && rendered->marks[begin - 1] != 2)
    --begin;
  *out_begin = begin;
  if (begin > 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "the state has a conversation, and the chat template does not say how one goes "
                  "on; reset the program, or continue raw text");
}

// The tokens of the conversation with a new message, behind the first `base`.
static aot_status_t encode_message(aot_chat_t *chat, const char *text, size_t bytes,
                                   aot_error_t *error) {
  AOT_TRY(find_beginning(chat, error));
  AOT_TRY(add_messages(chat, text, bytes, error));
  AOT_TRY(make_variables(chat, error));
  aot_render_options_t options = {.size = sizeof options, .is_strict = true};
  options.has_clock = aot_local_seconds(&options.local_seconds);
  aot_rendered_t rendered = {.size = sizeof rendered};
  AOT_TRY(aot_chat_render(chat->vocabulary, chat->variables.bytes, chat->variables.count, &options,
                          error, &rendered));
  size_t begin = 0;
  aot_status_t status = chat->base == 0 ? AOT_OK : find_going_on(&rendered, &begin, error);
  if (status == AOT_OK) {
    status = encode(chat, rendered.text + begin, rendered.marks + begin, rendered.bytes - begin,
                    chat->base == 0, error);
  }
  aot_rendered_release(chat->vocabulary, &rendered);
  return status;
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

// How many first tokens of the prompt the program has read; one at least is left to be run.
static size_t shared_tokens(const aot_chat_t *chat) {
  const token_list_t *tokens = &chat->tokens, *history = &chat->history;
  size_t count = 0;
  while (count + 1 < tokens->count && count < history->count &&
         tokens->items[count] == history->items[count])
    ++count;
  return count;
}

static aot_status_t check_room(const aot_chat_t *chat, uint64_t used, uint64_t needed,
                               aot_error_t *error) {
  const uint64_t capacity = aot_program_capacity(chat->program);
  if (used <= capacity && needed <= capacity - used) return AOT_OK;
  return aot_fail(error, AOT_ERROR_CAPACITY,
                  "the prompt is %llu tokens, and the context holds %llu, of which %llu are in use",
                  (unsigned long long)needed, (unsigned long long)capacity,
                  (unsigned long long)used);
}

// ---- a context that is full ----

// How many first tokens of a conversation are never forgotten.
static size_t kept_tokens(const aot_chat_t *chat) {
  return chat->has_prefix ? chat->prefix.token_count : 1;
}

// Whether there is an older half that can be forgotten.
static bool can_shift(const aot_chat_t *chat) {
  return chat->options.shifts_context && chat->base == 0 &&
         chat->history.count >= kept_tokens(chat) + 2;
}

// Runs what a shift that failed has left of the history, unless the caller has changed the state.
static aot_status_t catch_up(aot_chat_t *chat, aot_error_t *error) {
  const token_list_t *history = &chat->history;
  const size_t read = (size_t)chat->read;
  if (!chat->is_behind) return AOT_OK;
  chat->is_behind = false;
  if (aot_program_length(chat->program) != read) return AOT_OK;
  const aot_status_t status = run_tokens(chat, history->items + read, history->count - read, error);
  chat->is_behind = status != AOT_OK;
  chat->read = aot_program_length(chat->program);
  return status;
}

// Forgets the older half of what stands behind the first tokens, and runs the rest again.
static aot_status_t shift(aot_chat_t *chat, aot_error_t *error) {
  token_list_t *history = &chat->history;
  const size_t kept = kept_tokens(chat);
  const size_t rest = history->count - kept, dropped = rest / 2;
  if (aot_program_rewind(chat->program, kept, NULL) != AOT_OK) {  // windows have moved on
    AOT_TRY(aot_program_reset(chat->program, error));
  }
  memmove(history->items + kept, history->items + kept + dropped,
          (rest - dropped) * sizeof *history->items);
  history->count -= dropped;
  chat->forgotten += dropped;
  chat->read = aot_program_length(chat->program);
  chat->is_behind = true;
  return catch_up(chat, error);
}

// Takes out of a prompt what is forgotten of the conversation before it, more where the prompt does
// not fit otherwise; returns how many tokens that is.
static size_t shift_prompt(aot_chat_t *chat) {
  token_list_t *tokens = &chat->tokens;
  const size_t kept = kept_tokens(chat);
  const uint64_t capacity = aot_program_capacity(chat->program);
  if (!chat->options.shifts_context || chat->base > 0) return chat->forgotten;
  size_t known = chat->forgotten + chat->history.count;
  if (known + 1 > tokens->count) known = tokens->count - 1;
  const size_t most = known > kept ? known - kept : 0;
  size_t forgotten = chat->forgotten < most ? chat->forgotten : most;
  while (tokens->count - forgotten > capacity && forgotten < most)
    forgotten += (most - forgotten + 1) / 2;
  if (forgotten > 0) {
    memmove(tokens->items + kept, tokens->items + kept + forgotten,
            (tokens->count - kept - forgotten) * sizeof *tokens->items);
    tokens->count -= forgotten;
  }
  return forgotten;
}

// Loads the state of the module's prefix where a prompt for a program that has read nothing begins
// with it; returns the tokens that need not be run then.  Where the state can't be loaded, they are
// run.
static size_t load_prefix(aot_chat_t *chat) {
  const token_list_t *tokens = &chat->tokens;
  const size_t count = chat->prefix.token_count;
  chat->prefix_tokens = 0;
  if (!chat->has_prefix || aot_program_length(chat->program) > 0 || tokens->count <= count ||
      memcmp(tokens->items, chat->prefix.tokens, count * sizeof *tokens->items) != 0 ||
      aot_program_load_prefix(chat->program, chat->vocabulary, NULL) != AOT_OK) {
    return 0;
  }
  chat->prefix_tokens = count;
  return count;
}

// Runs what the program has not read of a prompt; *out_count is how many tokens that is.
static aot_status_t run_prompt(aot_chat_t *chat, size_t *out_count, aot_error_t *error) {
  size_t shared = shared_tokens(chat);
  AOT_TRY(check_room(chat, chat->base + shared, chat->tokens.count - shared, error));
  size_t loaded = load_prefix(chat);
  if (loaded > 0) {
    shared = loaded;
  } else if (shared < chat->history.count &&
             aot_program_rewind(chat->program, chat->base + shared, error) != AOT_OK) {
    if (chat->base > 0) return AOT_ERROR_UNSUPPORTED;  // windows have moved on
    AOT_TRY(aot_program_reset(chat->program, error));
    shared = loaded = load_prefix(chat);
  }
  chat->history.count = loaded > 0 ? 0 : shared;
  *out_count = chat->tokens.count - shared;
  return run_tokens(chat, chat->tokens.items + shared, *out_count, error);
}

static aot_status_t check_tokens(const aot_chat_t *chat, aot_error_t *error) {
  if (chat->tokens.count > 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT, "the prompt has no tokens");
}

static aot_status_t say(aot_chat_t *chat, const char *text, size_t bytes, size_t *out_count,
                        aot_error_t *error) {
  AOT_TRY(encode_message(chat, text, bytes, error));
  AOT_TRY(check_tokens(chat, error));
  AOT_TRY(aot_buffer_reserve(&chat->reply, 1, &chat->allocator, error));
  const size_t forgotten = shift_prompt(chat);
  const aot_status_t status = run_prompt(chat, out_count, error);
  if (status != AOT_OK) {
    const uint64_t before = chat->base + chat->history.count;
    if (aot_program_length(chat->program) == before ||
        aot_program_rewind(chat->program, before, NULL) == AOT_OK) {
      return status;
    }
    (void)aot_program_reset(chat->program, NULL);  // windows have moved on
    chat->history.count = 0;
    chat->base = 0;
    return status;
  }
  const aot_buffer_t messages = chat->messages;
  chat->messages = chat->next_messages;
  chat->next_messages = messages;
  const token_list_t history = chat->history;
  chat->history = chat->tokens;
  chat->tokens = history;
  chat->reply.count = 0;
  chat->has_reply = true;
  chat->forgotten = forgotten;
  return AOT_OK;
}

// Adds tokens that were run to the history, which has room for them.
static void remember(aot_chat_t *chat, const int32_t *tokens, size_t count) {
  token_list_t *history = &chat->history;
  if (count > 0) memcpy(history->items + history->count, tokens, count * sizeof *tokens);
  history->count += count;
}

// Puts the tokens of the module's prefix before those of a prompt.
static aot_status_t put_prefix_first(aot_chat_t *chat, aot_error_t *error) {
  token_list_t *tokens = &chat->tokens;
  const size_t count = chat->prefix.token_count, size = sizeof *tokens->items;
  AOT_TRY(reserve(chat, tokens, count, error));
  memmove(tokens->items + count, tokens->items, tokens->count * size);
  memcpy(tokens->items, chat->prefix.tokens, count * size);
  tokens->count += count;
  return AOT_OK;
}

// Text that goes on behind what the program has read.
static aot_status_t say_raw(aot_chat_t *chat, const char *text, size_t bytes, size_t *out_count,
                            aot_error_t *error) {
  uint64_t used = aot_program_length(chat->program);
  chat->reply.count = 0;
  if (used == 0) {
    chat->pending = -1;
    chat->is_behind = false;
    chat->history.count = 0;
  }
  AOT_TRY(catch_up(chat, error));
  used = aot_program_length(chat->program);
  if (chat->base + chat->history.count != used) {
    chat->history.count = 0;
    chat->base = used;
  }
  const bool has_prefix = chat->has_prefix && used == 0;
  AOT_TRY(encode(chat, text, NULL, bytes, used == 0 && !has_prefix, error));
  AOT_TRY(check_tokens(chat, error));
  if (has_prefix) AOT_TRY(put_prefix_first(chat, error));
  *out_count = chat->tokens.count + (chat->pending >= 0 ? 1u : 0u);
  const uint64_t capacity = aot_program_capacity(chat->program);
  while (used + *out_count > capacity && kept_tokens(chat) + 1 + *out_count <= capacity &&
         can_shift(chat)) {
    AOT_TRY(shift(chat, error));
    used = aot_program_length(chat->program);
  }
  AOT_TRY(check_room(chat, used, *out_count, error));
  AOT_TRY(reserve(chat, &chat->history, *out_count, error));
  const size_t loaded = load_prefix(chat);
  *out_count -= loaded;
  aot_status_t status = AOT_OK;
  if (chat->pending >= 0) status = run_tokens(chat, &chat->pending, 1, error);
  if (status == AOT_OK) {
    status = run_tokens(chat, chat->tokens.items + loaded, chat->tokens.count - loaded, error);
  }
  if (status == AOT_OK) {
    remember(chat, &chat->pending, chat->pending >= 0 ? 1 : 0);
    remember(chat, chat->tokens.items, chat->tokens.count);
  } else if (aot_program_rewind(chat->program, used, NULL) != AOT_OK) {
    (void)aot_program_reset(chat->program, NULL);  // windows have moved on
  }
  return status;
}

aot_status_t aot_chat_say(aot_chat_t *chat, const char *text, size_t bytes, aot_error_t *error) {
  if (chat == NULL || (text == NULL && bytes > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat or the text is NULL");
  }
  if (text == NULL) text = "";
  const size_t wrong = bytes == 0 ? 0 : aot_utf8_check((const uint8_t *)text, bytes);
  if (wrong < bytes) {
    return aot_fail(error, AOT_ERROR_TEXT, "the message is not UTF-8: byte %zu is 0x%02x", wrong,
                    (unsigned)(uint8_t)text[wrong]);
  }
  size_t count = 0;
  AOT_TRY(chat->options.is_raw ? say_raw(chat, text, bytes, &count, error)
                               : say(chat, text, bytes, &count, error));
  const token_list_t *read = chat->options.is_raw ? &chat->tokens : &chat->history;
  const size_t fresh = count + (size_t)chat->prefix_tokens;
  const size_t first = fresh < read->count ? read->count - fresh : 0;
  for (size_t i = first; i < read->count; ++i)
    aot_sampler_accept(chat->sampler, read->items[i]);
  chat->pending = -1;
  aot_reply_begin(chat->replies);
  chat->prompt_tokens = count;
  return AOT_OK;
}

// ---- the reply ----

// Runs the last token of the reply, and keeps it.
static aot_status_t run_pending(aot_chat_t *chat, aot_error_t *error) {
  AOT_TRY(reserve(chat, &chat->history, 1, error));
  AOT_TRY(run_tokens(chat, &chat->pending, 1, error));
  chat->history.items[chat->history.count++] = chat->pending;
  chat->pending = -1;
  return AOT_OK;
}

static aot_reply_info_t reply_info(const aot_chat_t *chat) {
  aot_reply_info_t info = {.size = sizeof info};
  (void)aot_reply_get_info(chat->replies, NULL, &info);
  return info;
}

static aot_status_t next_piece(aot_chat_t *chat, aot_error_t *error, const char **out_piece,
                               size_t *out_bytes) {
  // What is said next needs the reply: there is memory for it before the model goes on.
  AOT_TRY(aot_buffer_reserve(&chat->reply, 6 * (size_t)MOST_PIECE_BYTES, &chat->allocator, error));
  if (chat->pending >= 0) {
    AOT_TRY(catch_up(chat, error));
    const bool is_full = aot_program_length(chat->program) >= aot_program_capacity(chat->program);
    if (is_full && can_shift(chat)) {
      AOT_TRY(shift(chat, error));
    } else if (is_full) {
      return aot_reply_finish(chat->replies, AOT_REPLY_CONTEXT, error, out_piece, out_bytes);
    }
    AOT_TRY(run_pending(chat, error));
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
  AOT_TRY(aot_reply_next(chat->replies, last, count, error, out_piece, out_bytes));
  const aot_reply_info_t info = reply_info(chat);
  if (info.end != AOT_REPLY_END_TOKEN) chat->pending = info.token;
  return AOT_OK;
}

aot_status_t aot_chat_next(aot_chat_t *chat, aot_error_t *error, const char **out_piece,
                           size_t *out_bytes) {
  if (chat == NULL || out_piece == NULL || out_bytes == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat, out_piece or out_bytes is NULL");
  }
  *out_piece = NULL;
  *out_bytes = 0;
  if (chat->prompt_tokens == 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "nothing was said that could be replied to");
  }
  if (reply_info(chat).end != AOT_REPLY_GOES_ON) return AOT_OK;
  AOT_TRY(next_piece(chat, error, out_piece, out_bytes));
  const bool has_ended = reply_info(chat).end != AOT_REPLY_GOES_ON;
  if (has_ended && *out_bytes == 0) *out_piece = NULL;
  return aot_buffer_add_escaped(&chat->reply, *out_piece, *out_bytes, &chat->allocator, error);
}

aot_status_t aot_chat_settle(aot_chat_t *chat, aot_error_t *error) {
  if (chat == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat is NULL");
  AOT_TRY(catch_up(chat, error));
  const bool has_room = aot_program_length(chat->program) < aot_program_capacity(chat->program);
  return chat->pending < 0 || !has_room ? AOT_OK : run_pending(chat, error);
}

aot_status_t aot_chat_get_info(const aot_chat_t *chat, aot_error_t *error,
                               aot_chat_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_chat_info_t", error));
  if (chat == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the chat is NULL");
  const aot_reply_info_t reply = reply_info(chat);
  const aot_chat_info_t info = {.size = sizeof info,
                                .prompt_tokens = chat->prompt_tokens,
                                .tokens = reply.tokens,
                                .end = reply.end,
                                .token = reply.token,
                                .logprob = reply.logprob,
                                .top_count = reply.top_count,
                                .top = reply.top,
                                .prefix_tokens = chat->prefix_tokens};
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}
