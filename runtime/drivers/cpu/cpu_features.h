// What this CPU can do.
#ifndef AOT_DRIVERS_CPU_CPU_FEATURES_H_
#define AOT_DRIVERS_CPU_CPU_FEATURES_H_

#include <stdbool.h>
#include <stdint.h>

#define AOT_CPU_WORDS 8

// The CPU's own description.  Asked for once and looked at often: in a virtual machine each of the
// few instructions that ask may take microseconds.
typedef struct aot_cpu_t {
  uint32_t words[AOT_CPU_WORDS];
} aot_cpu_t;

void aot_cpu_describe(aot_cpu_t *out_cpu);

// Whether code for an Arch of module.fbs runs in this process.
bool aot_cpu_has_arch(uint8_t arch);
const char *aot_cpu_arch_name(uint8_t arch);

// A feature by LLVM's name.  False for names that are not known.
bool aot_cpu_has_feature(const aot_cpu_t *cpu, const char *name);

#endif  // AOT_DRIVERS_CPU_CPU_FEATURES_H_
