// Where aot_text.mjs finds what it reads and writes of aot/text.h; it has the same numbers.
#include <stddef.h>

#include "aot/text.h"

_Static_assert(offsetof(aot_vocabulary_info_t, bos) == 8 &&
                   offsetof(aot_vocabulary_info_t, adds_bos) == 20 &&
                   offsetof(aot_vocabulary_info_t, chat_template) == 32 &&
                   sizeof(aot_vocabulary_info_t) == 44,
               "aot_vocabulary_info_t");
_Static_assert(offsetof(aot_prefix_info_t, text) == 4 && offsetof(aot_prefix_info_t, is_raw) == 8 &&
                   offsetof(aot_prefix_info_t, tokens) == 12 &&
                   offsetof(aot_prefix_info_t, token_count) == 16 &&
                   sizeof(aot_prefix_info_t) == 20,
               "aot_prefix_info_t");
_Static_assert(offsetof(aot_encode_options_t, parses_control) == 4 &&
                   offsetof(aot_encode_options_t, is_part) == 5 &&
                   offsetof(aot_encode_options_t, plain) == 8 && sizeof(aot_encode_options_t) == 12,
               "aot_encode_options_t");
_Static_assert(offsetof(aot_render_options_t, is_strict) == 24 &&
                   offsetof(aot_render_options_t, has_clock) == 25 &&
                   offsetof(aot_render_options_t, local_seconds) == 32 &&
                   sizeof(aot_render_options_t) == 40,
               "aot_render_options_t");
_Static_assert(offsetof(aot_rendered_t, marks) == 8 && offsetof(aot_rendered_t, bytes) == 12 &&
                   sizeof(aot_rendered_t) == 16,
               "aot_rendered_t");
_Static_assert(offsetof(aot_sampler_options_t, vocabulary) == 4 &&
                   offsetof(aot_sampler_options_t, biases) == 8 &&
                   offsetof(aot_sampler_options_t, repetition_penalty) == 16 &&
                   offsetof(aot_sampler_options_t, penalty_window) == 28 &&
                   offsetof(aot_sampler_options_t, dry_multiplier) == 32 &&
                   offsetof(aot_sampler_options_t, dry_window) == 44 &&
                   offsetof(aot_sampler_options_t, dry_breakers) == 48 &&
                   offsetof(aot_sampler_options_t, top_k) == 56 &&
                   offsetof(aot_sampler_options_t, typical_p) == 60 &&
                   offsetof(aot_sampler_options_t, temperature) == 88 &&
                   offsetof(aot_sampler_options_t, seed) == 96 &&
                   sizeof(aot_sampler_options_t) == 104,
               "aot_sampler_options_t");
_Static_assert(offsetof(aot_reply_options_t, max_tokens) == 8 &&
                   offsetof(aot_reply_options_t, stops) == 16 &&
                   offsetof(aot_reply_options_t, logprobs) == 24 &&
                   sizeof(aot_reply_options_t) == 32,
               "aot_reply_options_t");
_Static_assert(offsetof(aot_reply_info_t, end) == 16 && offsetof(aot_reply_info_t, token) == 20 &&
                   offsetof(aot_reply_info_t, logprob) == 24 &&
                   offsetof(aot_reply_info_t, top) == 32 && sizeof(aot_reply_info_t) == 40,
               "aot_reply_info_t");
