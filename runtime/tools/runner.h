// What aot-run knows of its one program, shared by the files of the tool.
#ifndef AOT_TOOLS_RUNNER_H_
#define AOT_TOOLS_RUNNER_H_

#include <stdio.h>

#include "aot/aot.h"
#include "npy.h"
#include "options.h"

// A cold start in order.  EXEC is known only to a process that was told when it was started.
typedef enum phase_t {
  PHASE_EXEC,       // until main: the system starts the process
  PHASE_OPEN,       // the file is opened
  PHASE_VERIFY,     // mapped; header, structure and programs are verified
  PHASE_MAP,        // the code is verified and made executable; threads start
  PHASE_INPUTS,     // files are read, or random numbers made
  PHASE_PREPARE,    // the shape part runs; memory is allocated
  PHASE_FIRST_RUN,  // the first inference
  PHASE_COUNT
} phase_t;

extern const char *const phase_names[PHASE_COUNT];

typedef struct runner_t {
  options_t options;
  aot_module_t *module;
  aot_program_t *program;
  npy_array_t *inputs;
  double phases_ms[PHASE_COUNT];
  int64_t first_result_ns;
  long peak_rss_kb;  // until the last timed run
  double *samples;   // milliseconds; sorted once all are there
  size_t sample_count;
} runner_t;

// Prints a line to stderr; returns false.
__attribute__((format(printf, 1, 2))) bool fail(const char *format, ...);

// Whether all that was printed was written; says so if not.
bool flush_report(void);

int64_t now_ns(void);

// Resident memory at its highest in this process, or 0.
long peak_rss_kb(void);

// Of `count` > 0 sorted values, nearest rank.
double quantile(const double *sorted, size_t count, double part);
int compare_doubles(const void *a, const void *b);

// inputs.c: makes or reads every input and gives it to `program`.
bool set_inputs(runner_t *runner);
bool give_inputs(const runner_t *runner, aot_program_t *program);
void free_inputs(runner_t *runner);

// generate.c: writes a language model's reply to the prompt of the options, as it comes.
bool generate(runner_t *runner);

// print.c: texts from a module, or of the caller, as JSON's escapes have them: control characters
// but those in `kept` as \u001b, bytes that are no UTF-8 as \ufffd.
void print_text(FILE *stream, const char *text, size_t bytes, const char *kept);
void print_name(const char *name);  // to standard output
void print_json_text(const char *text);

// report.c
bool write_outputs(const runner_t *runner);
bool report(runner_t *runner);

// launches.c: runs on a program of its own whose launches are timed, and prints them.  Part of the
// report.
bool report_launches(const runner_t *runner);

// cold.c: starts this program again and again, and prints how long each phase took.
bool report_cold_starts(const options_t *options, const char *program, char **arguments);
// In such a process: tells the one that started it.
bool tell_parent(const runner_t *runner);

// machine.c: measures what one core can do.
bool report_machine(void);

#endif  // AOT_TOOLS_RUNNER_H_
