// fp32 limits of one core: multiply-add peak at 128, 256 and 512 bits, and read bandwidth by
// working set. Median of nine. x86-64 only; a width the machine lacks is left out.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLES = 9 };

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Twelve independent chains hide the latency of two multiply-add units. The instruction is spelled
// out so that no compiler shortens the chain.
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) vector_t a##i = b - (float)i;
#define STEP(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a##i) : "x"(b), "x"(c));
#define FMA_GFLOPS(name, features, bytes)                                   \
  __attribute__((target(features))) static double name(void) {              \
    typedef float vector_t __attribute__((vector_size(bytes)));             \
    const long rounds = 10000000;                                           \
    const vector_t zero = {0}, b = zero + 0.999f, c = zero + 1e-3f;         \
    CHAINS(DECLARE)                                                         \
    const double begin = now_s();                                           \
    for (long k = 0; k < rounds; ++k) {                                     \
      CHAINS(STEP)                                                          \
    }                                                                       \
    return (double)rounds * 12 * 2 * (bytes / 4) / (now_s() - begin) / 1e9; \
  }
FMA_GFLOPS(fma_128, "avx2,fma", 16)
FMA_GFLOPS(fma_256, "avx2,fma", 32)
FMA_GFLOPS(fma_512, "avx512f", 64)

static float *buffer;

__attribute__((target("avx2"))) static double read_gbs(size_t bytes) {
  typedef float vector_t __attribute__((vector_size(32)));
  const vector_t *data = (const vector_t *)buffer;
  const size_t count = bytes / sizeof *data, repeats = ((size_t)256 << 20) / bytes;
  vector_t s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  const double begin = now_s();
  for (size_t r = 0; r < repeats; ++r) {
    for (size_t i = 0; i < count; i += 4) {
      s0 += data[i];
      s1 += data[i + 1];
      s2 += data[i + 2];
      s3 += data[i + 3];
    }
    __asm__ volatile("" : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3));
  }
  return (double)(bytes * repeats) / (now_s() - begin) / 1e9;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

#define PRINT_MEDIAN(label, unit, expression)                \
  do {                                                       \
    double v[SAMPLES];                                       \
    for (int i = 0; i < SAMPLES; ++i)                        \
      v[i] = (expression);                                   \
    qsort(v, SAMPLES, sizeof *v, compare_doubles);           \
    printf("%-18s %7.1f %s\n", label, v[SAMPLES / 2], unit); \
  } while (0)

int main(void) {
  const size_t bytes = (size_t)256 << 20;
  buffer = aligned_alloc(64, bytes);
  if (!buffer || !__builtin_cpu_supports("fma")) return 1;
  memset(buffer, 0, bytes);
  fma_256();  // lets the clock settle
  PRINT_MEDIAN("FMA 128 bits", "GFLOP/s", fma_128());
  PRINT_MEDIAN("FMA 256 bits", "GFLOP/s", fma_256());
  if (__builtin_cpu_supports("avx512f")) PRINT_MEDIAN("FMA 512 bits", "GFLOP/s", fma_512());
  PRINT_MEDIAN("read 16 KiB", "GB/s", read_gbs((size_t)16 << 10));
  PRINT_MEDIAN("read 512 KiB", "GB/s", read_gbs((size_t)512 << 10));
  PRINT_MEDIAN("read 8 MiB", "GB/s", read_gbs((size_t)8 << 20));
  PRINT_MEDIAN("read 256 MiB", "GB/s", read_gbs(bytes));
  return 0;
}
