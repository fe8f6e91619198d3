// A conversation with a language model, kept in its program's state.  A part of the runtime that a
// build may leave out: it needs AOT_TEXT and AOT_STATE of CMake.
//
//   aot_chat_t *chat = NULL;
//   if (aot_chat_create(program, NULL, NULL, &error, &chat) != AOT_OK) ...error.message
//   if (aot_chat_say(chat, text, strlen(text), &error) != AOT_OK) ...
//   while (aot_chat_next(chat, &error, &piece, &bytes) == AOT_OK && piece != NULL)
//     fwrite(piece, 1, bytes, stdout);
//   aot_chat_destroy(chat);
//
// The conventions are those of aot.h.  Text is UTF-8.  What was said is plain text; only the chat
// template, which is in the module, writes control tokens.  Each message renders the whole
// conversation; the program reads what follows the tokens that it has read already, and is rewound
// to the last of them where the template writes an earlier part otherwise now.
#ifndef AOT_CHAT_H_
#define AOT_CHAT_H_

#include "aot/text.h"

#ifdef __cplusplus
extern "C" {
#endif

// Thread-compatible: one thread at a time.
typedef struct aot_chat_t aot_chat_t;

// All zero is the default, and so is NULL in its place.
typedef struct aot_chat_options_t {
  size_t size;  // of this structure
  // The system message, *borrowed*; NULL: the module's prefix, or what the template says.
  const char *system;
  const char *variables;  // more of the template, a JSON object, *borrowed*; NULL: none
  bool is_raw;            // what is said is text that goes on, as where the model has no template
  uint64_t max_tokens;    // of a reply; 0: as many as the context holds
  const aot_sampler_options_t *sampling;  // NULL: greedy; its vocabulary is the model's
  // As in aot_reply_options_t.
  const char *const *stops;
  size_t stop_count;
  uint32_t logprobs;
  // Where the context is full, the older half of the conversation behind the module's prefix, or
  // behind its first token, is forgotten, and the rest is run again at its new place.  Without it,
  // the context ends the reply.
  bool shifts_context;
} aot_chat_options_t;

typedef struct aot_chat_info_t {
  size_t size;             // of this structure
  uint64_t prompt_tokens;  // run for the last message, with what the template writes around it
  uint64_t tokens;         // of the reply so far
  aot_reply_end_t end;     // why it has ended
  int32_t token;           // the reply's last one; -1: there is none
  float logprob;           // of that token, and the most probable ones, as in aot_reply_info_t
  uint32_t top_count;
  const aot_logprob_t *top;  // *borrowed* until the next call
  uint64_t prefix_tokens;    // before these, of the module's prefix, whose state was there
} aot_chat_info_t;

// Makes the program's state what it is behind the tokens of its module's prefix, as
// aot_vocabulary_get_prefix tells them: the same bits as running them, for the time of copying
// them.  Chats do so by themselves.  `vocabulary` is the program's module's.  Fails, and changes
// nothing, with AOT_ERROR_NOT_FOUND where the module has none for the program's variant, and with
// AOT_ERROR_UNSUPPORTED on a GPU.
AOT_API aot_status_t aot_program_load_prefix(aot_program_t *program,
                                             const aot_vocabulary_t *vocabulary,
                                             aot_error_t *error);

// *Borrows* the program, whose module has a vocabulary; nothing else may run it meanwhile.  The
// conversation goes on where the program's state is: begin with a new program, reset it, or load a
// state.  *Returns owned*.  `allocator`, copied, may be NULL: malloc's aligned cousin and free.
// Fails with AOT_ERROR_UNSUPPORTED where the program is no language model's.
AOT_API aot_status_t aot_chat_create(aot_program_t *program, const aot_chat_options_t *options,
                                     const aot_allocator_t *allocator, aot_error_t *error,
                                     aot_chat_t **out_chat);
AOT_API void aot_chat_destroy(aot_chat_t *chat);  // NULL is fine

// Lets the model read a message.  Fails where it is no UTF-8, where the module has no chat template
// (AOT_ERROR_UNSUPPORTED) or that fails or refuses the conversation (AOT_ERROR_ARGUMENT), and where
// it is longer than what is left of the context (AOT_ERROR_CAPACITY); the conversation is as it was
// then, but for its older half, which a shift of the context may have forgotten.
AOT_API aot_status_t aot_chat_say(aot_chat_t *chat, const char *text, size_t bytes,
                                  aot_error_t *error);

// The next piece of the reply, of whole characters: *borrowed* until the next call, with a zero
// behind it.  It may have no bytes; NULL says that the reply has ended.
AOT_API aot_status_t aot_chat_next(aot_chat_t *chat, aot_error_t *error, const char **out_piece,
                                   size_t *out_bytes);

// Lets the program's state have all of a reply that is cut off, for a state that is saved.
AOT_API aot_status_t aot_chat_settle(aot_chat_t *chat, aot_error_t *error);

AOT_API aot_status_t aot_chat_get_info(const aot_chat_t *chat, aot_error_t *error,
                                       aot_chat_info_t *out_info);

#ifdef __cplusplus
}
#endif

#endif  // AOT_CHAT_H_
