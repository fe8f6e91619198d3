// Text of language models: a module's vocabulary, text to tokens and back, and choosing the next
// token.  A part of the runtime that a build may leave out (AOT_TEXT of CMake); the loader doesn't
// use it.
//
//   aot_vocabulary_t *vocabulary = NULL;
//   aot_sampler_t *sampler = NULL;
//   if (aot_vocabulary_open(module, NULL, &error, &vocabulary) != AOT_OK) ...error.message
//   if (aot_sampler_create(&options, NULL, &error, &sampler) != AOT_OK) ...
//   aot_encode(vocabulary, text, strlen(text), NULL, tokens, capacity, &error, &count);
//   ...run the model on them, then, until aot_vocabulary_is_end(vocabulary, token):
//   aot_sampler_next(sampler, logits, logit_count, &error, &token);
//   aot_decode(vocabulary, &decoder, &token, 1, piece, sizeof piece, &error, &bytes);
//
// The conventions are those of aot.h.  Text is UTF-8, with a length and no zero at its end.  What a
// damaged vocabulary makes is some tokens or an error, and never more.
#ifndef AOT_TEXT_H_
#define AOT_TEXT_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- vocabularies ----

// A module's vocabulary, used where it is mapped.  Immutable: may be used from any number of
// threads at once, with an allocator that may.
typedef struct aot_vocabulary_t aot_vocabulary_t;

typedef struct aot_vocabulary_info_t {
  size_t size;                // of this structure
  uint32_t token_count;       // of the vocabulary; logits may be more, of tokens that mean nothing
  int32_t bos;                // begins text; -1: none
  int32_t eos;                // ends it; -1: none
  int32_t unknown;            // stands for what no token is for; -1: none
  bool adds_bos;              // encoding begins with bos
  bool adds_eos;              // and ends with eos
  const int32_t *end_tokens;  // all that end a reply, ascending
  uint32_t end_token_count;
  const char *chat_template;  // Jinja; "" where there is none
  bool keeps_chat;            // conversations can be rendered by it
  const char *chat_refusal;   // why the module does not keep it; "" where it does
} aot_vocabulary_info_t;

// *Borrows* the module, which outlives it.  *Returns owned*.  `allocator`, copied, is for the
// vocabulary and for what encoding needs while it runs; NULL: malloc's aligned cousin and free.
// Fails with AOT_ERROR_NOT_FOUND where the module has none.
AOT_API aot_status_t aot_vocabulary_open(const aot_module_t *module,
                                         const aot_allocator_t *allocator, aot_error_t *error,
                                         aot_vocabulary_t **out_vocabulary);
// Of the bytes that aot_module_vocabulary gives, 8-byte aligned, which it *borrows*.
AOT_API aot_status_t aot_vocabulary_open_memory(const void *data, size_t bytes,
                                                const aot_allocator_t *allocator,
                                                aot_error_t *error,
                                                aot_vocabulary_t **out_vocabulary);
AOT_API void aot_vocabulary_close(aot_vocabulary_t *vocabulary);  // NULL is fine

// Strings and arrays are *borrowed* from the vocabulary.
AOT_API aot_status_t aot_vocabulary_get_info(const aot_vocabulary_t *vocabulary, aot_error_t *error,
                                             aot_vocabulary_info_t *out_info);
// Whether a token ends a reply.
AOT_API bool aot_vocabulary_is_end(const aot_vocabulary_t *vocabulary, int32_t token);
// The token whose text is exactly this, also a control token; -1 where there is none.
AOT_API int32_t aot_vocabulary_find(const aot_vocabulary_t *vocabulary, const char *text,
                                    size_t bytes);

// A text that conversations with the model begin with, which the module was compiled with.
typedef struct aot_prefix_info_t {
  size_t size;            // of this structure
  const char *text;       // "" where there is none
  bool is_raw;            // text that goes on; else it is the system message
  const int32_t *tokens;  // that such a conversation begins with, whatever is said
  size_t token_count;     // 0: there is no prefix
} aot_prefix_info_t;

// The prefix is *borrowed* from the vocabulary.  What a program keeps that has read its tokens is
// in the module, too: aot_program_load_prefix of chat.h.
AOT_API aot_status_t aot_vocabulary_get_prefix(const aot_vocabulary_t *vocabulary,
                                               aot_error_t *error, aot_prefix_info_t *out_info);

// ---- text to tokens ----

// All zero is the default, and so is NULL in its place.
typedef struct aot_encode_options_t {
  size_t size;  // of this structure
  // Text such as "<|im_end|>" is the control token that it names.  For what a chat template wrote;
  // what a user wrote is plain text.  Added tokens that are no control tokens are found always.
  bool parses_control;
  // Neither bos before the text nor eos behind it, whatever the vocabulary says.
  bool is_part;
  // NULL, or a number for each byte: one that is not 0 is of plain text, and no control token has
  // it, whatever parses_control says.  *Borrowed* for the call.
  const uint8_t *plain;
} aot_encode_options_t;

// `tokens` has room for `capacity`; *out_count is the number of tokens, and where they don't fit it
// is what they need, with AOT_ERROR_CAPACITY.  Text of n bytes is at most n + 4 tokens, but with
// SentencePiece's replacements, which may be more.  Fails with AOT_ERROR_TEXT where the text is no
// UTF-8.
// Takes memory for the longest part of the text that is encoded at once, and gives it back: about
// 100 bytes for each byte of that part, and one for each of the text where it has control tokens.
// Parts are words for a model that merges bytes, and all text between such tokens for others.  The
// time is in the length of the text times, at most, its logarithm.
AOT_API aot_status_t aot_encode(const aot_vocabulary_t *vocabulary, const char *text, size_t bytes,
                                const aot_encode_options_t *options, int32_t *tokens,
                                size_t capacity, aot_error_t *error, size_t *out_count);

// ---- conversations ----

// All zero is the default, and so is NULL in its place.
typedef struct aot_render_options_t {
  size_t size;            // of this structure
  uint64_t max_steps;     // of the template; 0: 10 million
  uint64_t max_bytes;     // that it needs while it runs; 0: 128 MiB
  bool is_strict;         // fails where a system message, tools or documents are left out
  bool has_clock;         // there is a time that it may ask for
  int64_t local_seconds;  // that time: seconds since 1970-01-01T00:00:00 of the local clock
} aot_render_options_t;

// A conversation as a chat template writes it.  A mark of each byte says who wrote that: 0, the
// template; n, message n of the variables' `messages`, from 1; 255: other variables, and messages
// behind the 254th.
typedef struct aot_rendered_t {
  size_t size;       // of this structure
  const char *text;  // UTF-8, with a zero behind it
  const uint8_t *marks;
  size_t bytes;
} aot_rendered_t;

// Renders a conversation by the model's chat template.  `variables` is a JSON object of what Jinja
// is given: `messages`, a list of objects with "role" and "content", `add_generation_prompt`, and
// what else the template knows, such as `tools`.  bos_token and eos_token are the vocabulary's.
// What a template may do ends with its budget of steps and bytes, and 8 MiB of text.  *Returns
// owned*: aot_rendered_release.  Fails with AOT_ERROR_UNSUPPORTED where the module has no template,
// AOT_ERROR_TEXT where the variables are no UTF-8, and AOT_ERROR_ARGUMENT where the template fails
// or refuses the conversation, with its message.
AOT_API aot_status_t aot_chat_render(const aot_vocabulary_t *vocabulary, const char *variables,
                                     size_t bytes, const aot_render_options_t *options,
                                     aot_error_t *error, aot_rendered_t *out_rendered);
AOT_API void aot_rendered_release(const aot_vocabulary_t *vocabulary, aot_rendered_t *rendered);

// The tokens of a rendered conversation, or of a part of it: encoded whole, control tokens only
// where the template wrote all of their names.  `is_first`: nothing is before it, and bos is added
// where the vocabulary says so and the template did not write it.  Otherwise as aot_encode.
AOT_API aot_status_t aot_chat_tokens(const aot_vocabulary_t *vocabulary, const char *text,
                                     const uint8_t *marks, size_t bytes, bool is_first,
                                     int32_t *tokens, size_t capacity, aot_error_t *error,
                                     size_t *out_count);

// ---- tokens to text ----

// What is between two calls of aot_decode: all zero at first, but for its size.
typedef struct aot_decoder_t {
  size_t size;         // of this structure
  bool shows_control;  // set by the caller: control tokens are shown as the text that names them
  bool is_begun;       // text has been written: no space is taken from its start
  uint8_t kept_bytes;
  uint8_t kept[7];  // of a character that is not whole yet
} aot_decoder_t;

// Writes the whole characters that tokens end, and keeps the bytes of one that they don't.  Bytes
// that are no UTF-8 become U+FFFD.  The space that encoding adds is taken away.  *out_bytes is what
// was written, and where that doesn't fit it is what it needs, with AOT_ERROR_CAPACITY: the
// decoder stays as it was then.
AOT_API aot_status_t aot_decode(const aot_vocabulary_t *vocabulary, aot_decoder_t *decoder,
                                const int32_t *tokens, size_t count, char *text, size_t capacity,
                                aot_error_t *error, size_t *out_bytes);
// At the end of text: U+FFFD for a character that never was whole.  At most 3 bytes.
AOT_API size_t aot_decode_end(aot_decoder_t *decoder, char text[3]);

// ---- the next token ----

// What is added to the logit of a token.  Never grows.
typedef struct aot_logit_bias_t {
  int32_t token;
  float bias;  // -INFINITY: never this token
} aot_logit_bias_t;

// What the logits are put through, in the order of the fields but for `temperature`, which is last.
// All zero is greedy: the largest logit.
typedef struct aot_sampler_options_t {
  size_t size;  // of this structure
  // The model's, *borrowed*, or NULL: then no token is a breaker, and biases are checked when there
  // are logits.
  const aot_vocabulary_t *vocabulary;
  const aot_logit_bias_t *biases;  // copied
  size_t bias_count;
  // Logits of tokens among the last `penalty_window` ones are divided by repetition_penalty where
  // they are positive, else multiplied; then frequency_penalty is subtracted so often as the token
  // came, and presence_penalty once.  repetition_penalty 0: 1, which does nothing.
  float repetition_penalty;
  float frequency_penalty;  // -100 to 100, and so is the next
  float presence_penalty;
  uint32_t penalty_window;  // 0: 64
  // "Don't repeat yourself": from a token that would continue a repetition of n >= allowed_length
  // tokens among the last dry_window, multiplier * base^(n - allowed_length) is subtracted.  A
  // token that has one of the texts `dry_breakers` in it ends repetitions.
  float dry_multiplier;             // 0: off
  float dry_base;                   // 1 or more; 0: 1.75
  uint32_t dry_allowed_length;      // 0: 2
  uint32_t dry_window;              // 0: 4096
  const char *const *dry_breakers;  // NULL: a new line, a colon, a quotation mark, an asterisk
  size_t dry_breaker_count;
  uint32_t top_k;         // only the so many largest; 0: all
  float typical_p;        // only the most typical whose probabilities together exceed this; 0: all
  float top_p;            // only the largest whose probabilities together reach this; 0: all
  float min_p;            // only those at least so probable as this times the largest; 0: all
  float xtc_probability;  // how often all but the last that reach xtc_threshold are dropped
  float xtc_threshold;    // at most 0.5; 0: 0.1
  // Mirostat 2, in the place of top_k to XTC: only tokens of less surprise than a bound, which
  // follows the surprise so that it is mirostat_tau bits on average.  Needs a temperature.
  float mirostat_tau;  // 0: off
  float mirostat_eta;  // how fast the bound follows; 0: 0.1
  float temperature;   // logits are divided by it; 0: the largest that is left is taken
  uint64_t seed;       // the same seed and logits give the same tokens, on any machine
} aot_sampler_options_t;

// Thread-compatible: one thread at a time.
typedef struct aot_sampler_t aot_sampler_t;

// *Returns owned*.  `options` NULL: greedy.  Fails with AOT_ERROR_ARGUMENT for what means nothing:
// a number out of its bounds, or one that is none, a bias of a token that isn't there.
AOT_API aot_status_t aot_sampler_create(const aot_sampler_options_t *options,
                                        const aot_allocator_t *allocator, aot_error_t *error,
                                        aot_sampler_t **out_sampler);
AOT_API void aot_sampler_destroy(aot_sampler_t *sampler);  // NULL is fine

// Chooses a token by its logits, one each, and remembers it as aot_sampler_accept does.  Fails with
// AOT_ERROR_ARGUMENT where a logit is no number.  Takes memory at the first call, and where there
// are more logits than before: 8 bytes each.
AOT_API aot_status_t aot_sampler_next(aot_sampler_t *sampler, const float *logits, size_t count,
                                      aot_error_t *error, int32_t *out_token);
// Remembers a token that came otherwise, such as the prompt's, for the penalties.
AOT_API void aot_sampler_accept(aot_sampler_t *sampler, int32_t token);
// Forgets all tokens, and begins with the seed anew.
AOT_API void aot_sampler_reset(aot_sampler_t *sampler);

// Never grows.
typedef struct aot_candidate_t {
  int32_t token;
  float probability;
} aot_candidate_t;

// The tokens that aot_sampler_next would choose from, the most probable first, with their
// probabilities at the temperature; changes nothing.  *out_count is how many there are, of which
// the first `capacity` are written.
AOT_API aot_status_t aot_sampler_candidates(aot_sampler_t *sampler, const float *logits,
                                            size_t count, aot_candidate_t *candidates,
                                            size_t capacity, aot_error_t *error, size_t *out_count);

// Never grows.
typedef struct aot_logprob_t {
  int32_t token;
  float logprob;  // the natural logarithm of its probability, by the model's logits
} aot_logprob_t;

// Of a token, and of the `capacity` most probable ones, the first one first, at most 64; right to
// 1e-4.
AOT_API aot_status_t aot_logprobs(const float *logits, size_t count, int32_t token,
                                  aot_logprob_t *top, size_t capacity, aot_error_t *error,
                                  float *out_logprob);

// ---- replies ----

// Why a reply has ended.
typedef enum aot_reply_end_t {
  AOT_REPLY_GOES_ON = 0,
  AOT_REPLY_END_TOKEN = 1,   // by a token that ends replies
  AOT_REPLY_STOP = 2,        // by a stop string
  AOT_REPLY_MAX_TOKENS = 3,  // it has as many as were asked for
  AOT_REPLY_CONTEXT = 4,     // the context is full
  AOT_REPLY_CALLER = 5,      // the caller wants no more
} aot_reply_end_t;

// All zero is the default, and so is NULL in its place.
typedef struct aot_reply_options_t {
  size_t size;          // of this structure
  uint64_t max_tokens;  // 0: no limit
  // Texts that end the reply, wherever tokens cut them, and are not part of it: UTF-8, 1 to 1024
  // bytes.  Copied.
  const char *const *stops;
  size_t stop_count;
  uint32_t logprobs;  // how many most probable tokens are told beside each one; at most 64
} aot_reply_options_t;

typedef struct aot_reply_info_t {
  size_t size;          // of this structure
  uint64_t tokens;      // of the reply so far; the one that ended it is none
  aot_reply_end_t end;  // why it has ended
  int32_t token;        // the last one; -1 at first
  float logprob;        // of that token, and the most probable ones: of the options' `logprobs`
  uint32_t top_count;
  const aot_logprob_t *top;  // *borrowed* until the next call
} aot_reply_info_t;

// Replies under way: logits in, pieces of text out.  Thread-compatible: one thread at a time.
typedef struct aot_reply_t aot_reply_t;

// *Borrows* the vocabulary and the sampler.  *Returns owned*.  Fails with AOT_ERROR_ARGUMENT where
// a stop string is empty, too long or no UTF-8.
AOT_API aot_status_t aot_reply_create(const aot_vocabulary_t *vocabulary, aot_sampler_t *sampler,
                                      const aot_reply_options_t *options,
                                      const aot_allocator_t *allocator, aot_error_t *error,
                                      aot_reply_t **out_reply);
AOT_API void aot_reply_destroy(aot_reply_t *reply);  // NULL is fine
// Begins another reply, with the same options.
AOT_API void aot_reply_begin(aot_reply_t *reply);

// Chooses the next token by its logits.  The piece, of whole characters, is what has become certain
// of the text: a part that may become a stop string waits.  *Borrowed* until the next call, with a
// zero behind it.  Does nothing where the reply has ended.
AOT_API aot_status_t aot_reply_next(aot_reply_t *reply, const float *logits, size_t count,
                                    aot_error_t *error, const char **out_piece, size_t *out_bytes);
// Ends the reply where it has not ended; the piece is what has waited, as for aot_reply_next.
AOT_API aot_status_t aot_reply_finish(aot_reply_t *reply, aot_reply_end_t end, aot_error_t *error,
                                      const char **out_piece, size_t *out_bytes);
AOT_API aot_status_t aot_reply_get_info(const aot_reply_t *reply, aot_error_t *error,
                                        aot_reply_info_t *out_info);

#ifdef __cplusplus
}
#endif

#endif  // AOT_TEXT_H_
