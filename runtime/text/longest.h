// Encoding by the longest token that text begins with.
#ifndef AOT_LONGEST_H_
#define AOT_LONGEST_H_

#include "encoder.h"

// Encodes bytes by the longest token, again and again; a byte that none begins with is unknown.
void aot_longest(aot_encoder_t *encoder, const uint8_t *text, size_t bytes);

// Encodes words by the longest pieces, BERT's WordPiece: characters are replaced by the
// vocabulary's map, the text is cut, and a word that is not all pieces is unknown.
aot_status_t aot_word_pieces(aot_encoder_t *encoder, const uint8_t *text, size_t bytes);

#endif  // AOT_LONGEST_H_
