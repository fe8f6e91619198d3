// What one core can do at most: multiply-adds of floats and sums of products of bytes for each
// width of vector that it has, and reading memory of several sizes.  The best of several samples:
// other work on the machine only ever makes it look slower.  Nothing of the runtime is used.
#define _POSIX_C_SOURCE 200809L

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "measure.h"
#include "print.h"

#define SAMPLES 25
#define ROUNDS 300000
#define MOST_BYTES ((size_t)128 << 20)
#define LEAST_BYTES ((size_t)32 << 20)  // that a sample reads

// Twelve independent chains hide the latency of two multiply-add units.  The instructions are
// spelled out, so that no compiler shortens a chain.
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) number_t a##i = b - (number_t)zero;

// Operations a nanosecond of a loop with one step a chain, which does `operations` of them.
#define LOOP(name, attributes, type, first, second, operations, STEP)               \
  attributes static double name(void) {                                             \
    typedef type number_t;                                                          \
    const number_t zero = (number_t){0};                                            \
    const number_t b = zero + (first);                                              \
    const number_t c = zero + (second);                                             \
    CHAINS(DECLARE)                                                                 \
    const int64_t begin = now_ns();                                                 \
    for (int k = 0; k < ROUNDS; ++k) {                                              \
      CHAINS(STEP)                                                                  \
    }                                                                               \
    return (double)ROUNDS * 12 * (double)(operations) / (double)(now_ns() - begin); \
  }
// A multiply-add is two operations.
#define FMA_LOOP(name, attributes, type, bytes, STEP) \
  LOOP(name, attributes, type, 0.999f, 1e-3f, 2 * ((bytes) / 4.0), STEP)
#define BYTES_LOOP(name, attributes, type, bytes, STEP) \
  LOOP(name, attributes, type, 0x01010101, 0x00010001, 2 * (bytes), STEP)

typedef float vector128_t __attribute__((vector_size(16)));
typedef int32_t words128_t __attribute__((vector_size(16)));

#if defined(__x86_64__)
typedef float vector256_t __attribute__((vector_size(32)));
typedef float vector512_t __attribute__((vector_size(64)));
typedef int32_t words256_t __attribute__((vector_size(32)));
typedef int32_t words512_t __attribute__((vector_size(64)));
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a##i) : "x"(b), "x"(c));
FMA_LOOP(fma_128, __attribute__((target("avx2,fma"))), vector128_t, 16, STEP)
FMA_LOOP(fma_256, __attribute__((target("avx2,fma"))), vector256_t, 32, STEP)
FMA_LOOP(fma_512, __attribute__((target("avx512f"))), vector512_t, 64, STEP)
#undef STEP
// Bytes to sums of pairs, those to sums of four, and these to the chain.
#define STEP(i)                                                                          \
  {                                                                                      \
    number_t pairs;                                                                      \
    __asm__ volatile("vpmaddubsw %2, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0" \
                     : "+v"(a##i), "=&v"(pairs)                                          \
                     : "v"(b), "v"(c));                                                  \
  }
BYTES_LOOP(bytes_128, __attribute__((target("avx2"))), words128_t, 16, STEP)
BYTES_LOOP(bytes_256, __attribute__((target("avx2"))), words256_t, 32, STEP)
BYTES_LOOP(bytes_512, __attribute__((target("avx512bw"))), words512_t, 64, STEP)
#undef STEP
#define STEP(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a##i) : "v"(b), "v"(c));
BYTES_LOOP(dots_512, __attribute__((target("avx512vnni"))), words512_t, 64, STEP)
BYTES_LOOP(dots_256, __attribute__((target("avx512vnni,avx512vl"))), words256_t, 32, STEP)
BYTES_LOOP(dots_128, __attribute__((target("avx512vnni,avx512vl"))), words128_t, 16, STEP)
#undef STEP
#define STEP(i) __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(a##i) : "x"(b), "x"(c));
BYTES_LOOP(vex_dots_256, __attribute__((target("avx2"))), words256_t, 32, STEP)
BYTES_LOOP(vex_dots_128, __attribute__((target("avx2"))), words128_t, 16, STEP)

#else

#if defined(__aarch64__)
typedef int16_t halves128_t __attribute__((vector_size(16)));  // the bits of eight halves
#define STEP(i) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(a##i) : "w"(b), "w"(c));
FMA_LOOP(fma_128, , vector128_t, 16, STEP)
#undef STEP
#define STEP(i)                                                       \
  __asm__ volatile(".arch armv8.2-a+fp16\n\tfmla %0.8h, %1.8h, %2.8h" \
                   : "+w"(a##i)                                       \
                   : "w"(b), "w"(c));
LOOP(halves_128, , halves128_t, 0x3BFE, 0x1419, 2 * 8, STEP)
#undef STEP
// Bytes to sums of pairs, and those to the chain.
#define STEP(i)                                                         \
  {                                                                     \
    number_t pairs;                                                     \
    __asm__ volatile(                                                   \
        "smull %1.8h, %2.8b, %3.8b\n\tsmlal2 %1.8h, %2.16b, %3.16b\n\t" \
        "sadalp %0.4s, %1.8h"                                           \
        : "+w"(a##i), "=&w"(pairs)                                      \
        : "w"(b), "w"(c));                                              \
  }
BYTES_LOOP(bytes_128, , words128_t, 16, STEP)
#undef STEP
#define STEP(i)                                                            \
  __asm__ volatile(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" \
                   : "+w"(a##i)                                            \
                   : "w"(b), "w"(c));
BYTES_LOOP(dots_128, , words128_t, 16, STEP)
#elif defined(__arm__) && defined(__ARM_NEON)
#define STEP(i) __asm__ volatile("vmla.f32 %q0, %q1, %q2" : "+w"(a##i) : "w"(b), "w"(c));
FMA_LOOP(fma_128, , vector128_t, 16, STEP)
#elif defined(__riscv_flen)
#define STEP(i) __asm__ volatile("fmadd.s %0, %1, %0, %2" : "+f"(a##i) : "f"(b), "f"(c));
FMA_LOOP(fma_32, , float, 4, STEP)
#endif
#endif

typedef struct width_t {
  const char *key;  // of the report
  int bytes;
  double (*measure)(void);
} width_t;

#define MOST_WIDTHS 12
#define FMA "fma_gflops"
#define HALVES "half_gflops"
#define BYTES "byte_gops"
#define DOTS "byte_dot_gops"

#if defined(__x86_64__)
// Whether the CPU has AVX-VNNI, which not every compiler knows by name.
static bool has_vex_dots(void) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
}
#endif

#if defined(__aarch64__)
// Bits of the auxiliary vector: FEAT_FP16 and FEAT_DotProd, which all of Apple's 64-bit desktops
// have.
static bool has_feature(unsigned bit) {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> bit & 1) != 0;
#elif defined(__APPLE__)
  (void)bit;
  return true;
#else
  (void)bit;
  return false;
#endif
}
static bool has_halves(void) {
  return has_feature(10);
}
static bool has_dots(void) {
  return has_feature(20);
}
#endif

// Arithmetic that this machine has, by key and then by width of vector, the narrowest first.
static size_t list_widths(width_t *widths) {
  size_t count = 0;
#define ADD(...) widths[count++] = (width_t){__VA_ARGS__}
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_256 = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
  if (has_256) ADD(FMA, 16, fma_128);
  if (has_256) ADD(FMA, 32, fma_256);
  if (__builtin_cpu_supports("avx512f")) ADD(FMA, 64, fma_512);
  if (has_256) ADD(BYTES, 16, bytes_128);
  if (has_256) ADD(BYTES, 32, bytes_256);
  if (__builtin_cpu_supports("avx512bw")) ADD(BYTES, 64, bytes_512);
  const bool has_512 = __builtin_cpu_supports("avx512vnni");
  const bool is_narrow = has_512 && __builtin_cpu_supports("avx512vl");
  if (is_narrow || (has_256 && has_vex_dots())) {
    ADD(DOTS, 16, is_narrow ? dots_128 : vex_dots_128);
    ADD(DOTS, 32, is_narrow ? dots_256 : vex_dots_256);
  }
  if (has_512) ADD(DOTS, 64, dots_512);
#elif defined(__aarch64__)
  ADD(FMA, 16, fma_128);
  if (has_halves()) ADD(HALVES, 16, halves_128);
  ADD(BYTES, 16, bytes_128);
  if (has_dots()) ADD(DOTS, 16, dots_128);
#elif defined(__arm__) && defined(__ARM_NEON)
  ADD(FMA, 16, fma_128);
#elif defined(__riscv_flen)
  ADD(FMA, 4, fma_32);
#else
  (void)widths;
#endif
#undef ADD
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

// `"key": {"bytes": operations a nanosecond, ...}, ` for each key; FMA without any width, too.
static void report_arithmetic(void) {
  width_t widths[MOST_WIDTHS];
  const size_t count = list_widths(widths);
  const char *key = FMA;
  (void)fputs("{\"" FMA "\": {", stdout);
  for (size_t w = 0; w < count; ++w) {
    const bool is_first = w == 0 || strcmp(widths[w].key, key) != 0;
    if (w > 0 && is_first) (void)printf("}, \"%s\": {", widths[w].key);
    key = widths[w].key;
    (void)widths[w].measure();  // the clock settles
    double best = 0.0;
    for (int i = 0; i < SAMPLES; ++i)
      best = greater(best, widths[w].measure());
    (void)printf("%s\"%d\": %.3f", is_first ? "" : ", ", widths[w].bytes, best);
  }
  (void)fputs("}, ", stdout);
}

bool report_machine(void) {
  static const size_t sizes[] = {(size_t)16 << 10, (size_t)256 << 10, (size_t)4 << 20, MOST_BYTES};
  report_arithmetic();
  (void)fputs("\"read_gbs\": {", stdout);
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
