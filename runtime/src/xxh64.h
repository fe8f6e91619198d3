// XXH64, the checksum of headers and segments (xxHash by Yann Collet, the published algorithm).
#ifndef AOT_XXH64_H_
#define AOT_XXH64_H_

#include <stddef.h>
#include <stdint.h>

uint64_t aot_xxh64(const void *data, size_t bytes, uint64_t seed);

#endif  // AOT_XXH64_H_
