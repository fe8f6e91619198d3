// A module that is part of the program: its bytes lie in the program's text, so that its code runs
// where it is and nothing is mapped, copied or made executable.  Only in builds with AOT_EMBED.
#ifndef AOT_EMBEDDED_H_
#define AOT_EMBEDDED_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

// As aot_module_open_memory of the embedded module.  *Returns owned*.
aot_status_t aot_embedded_open(const aot_module_options_t *options, aot_error_t *error,
                               aot_module_t **out_module);

// Whether an address lies in the embedded module.
bool aot_embedded_contains(const void *address);

#ifdef __cplusplus
}
#endif

#endif  // AOT_EMBEDDED_H_
