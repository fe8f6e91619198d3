// Choosing the next token.  The same logits and seed give the same token on any machine: what is
// chosen depends on single operations of f32 and f64, as IEEE 754 has them, and on integers.
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "choice.h"
#include "penalties.h"
#include "sizes.h"
#include "status.h"
#include "weights.h"

#define DEFAULT_WINDOW 64u
#define DEFAULT_DRY_WINDOW 4096u
#define MOST_WINDOW 65536u
#define MOST_LOGPROBS 64u

struct aot_sampler_t {
  aot_allocator_t allocator;
  aot_sampler_options_t options;
  uint64_t random;
  double most_surprise;  // of Mirostat: bits
  aot_history_t history;
  aot_logit_bias_t *biases;
  aot_logit_t *candidates;
  size_t capacity;
};

// ---- what may be chosen ----

static aot_status_t reserve(aot_sampler_t *sampler, size_t count, aot_error_t *error) {
  if (count <= sampler->capacity) return AOT_OK;
  aot_release(&sampler->allocator, sampler->candidates, sampler->capacity * sizeof(aot_logit_t));
  sampler->candidates = NULL;
  sampler->capacity = 0;
  void *memory = NULL;
  AOT_TRY(aot_allocate(&sampler->allocator, (uint64_t)count * sizeof(aot_logit_t),
                       "choosing a token", error, &memory));
  sampler->candidates = memory;
  sampler->capacity = count;
  return AOT_OK;
}

static aot_status_t no_number(size_t token, size_t count, aot_error_t *error) {
  return aot_fail(error, AOT_ERROR_ARGUMENT,
                  "the logit of token %zu of %zu is no number: the model computes NaN", token,
                  count);
}

// The logits as candidates, with biases and after penalties.
static aot_status_t collect(const aot_sampler_t *sampler, const float *logits, size_t count,
                            aot_error_t *error) {
  const aot_sampler_options_t *options = &sampler->options;
  aot_logit_t *candidates = sampler->candidates;
  for (uint32_t i = 0; i < count; ++i) {
    if (logits[i] != logits[i]) return no_number(i, count, error);
    candidates[i] = (aot_logit_t){logits[i], i};
  }
  for (size_t i = 0; i < options->bias_count; ++i) {
    const aot_logit_bias_t *bias = &sampler->biases[i];
    if ((size_t)bias->token >= count) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "a bias is of token %d, expected 0 to %zu",
                      (int)bias->token, count - 1);
    }
    // Of an infinite logit too, -INFINITY forbids the token.
    aot_logit_t *own = &candidates[bias->token];
    own->logit = bias->bias == -INFINITY ? -INFINITY : own->logit + bias->bias;
  }
  aot_penalise(&sampler->history, options, candidates, count);
  return AOT_OK;
}

// What the options leave of the logits.
static aot_status_t choose_from(aot_sampler_t *sampler, const float *logits, size_t count,
                                aot_error_t *error, aot_choice_t *choice) {
  const aot_sampler_options_t *options = &sampler->options;
  if (logits == NULL || count == 0 || count > INT32_MAX / 2) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "there are no logits, or too many: %zu", count);
  }
  AOT_TRY(reserve(sampler, count, error));
  AOT_TRY(collect(sampler, logits, count, error));
  *choice = (aot_choice_t){sampler->candidates, 0, count, false, 0.0f};
  const aot_logit_t best = aot_choice_best(choice);
  if (best.logit == -INFINITY) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "none of the %zu logits is a finite number", count);
  }
  choice->largest = best.logit;
  if (best.logit == INFINITY) {
    sampler->candidates[count - 1] = best;
    *choice = (aot_choice_t){sampler->candidates, count - 1, count, true, best.logit};
  } else if (options->mirostat_tau > 0.0f) {
    aot_choice_limit_surprise(choice, options->temperature, sampler->most_surprise);
  } else {
    const bool excludes_top =
        options->xtc_probability > 0.0f &&
        aot_random_bits(&sampler->random) >> 32 < aot_fixed(options->xtc_probability);
    const bool is_greedy = options->temperature == 0.0f && options->typical_p == 0.0f;
    if (!is_greedy || excludes_top) aot_choice_narrow(choice, options, excludes_top);
  }
  return AOT_OK;
}

// ---- choosing ----

// The weight of an infinite logit is 1, and so is the largest one's without a temperature.
static uint64_t weight_of(const aot_sampler_t *sampler, const aot_choice_t *choice,
                          aot_logit_t candidate) {
  if (candidate.logit == choice->largest) return AOT_ONE;
  const float temperature = sampler->options.temperature;
  return temperature > 0.0f ? aot_weight_of(candidate.logit, choice->largest, temperature) : 0;
}

static uint64_t weight_of_all(const aot_sampler_t *sampler, const aot_choice_t *choice) {
  uint64_t total = 0;
  for (size_t i = choice->begin; i < choice->end; ++i)
    total += weight_of(sampler, choice, choice->all[i]);
  return total;
}

// One of the candidates that are left, by their weights.
static aot_logit_t draw(aot_sampler_t *sampler, const aot_choice_t *choice, uint64_t total) {
  uint64_t place = aot_multiply_high(aot_random_bits(&sampler->random), total);
  for (size_t i = choice->end; i-- > choice->begin;) {
    const uint64_t weight = weight_of(sampler, choice, choice->all[i]);
    if (place < weight) return choice->all[i];
    place -= weight;
  }
  return choice->all[choice->end - 1];  // never: the place is in the sum
}

// Lets the bound of surprise follow that of a token.
static void learn_surprise(aot_sampler_t *sampler, const aot_choice_t *choice, aot_logit_t chosen,
                           uint64_t total) {
  const aot_sampler_options_t *options = &sampler->options;
  const double log_total = aot_log2(total) - 32.0;
  const double surprise =
      aot_halvings(chosen.logit, choice->largest, options->temperature) + log_total;
  const double difference = surprise - (double)options->mirostat_tau;
  const double step = (double)options->mirostat_eta * difference;
  sampler->most_surprise -= step;
}

aot_status_t aot_sampler_next(aot_sampler_t *sampler, const float *logits, size_t count,
                              aot_error_t *error, int32_t *out_token) {
  if (sampler == NULL || out_token == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the sampler or out_token is NULL");
  }
  *out_token = -1;
  aot_choice_t choice;
  AOT_TRY(choose_from(sampler, logits, count, error, &choice));
  aot_logit_t chosen = {0.0f, 0};
  if (sampler->options.temperature == 0.0f || choice.largest == INFINITY) {
    chosen = aot_choice_best(&choice);
  } else {
    const uint64_t total = weight_of_all(sampler, &choice);
    chosen = draw(sampler, &choice, total);
    if (sampler->options.mirostat_tau > 0.0f) learn_surprise(sampler, &choice, chosen, total);
  }
  aot_sampler_accept(sampler, (int32_t)chosen.token);
  *out_token = (int32_t)chosen.token;
  return AOT_OK;
}

aot_status_t aot_sampler_candidates(aot_sampler_t *sampler, const float *logits, size_t count,
                                    aot_candidate_t *candidates, size_t capacity,
                                    aot_error_t *error, size_t *out_count) {
  if (sampler == NULL || out_count == NULL || (candidates == NULL && capacity > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the sampler, candidates or out_count is NULL");
  }
  *out_count = 0;
  const uint64_t random = sampler->random;
  aot_choice_t choice;
  const aot_status_t status = choose_from(sampler, logits, count, error, &choice);
  sampler->random = random;
  if (status != AOT_OK) return status;
  aot_choice_sort(&choice);
  const double total = (double)weight_of_all(sampler, &choice);
  size_t made = 0;
  for (size_t i = choice.end; i-- > choice.begin; ++made) {
    const uint64_t weight = weight_of(sampler, &choice, choice.all[i]);
    if (weight == 0) break;
    if (made >= capacity) continue;
    candidates[made].token = (int32_t)choice.all[i].token;
    candidates[made].probability = (float)((double)weight / total);
  }
  *out_count = made;
  return AOT_OK;
}

void aot_sampler_accept(aot_sampler_t *sampler, int32_t token) {
  if (sampler != NULL && token >= 0) aot_history_add(&sampler->history, (uint32_t)token);
}

void aot_sampler_reset(aot_sampler_t *sampler) {
  if (sampler == NULL) return;
  sampler->random = sampler->options.seed;
  sampler->most_surprise = 2.0 * (double)sampler->options.mirostat_tau;
  sampler->history.count = 0;
  sampler->history.next = 0;
}

// ---- logarithms of probabilities ----

static void insert(aot_logit_t *best, size_t *count, size_t most, aot_logit_t own) {
  size_t at = *count;
  if (at == most && (most == 0 || !aot_is_before(own, best[at - 1]))) return;
  if (at == most) --at;
  for (; at > 0 && aot_is_before(own, best[at - 1]); --at)
    best[at] = best[at - 1];
  best[at] = own;
  if (*count < most) ++*count;
}

aot_status_t aot_logprobs(const float *logits, size_t count, int32_t token, aot_logprob_t *top,
                          size_t capacity, aot_error_t *error, float *out_logprob) {
  if (logits == NULL || out_logprob == NULL || (top == NULL && capacity > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the logits, top or out_logprob is NULL");
  }
  *out_logprob = 0.0f;
  if (token < 0 || (size_t)token >= count || capacity > count || capacity > MOST_LOGPROBS) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "logprobs of token %d and the first %zu: of %zu logits, and %u at most",
                    (int)token, capacity, count, MOST_LOGPROBS);
  }
  aot_logit_t best[MOST_LOGPROBS + 1];
  size_t found = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (logits[i] != logits[i]) return no_number(i, count, error);
    insert(best, &found, capacity > 0 ? capacity : 1, (aot_logit_t){logits[i], i});
  }
  const float largest = best[0].logit;
  if (!(largest > -INFINITY && largest < INFINITY)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the largest of %zu logits is not finite", count);
  }
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i)
    total += aot_weight_of(logits[i], largest, 1.0f);
  const double log_total = (aot_log2(total) - 32.0) * 0.6931471805599453;  // ln 2
  for (size_t i = 0; i < capacity; ++i) {
    const double difference = (double)best[i].logit - (double)largest;
    top[i] = (aot_logprob_t){(int32_t)best[i].token, (float)(difference - log_total)};
  }
  *out_logprob = (float)((double)logits[token] - (double)largest - log_total);
  return AOT_OK;
}

// ---- making one ----

static aot_status_t check_numbers(const aot_sampler_options_t *options, aot_error_t *error) {
  const struct {
    const char *name;
    float value;
    float least;
    float most;
  } numbers[] = {
      {"repetition_penalty", options->repetition_penalty, 0.0f, 1e6f},
      {"frequency_penalty", options->frequency_penalty, -100.0f, 100.0f},
      {"presence_penalty", options->presence_penalty, -100.0f, 100.0f},
      {"dry_multiplier", options->dry_multiplier, 0.0f, 1e6f},
      {"dry_base", options->dry_base, 1.0f, 1e6f},
      {"typical_p", options->typical_p, 0.0f, 1.0f},
      {"top_p", options->top_p, 0.0f, 1.0f},
      {"min_p", options->min_p, 0.0f, 1.0f},
      {"xtc_probability", options->xtc_probability, 0.0f, 1.0f},
      {"xtc_threshold", options->xtc_threshold, 0.0f, 0.5f},
      {"mirostat_tau", options->mirostat_tau, 0.0f, 1e6f},
      {"mirostat_eta", options->mirostat_eta, 0.0f, 1.0f},
      {"temperature", options->temperature, 0.0f, 1e6f},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    const float value = numbers[i].value;
    if (value >= numbers[i].least && value <= numbers[i].most) continue;
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s is %g, expected %g to %g", numbers[i].name,
                    (double)value, (double)numbers[i].least, (double)numbers[i].most);
  }
  const struct {
    const char *name;
    uint32_t value;
  } windows[] = {{"penalty_window", options->penalty_window}, {"dry_window", options->dry_window}};
  for (size_t i = 0; i < 2; ++i) {
    if (windows[i].value <= MOST_WINDOW) continue;
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s is %u, expected 0 to %u", windows[i].name,
                    (unsigned)windows[i].value, MOST_WINDOW);
  }
  return AOT_OK;
}

// Options that contradict each other.
static aot_status_t check_together(const aot_sampler_options_t *options, aot_error_t *error) {
  if (options->mirostat_tau == 0.0f) return AOT_OK;
  if (options->temperature == 0.0f) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "mirostat_tau needs a temperature");
  }
  if (options->top_k == 0 && options->typical_p == 0.0f && options->top_p == 0.0f &&
      options->min_p == 0.0f && options->xtc_probability == 0.0f) {
    return AOT_OK;
  }
  return aot_fail(error, AOT_ERROR_ARGUMENT,
                  "mirostat_tau takes the place of top_k, typical_p, top_p, min_p and "
                  "xtc_probability: give one or the other");
}

static aot_status_t check_biases(const aot_sampler_options_t *options, aot_error_t *error) {
  aot_vocabulary_info_t info = {.size = sizeof info, .token_count = INT32_MAX};
  if (options->vocabulary != NULL) {
    AOT_TRY(aot_vocabulary_get_info(options->vocabulary, error, &info));
  }
  if (options->biases == NULL && options->bias_count > 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the biases are NULL");
  }
  for (size_t i = 0; i < options->bias_count; ++i) {
    const aot_logit_bias_t *bias = &options->biases[i];
    if (bias->token < 0 || (uint32_t)bias->token >= info.token_count) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "a bias is of token %d, expected 0 to %u",
                      (int)bias->token, (unsigned)info.token_count - 1);
    }
    if (bias->bias == -INFINITY || (bias->bias >= -1e6f && bias->bias <= 1e6f)) continue;
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the bias of token %d is %g, expected -1e+06 to 1e+06, or -inf",
                    (int)bias->token, (double)bias->bias);
  }
  return AOT_OK;
}

static void set_defaults(aot_sampler_options_t *options) {
  if (options->penalty_window == 0) options->penalty_window = DEFAULT_WINDOW;
  if (options->dry_base == 0.0f) options->dry_base = 1.75f;
  if (options->dry_allowed_length == 0) options->dry_allowed_length = 2;
  if (options->dry_window == 0) options->dry_window = DEFAULT_DRY_WINDOW;
  if (options->xtc_threshold == 0.0f) options->xtc_threshold = 0.1f;
  if (options->mirostat_eta == 0.0f) options->mirostat_eta = 0.1f;
}

// How many tokens have to be remembered.
static uint32_t history_length(const aot_sampler_options_t *options) {
  const bool counts = options->repetition_penalty > 0.0f || options->frequency_penalty != 0.0f ||
                      options->presence_penalty != 0.0f;
  const uint32_t length = counts ? options->penalty_window : 0;
  const bool is_longer = options->dry_multiplier > 0.0f && options->dry_window > length;
  return is_longer ? options->dry_window : length;
}

static aot_status_t fill(aot_sampler_t *sampler, aot_error_t *error) {
  aot_sampler_options_t *options = &sampler->options;
  const aot_allocator_t *allocator = &sampler->allocator;
  AOT_TRY(
      aot_history_create(options, history_length(options), allocator, error, &sampler->history));
  if (options->bias_count == 0) return AOT_OK;
  void *biases = NULL;
  const size_t bytes = options->bias_count * sizeof *sampler->biases;
  AOT_TRY(aot_allocate(allocator, bytes, "the biases", error, &biases));
  memcpy(biases, options->biases, bytes);
  sampler->biases = biases;
  return AOT_OK;
}

aot_status_t aot_sampler_create(const aot_sampler_options_t *options,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_sampler_t **out_sampler) {
  static const aot_allocator_t none;
  if (out_sampler == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_sampler is NULL");
  *out_sampler = NULL;
  aot_sampler_options_t given = {.size = sizeof given};
  if (options != NULL)
    AOT_TRY(aot_struct_take(options, "aot_sampler_options_t", &given, sizeof given, error));
  set_defaults(&given);
  AOT_TRY(check_numbers(&given, error));
  AOT_TRY(check_together(&given, error));
  AOT_TRY(check_biases(&given, error));
  aot_allocator_t own;
  AOT_TRY(aot_allocator_choose(allocator == NULL ? &none : allocator, error, &own));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&own, sizeof(aot_sampler_t), "the sampler", error, &memory));
  memset(memory, 0, sizeof(aot_sampler_t));
  aot_sampler_t *sampler = memory;
  sampler->allocator = own;
  sampler->options = given;
  const aot_status_t status = fill(sampler, error);
  if (status != AOT_OK) {
    aot_sampler_destroy(sampler);
    return status;
  }
  aot_sampler_reset(sampler);
  *out_sampler = sampler;
  return AOT_OK;
}

void aot_sampler_destroy(aot_sampler_t *sampler) {
  if (sampler == NULL) return;
  const aot_allocator_t own = sampler->allocator;
  aot_history_release(&sampler->history, &own);
  aot_release(&own, sampler->biases, sampler->options.bias_count * sizeof *sampler->biases);
  aot_release(&own, sampler->candidates, sampler->capacity * sizeof(aot_logit_t));
  aot_release(&own, sampler, sizeof *sampler);
}
