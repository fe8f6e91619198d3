#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/cores.h"

static const char help[] =
#ifdef AOT_EMBED
    "usage: PROGRAM [options]\n"
    "\n"
    "Runs an entry point of the module that is part of this program: the first inference, then\n"
    "--warmup and --runs more.\n"
#else
    "usage: aot-run MODULE [options]\n"
    "\n"
    "Runs an entry point of a compiled module: the first inference, then --warmup and --runs "
    "more.\n"
#endif
    "\n"
    "inputs\n"
    "  --input NAME=FILE.npy   reads an input from a file\n"
    "  --input NAME=random     fills it: floats in [-1, 1), integers 0 to 3, the same every time\n"
    "  --random                fills every input that is not given\n"
    "  --shape NAME=1x3x48x192 shape of a random input; needed where the module leaves it open\n"
    "  --entry NAME            entry point (default: the first)\n"
    "  --target NAME           variant to use (default: the first that runs here)\n"
    "\n"
    "running\n"
    "  --warmup N              runs that are not timed, after the first inference (default: 0)\n"
    "  --runs N                timed runs; 0 stops after the first inference (default: 1)\n"
    "  --min-ms MS             goes on with timed runs for at least so long (default: 0)\n"
    "  --bench N               the same as --warmup 3 --runs N\n"
    "  --seconds S             goes on with timed runs for at least so long\n"
    "  --threads N             threads that share the work, this one included (default: 1); auto: "
    "one\n"
    "                          for each fast core\n"
    "  --device NAME           cpu, vulkan, or auto: the first variant that runs here (default)\n"
    "  --warm                  makes the program and stops: on a GPU this fills the pipeline "
    "cache\n"
    "  --verify                checks the weights' checksum too, before running\n"
    "  --copy                  reads the file into memory instead of mapping it\n"
    "\n"
    "results\n"
    "  --output DIR            writes each output as DIR/NAME.npy, or DIR/INDEX.npy where the "
    "name\n"
    "                          is no safe file name (default: writes nothing)\n"
    "  --prompt TEXT           of a language model: writes its reply to TEXT instead\n"
    "  --system TEXT           the system message (default: what the chat template says)\n"
    "  --variables JSON        more of the chat template, an object, such as\n"
    "                          '{\"enable_thinking\":false}'\n"
    "  --raw                   TEXT is to be continued, without the chat template\n"
    "  --max-tokens N          of the reply (default: as many as the context holds)\n"
    "  --context-shift         where the context is full, forgets the older half and goes on\n"
    "  --stop TEXT             ends the reply before this text; may be given several times\n"
    "  --logprobs N            with --json: a line for each token, with its logarithmic\n"
    "                          probability and the N most probable ones\n"
    "  --temperature X, --top-k N, --top-p X, --min-p X, --typical-p X, --seed N\n"
    "                          how tokens are chosen (default: the most probable one)\n"
    "  --repetition-penalty X, --frequency-penalty X, --presence-penalty X, --penalty-window N\n"
    "                          of tokens that came lately\n"
    "  --dry-multiplier X, --dry-base X, --dry-allowed-length N, --dry-window N, --dry-breaker "
    "TEXT\n"
    "                          of tokens that would go on with a repetition\n"
    "  --xtc-probability X, --xtc-threshold X\n"
    "                          how often the most probable tokens are left out\n"
    "  --mirostat-tau X, --mirostat-eta X\n"
    "                          the surprise that a text is to have, in bits\n"
    "  --logit-bias TOKEN=X    adds X to the logit of a token, by its number; -inf: never\n"
    "  --load-state FILE       begins with the state that an earlier run saved\n"
    "  --save-state FILE       writes the state behind the reply\n"
    "  --json                  the last line printed is a JSON object with all measurements\n"
    "  --profile               after the timed runs as many more, in which each launch is timed\n"
    "  --cold N                starts N fresh processes instead, and tells what each phase of a\n"
    "                          start takes\n"
    "  --drop-cache            with --cold: as many more, with the module out of the page cache\n"
    "  --started-ns NS         when this process was started, by CLOCK_MONOTONIC: adds a phase "
    "exec\n"
    "  --machine               measures one core instead: multiply-adds and memory (needs no "
    "MODULE)\n"
    "  --help, --version\n"
    "\n"
    "exit status: 0 all is well, 1 something failed, 2 the command line is wrong\n";

static options_result_t wrong(const char *what, const char *value) {
  (void)fprintf(stderr, "aot-run: %s%s%s (see --help)\n", what, value != NULL ? ": " : "",
                value != NULL ? value : "");
  return OPTIONS_WRONG;
}

static bool parse_count(const char *text, uint64_t *out_count) {
  char *end = NULL;
  errno = 0;
  const unsigned long long count = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || text[0] < '0' || text[0] > '9') return false;
  *out_count = count;
  return true;
}

// Adds NAME=VALUE to a list.  Returns what is wrong, or NULL.
static const char *parse_named(const char *text, named_text_t *list, size_t *count) {
  // The last "=": input names may hold one, files and shapes can be named so that they don't.
  const char *equals = strrchr(text, '=');
  if (equals == NULL || equals == text || equals[1] == '\0') return "expected NAME=VALUE";
  const named_text_t item = {text, (size_t)(equals - text), equals + 1};
  for (size_t i = 0; i < *count; ++i) {
    if (list[i].name_bytes == item.name_bytes && memcmp(list[i].name, text, item.name_bytes) == 0) {
      return "the name was given before";
    }
  }
  if (*count == OPTIONS_MOST_INPUTS) return "too many inputs";
  list[(*count)++] = item;
  return NULL;
}

// An option without a value; false when it is none.
static bool parse_switch(const char *name, options_t *options) {
  const struct {
    const char *name;
    bool *target;
  } switches[] = {
      {"--random", &options->is_random},
      {"--json", &options->is_json},
      {"--verify", &options->verifies},
      {"--copy", &options->copies},
      {"--profile", &options->profiles},
      {"--drop-cache", &options->drops_cache},
      {"--machine", &options->measures_machine},
      {"--warm", &options->warms},
      {"--raw", &options->is_raw},
      {"--context-shift", &options->shifts_context},
  };
  for (size_t i = 0; i < sizeof switches / sizeof *switches; ++i) {
    if (strcmp(name, switches[i].name) != 0) continue;
    *switches[i].target = true;
    return true;
  }
  return false;
}

static bool parse_number(const char *text, double *out_number) {
  char *end = NULL;
  const double number = strtod(text, &end);
  if (end == text || *end != '\0' || !(number >= 0.0) || number > 1e12) return false;
  *out_number = number;
  return true;
}

// A number that may be negative, or infinite.
static bool parse_float(const char *text, float *out_number) {
  char *end = NULL;
  const double number = strtod(text, &end);
  if (end == text || *end != '\0') return false;
  *out_number = (float)number;
  return true;
}

static bool parse_small_count(const char *text, uint32_t *out_count) {
  uint64_t count = 0;
  if (!parse_count(text, &count) || count > UINT32_MAX) return false;
  *out_count = (uint32_t)count;
  return true;
}

// ---- how tokens are chosen ----

static const char *parse_text(const char *text, const char **list, size_t *count) {
  if (*count == OPTIONS_MOST_TEXTS) return "was given too often";
  list[(*count)++] = text;
  return NULL;
}

static const char *parse_breaker(const char *text, options_t *options) {
  options->sampling.dry_breakers = options->dry_breakers;
  return parse_text(text, options->dry_breakers, &options->sampling.dry_breaker_count);
}

static const char *parse_stop(const char *text, options_t *options) {
  return parse_text(text, options->stops, &options->stop_count);
}

static const char *parse_bias(const char *text, options_t *options) {
  aot_sampler_options_t *sampling = &options->sampling;
  if (sampling->bias_count == OPTIONS_MOST_TEXTS) return "was given too often";
  aot_logit_bias_t *bias = &options->biases[sampling->bias_count];
  char *end = NULL;
  errno = 0;
  const long token = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '=' || token < 0 || token > INT32_MAX ||
      !parse_float(end + 1, &bias->bias)) {
    return "expected TOKEN=BIAS, a token's number and a number";
  }
  bias->token = (int32_t)token;
  sampling->biases = options->biases;
  ++sampling->bias_count;
  return NULL;
}

// An option of the sampler.  Returns false where it is none.
static bool parse_sampling(const char *name, const char *value, options_t *options,
                           const char **out_problem) {
  aot_sampler_options_t *to = &options->sampling;
  const struct {
    const char *name;
    float *target;
  } numbers[] = {{"--temperature", &to->temperature},
                 {"--top-p", &to->top_p},
                 {"--min-p", &to->min_p},
                 {"--typical-p", &to->typical_p},
                 {"--repetition-penalty", &to->repetition_penalty},
                 {"--frequency-penalty", &to->frequency_penalty},
                 {"--presence-penalty", &to->presence_penalty},
                 {"--dry-multiplier", &to->dry_multiplier},
                 {"--dry-base", &to->dry_base},
                 {"--xtc-probability", &to->xtc_probability},
                 {"--xtc-threshold", &to->xtc_threshold},
                 {"--mirostat-tau", &to->mirostat_tau},
                 {"--mirostat-eta", &to->mirostat_eta}};
  const struct {
    const char *name;
    uint32_t *target;
  } counts[] = {{"--top-k", &to->top_k},
                {"--penalty-window", &to->penalty_window},
                {"--dry-allowed-length", &to->dry_allowed_length},
                {"--dry-window", &to->dry_window},
                {"--logprobs", &options->logprobs}};
  static const struct {
    const char *name;
    const char *(*parse)(const char *text, options_t *options);
  } others[] = {
      {"--dry-breaker", parse_breaker}, {"--stop", parse_stop}, {"--logit-bias", parse_bias}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (strcmp(name, numbers[i].name) != 0) continue;
    *out_problem = parse_float(value, numbers[i].target) ? NULL : "expected a number";
    return true;
  }
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    if (strcmp(name, counts[i].name) != 0) continue;
    *out_problem =
        parse_small_count(value, counts[i].target) ? NULL : "expected a number of tokens";
    return true;
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (strcmp(name, others[i].name) != 0) continue;
    *out_problem = others[i].parse(value, options);
    return true;
  }
  return false;
}

static const char *parse_device(const char *text, options_t *options) {
  static const char *const names[] = {"auto", "cpu", "vulkan"};  // as in aot_device_kind_t
  for (uint32_t i = 0; i < 3; ++i) {
    if (strcmp(text, names[i]) != 0) continue;
    options->device = i;
    return NULL;
  }
  return "expected auto, cpu or vulkan";
}

static const char *parse_threads(const char *text, options_t *options) {
  if (strcmp(text, "auto") == 0) {
    options->threads = 0;
    return NULL;
  }
  uint64_t count = 0;
  if (!parse_count(text, &count) || count < 1 || count > AOT_MOST_THREADS) {
    return "expected a number of threads, 1 to 256, or auto";
  }
  options->threads = (uint32_t)count;
  return NULL;
}

static const char *parse_seconds(const char *text, options_t *options) {
  if (!parse_number(text, &options->min_ms)) return "expected seconds";
  options->min_ms *= 1000.0;
  return NULL;
}

static const char *parse_bench(const char *text, options_t *options) {
  options->warmup = 3;
  return parse_count(text, &options->runs) ? NULL : "expected a number of runs";
}

static const char *parse_started(const char *text, options_t *options) {
  uint64_t ns = 0;
  if (!parse_count(text, &ns) || ns == 0 || ns > INT64_MAX) return "expected nanoseconds";
  options->started_ns = (int64_t)ns;
  return NULL;
}

static const char *parse_report_fd(const char *text, options_t *options) {
  uint64_t fd = 0;
  if (!parse_count(text, &fd) || fd > INT32_MAX) return "expected a file descriptor";
  options->report_fd = (int)fd;
  return NULL;
}

static const char *parse_min_ms(const char *text, options_t *options) {
  return parse_number(text, &options->min_ms) ? NULL : "expected milliseconds";
}

// An option with a value.  Returns what is wrong, or NULL.
static const char *parse_value(const char *name, const char *value, options_t *options) {
  const struct {
    const char *name;
    const char **target;
  } texts[] = {{"--entry", &options->entry},           {"--target", &options->target},
               {"--output", &options->output},         {"--prompt", &options->prompt},
               {"--system", &options->system},         {"--load-state", &options->load_state},
               {"--save-state", &options->save_state}, {"--variables", &options->variables}};
  const struct {
    const char *name;
    uint64_t *target;
    const char *expected;
  } counts[] = {{"--warmup", &options->warmup, "expected a number of runs"},
                {"--runs", &options->runs, "expected a number of runs"},
                {"--cold", &options->cold_rounds, "expected a number of processes"},
                {"--max-tokens", &options->max_tokens, "expected a number of tokens"},
                {"--seed", &options->sampling.seed, "expected a number, 0 to 2^64 - 1"}};
  static const struct {
    const char *name;
    const char *(*parse)(const char *text, options_t *options);
  } others[] = {{"--min-ms", parse_min_ms},      {"--seconds", parse_seconds},
                {"--bench", parse_bench},        {"--threads", parse_threads},
                {"--device", parse_device},      {"--started-ns", parse_started},
                {"--report-fd", parse_report_fd}};
  if (strcmp(name, "--input") == 0) {
    return parse_named(value, options->inputs, &options->input_count);
  }
  if (strcmp(name, "--shape") == 0) {
    return parse_named(value, options->shapes, &options->shape_count);
  }
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    if (strcmp(name, texts[i].name) != 0) continue;
    *texts[i].target = value;
    return NULL;
  }
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    if (strcmp(name, counts[i].name) != 0) continue;
    return parse_count(value, counts[i].target) ? NULL : counts[i].expected;
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (strcmp(name, others[i].name) == 0) return others[i].parse(value, options);
  }
  const char *problem = NULL;
  return parse_sampling(name, value, options, &problem) ? problem : "no such option";
}

options_result_t options_parse(int count, char **arguments, options_t *out_options) {
  memset(out_options, 0, sizeof *out_options);
  out_options->sampling.size = sizeof out_options->sampling;
  out_options->runs = 1;
  out_options->threads = 1;
  out_options->report_fd = -1;
#ifdef AOT_EMBED
  out_options->module = "/proc/self/exe";
#endif
  for (int i = 1; i < count; ++i) {
    const char *name = arguments[i];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
      (void)fputs(help, stdout);
      return OPTIONS_DONE;
    }
    if (strcmp(name, "--version") == 0) {
      (void)printf("aot-run %s\n", aot_runtime_version());
      return OPTIONS_DONE;
    }
#ifndef AOT_EMBED
    if (name[0] != '-') {
      if (out_options->module != NULL) return wrong("only one module expected", name);
      out_options->module = name;
      continue;
    }
#endif
    if (parse_switch(name, out_options)) continue;
    if (i + 1 == count) return wrong("no such option, or its value is missing", name);
    const char *problem = parse_value(name, arguments[++i], out_options);
    if (problem != NULL) {
      (void)fprintf(stderr, "aot-run: %s %s: %s (see --help)\n", name, arguments[i], problem);
      return OPTIONS_WRONG;
    }
  }
  if (out_options->module == NULL && !out_options->measures_machine) {
    return wrong("a module file is missing", NULL);
  }
  return OPTIONS_RUN;
}

aot_program_options_t options_program(const options_t *options) {
  return (aot_program_options_t){.size = sizeof(aot_program_options_t),
                                 .entry = options->entry,
                                 .target = options->target,
                                 .device = (aot_device_kind_t)options->device,
                                 .threads = options->threads};
}

aot_status_t options_create_program(const options_t *options, const aot_module_t *module,
                                    const aot_program_options_t *program_options,
                                    aot_error_t *error, aot_program_t **out_program) {
  if (options->threads != 0) {
    return aot_program_create(module, program_options, error, out_program);
  }
  aot_cores_t cores = {.size = sizeof cores};
  (void)aot_cores_find(NULL, NULL, &cores);
  return aot_cores_create_program(&cores, module, program_options, error, out_program);
}

const char *options_find(const named_text_t *list, size_t count, const char *name) {
  for (size_t i = 0; i < count; ++i) {
    if (strlen(name) == list[i].name_bytes && memcmp(name, list[i].name, list[i].name_bytes) == 0) {
      return list[i].value;
    }
  }
  return NULL;
}
