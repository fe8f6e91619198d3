// A plugin of QEMU's user mode: counts guest instructions between calls of marked addresses.
//
//   qemu-aarch64 -plugin libqemu_counts.so,out=FILE,mark=400b10,mark=400c20 PROGRAM ...
//
// FILE gets a line "MARK COUNT" for each time that an address was reached, in their order: which of
// the marks (from 0), and the instructions from there to the next one.  The first line, of mark -1,
// is what ran before any.  One guest thread; instructions are counted a translated block at a time.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// QEMU's plugin API as far as it is used here, the same in its versions 1 to 5.
// https://www.qemu.org/docs/master/devel/tcg-plugins.html#plugin-api
#ifndef COUNTS_API
#define COUNTS_API 1
#endif
#define EXPORT __attribute__((visibility("default")))
struct qemu_plugin_tb;
struct qemu_info_t;
enum { CB_NO_REGS = 0 };
typedef uint64_t qemu_plugin_id_t;
typedef void (*on_translation_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*on_execution_t)(unsigned, void *);
typedef void (*on_exit_t)(qemu_plugin_id_t, void *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, on_translation_t);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, on_execution_t, int, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, on_exit_t, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
EXPORT extern int qemu_plugin_version;
EXPORT int qemu_plugin_install(qemu_plugin_id_t, const struct qemu_info_t *, int, char **);

int qemu_plugin_version = COUNTS_API;

enum { MOST_MARKS = 8, MOST_THREADS = 64 };

static struct {
  FILE *out;
  uint64_t marks[MOST_MARKS];
  int mark_count;
  int mark;          // that was reached last
  uint64_t written;  // instructions until then
  // Of each thread, on cache lines of their own: additions to one number would overwrite each
  // other.
  struct {
    _Alignas(64) uint64_t count;
  } threads[MOST_THREADS];
} counts = {.mark = -1};

static void on_block(unsigned cpu, void *instructions) {
  counts.threads[cpu % MOST_THREADS].count += (uint64_t)(uintptr_t)instructions;
}

static void write_line(void) {
  uint64_t total = 0;
  for (int i = 0; i < MOST_THREADS; ++i)
    total += counts.threads[i].count;
  (void)fprintf(counts.out, "%d %" PRIu64 "\n", counts.mark, total - counts.written);
  counts.written = total;
}

static void on_mark(unsigned cpu, void *mark) {
  (void)cpu;
  write_line();
  counts.mark = (int)(intptr_t)mark;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  (void)id;
  for (int i = 0; i < counts.mark_count; ++i) {
    if (counts.marks[i] != qemu_plugin_tb_vaddr(block)) continue;
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_mark, CB_NO_REGS, (void *)(intptr_t)i);
  }
  qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, CB_NO_REGS,
                                       (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void on_exit_of_guest(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  write_line();
  (void)fclose(counts.out);
}

static int fail(const char *what, const char *argument) {
  (void)fprintf(stderr, "qemu_counts: %s: %s\n", what, argument);
  return 1;
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info, int argc,
                        char **argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (strncmp(argv[i], "out=", 4) == 0 && counts.out == NULL) {
      counts.out = fopen(argv[i] + 4, "w");
      if (counts.out == NULL) return fail("cannot be written", argv[i] + 4);
    } else if (strncmp(argv[i], "mark=", 5) == 0 && counts.mark_count < MOST_MARKS) {
      counts.marks[counts.mark_count++] = strtoull(argv[i] + 5, NULL, 16);
    } else {
      return fail("unknown argument, or one too many", argv[i]);
    }
  }
  if (counts.out == NULL) return fail("missing", "out=FILE");
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_atexit_cb(id, on_exit_of_guest, NULL);
  return 0;
}
