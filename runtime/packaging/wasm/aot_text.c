// Where aot_text.mjs finds what it reads and writes of aot/text.h; it has the same numbers.
#include <stddef.h>

#include "aot/text.h"

_Static_assert(offsetof(aot_vocabulary_info_t, bos) == 4 &&
                   offsetof(aot_vocabulary_info_t, adds_bos) == 16 &&
                   offsetof(aot_vocabulary_info_t, chat_role_count) == 32 &&
                   offsetof(aot_vocabulary_info_t, chat_begin) == 36 &&
                   offsetof(aot_vocabulary_info_t, chat_default) == 40 &&
                   offsetof(aot_vocabulary_info_t, chat_reply) == 44 &&
                   sizeof(aot_vocabulary_info_t) == 48,
               "aot_vocabulary_info_t");
_Static_assert(offsetof(aot_encode_options_t, parses_control) == 0 &&
                   offsetof(aot_encode_options_t, is_part) == 1 &&
                   sizeof(aot_encode_options_t) == 2,
               "aot_encode_options_t");
_Static_assert(offsetof(aot_decoder_t, is_begun) == 1 && sizeof(aot_decoder_t) == 10,
               "aot_decoder_t");
_Static_assert(offsetof(aot_sampler_options_t, repetition_penalty) == 0 &&
                   offsetof(aot_sampler_options_t, top_k) == 8 &&
                   offsetof(aot_sampler_options_t, top_p) == 12 &&
                   offsetof(aot_sampler_options_t, min_p) == 16 &&
                   offsetof(aot_sampler_options_t, temperature) == 20 &&
                   offsetof(aot_sampler_options_t, seed) == 24 &&
                   sizeof(aot_sampler_options_t) == 32,
               "aot_sampler_options_t");
