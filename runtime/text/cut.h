// Cutting text into the parts that are encoded one by one.
#ifndef AOT_CUT_H_
#define AOT_CUT_H_

#include <stddef.h>
#include <stdint.h>

// The bytes of the first part that `text`, which has one, is cut into.
size_t aot_cut(uint8_t pre_tokeniser, const uint8_t *text, size_t bytes);

#endif  // AOT_CUT_H_
