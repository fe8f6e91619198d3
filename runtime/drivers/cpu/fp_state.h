// How this thread rounds, and what it does with denormal numbers: what kernels' bits depend on
// beside their inputs.  Flags of what has happened are no part of it.
#ifndef AOT_DRIVERS_CPU_FP_STATE_H_
#define AOT_DRIVERS_CPU_FP_STATE_H_

#include <stdint.h>

typedef uint64_t aot_fp_state_t;

static inline aot_fp_state_t aot_fp_state_get(void) {
#if defined(__SSE__)
  return __builtin_ia32_stmxcsr() & ~0x3fu;
#elif defined(__aarch64__)
  uint64_t state = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return state;
#elif defined(__ARM_FP)
  uint32_t state = 0;
  __asm__ volatile("vmrs %0, fpscr" : "=r"(state));
  return state & 0x07f79f00u;
#elif defined(__riscv_flen)
  uintptr_t state = 0;
  __asm__ volatile("frrm %0" : "=r"(state));
  return state;
#else
  return 0;
#endif
}

static inline void aot_fp_state_set(aot_fp_state_t state) {
  if (state == aot_fp_state_get()) return;
#if defined(__SSE__)
  __builtin_ia32_ldmxcsr((uint32_t)state);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(state));
#elif defined(__ARM_FP)
  __asm__ volatile("vmsr fpscr, %0" : : "r"((uint32_t)state));
#elif defined(__riscv_flen)
  __asm__ volatile("fsrm %0" : : "r"((uintptr_t)state));
#endif
}

#endif  // AOT_DRIVERS_CPU_FP_STATE_H_
