// Where aot_text.mjs finds what it reads and writes of aot/text.h; it has the same numbers.
#include <stddef.h>

#include "aot/text.h"

_Static_assert(offsetof(aot_vocabulary_info_t, bos) == 4 &&
                   offsetof(aot_vocabulary_info_t, adds_bos) == 16 &&
                   offsetof(aot_vocabulary_info_t, chat_template) == 28 &&
                   sizeof(aot_vocabulary_info_t) == 40,
               "aot_vocabulary_info_t");
_Static_assert(offsetof(aot_encode_options_t, parses_control) == 0 &&
                   offsetof(aot_encode_options_t, is_part) == 1 &&
                   offsetof(aot_encode_options_t, plain) == 4 && sizeof(aot_encode_options_t) == 8,
               "aot_encode_options_t");
_Static_assert(offsetof(aot_render_options_t, is_strict) == 16 &&
                   offsetof(aot_render_options_t, has_clock) == 17 &&
                   offsetof(aot_render_options_t, local_seconds) == 24 &&
                   sizeof(aot_render_options_t) == 32,
               "aot_render_options_t");
_Static_assert(offsetof(aot_rendered_t, marks) == 4 && offsetof(aot_rendered_t, bytes) == 8 &&
                   sizeof(aot_rendered_t) == 12,
               "aot_rendered_t");
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
