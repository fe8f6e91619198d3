#include "choice.h"

#include <math.h>

#include "weights.h"

// ---- order ----

bool aot_is_before(aot_logit_t a, aot_logit_t b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

aot_logit_t aot_choice_best(const aot_choice_t *choice) {
  aot_logit_t best = choice->all[choice->end - 1];
  if (choice->is_sorted) return best;
  for (size_t i = choice->begin; i < choice->end; ++i)
    if (aot_is_before(choice->all[i], best)) best = choice->all[i];
  return best;
}

// Moves the candidate at `at` down to its place in a heap that has the first one at its top.
static void sink(aot_logit_t *heap, size_t count, size_t at) {
  const aot_logit_t own = heap[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && aot_is_before(heap[child + 1], heap[child])) ++child;
    if (!aot_is_before(heap[child], own)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = own;
}

// Leaves the first candidates, sorted: `most` of them, or as many as weigh `enough`.
static void take(aot_choice_t *choice, uint64_t most, uint64_t enough) {
  aot_logit_t *heap = choice->all + choice->begin;
  const size_t count = choice->end - choice->begin;
  size_t taken = 0;
  uint64_t weight = 0;
  for (size_t i = count / 2; i-- > 0;)
    sink(heap, count, i);
  for (size_t left = count; left > 0;) {
    const aot_logit_t first = heap[0];
    heap[0] = heap[--left];
    sink(heap, left, 0);
    heap[left] = first;
    ++taken;
    weight += aot_weight_of(first.logit, choice->largest, 1.0f);
    if (taken >= most || weight >= enough) break;
  }
  choice->begin = choice->end - taken;
  choice->is_sorted = true;
}

void aot_choice_sort(aot_choice_t *choice) {
  if (!choice->is_sorted) take(choice, UINT64_MAX, UINT64_MAX);
}

// ---- what is left ----

uint64_t aot_choice_weight(const aot_choice_t *choice, float temperature) {
  uint64_t total = 0;
  for (size_t i = choice->begin; i < choice->end; ++i)
    total += aot_weight_of(choice->all[i].logit, choice->largest, temperature);
  return total;
}

// Leaves the candidates that are not before the bound, or not behind it.
static void keep(aot_choice_t *choice, aot_logit_t bound, bool is_first) {
  size_t at = choice->end;
  for (size_t i = choice->end; i-- > choice->begin;) {
    const aot_logit_t own = choice->all[i];
    const bool is_out = is_first ? aot_is_before(own, bound) : aot_is_before(bound, own);
    if (!is_out) choice->all[--at] = own;
  }
  choice->begin = at;
}

// The last candidate that weighs at least so much, or the first of all; and how many do.
static aot_logit_t last_of_weight(const aot_choice_t *choice, uint64_t least, size_t *out_count) {
  aot_logit_t last = aot_choice_best(choice);
  size_t count = 0;
  for (size_t i = choice->begin; i < choice->end; ++i) {
    const aot_logit_t own = choice->all[i];
    if (aot_weight_of(own.logit, choice->largest, 1.0f) < least) continue;
    ++count;
    if (aot_is_before(last, own)) last = own;
  }
  *out_count = count;
  return last;
}

static void keep_top_p(aot_choice_t *choice, float top_p) {
  const uint64_t enough = aot_fraction_of(aot_choice_weight(choice, 1.0f), aot_fixed(top_p));
  if (!choice->is_sorted) {
    take(choice, UINT64_MAX, enough);
    return;
  }
  uint64_t sum = 0;
  for (size_t i = choice->end; i-- > choice->begin;) {
    sum += aot_weight_of(choice->all[i].logit, choice->largest, 1.0f);
    if (sum < enough) continue;
    choice->begin = i;
    return;
  }
}

// Keeps those whose information is nearest to the entropy, the expected one, until their
// probabilities together are more than `typical_p` ("Locally Typical Sampling", Meister et al.,
// 2022).  Both are relative to the largest's, so that the logarithm of the sum is in neither.
static void keep_typical(aot_choice_t *choice, float typical_p) {
  aot_choice_sort(choice);
  const aot_logit_t *all = choice->all;
  const uint64_t total = aot_choice_weight(choice, 1.0f);
  double entropy = 0.0;
  for (size_t i = choice->end; i-- > choice->begin;) {
    const uint64_t weight = aot_weight_of(all[i].logit, choice->largest, 1.0f);
    if (weight == 0) break;
    const double share = (double)weight / (double)total;
    const double term = share * aot_halvings(all[i].logit, choice->largest, 1.0f);
    entropy += term;
  }
  // Sorted by information, the nearest ones are neighbours.
  const uint64_t enough = aot_fraction_of(total, aot_fixed(typical_p));
  size_t begin = choice->end;
  while (begin > choice->begin &&
         aot_halvings(all[begin - 1].logit, choice->largest, 1.0f) < entropy)
    --begin;
  size_t end = begin;
  for (uint64_t sum = 0; sum <= enough && (begin > choice->begin || end < choice->end);) {
    const double left = begin > choice->begin
                            ? aot_halvings(all[begin - 1].logit, choice->largest, 1.0f) - entropy
                            : (double)INFINITY;
    const double right = end < choice->end
                             ? entropy - aot_halvings(all[end].logit, choice->largest, 1.0f)
                             : (double)INFINITY;
    const size_t nearest = right <= left ? end++ : --begin;
    sum += aot_weight_of(all[nearest].logit, choice->largest, 1.0f);
  }
  choice->begin = begin;
  choice->end = end;
  choice->largest = all[end - 1].logit;
}

// Drops those at least so probable as the threshold, but for the last of them ("exclude top
// choices").
static void exclude_top(aot_choice_t *choice, float threshold) {
  const uint64_t total = aot_choice_weight(choice, 1.0f);
  const uint64_t least = aot_fraction_of(total, aot_fixed(threshold));
  size_t count = 0;
  // What weighs nothing reaches no threshold, however small: it may be forbidden.
  const aot_logit_t last = last_of_weight(choice, least > 0 ? least : 1, &count);
  if (count < 2) return;
  keep(choice, last, true);
  choice->largest = last.logit;
}

void aot_choice_narrow(aot_choice_t *choice, const aot_sampler_options_t *options,
                       bool excludes_top) {
  if (options->top_k > 0 && options->top_k < choice->end - choice->begin)
    take(choice, options->top_k, UINT64_MAX);
  if (options->typical_p > 0.0f && options->typical_p < 1.0f)
    keep_typical(choice, options->typical_p);
  if (options->top_p > 0.0f && options->top_p < 1.0f) keep_top_p(choice, options->top_p);
  if (options->min_p > 0.0f) {
    size_t count = 0;
    keep(choice, last_of_weight(choice, aot_fixed(options->min_p), &count), false);
  }
  if (excludes_top) exclude_top(choice, options->xtc_threshold);
}

void aot_choice_limit_surprise(aot_choice_t *choice, float temperature, double most) {
  const double log_total = aot_log2(aot_choice_weight(choice, temperature)) - 32.0;
  aot_logit_t last = aot_choice_best(choice);
  for (size_t i = choice->begin; i < choice->end; ++i) {
    const double halvings = aot_halvings(choice->all[i].logit, choice->largest, temperature);
    if (halvings + log_total <= most && aot_is_before(last, choice->all[i])) last = choice->all[i];
  }
  keep(choice, last, false);
}
