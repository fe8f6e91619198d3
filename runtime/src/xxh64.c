#include "xxh64.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file format is little endian and is read in place"
#endif

#define P1 0x9e3779b185ebca87ull
#define P2 0xc2b2ae3d27d4eb4full
#define P3 0x165667b19e3779f9ull
#define P4 0x85ebca77c2b2ae63ull
#define P5 0x27d4eb2f165667c5ull

static uint64_t rotate_left(uint64_t value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

static uint64_t read64(const uint8_t *p) {
  uint64_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

static uint32_t read32(const uint8_t *p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

static uint64_t mix(uint64_t accumulator, uint64_t input) {
  return rotate_left(accumulator + input * P2, 31) * P1;
}

static uint64_t merge(uint64_t hash, uint64_t accumulator) {
  return (hash ^ mix(0, accumulator)) * P1 + P4;
}

uint64_t aot_xxh64(const void *data, size_t bytes, uint64_t seed) {
  const uint8_t *p = data;
  size_t left = bytes;
  uint64_t hash = seed + P5;
  if (left >= 32) {
    uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; left >= 32; p += 32, left -= 32) {
      a = mix(a, read64(p));
      b = mix(b, read64(p + 8));
      c = mix(c, read64(p + 16));
      d = mix(d, read64(p + 24));
    }
    hash = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += (uint64_t)bytes;
  for (; left >= 8; p += 8, left -= 8) {
    hash = rotate_left(hash ^ mix(0, read64(p)), 27) * P1 + P4;
  }
  if (left >= 4) {
    hash = rotate_left(hash ^ (uint64_t)read32(p) * P1, 23) * P2 + P3;
    p += 4;
    left -= 4;
  }
  for (; left > 0; ++p, --left) {
    hash = rotate_left(hash ^ *p * P5, 11) * P1;
  }
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}
