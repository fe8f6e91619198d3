// aot-run's command line.
#ifndef AOT_TOOLS_OPTIONS_H_
#define AOT_TOOLS_OPTIONS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aot/text.h"

#define OPTIONS_MOST_INPUTS 256
#define OPTIONS_MOST_TEXTS 64

typedef struct named_text_t {
  const char *name;  // not terminated: `name_bytes` long
  size_t name_bytes;
  const char *value;
} named_text_t;

typedef struct options_t {
  const char *module;
  const char *entry;
  const char *target;
  const char *output;
  named_text_t inputs[OPTIONS_MOST_INPUTS];
  named_text_t shapes[OPTIONS_MOST_INPUTS];
  size_t input_count;
  size_t shape_count;
  uint64_t warmup;
  uint64_t runs;
  double min_ms;
  uint32_t device;       // an aot_device_kind_t
  uint32_t threads;      // 0: one for each fast core
  uint64_t cold_rounds;  // 0: runs in this process
  int64_t started_ns;    // when this process was; 0: not known
  int report_fd;         // of who started it to measure its phases; -1: nobody
  // Of a language model; there is no reply without a prompt.
  const char *prompt;
  const char *system;      // NULL: what the chat template says
  const char *variables;   // of the chat template, JSON; NULL: none
  const char *load_state;  // files, or NULL
  const char *save_state;
  uint64_t max_tokens;  // of the reply; 0: as many as the context holds
  uint32_t logprobs;    // how many tokens are told beside each; 0: none
  aot_sampler_options_t sampling;
  aot_logit_bias_t biases[OPTIONS_MOST_TEXTS];
  const char *dry_breakers[OPTIONS_MOST_TEXTS];
  const char *stops[OPTIONS_MOST_TEXTS];  // texts that end the reply
  size_t stop_count;
  bool is_raw;  // the prompt is text that goes on, without the chat template
  bool shifts_context;
  bool is_random;
  bool is_json;
  bool verifies;
  bool copies;
  bool profiles;
  bool drops_cache;
  bool measures_machine;
  bool warms;  // only makes the program, which fills a GPU driver's pipeline cache
} options_t;

typedef enum options_result_t {
  OPTIONS_RUN,    // go on
  OPTIONS_DONE,   // --help or --version was printed
  OPTIONS_WRONG,  // a line was printed to stderr
} options_result_t;

options_result_t options_parse(int count, char **arguments, options_t *out_options);

// How programs are made.  *Borrows* the options' texts.
aot_program_options_t options_program(const options_t *options);

// Makes a program with as many threads as are asked for.  *Returns owned*.
aot_status_t options_create_program(const options_t *options, const aot_module_t *module,
                                    const aot_program_options_t *program_options,
                                    aot_error_t *error, aot_program_t **out_program);

// The value given for `name`, or NULL.
const char *options_find(const named_text_t *list, size_t count, const char *name);

#endif  // AOT_TOOLS_OPTIONS_H_
