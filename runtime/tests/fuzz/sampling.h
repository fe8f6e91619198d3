// Options of a sampler that a byte and a text say, each of them somewhere.
#ifndef AOT_TESTS_FUZZ_SAMPLING_H_
#define AOT_TESTS_FUZZ_SAMPLING_H_

#include "aot/text.h"

static const aot_logit_bias_t fuzz_biases[] = {{1, 2.5f}, {3, -100.0f}};

static aot_sampler_options_t fuzz_sampling(uint8_t how, const aot_vocabulary_t *vocabulary) {
  aot_sampler_options_t options = {.size = sizeof options,
                                   .vocabulary = vocabulary,
                                   .temperature = how & 1 ? 0.7f : 0.0f,
                                   .top_k = how & 2 ? 3 : 0,
                                   .top_p = how & 4 ? 0.8f : 0.0f,
                                   .min_p = how & 8 ? 0.1f : 0.0f,
                                   .repetition_penalty = how & 16 ? 1.3f : 0.0f,
                                   .seed = how};
  if (how & 32) {
    options.dry_multiplier = 0.8f;
    options.dry_window = how & 2 ? 7 : 0;
    options.frequency_penalty = 0.5f;
    options.presence_penalty = -1;
    options.penalty_window = 5;
  }
  if (how & 64) {
    options.typical_p = 0.9f;
    options.xtc_probability = 0.5f;
    options.biases = fuzz_biases;
    options.bias_count = sizeof fuzz_biases / sizeof fuzz_biases[0];
  }
  if ((how & 129) == 129) options.mirostat_tau = 3;
  return options;
}

#endif  // AOT_TESTS_FUZZ_SAMPLING_H_
