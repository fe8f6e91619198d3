// What one core can do at most: single-precision multiply-adds for each width of vector that it
// has, and reading memory of several sizes.  The best of several samples: other work on the machine
// only ever makes it look slower.  Nothing of the runtime is used.
#define _POSIX_C_SOURCE 200809L

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "print.h"

#define SAMPLES 25
#define ROUNDS 300000
#define MOST_BYTES ((size_t)128 << 20)
#define LEAST_BYTES ((size_t)32 << 20)  // that a sample reads

// Twelve independent chains hide the latency of two multiply-add units.  The instruction is spelled
// out, so that no compiler shortens a chain.
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) number_t a##i = b - (number_t)zero;

// GFLOP/s of a loop with one multiply-add a chain, for numbers of `bytes` bytes.
#define FMA_LOOP(name, attributes, type, bytes, STEP)                              \
  attributes static double name(void) {                                            \
    typedef type number_t;                                                         \
    const number_t zero = (number_t){0};                                           \
    const number_t b = zero + 0.999f;                                              \
    const number_t c = zero + 1e-3f;                                               \
    CHAINS(DECLARE)                                                                \
    const int64_t begin = now_ns();                                                \
    for (int k = 0; k < ROUNDS; ++k) {                                             \
      CHAINS(STEP)                                                                 \
    }                                                                              \
    return (double)ROUNDS * 12 * 2 * ((bytes) / 4.0) / (double)(now_ns() - begin); \
  }

typedef float vector128_t __attribute__((vector_size(16)));

#if defined(__x86_64__)
typedef float vector256_t __attribute__((vector_size(32)));
typedef float vector512_t __attribute__((vector_size(64)));
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a##i) : "x"(b), "x"(c));
FMA_LOOP(fma_128, __attribute__((target("avx2,fma"))), vector128_t, 16, STEP)
FMA_LOOP(fma_256, __attribute__((target("avx2,fma"))), vector256_t, 32, STEP)
FMA_LOOP(fma_512, __attribute__((target("avx512f"))), vector512_t, 64, STEP)

#else

#if defined(__aarch64__)
#define STEP(i) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(a##i) : "w"(b), "w"(c));
FMA_LOOP(fma_128, , vector128_t, 16, STEP)
#elif defined(__arm__) && defined(__ARM_NEON)
#define STEP(i) __asm__ volatile("vmla.f32 %q0, %q1, %q2" : "+w"(a##i) : "w"(b), "w"(c));
FMA_LOOP(fma_128, , vector128_t, 16, STEP)
#elif defined(__riscv_flen)
#define STEP(i) __asm__ volatile("fmadd.s %0, %1, %0, %2" : "+f"(a##i) : "f"(b), "f"(c));
FMA_LOOP(fma_32, , float, 4, STEP)
#endif
#endif

typedef struct width_t {
  int bytes;
  double (*measure)(void);
} width_t;

// Widths of vectors that this machine multiplies and adds, the narrowest first.
static size_t list_widths(width_t *widths) {
  size_t count = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
  if (has_fma) widths[count++] = (width_t){16, fma_128};
  if (has_fma) widths[count++] = (width_t){32, fma_256};
  if (__builtin_cpu_supports("avx512f")) widths[count++] = (width_t){64, fma_512};
#elif defined(__aarch64__) || (defined(__arm__) && defined(__ARM_NEON))
  widths[count++] = (width_t){16, fma_128};
#elif defined(__riscv_flen)
  widths[count++] = (width_t){4, fma_32};
#else
  (void)widths;
#endif
  return count;
}

// GB/s of reading `bytes`, again and again.
#define READ_LOOP(name, attributes, type)                                \
  attributes static double name(const void *memory, size_t bytes) {      \
    const type *data = memory;                                           \
    const size_t count = bytes / sizeof *data;                           \
    const size_t repeats = LEAST_BYTES / bytes + 1;                      \
    type s0 = {0};                                                       \
    type s1 = {0};                                                       \
    type s2 = {0};                                                       \
    type s3 = {0};                                                       \
    const int64_t begin = now_ns();                                      \
    for (size_t r = 0; r < repeats; ++r) {                               \
      for (size_t i = 0; i < count; i += 4) {                            \
        s0 += data[i];                                                   \
        s1 += data[i + 1];                                               \
        s2 += data[i + 2];                                               \
        s3 += data[i + 3];                                               \
      }                                                                  \
      s0 += s1 + s2 + s3;                                                \
      __asm__ volatile("" : : "m"(s0) : "memory");                       \
    }                                                                    \
    return (double)bytes * (double)repeats / (double)(now_ns() - begin); \
  }

READ_LOOP(read_128, , vector128_t)
#if defined(__x86_64__)
READ_LOOP(read_256, __attribute__((target("avx2"))), vector256_t)
#endif

static double read_speed(const void *memory, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return read_256(memory, bytes);
#endif
  return read_128(memory, bytes);
}

static double greater(double a, double b) {
  return a > b ? a : b;
}

bool report_machine(void) {
  static const size_t sizes[] = {(size_t)16 << 10, (size_t)256 << 10, (size_t)4 << 20, MOST_BYTES};
  width_t widths[4];
  const size_t width_count = list_widths(widths);
  (void)fputs("{\"fma_gflops\": {", stdout);
  for (size_t w = 0; w < width_count; ++w) {
    (void)widths[w].measure();  // the clock settles
    double best = 0.0;
    for (int i = 0; i < SAMPLES; ++i)
      best = greater(best, widths[w].measure());
    (void)printf("%s\"%d\": %.3f", w > 0 ? ", " : "", widths[w].bytes, best);
  }
  (void)fputs("}, \"read_gbs\": {", stdout);
  void *memory = NULL;
  if (posix_memalign(&memory, 64, MOST_BYTES) != 0) return fail("out of memory");
  memset(memory, 0, MOST_BYTES);
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
    double best = 0.0;
    for (int i = 0; i < SAMPLES; ++i)
      best = greater(best, read_speed(memory, sizes[s]));
    (void)printf("%s\"%zu\": %.3f", s > 0 ? ", " : "", sizes[s], best);
  }
  free(memory);
  (void)fputs("}}\n", stdout);
  return flush_report();
}
