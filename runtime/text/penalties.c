#include "penalties.h"

#include <float.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

// ---- the last tokens ----

void aot_history_add(aot_history_t *history, uint32_t token) {
  if (history->capacity == 0) return;
  history->tokens[history->next] = token;
  history->next = (history->next + 1) % history->capacity;
  if (history->count < history->capacity) ++history->count;
}

// A token by how many came after it.
static uint32_t token_before(const aot_history_t *history, uint32_t later) {
  return history->tokens[(history->next + history->capacity - 1 - later) % history->capacity];
}

static uint32_t at_most(uint32_t count, uint32_t most) {
  return count < most ? count : most;
}

static void sort(uint64_t *keys, uint32_t count) {
  for (uint32_t end = count, root = count / 2; end > 1;) {
    if (root > 0) {
      --root;
    } else {
      const uint64_t last = keys[--end];
      keys[end] = keys[0];
      keys[0] = last;
    }
    const uint64_t own = keys[root];
    uint32_t at = root;
    for (uint32_t child = 2 * at + 1; child < end; child = 2 * at + 1) {
      if (child + 1 < end && keys[child + 1] > keys[child]) ++child;
      if (keys[child] <= own) break;
      keys[at] = keys[child];
      at = child;
    }
    keys[at] = own;
  }
}

// ---- how often a token came ----

static void penalise_counts(const aot_history_t *history, const aot_sampler_options_t *options,
                            aot_logit_t *candidates, size_t count) {
  const uint32_t window = at_most(history->count, options->penalty_window);
  const float repetition = options->repetition_penalty > 0.0f ? options->repetition_penalty : 1.0f;
  for (uint32_t i = 0; i < window; ++i)
    history->keys[i] = token_before(history, i);
  sort(history->keys, window);
  for (uint32_t i = 0, times = 0; i < window; i += times) {
    const uint64_t token = history->keys[i];
    for (times = 1; i + times < window && history->keys[i + times] == token;)
      ++times;
    if (token >= count) continue;
    const float logit = candidates[token].logit;
    const float repeated = logit > 0.0f ? logit / repetition : logit * repetition;
    const float by_count = (float)times * options->frequency_penalty;
    const float penalty = by_count + options->presence_penalty;
    candidates[token].logit = repeated - penalty;
  }
}

// ---- DRY: tokens that would go on with a repetition ----

static bool is_breaker(const aot_history_t *history, uint64_t token) {
  return history->breakers != NULL && token / 8 < history->breaker_bytes &&
         (history->breakers[token / 8] >> token % 8 & 1) != 0;
}

// How many tokens before each place are those before the end: the Z function of the last tokens,
// the latest first.
static void find_repeats(const aot_history_t *history, uint32_t count, uint32_t most) {
  uint32_t *repeats = history->repeats;
  for (uint32_t k = 1, left = 0, right = 0; k < count; ++k) {
    uint32_t length = k < right ? at_most(repeats[k - left], right - k) : 0;
    while (k + length < count && token_before(history, length) == token_before(history, k + length))
      ++length;
    repeats[k] = length;
    if (k + length > right) {
      left = k;
      right = k + length;
    }
  }
  for (uint32_t k = 1; k < count; ++k)
    repeats[k] = at_most(repeats[k], most);
}

static float dry_penalty(const aot_sampler_options_t *options, uint32_t repeat) {
  double penalty = options->dry_multiplier;
  const double base = options->dry_base;
  for (uint32_t i = options->dry_allowed_length; i < repeat && penalty < (double)FLT_MAX; ++i)
    penalty *= base;
  return penalty < (double)FLT_MAX ? (float)penalty : FLT_MAX;
}

static void penalise_repeats(const aot_history_t *history, const aot_sampler_options_t *options,
                             aot_logit_t *candidates, size_t count) {
  const uint32_t window = at_most(history->count, options->dry_window);
  const uint32_t allowed = options->dry_allowed_length;
  if (window <= allowed) return;
  uint32_t most = 0;
  while (most < window && !is_breaker(history, token_before(history, most)))
    ++most;
  if (most < allowed) return;
  find_repeats(history, window, most);
  // By tokens, and of each the longest repetition first.
  for (uint32_t k = 1; k < window; ++k) {
    history->keys[k - 1] =
        (uint64_t)token_before(history, k - 1) << 32 | (UINT32_MAX - history->repeats[k]);
  }
  sort(history->keys, window - 1);
  for (uint32_t i = 0; i < window - 1; ++i) {
    const uint64_t token = history->keys[i] >> 32;
    const uint32_t repeat = UINT32_MAX - (uint32_t)(history->keys[i] & UINT32_MAX);
    const bool is_first = i == 0 || history->keys[i - 1] >> 32 != token;
    if (!is_first || repeat < allowed || token >= count || is_breaker(history, token)) continue;
    candidates[token].logit -= dry_penalty(options, repeat);
  }
}

void aot_penalise(const aot_history_t *history, const aot_sampler_options_t *options,
                  aot_logit_t *candidates, size_t count) {
  if (history->count == 0) return;
  penalise_counts(history, options, candidates, count);
  if (options->dry_multiplier > 0.0f) penalise_repeats(history, options, candidates, count);
}

// ---- making it ----

static bool contains(const char *text, size_t bytes, const char *part, size_t part_bytes) {
  for (size_t i = 0; i + part_bytes <= bytes; ++i)
    if (memcmp(text + i, part, part_bytes) == 0) return true;
  return false;
}

static aot_status_t mark_breaker(const aot_history_t *history, const aot_sampler_options_t *options,
                                 const char *breaker, aot_error_t *error) {
  aot_vocabulary_info_t info = {.size = sizeof info};
  AOT_TRY(aot_vocabulary_get_info(options->vocabulary, error, &info));
  if (breaker == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "a DRY breaker is NULL");
  const size_t bytes = strlen(breaker);
  bool is_found = false;
  for (uint32_t i = 0; bytes > 0 && i < info.token_count; ++i) {
    char text[1024];
    size_t length = 0;
    aot_decoder_t decoder = {.size = sizeof decoder, .shows_control = true, .is_begun = true};
    const int32_t token = (int32_t)i;
    if (aot_decode(options->vocabulary, &decoder, &token, 1, text, sizeof text, NULL, &length) !=
            AOT_OK ||
        !contains(text, length, breaker, bytes)) {
      continue;
    }
    history->breakers[i / 8] |= (uint8_t)(1u << i % 8);
    is_found = true;
  }
  if (is_found) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT, "the DRY breaker \"%s\" is in no token", breaker);
}

static aot_status_t mark_breakers(aot_history_t *history, const aot_sampler_options_t *options,
                                  const aot_allocator_t *allocator, aot_error_t *error) {
  static const char *const usual[] = {"\n", ":", "\"", "*"};
  aot_vocabulary_info_t info = {.size = sizeof info};
  AOT_TRY(aot_vocabulary_get_info(options->vocabulary, error, &info));
  const size_t bytes = (info.token_count + 7) / 8;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "the DRY breakers", error, &memory));
  memset(memory, 0, bytes);
  history->breakers = memory;
  history->breaker_bytes = bytes;
  if (options->dry_breakers == NULL) {
    for (size_t i = 0; i < sizeof usual / sizeof *usual; ++i)
      (void)mark_breaker(history, options, usual[i], NULL);
    return AOT_OK;
  }
  for (size_t i = 0; i < options->dry_breaker_count; ++i)
    AOT_TRY(mark_breaker(history, options, options->dry_breakers[i], error));
  return AOT_OK;
}

aot_status_t aot_history_create(const aot_sampler_options_t *options, uint32_t capacity,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_history_t *out_history) {
  *out_history = (aot_history_t){0};
  if (capacity == 0) return AOT_OK;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, (uint64_t)capacity * 16, "the last tokens", error, &memory));
  out_history->keys = memory;
  out_history->tokens = (uint32_t *)(void *)(out_history->keys + capacity);
  out_history->repeats = out_history->tokens + capacity;
  out_history->capacity = capacity;
  if (options->dry_multiplier == 0.0f || options->vocabulary == NULL) return AOT_OK;
  const aot_status_t status = mark_breakers(out_history, options, allocator, error);
  if (status != AOT_OK) aot_history_release(out_history, allocator);
  return status;
}

void aot_history_release(aot_history_t *history, const aot_allocator_t *allocator) {
  aot_release(allocator, history->keys, (size_t)history->capacity * 16);
  aot_release(allocator, history->breakers, history->breaker_bytes);
  *history = (aot_history_t){0};
}
