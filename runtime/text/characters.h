// A vocabulary's map of characters.
#ifndef AOT_CHARACTERS_H_
#define AOT_CHARACTERS_H_

#include "vocabulary.h"

// Whether it is ascending, of characters that there are.
bool aot_is_character_map(const aot_vocabulary_t *vocabulary);

// Writes a text with its characters replaced, and returns its bytes: at most four times as many.
size_t aot_characters_replace(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                              uint8_t *out);

#endif  // AOT_CHARACTERS_H_
