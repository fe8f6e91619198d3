// The embedded module.  AOT_MODULE_FILE is its path, AOT_MODULE_ALIGNMENT what its code needs.
#include "aot/embedded.h"

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)
#define LABEL(name) TEXT(__USER_LABEL_PREFIX__) name

// A section of its own behind all other text: calls from text to text stay short.
#if defined(__APPLE__)
#define SECTION ".section __TEXT,__aot_module,regular,pure_instructions"
#define PREVIOUS ".text"
#elif defined(AOT_NO_OS)
// Linker scripts of boards know the sections of the language; flash is executable.
#define SECTION ".section .rodata.aot_module,\"a\",%progbits"
#define PREVIOUS ".previous"
#else
#define SECTION ".section .aot_module,\"ax\",%progbits"
#define PREVIOUS ".previous"
#endif

__asm__(SECTION
        "\n"
        ".balign " TEXT(AOT_MODULE_ALIGNMENT) "\n"
        ".globl " LABEL("aot_embedded_begin") "\n"
        LABEL("aot_embedded_begin") ":\n"
        ".incbin \"" AOT_MODULE_FILE "\"\n"
        ".globl " LABEL("aot_embedded_end") "\n"
        LABEL("aot_embedded_end") ":\n"
        ".byte 0\n"
        PREVIOUS "\n");

// Hidden: the program's own, at a distance that is known when it is linked.
__attribute__((visibility("hidden"))) extern const uint8_t aot_embedded_begin[];
__attribute__((visibility("hidden"))) extern const uint8_t aot_embedded_end[];

aot_status_t aot_embedded_open(const aot_module_options_t *options, aot_error_t *error,
                               aot_module_t **out_module) {
  const size_t bytes = (uintptr_t)aot_embedded_end - (uintptr_t)aot_embedded_begin;
  return aot_module_open_memory(aot_embedded_begin, bytes, options, error, out_module);
}

bool aot_embedded_contains(const void *address) {
  return (uintptr_t)address - (uintptr_t)aot_embedded_begin <
         (uintptr_t)aot_embedded_end - (uintptr_t)aot_embedded_begin;
}
