// A reply under way: the tokens that a sampler chooses, as text, up to what ends it.
#include <string.h>

#include "alloc.h"
#include "aot/text.h"
#include "sizes.h"
#include "status.h"
#include "unicode.h"

#define MOST_PIECE_BYTES 1024u  // of one token
#define MOST_STOP_BYTES 1024u
#define MOST_LOGPROBS 64u

typedef struct stop_t {
  const char *text;
  size_t bytes;
} stop_t;

struct aot_reply_t {
  aot_allocator_t allocator;
  const aot_vocabulary_t *vocabulary;
  aot_sampler_t *sampler;
  aot_reply_options_t options;
  stop_t *stops;  // and their texts behind them
  size_t stops_bytes;
  aot_reply_info_t info;
  aot_decoder_t decoder;
  aot_logprob_t top[MOST_LOGPROBS];
  size_t waiting;  // bytes of the text that may become a stop string
  char text[MOST_STOP_BYTES + MOST_PIECE_BYTES];
  char piece[MOST_STOP_BYTES + MOST_PIECE_BYTES + 1];
};

// ---- stop strings ----

// Where the first stop string begins that is in the text; `bytes` where none is.
static size_t find_stop(const aot_reply_t *reply, size_t bytes) {
  for (size_t at = 0; at < bytes; ++at) {
    for (size_t i = 0; i < reply->options.stop_count; ++i) {
      const stop_t *stop = &reply->stops[i];
      if (stop->bytes <= bytes - at && memcmp(reply->text + at, stop->text, stop->bytes) == 0) {
        return at;
      }
    }
  }
  return bytes;
}

// Where the longest end of the text begins that a stop string begins with.
static size_t find_beginning(const aot_reply_t *reply, size_t bytes) {
  for (size_t at = 0; at < bytes; ++at) {
    for (size_t i = 0; i < reply->options.stop_count; ++i) {
      const stop_t *stop = &reply->stops[i];
      if (stop->bytes > bytes - at && memcmp(reply->text + at, stop->text, bytes - at) == 0) {
        return at;
      }
    }
  }
  return bytes;
}

// Hands out the first bytes of the text, of which those from `behind` on go on waiting.
static void give(aot_reply_t *reply, size_t count, size_t behind, size_t bytes,
                 const char **out_piece, size_t *out_bytes) {
  memcpy(reply->piece, reply->text, count);
  reply->piece[count] = '\0';
  reply->waiting = bytes - behind;
  memmove(reply->text, reply->text + behind, reply->waiting);
  *out_piece = reply->piece;
  *out_bytes = count;
}

// Hands out what is certain of a text that has grown.
static void give_certain(aot_reply_t *reply, size_t bytes, const char **out_piece,
                         size_t *out_bytes) {
  const size_t stop = find_stop(reply, bytes);
  if (stop < bytes) {
    reply->info.end = AOT_REPLY_STOP;
    give(reply, stop, bytes, bytes, out_piece, out_bytes);
    return;
  }
  const size_t certain = find_beginning(reply, bytes);
  give(reply, certain, certain, bytes, out_piece, out_bytes);
}

// Hands out all that waits, and what stands for a character that was cut off.
static void give_rest(aot_reply_t *reply, size_t bytes, const char **out_piece, size_t *out_bytes) {
  bytes += aot_decode_end(&reply->decoder, reply->text + bytes);
  give(reply, bytes, bytes, bytes, out_piece, out_bytes);
}

// ---- tokens ----

aot_status_t aot_reply_next(aot_reply_t *reply, const float *logits, size_t count,
                            aot_error_t *error, const char **out_piece, size_t *out_bytes) {
  if (reply == NULL || out_piece == NULL || out_bytes == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the reply, out_piece or out_bytes is NULL");
  }
  *out_piece = NULL;
  *out_bytes = 0;
  aot_reply_info_t *info = &reply->info;
  if (info->end != AOT_REPLY_GOES_ON) {
    *out_piece = "";
    return AOT_OK;
  }
  int32_t token = 0;
  AOT_TRY(aot_sampler_next(reply->sampler, logits, count, error, &token));
  const size_t waiting = reply->waiting;
  size_t bytes = 0;
  if (!aot_vocabulary_is_end(reply->vocabulary, token)) {
    AOT_TRY(aot_decode(reply->vocabulary, &reply->decoder, &token, 1, reply->text + waiting,
                       MOST_PIECE_BYTES - 4, error, &bytes));
    ++info->tokens;
  } else {
    info->end = AOT_REPLY_END_TOKEN;
  }
  info->token = token;
  if (reply->options.logprobs > 0) {
    AOT_TRY(aot_logprobs(logits, count, token, reply->top, info->top_count, error, &info->logprob));
  }
  if (info->end == AOT_REPLY_GOES_ON) {
    give_certain(reply, waiting + bytes, out_piece, out_bytes);
    const uint64_t most = reply->options.max_tokens;
    if (info->end != AOT_REPLY_GOES_ON || most == 0 || info->tokens < most) return AOT_OK;
    info->end = AOT_REPLY_MAX_TOKENS;
    // All of the text again, which the piece is the beginning of.
    memmove(reply->text + *out_bytes, reply->text, reply->waiting);
    memcpy(reply->text, reply->piece, *out_bytes);
    give_rest(reply, *out_bytes + reply->waiting, out_piece, out_bytes);
  } else {
    give_rest(reply, waiting, out_piece, out_bytes);
  }
  return AOT_OK;
}

aot_status_t aot_reply_finish(aot_reply_t *reply, aot_reply_end_t end, aot_error_t *error,
                              const char **out_piece, size_t *out_bytes) {
  if (reply == NULL || out_piece == NULL || out_bytes == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the reply, out_piece or out_bytes is NULL");
  }
  if (reply->info.end == AOT_REPLY_GOES_ON) reply->info.end = end;
  give_rest(reply, reply->waiting, out_piece, out_bytes);
  return AOT_OK;
}

aot_status_t aot_reply_get_info(const aot_reply_t *reply, aot_error_t *error,
                                aot_reply_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_reply_info_t", error));
  if (reply == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the reply is NULL");
  aot_struct_give(&reply->info, sizeof reply->info, out_info);
  return AOT_OK;
}

void aot_reply_begin(aot_reply_t *reply) {
  if (reply == NULL) return;
  reply->waiting = 0;
  reply->decoder = (aot_decoder_t){.size = sizeof reply->decoder, .is_begun = true};
  reply->info = (aot_reply_info_t){.size = sizeof reply->info,
                                   .token = -1,
                                   .top_count = reply->options.logprobs,
                                   .top = reply->top};
}

// ---- making one ----

static aot_status_t check(const aot_reply_options_t *options, aot_error_t *error) {
  if (options->logprobs > MOST_LOGPROBS) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "logprobs is %u, expected 0 to %u",
                    (unsigned)options->logprobs, MOST_LOGPROBS);
  }
  if (options->stops == NULL && options->stop_count > 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the stop strings are NULL");
  }
  for (size_t i = 0; i < options->stop_count; ++i) {
    const char *text = options->stops[i];
    const size_t bytes = text == NULL ? 0 : strlen(text);
    if (bytes == 0 || bytes > MOST_STOP_BYTES) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "stop string %zu has %zu bytes, expected 1 to %u",
                      i + 1, bytes, MOST_STOP_BYTES);
    }
    const size_t wrong = aot_utf8_check((const uint8_t *)text, bytes);
    if (wrong < bytes) {
      return aot_fail(error, AOT_ERROR_TEXT, "stop string %zu is not UTF-8: byte %zu is 0x%02x",
                      i + 1, wrong, (unsigned)(uint8_t)text[wrong]);
    }
  }
  return AOT_OK;
}

static aot_status_t copy_stops(aot_reply_t *reply, aot_error_t *error) {
  const aot_reply_options_t *options = &reply->options;
  if (options->stop_count == 0) return AOT_OK;
  size_t bytes = options->stop_count * sizeof *reply->stops;
  for (size_t i = 0; i < options->stop_count; ++i)
    bytes += strlen(options->stops[i]);
  void *memory = NULL;
  AOT_TRY(aot_allocate(&reply->allocator, bytes, "the stop strings", error, &memory));
  reply->stops = memory;
  reply->stops_bytes = bytes;
  char *at = (char *)(reply->stops + options->stop_count);
  for (size_t i = 0; i < options->stop_count; ++i) {
    const size_t length = strlen(options->stops[i]);
    memcpy(at, options->stops[i], length);
    reply->stops[i] = (stop_t){at, length};
    at += length;
  }
  return AOT_OK;
}

aot_status_t aot_reply_create(const aot_vocabulary_t *vocabulary, aot_sampler_t *sampler,
                              const aot_reply_options_t *options, const aot_allocator_t *allocator,
                              aot_error_t *error, aot_reply_t **out_reply) {
  static const aot_allocator_t none;
  if (vocabulary == NULL || sampler == NULL || out_reply == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary, the sampler or out_reply is NULL");
  }
  *out_reply = NULL;
  aot_reply_options_t given = {.size = sizeof given};
  if (options != NULL)
    AOT_TRY(aot_struct_take(options, "aot_reply_options_t", &given, sizeof given, error));
  AOT_TRY(check(&given, error));
  aot_allocator_t own;
  AOT_TRY(aot_allocator_choose(allocator == NULL ? &none : allocator, error, &own));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&own, sizeof(aot_reply_t), "a reply", error, &memory));
  memset(memory, 0, sizeof(aot_reply_t));
  aot_reply_t *reply = memory;
  reply->allocator = own;
  reply->vocabulary = vocabulary;
  reply->sampler = sampler;
  reply->options = given;
  const aot_status_t status = copy_stops(reply, error);
  if (status != AOT_OK) {
    aot_reply_destroy(reply);
    return status;
  }
  aot_reply_begin(reply);
  *out_reply = reply;
  return AOT_OK;
}

void aot_reply_destroy(aot_reply_t *reply) {
  if (reply == NULL) return;
  const aot_allocator_t own = reply->allocator;
  aot_release(&own, reply->stops, reply->stops_bytes);
  aot_release(&own, reply, sizeof *reply);
}
