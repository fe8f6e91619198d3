// What the CPU that runs this can do.
#ifndef AOT_DRIVERS_CPU_CPU_FEATURES_H_
#define AOT_DRIVERS_CPU_CPU_FEATURES_H_

#include "aot/aot.h"

// Whether code of this Arch (module.fbs) runs in this process.
bool aot_cpu_has_arch(uint8_t arch);
const char *aot_cpu_arch_name(uint8_t arch);

// Whether the CPU and the system have a feature, by LLVM's name.  False for names not known here.
bool aot_cpu_has_feature(const char *name);

#endif  // AOT_DRIVERS_CPU_CPU_FEATURES_H_
