// What ort_run and ov_run share: aot-run's command line, .npy files, the timing loop, the JSON
// line.
//
//   NAME_run MODEL --input NAME=FILE.npy ... [--output DIR] --warmup N --runs N --min-ms MS
//            --threads N [--opt-level N] [--cache-dir DIR] [--json]
//
// Included once a program. Every failure ends the process: these programs are measured, not
// embedded.
#ifndef WORKER_H_
#define WORKER_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORKER_MAX_TENSORS = 16, WORKER_MAX_RANK = 8, WORKER_MAX_SAMPLES = 100000 };

typedef struct {
  char name[128];
  char descr[4];  // numpy's, without the byte order: "f4", "i8", "b1"
  int rank;
  int64_t dims[WORKER_MAX_RANK];
  size_t bytes;
  void *data;
} tensor_t;

typedef struct {
  const char *model, *output, *cache_dir;
  int threads, warmup, runs, opt_level;
  double min_ms;
  int input_count;
  tensor_t inputs[WORKER_MAX_TENSORS];
  const char *input_paths[WORKER_MAX_TENSORS];
  long long start_ns, opened_ns, prepared_ns, first_result_ns;
} worker_t;

static inline long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void fail(const char *what, const char *detail) {
  fprintf(stderr, "%s: %s\n", what, detail ? detail : "");
  exit(1);
}

// Reads a C-contiguous little-endian .npy of version 1. The data is never freed.
static inline void npy_read(const char *path, tensor_t *out) {
  FILE *f = fopen(path, "rb");
  unsigned char head[10];
  char text[4096] = {0};
  if (!f || fread(head, 1, 10, f) != 10) fail("cannot read", path);
  const size_t length = head[8] | (size_t)head[9] << 8;
  if (length >= sizeof text || fread(text, 1, length, f) != length) fail("bad .npy header", path);
  const char *descr = strstr(text, "'descr':"), *shape = strstr(text, "'shape':");
  if (!descr || !shape || strstr(text, "'fortran_order': True")) fail("bad .npy header", path);
  descr = strchr(descr + 8, '\'') + 2;  // past the quote and the byte order
  memcpy(out->descr, descr, strcspn(descr, "'") < 3 ? strcspn(descr, "'") : 3);
  size_t items = 1;
  for (char *p = strchr(shape, '(') + 1; *p != ')';) {
    char *end;
    const long long dim = strtoll(p, &end, 10);
    if (end == p) {
      ++p;
      continue;
    }
    if (out->rank == WORKER_MAX_RANK) fail("rank too high", path);
    out->dims[out->rank++] = dim;
    items *= (size_t)dim;
    p = end;
  }
  out->bytes = items * (size_t)atoi(out->descr + 1);
  out->data = aligned_alloc(64, (out->bytes + 64) & ~(size_t)63);
  if (!out->data || fread(out->data, 1, out->bytes, f) != out->bytes) fail("short .npy", path);
  fclose(f);
}

// Writes DIR/INDEX.npy.
static inline void npy_write(const char *dir, int index, const tensor_t *t) {
  char path[4096], header[1024];
  snprintf(path, sizeof path, "%s/%d.npy", dir, index);
  int n = snprintf(header, sizeof header, "{'descr': '%s%s', 'fortran_order': False, 'shape': (",
                   t->descr[1] == '1' ? "|" : "<", t->descr);
  for (int i = 0; i < t->rank; ++i)
    n += snprintf(header + n, sizeof header - (size_t)n, "%lld,", (long long)t->dims[i]);
  n += snprintf(header + n, sizeof header - (size_t)n, ")}");
  while ((10 + n + 1) % 64)
    header[n++] = ' ';
  header[n++] = '\n';
  const unsigned char magic[10] = "\x93NUMPY\x01\x00";
  FILE *f = fopen(path, "wb");
  if (!f) fail("cannot write", path);
  fwrite(magic, 1, 8, f);
  fputc(n & 255, f);
  fputc(n >> 8, f);
  fwrite(header, 1, (size_t)n, f);
  fwrite(t->data, 1, t->bytes, f);
  if (fclose(f)) fail("cannot write", path);
}

static inline worker_t worker_start(int argc, char **argv) {
  worker_t w = {.model = argc > 1 ? argv[1] : "", .threads = 1, .runs = 1, .opt_level = 99};
  w.start_ns = now_ns();
  for (int i = 2; i < argc; ++i) {
    const char *option = argv[i];
    if (!strcmp(option, "--json")) continue;
    if (++i == argc) fail("missing value", option);
    char *value = argv[i];
    if (!strcmp(option, "--input")) {
      char *equals = strchr(value, '=');
      if (!equals || w.input_count == WORKER_MAX_TENSORS) fail("bad --input", value);
      *equals = 0;
      snprintf(w.inputs[w.input_count].name, sizeof w.inputs[0].name, "%s", value);
      w.input_paths[w.input_count++] = equals + 1;
    } else if (!strcmp(option, "--output"))
      w.output = value;
    else if (!strcmp(option, "--warmup"))
      w.warmup = atoi(value);
    else if (!strcmp(option, "--runs"))
      w.runs = atoi(value);
    else if (!strcmp(option, "--min-ms"))
      w.min_ms = atof(value);
    else if (!strcmp(option, "--threads"))
      w.threads = atoi(value);
    else if (!strcmp(option, "--opt-level"))
      w.opt_level = atoi(value);
    else if (!strcmp(option, "--cache-dir"))
      w.cache_dir = value;
    else
      fail("unknown option", option);
  }
  return w;
}

// Called when the session is ready: reading the inputs counts as part of the first run, as in
// aot-run.
static inline void worker_prepared(worker_t *w) {
  w->prepared_ns = now_ns();
  for (int i = 0; i < w->input_count; ++i)
    npy_read(w->input_paths[i], &w->inputs[i]);
}

static inline int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline long peak_rss_kb(void) {
  char line[256];
  long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmHWM: %ld", &kb) == 1) break;
  if (f) fclose(f);
  return kb;
}

// Times `run` after the first result: `warmup` calls, then until both `runs` calls and `min_ms`
// have passed; a slow model stops at three calls once four times `min_ms` is spent. Prints the JSON
// line.
static inline void worker_measure(const worker_t *w, void (*run)(void *), void *context) {
  static double ms[WORKER_MAX_SAMPLES];
  int n = 0;
  for (int i = 0; i < w->warmup; ++i)
    run(context);
  const long long begin = now_ns();
  while (n < w->runs || (w->runs && (double)(now_ns() - begin) / 1e6 < w->min_ms)) {
    const long long t = now_ns();
    run(context);
    ms[n++] = (double)(now_ns() - t) / 1e6;
    if (n == WORKER_MAX_SAMPLES) break;
    if (n >= 3 && (double)(now_ns() - begin) / 1e6 > 4 * w->min_ms && w->min_ms > 0) break;
  }
  qsort(ms, (size_t)n, sizeof *ms, compare_doubles);
  printf(
      "{\"first_result_ns\": %lld, \"phases_ms\": {\"open\": %.3f, \"prepare\": %.3f, "
      "\"first_run\": %.3f}, \"runs\": %d, \"median_ms\": %.6f, \"min_ms\": %.6f, "
      "\"p90_ms\": %.6f, \"peak_rss_kb\": %ld}\n",
      w->first_result_ns, (double)(w->opened_ns - w->start_ns) / 1e6,
      (double)(w->prepared_ns - w->opened_ns) / 1e6,
      (double)(w->first_result_ns - w->prepared_ns) / 1e6, n, ms[n / 2], ms[0], ms[n * 9 / 10],
      peak_rss_kb());
}

#endif  // WORKER_H_
