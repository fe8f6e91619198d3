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
    "  --temperature X, --top-k N, --top-p X, --min-p X, --repetition-penalty X, --seed N\n"
    "                          how tokens are chosen (default: the most probable one)\n"
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
                {"--top-k", &options->top_k, "expected a number of tokens"},
                {"--seed", &options->seed, "expected a number"}};
  const struct {
    const char *name;
    double *target;
  } numbers[] = {{"--temperature", &options->temperature},
                 {"--top-p", &options->top_p},
                 {"--min-p", &options->min_p},
                 {"--repetition-penalty", &options->repetition_penalty}};
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
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (strcmp(name, numbers[i].name) != 0) continue;
    return parse_number(value, numbers[i].target) ? NULL : "expected a number, 0 or more";
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (strcmp(name, others[i].name) == 0) return others[i].parse(value, options);
  }
  return "no such option";
}

options_result_t options_parse(int count, char **arguments, options_t *out_options) {
  memset(out_options, 0, sizeof *out_options);
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
