// CPU features by LLVM's names: cpuid on x86, what the kernel reports elsewhere.
#if defined(__linux__)
#define _GNU_SOURCE 1  // syscall
#endif

#include "cpu_features.h"

#include <string.h>

#include "module_fbs.h"

#if defined(__linux__) && !defined(__x86_64__)
#include <sys/auxv.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
#define AOT_THIS_ARCH AOT_FBS_ARCH_X86_64
#elif defined(__aarch64__)
#define AOT_THIS_ARCH AOT_FBS_ARCH_AARCH64
#elif defined(__arm__)
#define AOT_THIS_ARCH AOT_FBS_ARCH_ARM
#elif defined(__riscv) && __riscv_xlen == 64
#define AOT_THIS_ARCH AOT_FBS_ARCH_RISCV64
#elif defined(__riscv)
#define AOT_THIS_ARCH AOT_FBS_ARCH_RISCV32
#elif defined(__wasm32__)
#define AOT_THIS_ARCH AOT_FBS_ARCH_WASM32
#else
#define AOT_THIS_ARCH AOT_FBS_ARCH_NONE
#endif

bool aot_cpu_has_arch(uint8_t arch) {
  if (arch == AOT_FBS_ARCH_THUMB) return AOT_THIS_ARCH == AOT_FBS_ARCH_ARM;
  return arch != AOT_FBS_ARCH_NONE && arch == AOT_THIS_ARCH;
}

const char *aot_cpu_arch_name(uint8_t arch) {
  static const char *const names[AOT_FBS_ARCH_COUNT] = {"no cpu", "x86-64",  "aarch64", "arm",
                                                        "thumb",  "riscv64", "riscv32", "wasm32"};
  return arch < AOT_FBS_ARCH_COUNT ? names[arch] : "unknown";
}

// One line a feature.  `word` says which of the words of the CPU's description holds `bit`.
typedef struct aot_feature_t {
  const char *name;
  uint8_t word;
  uint8_t bit;
} aot_feature_t;

#if defined(__x86_64__)

enum { L1_ECX, L1_EDX, L7_EBX, L7_ECX, L7_EDX, L7_1_EAX, X1_ECX, XSAVE_1_EAX };

static const aot_feature_t features[] = {
    {"adx", L7_EBX, 19},
    {"aes", L1_ECX, 25},
    {"avx", L1_ECX, 28},
    {"avx2", L7_EBX, 5},
    {"avx512bf16", L7_1_EAX, 5},
    {"avx512bitalg", L7_ECX, 12},
    {"avx512bw", L7_EBX, 30},
    {"avx512cd", L7_EBX, 28},
    {"avx512dq", L7_EBX, 17},
    {"avx512f", L7_EBX, 16},
    {"avx512fp16", L7_EDX, 23},
    {"avx512ifma", L7_EBX, 21},
    {"avx512vbmi", L7_ECX, 1},
    {"avx512vbmi2", L7_ECX, 6},
    {"avx512vl", L7_EBX, 31},
    {"avx512vnni", L7_ECX, 11},
    {"avx512vpopcntdq", L7_ECX, 14},
    {"avxifma", L7_1_EAX, 23},
    {"avxvnni", L7_1_EAX, 4},
    {"bmi", L7_EBX, 3},
    {"bmi2", L7_EBX, 8},
    {"clflushopt", L7_EBX, 23},
    {"clwb", L7_EBX, 24},
    {"cmov", L1_EDX, 15},
    {"crc32", L1_ECX, 20},
    {"cx16", L1_ECX, 13},
    {"cx8", L1_EDX, 8},
    {"f16c", L1_ECX, 29},
    {"fma", L1_ECX, 12},
    {"fsgsbase", L7_EBX, 0},
    {"fxsr", L1_EDX, 24},
    {"gfni", L7_ECX, 8},
    {"invpcid", L7_EBX, 10},
    {"lzcnt", X1_ECX, 5},
    {"mmx", L1_EDX, 23},
    {"movbe", L1_ECX, 22},
    {"pclmul", L1_ECX, 1},
    {"popcnt", L1_ECX, 23},
    {"prfchw", X1_ECX, 8},
    {"rdrnd", L1_ECX, 30},
    {"rdseed", L7_EBX, 18},
    {"sahf", X1_ECX, 0},
    {"sha", L7_EBX, 29},
    {"sse", L1_EDX, 25},
    {"sse2", L1_EDX, 26},
    {"sse3", L1_ECX, 0},
    {"sse4.1", L1_ECX, 19},
    {"sse4.2", L1_ECX, 20},
    {"sse4a", X1_ECX, 6},
    {"ssse3", L1_ECX, 9},
    {"vaes", L7_ECX, 9},
    {"vpclmulqdq", L7_ECX, 10},
    {"x87", L1_EDX, 0},
    {"xsave", L1_ECX, 26},
    {"xsavec", XSAVE_1_EAX, 1},
    {"xsaveopt", XSAVE_1_EAX, 0},
    {"xsaves", XSAVE_1_EAX, 3},
};

static void cpuid(uint32_t leaf, uint32_t part, uint32_t out[4]) {
  __asm__ volatile("cpuid"
                   : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                   : "a"(leaf), "c"(part));
}

// Vector state that the system does not save is a feature that isn't there.
static void hide_unsaved(uint32_t words[AOT_CPU_WORDS]) {
  uint32_t saved = 0;
  if ((words[L1_ECX] >> 27 & 1) != 0) {  // OSXSAVE
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    (void)high;
  }
  if ((saved & 0x6u) != 0x6u) {                          // XMM and YMM
    words[L1_ECX] &= ~(1u << 28 | 1u << 29 | 1u << 12);  // avx f16c fma
    words[L7_EBX] &= ~(1u << 5);                         // avx2
    words[L7_ECX] &= ~(1u << 9 | 1u << 10);              // vaes vpclmulqdq
    words[L7_1_EAX] &= ~(1u << 4 | 1u << 23);            // avxvnni avxifma
  }
  if ((saved & 0xe6u) != 0xe6u) {  // and the opmasks and ZMM
    words[L7_EBX] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 28 | 1u << 30 | 1u << 31);
    words[L7_ECX] &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
    words[L7_EDX] &= ~(1u << 23);
    words[L7_1_EAX] &= ~(1u << 5);
  }
}

static void describe(uint32_t words[AOT_CPU_WORDS]) {
  uint32_t r[4];
  cpuid(0, 0, r);
  const uint32_t most = r[0];
  cpuid(1, 0, r);
  words[L1_ECX] = r[2];
  words[L1_EDX] = r[3];
  if (most >= 7) {
    cpuid(7, 0, r);
    const uint32_t parts = r[0];
    words[L7_EBX] = r[1];
    words[L7_ECX] = r[2];
    words[L7_EDX] = r[3];
    if (parts >= 1) {
      cpuid(7, 1, r);
      words[L7_1_EAX] = r[0];
    }
  }
  if (most >= 13) {
    cpuid(13, 1, r);
    words[XSAVE_1_EAX] = r[0];
  }
  cpuid(0x80000001u, 0, r);  // it is what says that this is a 64-bit CPU
  words[X1_ECX] = r[2];
  hide_unsaved(words);
}

static const char *const always[] = {"64bit"};

#elif defined(__aarch64__)

enum { HWCAP, HWCAP2 };

static const aot_feature_t features[] = {
    {"fp-armv8", HWCAP, 0},   {"neon", HWCAP, 1},     {"aes", HWCAP, 3},
    {"sha2", HWCAP, 6},       {"crc", HWCAP, 7},      {"lse", HWCAP, 8},
    {"fullfp16", HWCAP, 10},  {"rdm", HWCAP, 12},     {"jsconv", HWCAP, 13},
    {"complxnum", HWCAP, 14}, {"rcpc", HWCAP, 15},    {"ccpp", HWCAP, 16},
    {"sha3", HWCAP, 17},      {"dotprod", HWCAP, 20}, {"sve", HWCAP, 22},
    {"fp16fml", HWCAP, 23},   {"sve2", HWCAP2, 1},    {"i8mm", HWCAP2, 13},
    {"bf16", HWCAP2, 14},     {"sme", HWCAP2, 23},
};

static const char *const always[] = {"v8a"};

#elif defined(__arm__)

enum { HWCAP, HWCAP2 };

static const aot_feature_t features[] = {
    {"fp16", HWCAP, 16},     {"neon", HWCAP, 12},      {"vfp3", HWCAP, 13},  {"vfp3d16", HWCAP, 13},
    {"vfp4", HWCAP, 16},     {"vfp4d16", HWCAP, 16},   {"d32", HWCAP, 19},   {"fp64", HWCAP, 6},
    {"vfp2", HWCAP, 6},      {"hwdiv-arm", HWCAP, 17}, {"hwdiv", HWCAP, 18}, {"thumb2", HWCAP, 2},
    {"fullfp16", HWCAP, 23}, {"dotprod", HWCAP, 24},   {"bf16", HWCAP, 26},  {"i8mm", HWCAP, 27},
    {"aes", HWCAP2, 0},      {"sha2", HWCAP2, 2},      {"crc", HWCAP2, 4},
};

// The runtime itself is built for ARMv7 or later; thumb-mode is how code is encoded, not a feature.
static const char *const always[] = {"v7", "armv7-a", "v6t2", "thumb-mode"};

#elif defined(__riscv)

enum { HWCAP, PROBED };

static const aot_feature_t features[] = {
    {"i", HWCAP, 'i' - 'a'},      {"m", HWCAP, 'm' - 'a'},      {"a", HWCAP, 'a' - 'a'},
    {"f", HWCAP, 'f' - 'a'},      {"d", HWCAP, 'd' - 'a'},      {"c", HWCAP, 'c' - 'a'},
    {"v", HWCAP, 'v' - 'a'},      {"zve32x", HWCAP, 'v' - 'a'}, {"zve32f", HWCAP, 'v' - 'a'},
    {"zve64x", HWCAP, 'v' - 'a'}, {"zve64f", HWCAP, 'v' - 'a'}, {"zve64d", HWCAP, 'v' - 'a'},
    {"zvl32b", HWCAP, 'v' - 'a'}, {"zvl64b", HWCAP, 'v' - 'a'}, {"zvl128b", HWCAP, 'v' - 'a'},
    {"zba", PROBED, 3},           {"zbb", PROBED, 4},           {"zbs", PROBED, 5},
    {"zfh", PROBED, 27},          {"zfhmin", PROBED, 28},       {"zvfh", PROBED, 30},
};

static const char *const always[] = {"64bit", "zicsr", "zifencei"};

#else

static const aot_feature_t features[] = {{"", 0, 0}};
static const char *const always[] = {""};

#endif

#if !defined(__x86_64__)

static void describe(uint32_t words[AOT_CPU_WORDS]) {
#if defined(__linux__)
  words[0] = (uint32_t)getauxval(AT_HWCAP);
#if defined(__riscv)
  // riscv_hwprobe, key IMA_EXT_0; kernels before 6.4 don't have it, and then these are absent.
  struct {
    int64_t key;
    uint64_t value;
  } pair = {4, 0};
  if (syscall(258, &pair, 1L, 0L, NULL, 0L) == 0 && pair.key == 4) words[1] = (uint32_t)pair.value;
#else
  words[1] = (uint32_t)getauxval(AT_HWCAP2);
#endif
#elif defined(__aarch64__)
  words[HWCAP] = 0x3;  // every system for this architecture has both
#if defined(__APPLE__)
  static const struct {
    const char *name;
    uint8_t bit;
  } told[] = {
      {"hw.optional.arm.FEAT_LSE", 8},      {"hw.optional.arm.FEAT_FP16", 10},
      {"hw.optional.arm.FEAT_RDM", 12},     {"hw.optional.arm.FEAT_LRCPC", 15},
      {"hw.optional.arm.FEAT_DotProd", 20}, {"hw.optional.arm.FEAT_FHM", 23},
  };
  for (size_t i = 0; i < sizeof told / sizeof told[0]; ++i) {
    int value = 0;
    size_t size = sizeof value;
    if (sysctlbyname(told[i].name, &value, &size, NULL, 0) == 0 && value != 0) {
      words[HWCAP] |= UINT32_C(1) << told[i].bit;
    }
  }
#endif
#else
  (void)words;
#endif
}

#endif

void aot_cpu_describe(aot_cpu_t *out_cpu) {
  memset(out_cpu, 0, sizeof *out_cpu);
  describe(out_cpu->words);
}

bool aot_cpu_has_feature(const aot_cpu_t *cpu, const char *name) {
  for (size_t i = 0; i < sizeof always / sizeof always[0]; ++i) {
    if (strcmp(name, always[i]) == 0) return true;
  }
  for (size_t i = 0; i < sizeof features / sizeof features[0]; ++i) {
    if (strcmp(name, features[i].name) == 0) {
      return (cpu->words[features[i].word] >> features[i].bit & 1) != 0;
    }
  }
  return false;
}
