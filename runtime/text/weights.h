// Probabilities in integers, so that the same logits give the same ones on any machine: what is not
// an integer is a single operation of f32 or f64, as IEEE 754 has them.
#ifndef AOT_WEIGHTS_H_
#define AOT_WEIGHTS_H_

#include <stdint.h>

#define AOT_ONE ((uint64_t)1 << 32)  // a weight of 1: weights are in units of 2^-32

// The upper 64 bits of a product.
uint64_t aot_multiply_high(uint64_t a, uint64_t b);

// A number from 0 to 1 in units of 2^-32.
uint64_t aot_fixed(float value);

// That fraction of a total; the fraction is less than AOT_ONE.
uint64_t aot_fraction_of(uint64_t total, uint64_t fraction);

// How often the weight of a logit is half of the largest one's: their difference, in units of ln 2,
// at a temperature.
double aot_halvings(float logit, float largest, float temperature);

// The weight of a logit beside the largest one, whose weight is 1: e^(-difference / temperature).
uint64_t aot_weight_of(float logit, float largest, float temperature);

// The logarithm of a positive integer, base 2, right to 2^-32.
double aot_log2(uint64_t value);

// Numbers as random as they need be (SplitMix64).
uint64_t aot_random_bits(uint64_t *state);

#endif  // AOT_WEIGHTS_H_
