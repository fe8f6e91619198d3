// Choosing the next token.  The same logits and seed give the same token on any machine: what is
// chosen depends on single operations of f32 and f64, as IEEE 754 has them, and on integers; the
// exponential is computed in integers.
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "aot/text.h"
#include "status.h"

#define DEFAULT_WINDOW 64u
#define MOST_WINDOW 65536u
#define ONE ((uint64_t)1 << 32)  // a weight, a probability: in units of 2^-32

// A token that may be chosen.
typedef struct candidate_t {
  float logit;
  uint32_t token;
} candidate_t;

struct aot_sampler_t {
  aot_allocator_t allocator;
  aot_sampler_options_t options;
  uint64_t state;    // of the random numbers
  uint32_t *recent;  // tokens for the penalty: a ring
  uint32_t recent_count;
  uint32_t recent_next;
  candidate_t *candidates;
  size_t capacity;
};

// ---- random numbers and weights ----

// SplitMix64.
static uint64_t random_bits(aot_sampler_t *sampler) {
  sampler->state += 0x9E3779B97F4A7C15u;
  uint64_t bits = sampler->state;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  return bits ^ bits >> 31;
}

// The upper 64 bits of a product.
static uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & UINT32_MAX;
  const uint64_t a_high = a >> 32;
  const uint64_t b_low = b & UINT32_MAX;
  const uint64_t b_high = b >> 32;
  const uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
  const uint64_t other = a_low * b_high + (middle & UINT32_MAX);
  return a_high * b_high + (middle >> 32) + (other >> 32);
}

// 2^(-i / 32), in units of 2^-63.
static const uint64_t roots[32] = {
    0x8000000000000000u, 0x7D41D96DB915019Du, 0x7A92BE8A92436616u, 0x77F25CCDEE6D7AE6u,
    0x75606373EE921C97u, 0x72DC8373BE41A454u, 0x70666F76154A7089u, 0x6DFDDBCBED791BABu,
    0x6BA27E656B4EB57Au, 0x69540EC8F895722Du, 0x6712460A8FC24072u, 0x64DCDEC3371793D1u,
    0x62B39508AA836D6Fu, 0x6096266533384A2Bu, 0x5E8451CFAC061B5Fu, 0x5C7DD7A3B17DCF75u,
    0x5A827999FCEF3242u, 0x5891FAC0E95612C8u, 0x56AC1F752150A563u, 0x54D0AD5A753E077Cu,
    0x52FF6B54D8A89C75u, 0x513821818624B40Cu, 0x4F7A993048D088D7u, 0x4DC69CDCEAA72A9Cu,
    0x4C1BF828C6DC54B8u, 0x4A7A77D47F7B84B1u, 0x48E1E9B9D588E19Bu, 0x47521CC5A2E6A9E0u,
    0x45CAE0F1F545EB73u, 0x444C0740496D4294u, 0x42D561B3E6243D8Au, 0x4166C34C5615D0ECu,
};

// 2^(-x), of x and in units of 2^-32: a root times e^(-y), y = rest * ln 2 < 0.022, by five terms
// of its series, which is right to 2^-40.
static uint64_t power_of_half(uint64_t x) {
  const uint64_t one = (uint64_t)1 << 63;
  if (x >> 32 > 32) return 0;
  const uint64_t y = multiply_high((x & 0x7FFFFFFu) << 32, 0xB17217F7D1CF79ABu);
  uint64_t sum = one - multiply_high(y, one / 4);
  sum = one - multiply_high(y, sum / 3);
  sum = one - multiply_high(y, sum / 2);
  sum = one - multiply_high(y, sum);
  return multiply_high(sum, roots[x >> 27 & 31]) >> 30 >> (x >> 32);
}

// The weight of a logit beside the largest one: e^(-difference / temperature).
static uint64_t weight_of(float logit, float largest, float temperature) {
  const double difference = (double)largest - (double)logit;
  const double quotient = difference / (double)temperature;
  const double halvings = quotient * 1.4426950408889634;  // 1 / ln 2
  if (!(halvings < 64.0)) return 0;
  return power_of_half((uint64_t)(halvings * 4294967296.0));
}

// A number from 0 to 1.
static uint64_t fixed(float value) {
  return value >= 1.0f ? ONE : (uint64_t)((double)value * 4294967296.0);
}

// ---- the largest logits ----

// Whether a candidate comes before another: the larger logit, of equal ones the lesser token.
static bool is_before(candidate_t a, candidate_t b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Moves the candidate at `at` down to its place in a heap that has the first one at its top.
static void sink(candidate_t *heap, size_t count, size_t at) {
  const candidate_t own = heap[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && is_before(heap[child + 1], heap[child])) ++child;
    if (!is_before(heap[child], own)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = own;
}

// The candidates that are left: taken ones stand behind the heap, the first one last.
typedef struct choice_t {
  candidate_t *all;
  size_t count;
  size_t taken;
  uint64_t taken_weight;  // at the temperature 1
  float largest;
} choice_t;

static const candidate_t *taken_at(const choice_t *choice, size_t index) {
  return &choice->all[choice->count - 1 - index];
}

// Takes the first candidates until there are `most`, or they weigh `enough`.
static void take(choice_t *choice, uint64_t most, uint64_t enough) {
  candidate_t *heap = choice->all;
  for (size_t i = choice->count / 2; i-- > 0;)
    sink(heap, choice->count, i);
  for (size_t left = choice->count; left > 0;) {
    const candidate_t first = heap[0];
    heap[0] = heap[--left];
    sink(heap, left, 0);
    heap[left] = first;
    ++choice->taken;
    choice->taken_weight += weight_of(first.logit, choice->largest, 1.0f);
    if (choice->taken >= most || choice->taken_weight >= enough) return;
  }
}

// Leaves the candidates that top_k, top_p and min_p do; all of them are taken then.
static void narrow(const aot_sampler_options_t *options, choice_t *choice) {
  const uint64_t top_p = options->top_p > 0.0f ? fixed(options->top_p) : ONE;
  const bool has_top_k = options->top_k > 0 && options->top_k < choice->count;
  if (has_top_k) take(choice, options->top_k, UINT64_MAX);
  if (top_p < ONE && !has_top_k) {
    uint64_t total = 0;
    for (size_t i = 0; i < choice->count; ++i)
      total += weight_of(choice->all[i].logit, choice->largest, 1.0f);
    take(choice, UINT64_MAX, multiply_high(total, top_p << 32));
  } else if (top_p < ONE) {
    const uint64_t enough = multiply_high(choice->taken_weight, top_p << 32);
    uint64_t sum = 0;
    for (size_t i = 0; i < choice->taken; ++i) {
      sum += weight_of(taken_at(choice, i)->logit, choice->largest, 1.0f);
      if (sum >= enough) choice->taken = i + 1;
    }
  }
  if (choice->taken == 0) choice->taken = choice->count;
}

// ---- choosing ----

static aot_status_t reserve(aot_sampler_t *sampler, size_t count, aot_error_t *error) {
  if (count <= sampler->capacity) return AOT_OK;
  aot_release(&sampler->allocator, sampler->candidates, sampler->capacity * sizeof(candidate_t));
  sampler->candidates = NULL;
  sampler->capacity = 0;
  void *memory = NULL;
  AOT_TRY(aot_allocate(&sampler->allocator, (uint64_t)count * sizeof(candidate_t),
                       "choosing a token", error, &memory));
  sampler->candidates = memory;
  sampler->capacity = count;
  return AOT_OK;
}

// The logits as candidates, after the penalty; those that are no numbers are never chosen.
static void collect(const aot_sampler_t *sampler, const float *logits, size_t count) {
  candidate_t *candidates = sampler->candidates;
  const float penalty = sampler->options.repetition_penalty;
  for (uint32_t i = 0; i < count; ++i) {
    const float logit = logits[i];
    candidates[i] = (candidate_t){logit == logit ? logit : -INFINITY, i};
  }
  for (uint32_t i = 0; i < sampler->recent_count; ++i) {
    const uint32_t token = sampler->recent[i];
    if (token >= count || logits[token] != logits[token]) continue;
    const float logit = logits[token];
    candidates[token].logit = logit > 0.0f ? logit / penalty : logit * penalty;
  }
}

// One of the candidates that are left, by their weights.
static uint32_t draw(aot_sampler_t *sampler, const choice_t *choice) {
  const aot_sampler_options_t *options = &sampler->options;
  const uint64_t least = options->min_p > 0.0f ? fixed(options->min_p) : 0;
  uint64_t total = 0;
  for (int pass = 0; pass < 2; ++pass) {
    uint64_t place = pass == 0 ? UINT64_MAX : multiply_high(random_bits(sampler), total);
    for (size_t i = 0; i < choice->taken; ++i) {
      const candidate_t *candidate = taken_at(choice, i);
      if (least > 0 && weight_of(candidate->logit, choice->largest, 1.0f) < least) continue;
      const uint64_t weight = weight_of(candidate->logit, choice->largest, options->temperature);
      if (place < weight) return candidate->token;
      place -= weight;
      if (pass == 0) total += weight;
    }
  }
  return taken_at(choice, 0)
      ->token;  // never: the largest has weight 1, and the place is in the sum
}

aot_status_t aot_sampler_next(aot_sampler_t *sampler, const float *logits, size_t count,
                              aot_error_t *error, int32_t *out_token) {
  if (out_token == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_token is NULL");
  *out_token = -1;
  if (sampler == NULL || logits == NULL || count == 0 || count > INT32_MAX / 2) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "there are no logits, or too many: %zu", count);
  }
  AOT_TRY(reserve(sampler, count, error));
  collect(sampler, logits, count);
  choice_t choice = {sampler->candidates, count, 0, 0, 0.0f};
  candidate_t best = choice.all[0];
  for (size_t i = 1; i < count; ++i)
    if (is_before(choice.all[i], best)) best = choice.all[i];
  if (best.logit == -INFINITY) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "none of the %zu logits is a finite number", count);
  }
  uint32_t token = best.token;
  if (sampler->options.temperature > 0.0f && best.logit < INFINITY) {
    choice.largest = best.logit;
    narrow(&sampler->options, &choice);
    token = draw(sampler, &choice);
  }
  aot_sampler_accept(sampler, (int32_t)token);
  *out_token = (int32_t)token;
  return AOT_OK;
}

void aot_sampler_accept(aot_sampler_t *sampler, int32_t token) {
  if (sampler == NULL || sampler->recent == NULL || token < 0) return;
  const uint32_t window = sampler->options.penalty_window;
  sampler->recent[sampler->recent_next] = (uint32_t)token;
  sampler->recent_next = (sampler->recent_next + 1) % window;
  if (sampler->recent_count < window) ++sampler->recent_count;
}

void aot_sampler_reset(aot_sampler_t *sampler) {
  if (sampler == NULL) return;
  sampler->state = sampler->options.seed;
  sampler->recent_count = 0;
  sampler->recent_next = 0;
}

// ---- making one ----

static aot_status_t check(const aot_sampler_options_t *options, aot_error_t *error) {
  const struct {
    const char *name;
    float value;
    float most;
  } numbers[] = {
      {"repetition_penalty", options->repetition_penalty, 1e6f},
      {"top_p", options->top_p, 1.0f},
      {"min_p", options->min_p, 1.0f},
      {"temperature", options->temperature, 1e6f},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (numbers[i].value >= 0.0f && numbers[i].value <= numbers[i].most) continue;
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s is %g, expected 0 to %g", numbers[i].name,
                    (double)numbers[i].value, (double)numbers[i].most);
  }
  if (options->penalty_window <= MOST_WINDOW) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT, "penalty_window is %u, expected 0 to %u",
                  (unsigned)options->penalty_window, MOST_WINDOW);
}

aot_status_t aot_sampler_create(const aot_sampler_options_t *options,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_sampler_t **out_sampler) {
  static const aot_sampler_options_t greedy;
  static const aot_allocator_t none;
  if (out_sampler == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_sampler is NULL");
  *out_sampler = NULL;
  if (options == NULL) options = &greedy;
  AOT_TRY(check(options, error));
  aot_allocator_t own;
  AOT_TRY(aot_allocator_choose(allocator == NULL ? &none : allocator, error, &own));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&own, sizeof(aot_sampler_t), "the sampler", error, &memory));
  memset(memory, 0, sizeof(aot_sampler_t));
  aot_sampler_t *sampler = memory;
  sampler->allocator = own;
  sampler->options = *options;
  if (options->penalty_window == 0) sampler->options.penalty_window = DEFAULT_WINDOW;
  if (options->repetition_penalty > 0.0f) {
    void *recent = NULL;
    const aot_status_t status =
        aot_allocate(&own, (uint64_t)sampler->options.penalty_window * sizeof(uint32_t),
                     "the tokens of the penalty", error, &recent);
    sampler->recent = recent;
    if (status != AOT_OK) {
      aot_sampler_destroy(sampler);
      return status;
    }
  }
  aot_sampler_reset(sampler);
  *out_sampler = sampler;
  return AOT_OK;
}

void aot_sampler_destroy(aot_sampler_t *sampler) {
  if (sampler == NULL) return;
  const aot_allocator_t own = sampler->allocator;
  aot_release(&own, sampler->recent, sampler->options.penalty_window * sizeof(uint32_t));
  aot_release(&own, sampler->candidates, sampler->capacity * sizeof(candidate_t));
  aot_release(&own, sampler, sizeof *sampler);
}
