#include "weights.h"

uint64_t aot_random_bits(uint64_t *state) {
  *state += 0x9E3779B97F4A7C15u;
  uint64_t bits = *state;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  return bits ^ bits >> 31;
}

uint64_t aot_multiply_high(uint64_t a, uint64_t b) {
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
  const uint64_t y = aot_multiply_high((x & 0x7FFFFFFu) << 32, 0xB17217F7D1CF79ABu);
  uint64_t sum = one - aot_multiply_high(y, one / 4);
  sum = one - aot_multiply_high(y, sum / 3);
  sum = one - aot_multiply_high(y, sum / 2);
  sum = one - aot_multiply_high(y, sum);
  return aot_multiply_high(sum, roots[x >> 27 & 31]) >> 30 >> (x >> 32);
}

double aot_halvings(float logit, float largest, float temperature) {
  const double difference = (double)largest - (double)logit;
  const double quotient = difference / (double)temperature;
  return quotient * 1.4426950408889634;  // 1 / ln 2
}

uint64_t aot_weight_of(float logit, float largest, float temperature) {
  const double halvings = aot_halvings(logit, largest, temperature);
  if (!(halvings < 64.0)) return 0;
  return power_of_half((uint64_t)(halvings * 4294967296.0));
}

uint64_t aot_fixed(float value) {
  return value >= 1.0f ? AOT_ONE : (uint64_t)((double)value * 4294967296.0);
}

uint64_t aot_fraction_of(uint64_t total, uint64_t fraction) {
  return aot_multiply_high(total, fraction << 32);
}

// Of a mantissa from 1 to 2, each square that is 2 or more is a bit of the logarithm.
double aot_log2(uint64_t value) {
  int exponent = 63;
  for (; value >> 63 == 0 && exponent > 0; --exponent)
    value <<= 1;
  uint64_t fraction = 0;
  for (int bit = 0; bit < 32; ++bit) {
    value = aot_multiply_high(value, value);
    fraction = fraction << 1 | value >> 63;
    if (value >> 63 == 0) value <<= 1;
  }
  return (double)exponent + (double)fraction / 4294967296.0;
}
