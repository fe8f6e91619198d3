#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/aot.h"

static const char help[] =
    "usage: aot-run MODULE [options]\n"
    "\n"
    "Runs an entry point of a compiled module: the first inference, then --warmup and --runs "
    "more.\n"
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
    "  --threads N             this build runs on the caller's thread: 1\n"
    "  --verify                checks the weights' checksum too, before running\n"
    "  --copy                  reads the file into memory instead of mapping it\n"
    "\n"
    "results\n"
    "  --output DIR            writes each output as DIR/NAME.npy, or DIR/INDEX.npy where the "
    "name\n"
    "                          is no safe file name (default: writes nothing)\n"
    "  --json                  the last line printed is a JSON object with all measurements\n"
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
  if (strcmp(name, "--random") == 0) {
    options->is_random = true;
  } else if (strcmp(name, "--json") == 0) {
    options->is_json = true;
  } else if (strcmp(name, "--verify") == 0) {
    options->verifies = true;
  } else if (strcmp(name, "--copy") == 0) {
    options->copies = true;
  } else {
    return false;
  }
  return true;
}

static bool parse_milliseconds(const char *text, double *out_ms) {
  char *end = NULL;
  const double ms = strtod(text, &end);
  if (end == text || *end != '\0' || !(ms >= 0.0) || ms > 1e12) return false;
  *out_ms = ms;
  return true;
}

// An option with a value.  Returns what is wrong, or NULL.
static const char *parse_value(const char *name, const char *value, options_t *options) {
  uint64_t threads = 0;
  if (strcmp(name, "--input") == 0) {
    return parse_named(value, options->inputs, &options->input_count);
  }
  if (strcmp(name, "--shape") == 0) {
    return parse_named(value, options->shapes, &options->shape_count);
  }
  if (strcmp(name, "--entry") == 0) {
    options->entry = value;
    return NULL;
  }
  if (strcmp(name, "--target") == 0) {
    options->target = value;
    return NULL;
  }
  if (strcmp(name, "--output") == 0) {
    options->output = value;
    return NULL;
  }
  if (strcmp(name, "--warmup") == 0) {
    return parse_count(value, &options->warmup) ? NULL : "expected a number of runs";
  }
  if (strcmp(name, "--runs") == 0) {
    return parse_count(value, &options->runs) ? NULL : "expected a number of runs";
  }
  if (strcmp(name, "--min-ms") == 0) {
    return parse_milliseconds(value, &options->min_ms) ? NULL : "expected milliseconds";
  }
  if (strcmp(name, "--threads") == 0) {
    return parse_count(value, &threads) && threads == 1 ? NULL : "this build has one thread";
  }
  return "no such option";
}

options_result_t options_parse(int count, char **arguments, options_t *out_options) {
  memset(out_options, 0, sizeof *out_options);
  out_options->runs = 1;
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
    if (name[0] != '-') {
      if (out_options->module != NULL) return wrong("only one module expected", name);
      out_options->module = name;
      continue;
    }
    if (parse_switch(name, out_options)) continue;
    if (i + 1 == count) return wrong("no such option, or its value is missing", name);
    const char *problem = parse_value(name, arguments[++i], out_options);
    if (problem != NULL) {
      (void)fprintf(stderr, "aot-run: %s %s: %s (see --help)\n", name, arguments[i], problem);
      return OPTIONS_WRONG;
    }
  }
  return out_options->module != NULL ? OPTIONS_RUN : wrong("a module file is missing", NULL);
}

const char *options_find(const named_text_t *list, size_t count, const char *name) {
  for (size_t i = 0; i < count; ++i) {
    if (strlen(name) == list[i].name_bytes && memcmp(name, list[i].name, list[i].name_bytes) == 0) {
      return list[i].value;
    }
  }
  return NULL;
}
