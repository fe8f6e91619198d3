// Opening vocabularies, and what is looked up in them.  aot/link/vocabulary.py writes them.
#include "vocabulary.h"

#include <stddef.h>
#include <string.h>

#include "alloc.h"
#include "characters.h"
#include "cut.h"
#include "flatbuffer.h"
#include "module_fbs.h"
#include "replacements.h"
#include "sizes.h"
#include "status.h"
#include "unicode.h"

#define AOT_VOCABULARY_VERSION 1u
// Slots of a hash table that are looked at: of tables a fifth of which is free few need a hundred.
#define MOST_TRIES (1u << 14)

static bool is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// Whether the f32 of these bits is a number.
static bool is_finite(uint32_t bits) {
  return (bits & 0x7F800000u) != 0x7F800000u;
}

static bool is_utf8(const char *text) {
  const uint8_t *own = (const uint8_t *)text;
  const size_t bytes = strlen(text);
  return bytes == 0 || aot_utf8_check(own, bytes) == bytes;
}

static bool symbol_is_utf8(const aot_vocabulary_t *vocabulary, uint32_t symbol) {
  uint32_t bytes = 0;
  const uint8_t *text = aot_symbol_text(vocabulary, symbol, &bytes);
  return bytes == 0 || aot_utf8_check(text, bytes) == bytes;
}

#include "vocabulary_rules.h"

#define MEMBER(name, id)                                                        \
  .field = AOT_FBS_VOCABULARY_##id, .member = offsetof(aot_vocabulary_t, name), \
  .bytes = sizeof(((aot_vocabulary_t *)0)->name)
#define NUMBER(name, id) {.kind = AOT_FB_NUMBER, MEMBER(name, id)}
#define TOKEN(name, id) {.kind = AOT_FB_NUMBER, MEMBER(name, id), .absent = -1}
#define TEXT(name, id) {.kind = AOT_FB_STRING, MEMBER(name, id)}
#define ENUM(name, id, enumeration) \
  {.kind = AOT_FB_ENUM, MEMBER(name, id), .values = AOT_FBS_##enumeration##_COUNT}
#define WORDS(name, count, id, is_needed)             \
  {.kind = AOT_FB_WORDS,                              \
   MEMBER(name, id),                                  \
   .count_member = offsetof(aot_vocabulary_t, count), \
   .is_required = (is_needed)}

static const aot_fb_field_t fields[] = {
    ENUM(scheme, SCHEME, SCHEME),
    NUMBER(adds_bos, ADDS_BOS),
    NUMBER(adds_eos, ADDS_EOS),
    NUMBER(adds_space, ADDS_SPACE),
    NUMBER(ignores_merges, IGNORES_MERGES),
    NUMBER(escapes_spaces, ESCAPES_SPACES),
    NUMBER(trims_spaces, TRIMS_SPACES),
    NUMBER(space_is_suffix, SPACE_IS_SUFFIX),
    NUMBER(token_count, TOKEN_COUNT),
    TOKEN(bos, BOS),
    TOKEN(eos, EOS),
    TOKEN(unknown, UNKNOWN),
    WORDS(end_tokens, end_token_count, END_TOKENS, false),
    WORDS(symbol_ends, symbol_count, SYMBOL_ENDS, true),
    WORDS(token_scores, token_score_count, TOKEN_SCORES, false),
    WORDS(byte_symbols, byte_symbol_count, BYTE_SYMBOLS, false),
    WORDS(lookup, lookup_count, LOOKUP, false),
    WORDS(merges, merge_word_count, MERGES, false),
    WORDS(merge_results, merge_count, MERGE_RESULTS, false),
    WORDS(specials, special_count, SPECIALS, false),
    WORDS(sorted_tokens, sorted_token_count, SORTED_TOKENS, false),
    WORDS(character_map, character_map_count, CHARACTER_MAP, false),
    TEXT(prefix, PREFIX),
    NUMBER(prefix_is_raw, PREFIX_IS_RAW),
    WORDS(prefix_tokens, prefix_token_count, PREFIX_TOKENS, false),
    TEXT(chat_template, CHAT_TEMPLATE),
    TEXT(chat_refusal, CHAT_REFUSAL),
    WORDS(chat.code, chat.code_count, CHAT_CODE, false),
    WORDS(chat.text_ends, chat.text_count, CHAT_TEXT_ENDS, false),
};

// A vector of bytes, which the loader's fields are never.
static const uint8_t *read_bytes(aot_fb_t *fb, const aot_fb_table_t *table, uint32_t field,
                                 bool is_required, uint32_t *out_count) {
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, field, 1, is_required);
  *out_count = vector.count;
  return fb->data + vector.position;
}

static aot_status_t read_fields(aot_vocabulary_t *vocabulary, const void *data, uint32_t bytes,
                                aot_error_t *error) {
  aot_fb_t fb;
  aot_fb_init(&fb, data, bytes, error);
  const aot_fb_table_t root = aot_fb_root(&fb, "AOTV", "Vocabulary");
  const uint32_t version = (uint32_t)aot_fb_number(&fb, &root, AOT_FBS_VOCABULARY_VERSION, 4, 0);
  AOT_TRY(fb.status);
  if (version > AOT_VOCABULARY_VERSION) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the vocabulary has version %u, this runtime reads up to version %u",
                    (unsigned)version, AOT_VOCABULARY_VERSION);
  }
  if (aot_fb_number(&fb, &root, AOT_FBS_VOCABULARY_PRE_TOKENISER, 1, 0) != 0) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the vocabulary is of before patterns were stored: compile the model "
                    "again, or rewrite the module by aotc upgrade");
  }
  aot_fb_read(&fb, &root, fields, sizeof fields / sizeof *fields, vocabulary);
  vocabulary->symbol_text =
      read_bytes(&fb, &root, AOT_FBS_VOCABULARY_SYMBOL_TEXT, true, &vocabulary->text_bytes);
  vocabulary->token_types =
      read_bytes(&fb, &root, AOT_FBS_VOCABULARY_TOKEN_TYPES, true, &vocabulary->token_type_count);
  vocabulary->replacements = read_bytes(&fb, &root, AOT_FBS_VOCABULARY_REPLACEMENTS, false,
                                        &vocabulary->replacement_bytes);
  vocabulary->cuts = read_bytes(&fb, &root, AOT_FBS_VOCABULARY_CUTS, false, &vocabulary->cut_bytes);
  vocabulary->chat.texts =
      read_bytes(&fb, &root, AOT_FBS_VOCABULARY_CHAT_TEXTS, false, &vocabulary->chat.text_bytes);
  AOT_TRY(fb.status);
  const char *fault = vocabulary_fault(vocabulary);
  // The flatbuffer's reader leaves it to its callers whether a string is text.
  if (fault == NULL && (!is_utf8(vocabulary->chat_template) || !is_utf8(vocabulary->chat_refusal) ||
                        !is_utf8(vocabulary->prefix)))
    fault = "a string is not UTF-8";
  if (fault == NULL) {
    return aot_template_verify(&vocabulary->chat, &vocabulary->allocator, error);
  }
  return aot_fail(error, AOT_ERROR_MALFORMED, "the vocabulary: %s", fault);
}

const uint8_t *aot_symbol_text(const aot_vocabulary_t *vocabulary, uint32_t symbol,
                               uint32_t *out_bytes) {
  *out_bytes = 0;
  if (symbol >= vocabulary->symbol_count) return vocabulary->symbol_text;
  const uint32_t begin = symbol == 0 ? 0 : vocabulary->symbol_ends[symbol - 1];
  const uint32_t end = vocabulary->symbol_ends[symbol];
  if (begin > end || end > vocabulary->text_bytes) return vocabulary->symbol_text;
  *out_bytes = end - begin;
  return vocabulary->symbol_text + begin;
}

static uint32_t hash_text(const uint8_t *text, size_t bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ text[i]) * 16777619u;
  hash ^= hash >> 15;
  hash *= 0x2C1B3C6Du;
  return hash ^ hash >> 12;
}

uint32_t aot_symbol_find(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes) {
  const uint32_t mask = vocabulary->lookup_count - 1;
  uint32_t slot = hash_text(text, bytes) & mask;
  for (uint32_t tried = 0; tried <= mask && tried < MOST_TRIES; ++tried, slot = (slot + 1) & mask) {
    const uint32_t symbol = vocabulary->lookup[slot];
    if (symbol == 0) break;
    uint32_t own_bytes = 0;
    const uint8_t *own = aot_symbol_text(vocabulary, symbol - 1, &own_bytes);
    if (own_bytes == bytes && memcmp(own, text, bytes) == 0) {
      return aot_is_token(vocabulary, symbol - 1) ? symbol - 1 : AOT_NO_SYMBOL;
    }
  }
  return AOT_NO_SYMBOL;
}

uint32_t aot_merge_find(const aot_vocabulary_t *vocabulary, uint32_t left, uint32_t right,
                        uint32_t *out_result) {
  if (vocabulary->merge_word_count == 0) return UINT32_MAX;
  if (left >= vocabulary->symbol_count || right >= vocabulary->symbol_count) return UINT32_MAX;
  const uint64_t key = left | (uint64_t)right << AOT_SYMBOL_BITS;
  const uint64_t key_mask = ((uint64_t)1 << 2 * AOT_SYMBOL_BITS) - 1;
  const uint32_t mask = vocabulary->merge_word_count / 2 - 1;
  uint32_t slot = (uint32_t)(key * 0x9E3779B97F4A7C15u >> 32) & mask;
  for (uint32_t tried = 0; tried <= mask && tried < MOST_TRIES; ++tried, slot = (slot + 1) & mask) {
    uint64_t entry = 0;
    memcpy(&entry, vocabulary->merges + 2 * (size_t)slot, sizeof entry);
    if (entry == AOT_NO_MERGE) break;
    if ((entry & key_mask) != key) continue;
    const uint32_t rank = (uint32_t)(entry >> 2 * AOT_SYMBOL_BITS);
    if (rank >= vocabulary->merge_count) break;
    *out_result = vocabulary->merge_results[rank];
    return *out_result < vocabulary->symbol_count ? rank : UINT32_MAX;
  }
  return UINT32_MAX;
}

float aot_token_score(const aot_vocabulary_t *vocabulary, uint32_t token) {
  float score = 0;
  memcpy(&score, vocabulary->token_scores + token, sizeof score);
  return score;
}

// ---- tokens in the order of their bytes ----

// The first of a range whose byte `at` is at least `byte`; a text that ends there is less.
static uint32_t lower_bound(const aot_vocabulary_t *vocabulary, const uint32_t *tokens,
                            aot_range_t range, uint32_t at, uint32_t byte) {
  while (range.begin < range.end) {
    const uint32_t middle = range.begin + (range.end - range.begin) / 2;
    uint32_t bytes = 0;
    const uint8_t *text = aot_symbol_text(vocabulary, tokens[middle], &bytes);
    if (at < bytes && text[at] >= byte) {
      range.end = middle;
    } else {
      range.begin = middle + 1;
    }
  }
  return range.begin;
}

static void sort_begin(const aot_vocabulary_t *vocabulary, const uint32_t *tokens, uint32_t count,
                       aot_sorted_t *out_sorted) {
  out_sorted->tokens = tokens;
  out_sorted->count = count;
  out_sorted->first[256] = count;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    out_sorted->first[byte] = lower_bound(vocabulary, tokens, (aot_range_t){0, count}, 0, byte);
  }
}

aot_range_t aot_sorted_begin(const aot_sorted_t *sorted, uint8_t byte) {
  return (aot_range_t){sorted->first[byte], sorted->first[byte + 1]};
}

aot_range_t aot_sorted_narrow(const aot_vocabulary_t *vocabulary, const aot_sorted_t *sorted,
                              aot_range_t range, uint32_t at, uint8_t byte) {
  range.begin = lower_bound(vocabulary, sorted->tokens, range, at, byte);
  if (range.begin == range.end) return range;
  uint32_t bytes = 0;
  const uint8_t *text = aot_symbol_text(vocabulary, sorted->tokens[range.begin], &bytes);
  if (at >= bytes || text[at] != byte) return (aot_range_t){0, 0};
  range.end = lower_bound(vocabulary, sorted->tokens, range, at, byte + 1u);
  return range;
}

// A piece that is unknown costs as much as ten more than the worst piece.
static double unknown_score(const aot_vocabulary_t *vocabulary) {
  float least = 3.402823466e38f;
  for (uint32_t token = 0; token < vocabulary->token_count; ++token) {
    const float score = aot_token_score(vocabulary, token);
    const uint32_t type = vocabulary->token_types[token] & AOT_TYPE_MASK;
    if (type == AOT_FBS_TOKEN_TYPE_NORMAL && score < least) least = score;
  }
  return (double)(least - 10.0f);
}

// ---- opening ----

aot_status_t aot_vocabulary_open_memory(const void *data, size_t bytes,
                                        const aot_allocator_t *allocator, aot_error_t *error,
                                        aot_vocabulary_t **out_vocabulary) {
  static const aot_allocator_t none;
  if (out_vocabulary == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "out_vocabulary is NULL");
  }
  *out_vocabulary = NULL;
  if (data == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "data is NULL");
  if ((uintptr_t)data % 8 != 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary is not aligned to 8 bytes");
  }
  if (bytes > INT32_MAX) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "the vocabulary has %zu bytes", bytes);
  }
  aot_allocator_t own;
  AOT_TRY(aot_allocator_choose(allocator == NULL ? &none : allocator, error, &own));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&own, sizeof(aot_vocabulary_t), "the vocabulary", error, &memory));
  memset(memory, 0, sizeof(aot_vocabulary_t));
  aot_vocabulary_t *vocabulary = memory;
  vocabulary->allocator = own;
  vocabulary->data = data;
  vocabulary->data_bytes = (uint32_t)bytes;
  const aot_status_t status = read_fields(vocabulary, data, (uint32_t)bytes, error);
  if (status != AOT_OK) {
    aot_vocabulary_close(vocabulary);
    return status;
  }
  sort_begin(vocabulary, vocabulary->specials, vocabulary->special_count, &vocabulary->by_special);
  sort_begin(vocabulary, vocabulary->sorted_tokens, vocabulary->sorted_token_count,
             &vocabulary->by_piece);
  if (vocabulary->scheme == AOT_FBS_SCHEME_UNIGRAM) {
    vocabulary->unknown_score = unknown_score(vocabulary);
  }
  *out_vocabulary = vocabulary;
  return AOT_OK;
}

aot_status_t aot_vocabulary_open(const aot_module_t *module, const aot_allocator_t *allocator,
                                 aot_error_t *error, aot_vocabulary_t **out_vocabulary) {
  if (out_vocabulary != NULL) *out_vocabulary = NULL;
  if (module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "module is NULL");
  size_t bytes = 0;
  const void *data = aot_module_vocabulary(module, &bytes);
  if (data == NULL) {
    return aot_fail(error, AOT_ERROR_NOT_FOUND,
                    "the module has no vocabulary: it is not of a language model");
  }
  return aot_vocabulary_open_memory(data, bytes, allocator, error, out_vocabulary);
}

void aot_vocabulary_close(aot_vocabulary_t *vocabulary) {
  if (vocabulary == NULL) return;
  const aot_allocator_t allocator = vocabulary->allocator;
  aot_release(&allocator, vocabulary, sizeof *vocabulary);
}

aot_status_t aot_vocabulary_get_info(const aot_vocabulary_t *vocabulary, aot_error_t *error,
                                     aot_vocabulary_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_vocabulary_info_t", error));
  if (vocabulary == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary is NULL");
  const aot_vocabulary_info_t info = {
      .token_count = vocabulary->token_count,
      .bos = (int32_t)vocabulary->bos,
      .eos = (int32_t)vocabulary->eos,
      .unknown = (int32_t)vocabulary->unknown,
      .adds_bos = vocabulary->adds_bos != 0,
      .adds_eos = vocabulary->adds_eos != 0,
      .end_tokens = (const int32_t *)vocabulary->end_tokens,
      .end_token_count = vocabulary->end_token_count,
      .chat_template = vocabulary->chat_template,
      .keeps_chat = vocabulary->chat.code_count > 0,
      .chat_refusal = vocabulary->chat_refusal,
  };
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}

aot_status_t aot_vocabulary_get_prefix(const aot_vocabulary_t *vocabulary, aot_error_t *error,
                                       aot_prefix_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_prefix_info_t", error));
  if (vocabulary == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary is NULL");
  const aot_prefix_info_t info = {.size = sizeof info,
                                  .text = vocabulary->prefix,
                                  .is_raw = vocabulary->prefix_is_raw != 0,
                                  .tokens = (const int32_t *)vocabulary->prefix_tokens,
                                  .token_count = vocabulary->prefix_token_count};
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}

bool aot_vocabulary_is_end(const aot_vocabulary_t *vocabulary, int32_t token) {
  for (uint32_t i = 0; vocabulary != NULL && i < vocabulary->end_token_count; ++i) {
    if ((int32_t)vocabulary->end_tokens[i] == token) return true;
  }
  return false;
}

int32_t aot_vocabulary_find(const aot_vocabulary_t *vocabulary, const char *text, size_t bytes) {
  if (vocabulary == NULL || text == NULL || bytes == 0) return -1;
  const uint8_t *own = (const uint8_t *)text;
  const aot_sorted_t *sorted = &vocabulary->by_special;
  aot_range_t range = aot_sorted_begin(sorted, own[0]);
  for (uint32_t at = 1; at < bytes && range.begin < range.end; ++at)
    range = aot_sorted_narrow(vocabulary, sorted, range, at, own[at]);
  // Of those that begin so, the shortest stands first.
  if (range.begin < range.end && aot_is_token(vocabulary, sorted->tokens[range.begin])) {
    uint32_t length = 0;
    (void)aot_symbol_text(vocabulary, sorted->tokens[range.begin], &length);
    if (length == bytes) return (int32_t)sorted->tokens[range.begin];
  }
  const uint32_t found = aot_symbol_find(vocabulary, own, bytes);
  return found == AOT_NO_SYMBOL ? -1 : (int32_t)found;
}
