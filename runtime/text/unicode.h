// Characters of UTF-8, and which of them are white space.
#ifndef AOT_UNICODE_H_
#define AOT_UNICODE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "utf8.h"

// Whether a character has the property White_Space.
bool aot_is_space(uint32_t character);

// Of the bytes at the start of `text` that are no character, and how many of them count as one: 0
// where they may still become a character.
size_t aot_utf8_wrong(const uint8_t *text, size_t bytes);

// Where `text` is no UTF-8; its length where it is.
size_t aot_utf8_check(const uint8_t *text, size_t bytes);

#endif  // AOT_UNICODE_H_
