// Text to tokens: finds the tokens that stand in the text as they are, and has what is between them
// encoded by the vocabulary's scheme.
#include <string.h>

#include "alloc.h"
#include "cut.h"
#include "encoder.h"
#include "longest.h"
#include "merges.h"
#include "module_fbs.h"
#include "sizes.h"
#include "status.h"
#include "unicode.h"
#include "unigram.h"

#define MOST_TEXT_BYTES ((size_t)1 << 29)
#define MOST_SPECIAL_BYTES 255u
#define MOST_SAME 16u  // special tokens of one text

// What a byte of the text is: of a special token, or white space that one takes along.
enum { PLAIN = 0, FIRST = 1, INSIDE = 2, DROPPED = 3 };

// ---- special tokens ----

// Where control tokens are looked for.
typedef struct control_t {
  bool is_parsed;
  const uint8_t *plain;  // NULL, or of each byte of the text whether it is in none
} control_t;

// Of the bytes from `at` on, how many may be a control token's.
static uint32_t control_bytes(control_t control, size_t at, size_t bytes) {
  if (!control.is_parsed) return 0;
  const uint32_t most = bytes < MOST_SPECIAL_BYTES ? (uint32_t)bytes : MOST_SPECIAL_BYTES;
  uint32_t count = 0;
  while (count < most && (control.plain == NULL || control.plain[at + count] == 0))
    ++count;
  return count;
}

// Whether a token is looked for: control tokens only in so many bytes.
static bool is_sought(const aot_vocabulary_t *vocabulary, uint32_t token, bool is_control_here) {
  if (!aot_is_token(vocabulary, token)) return false;
  const uint32_t type = vocabulary->token_types[token] & AOT_TYPE_MASK;
  return type == AOT_FBS_TOKEN_TYPE_USER_DEFINED || is_control_here;
}

// The special token that `text` begins with and that has `wanted` bytes, one that controls at most
// `control` of them; with 0, `lengths` becomes the set of the lengths of all that it begins with, a
// bit each.
static uint32_t special_at(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                           uint32_t control, uint32_t wanted, uint64_t lengths[4]) {
  const aot_sorted_t *sorted = &vocabulary->by_special;
  aot_range_t range = aot_sorted_begin(sorted, text[0]);
  for (uint32_t length = 1; range.begin < range.end && length <= MOST_SPECIAL_BYTES; ++length) {
    const uint32_t most = range.end - range.begin < MOST_SAME ? range.end : range.begin + MOST_SAME;
    for (uint32_t i = range.begin; i < most && (wanted == 0 || wanted == length); ++i) {
      uint32_t own_bytes = 0;
      (void)aot_symbol_text(vocabulary, sorted->tokens[i], &own_bytes);
      if (own_bytes != length) break;  // those that end here stand first
      if (!is_sought(vocabulary, sorted->tokens[i], length <= control)) continue;
      if (wanted == length) return sorted->tokens[i];
      lengths[length / 64] |= (uint64_t)1 << length % 64;
    }
    if (length >= bytes || length == wanted) break;
    range = aot_sorted_narrow(vocabulary, sorted, range, length, text[length]);
  }
  return AOT_NO_SYMBOL;
}

static bool is_white(uint8_t byte) {
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

// Marks the special tokens of one length, from left to right, where no longer one is.
static void mark_length(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                        control_t control, uint32_t length, uint8_t *marks) {
  uint64_t unused[4] = {0};
  for (size_t at = 0; at + length <= bytes;) {
    const uint32_t token = marks[at] != PLAIN || marks[at + length - 1] != PLAIN
                               ? AOT_NO_SYMBOL
                               : special_at(vocabulary, text + at, bytes - at,
                                            control_bytes(control, at, bytes - at), length, unused);
    if (token == AOT_NO_SYMBOL) {
      ++at;
      continue;
    }
    const uint8_t type = vocabulary->token_types[token];
    memset(marks + at, INSIDE, length);
    marks[at] = FIRST;
    for (size_t i = at; (type & AOT_STRIP_LEFT) != 0 && i > 0; --i) {
      if (marks[i - 1] != PLAIN || !is_white(text[i - 1])) break;
      marks[i - 1] = DROPPED;
    }
    at += length;
    for (; (type & AOT_STRIP_RIGHT) != 0 && at < bytes; ++at) {
      if (marks[at] != PLAIN || !is_white(text[at])) break;
      marks[at] = DROPPED;
    }
  }
}

// ---- the whole ----

#define EACH_WORD 3u  // of adds_space; odd ones are of each text

static bool begins_with_space(const uint8_t *text, size_t bytes) {
  return text[0] == ' ' || (bytes >= 3 && memcmp(text, "\xE2\x96\x81", 3) == 0);
}

// Whether a space is put before a text that is not empty.
static bool takes_space(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                        bool is_first) {
  const uint8_t how = vocabulary->adds_space;
  if (how == 0 || (how % 2 == 0 && !is_first)) return false;
  return how < EACH_WORD || !begins_with_space(text, bytes);
}

static aot_status_t encode_part(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                bool adds_space) {
  if (encoder->vocabulary->scheme == AOT_FBS_SCHEME_BYTE_MERGES) {
    return aot_merge_bytes(encoder, text, bytes);
  }
  return aot_merge_characters(encoder, text, bytes, adds_space);
}

// Cuts a text, and encodes its parts.
static aot_status_t encode_parts(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  aot_cutter_t cutter;
  aot_status_t status = AOT_OK;
  AOT_TRY(aot_cut_begin(encoder->vocabulary, text, bytes, encoder->error, &cutter));
  while (status == AOT_OK && cutter.at < bytes) {
    bool is_dropped = false;
    const size_t begin = cutter.at;
    const size_t end = aot_cut_next(&cutter, &is_dropped);
    if (!is_dropped) status = encode_part(encoder, text + begin, end - begin, false);
  }
  const aot_status_t ended = aot_cut_end(encoder->vocabulary, &cutter, bytes, encoder->error);
  return status == AOT_OK ? ended : status;
}

static aot_status_t encode_between(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                   bool is_first, bool is_behind_special) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  const bool adds_space = is_behind_special && takes_space(vocabulary, text, bytes, is_first);
  if (vocabulary->scheme == AOT_FBS_SCHEME_UNIGRAM) {
    return aot_unigram(encoder, text, bytes, adds_space);
  }
  if (vocabulary->scheme == AOT_FBS_SCHEME_WORD_PIECES) {
    return aot_word_pieces(encoder, text, bytes);
  }
  if (vocabulary->scheme == AOT_FBS_SCHEME_LONGEST) {
    aot_longest(encoder, text, bytes);
    return AOT_OK;
  }
  if (vocabulary->cut_bytes == 0 || adds_space)
    return encode_part(encoder, text, bytes, adds_space);
  return encode_parts(encoder, text, bytes);
}

static aot_status_t encode_marked(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                  control_t control, const uint8_t *marks) {
  uint64_t unused[4] = {0};
  bool is_behind_special = true;
  for (size_t at = 0; at < bytes;) {
    const uint8_t mark = marks[at];
    size_t end = at + 1;
    const uint8_t same = mark == FIRST ? INSIDE : mark;
    while (end < bytes && marks[end] == same)
      ++end;
    if (mark == FIRST) {
      const uint32_t most = control_bytes(control, at, bytes - at);
      aot_push(encoder, special_at(encoder->vocabulary, text + at, bytes - at, most,
                                   (uint32_t)(end - at), unused));
      is_behind_special = true;
    } else if (mark == PLAIN) {
      AOT_TRY(encode_between(encoder, text + at, end - at, at == 0, is_behind_special));
      is_behind_special = false;
    }
    at = end;
  }
  return AOT_OK;
}

static aot_status_t encode_text(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                control_t control) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  uint64_t lengths[4] = {0};
  if (bytes == 0) return AOT_OK;
  for (size_t at = 0; at < bytes; ++at) {
    const aot_range_t range = aot_sorted_begin(&vocabulary->by_special, text[at]);
    if (range.begin == range.end) continue;
    (void)special_at(vocabulary, text + at, bytes - at, control_bytes(control, at, bytes - at), 0,
                     lengths);
  }
  if ((lengths[0] | lengths[1] | lengths[2] | lengths[3]) == 0) {
    return encode_between(encoder, text, bytes, true, true);
  }
  void *marks = NULL;
  AOT_TRY(aot_allocate(&vocabulary->allocator, bytes, "the special tokens of the text",
                       encoder->error, &marks));
  memset(marks, PLAIN, bytes);
  for (uint32_t length = MOST_SPECIAL_BYTES; length > 0; --length) {
    if ((lengths[length / 64] >> length % 64 & 1) == 0) continue;
    mark_length(vocabulary, text, bytes, control, length, marks);
  }
  const aot_status_t status = encode_marked(encoder, text, bytes, control, marks);
  aot_release(&vocabulary->allocator, marks, bytes);
  return status;
}

aot_status_t aot_encode(const aot_vocabulary_t *vocabulary, const char *text, size_t bytes,
                        const aot_encode_options_t *options, int32_t *tokens, size_t capacity,
                        aot_error_t *error, size_t *out_count) {
  aot_encode_options_t how = {.size = sizeof how};
  if (out_count == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_count is NULL");
  *out_count = 0;
  if (options != NULL) {
    AOT_TRY(aot_struct_take(options, "aot_encode_options_t", &how, sizeof how, error));
  }
  if (vocabulary == NULL || (text == NULL && bytes > 0) || (tokens == NULL && capacity > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary, the text or the tokens are NULL");
  }
  if (bytes > MOST_TEXT_BYTES) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the text has %zu bytes, at most 2^29 are encoded",
                    bytes);
  }
  const uint8_t *own = (const uint8_t *)text;
  const size_t wrong = bytes == 0 ? 0 : aot_utf8_check(own, bytes);
  if (wrong < bytes) {
    return aot_fail(error, AOT_ERROR_TEXT, "the text is not UTF-8: byte %zu is 0x%02x", wrong,
                    own[wrong]);
  }
  aot_encoder_t encoder = {vocabulary, tokens, capacity, 0, NULL, 0, error};
  const bool is_whole = !how.is_part;
  if (is_whole && vocabulary->adds_bos && vocabulary->bos >= 0) {
    aot_push(&encoder, (uint32_t)vocabulary->bos);
  }
  const control_t control = {how.parses_control, how.plain};
  const aot_status_t status = encode_text(&encoder, own, bytes, control);
  aot_release(&vocabulary->allocator, encoder.memory, encoder.memory_bytes);
  AOT_TRY(status);
  if (is_whole && vocabulary->adds_eos && vocabulary->eos >= 0) {
    aot_push(&encoder, (uint32_t)vocabulary->eos);
  }
  *out_count = encoder.count;
  if (encoder.count <= capacity) return AOT_OK;
  return aot_fail(error, AOT_ERROR_CAPACITY, "the text is %zu tokens, there is room for %zu",
                  encoder.count, capacity);
}
