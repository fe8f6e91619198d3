// Cold starts: fresh processes of this program, one after the other, that tell what their phases
// took.  Where asked, the module is put out of the page cache before every other one.
#define _GNU_SOURCE 1  // mincore

#include "cold.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"
#include "print.h"

#define MOST_ROUNDS 10000u

// What a process tells the one that started it.
typedef struct start_t {
  double phases_ms[PHASE_COUNT];
  int64_t first_result_ns;
  int64_t peak_rss_kb;
} start_t;

// One kind of round.
typedef struct series_t {
  const char *name;
  size_t count;
  double *columns;  // PHASE_COUNT of them and the total, a sample a round each
  size_t rounds;
  int64_t peak_rss_kb;
} series_t;

bool tell_parent(const runner_t *runner) {
  start_t start = {.first_result_ns = runner->first_result_ns, .peak_rss_kb = peak_rss_kb()};
  memcpy(start.phases_ms, runner->phases_ms, sizeof start.phases_ms);
  const ssize_t written = write(runner->options.report_fd, &start, sizeof start);
  return written == (ssize_t)sizeof start || fail("cannot tell the process that started this one");
}

// The command line of a fresh process: ours without the options that make it start others.
static char **make_arguments(char **arguments, const char *program, char *fd_text, char *ns_text) {
  static char no_runs[] = "0";
  static char runs[] = "--runs";
  static char fd[] = "--report-fd";
  static char ns[] = "--started-ns";
  size_t count = 0;
  while (arguments[count] != NULL)
    ++count;
  char **made = calloc(count + 7, sizeof *made);
  if (made == NULL) return NULL;
  size_t used = 0;
  made[used++] = (char *)(uintptr_t)program;
  for (size_t i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--cold") == 0) {
      ++i;  // and its value
    } else if (strcmp(arguments[i], "--drop-cache") != 0) {
      made[used++] = arguments[i];
    }
  }
  char *const more[] = {runs, no_runs, fd, fd_text, ns, ns_text};
  memcpy(made + used, more, sizeof more);
  return made;
}

// Returns 0, or an error's number.
static int start_process(pid_t *out_child, const char *program, char *const *command) {
#if defined(__ANDROID__) && __ANDROID_API__ < 28  // posix_spawn came with 28
  *out_child = fork();
  if (*out_child == 0) {
    (void)execv(program, command);
    _exit(127);
  }
  return *out_child < 0 ? errno : 0;
#else
  extern char **environ;
  return posix_spawn(out_child, program, NULL, NULL, command, environ);
#endif
}

// Starts a process and waits for what it tells.
static bool start_one(char **arguments, const char *program, start_t *out_start,
                      int64_t *out_total_ns) {
  int ends[2];
  char fd_text[16];
  char ns_text[32];
  if (pipe(ends) != 0) return fail("cannot make a pipe: %s", strerror(errno));
  (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  (void)snprintf(fd_text, sizeof fd_text, "%d", ends[1]);
  char **command = make_arguments(arguments, program, fd_text, ns_text);
  pid_t child = 0;
  int code = command == NULL ? ENOMEM : 0;
  const int64_t started_ns = now_ns();
  (void)snprintf(ns_text, sizeof ns_text, "%" PRId64, started_ns);
  if (code == 0) code = start_process(&child, program, command);
  (void)close(ends[1]);
  free(command);
  if (code != 0) {
    (void)close(ends[0]);
    return fail("cannot start %s: %s", program, strerror(code));
  }
  ssize_t got = 0;
  do {
    got = read(ends[0], out_start, sizeof *out_start);
  } while (got < 0 && errno == EINTR);
  (void)close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (got != (ssize_t)sizeof *out_start || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return fail("a process that was started failed");
  }
  *out_total_ns = out_start->first_result_ns - started_ns;
  return true;
}

static bool add_round(series_t *series, char **arguments, const char *program) {
  start_t start;
  int64_t total_ns = 0;
  if (!start_one(arguments, program, &start, &total_ns)) return false;
  for (size_t i = 0; i < PHASE_COUNT; ++i) {
    series->columns[i * series->rounds + series->count] = start.phases_ms[i];
  }
  series->columns[PHASE_COUNT * series->rounds + series->count] = (double)total_ns / 1e6;
  if (start.peak_rss_kb > series->peak_rss_kb) series->peak_rss_kb = start.peak_rss_kb;
  ++series->count;
  return true;
}

#ifdef __linux__

// Bytes of the file in the page cache.  The mapping itself brings nothing in.
static bool count_resident(int fd, uint64_t bytes, uint64_t *out_resident) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t pages = (size_t)((bytes + page - 1) / page);
  void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return false;
  unsigned char *is_resident = calloc(pages, 1);
  const bool is_known = is_resident != NULL && mincore(map, (size_t)bytes, is_resident) == 0;
  *out_resident = 0;
  for (size_t i = 0; is_known && i < pages; ++i)
    *out_resident += (is_resident[i] & 1u) * page;
  free(is_resident);
  (void)munmap(map, (size_t)bytes);
  return is_known;
}

// Asks the system to forget the file's pages.  Returns what is wrong, or NULL; `out_left` is what
// is still there.
static const char *drop_cache(const char *path, uint64_t *out_left) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return strerror(errno);
  struct stat info;
  const char *problem = NULL;
  if (fstat(fd, &info) != 0 || info.st_size <= 0) {
    problem = "its size is not known";
  } else {
    (void)fdatasync(fd);  // pages that are not written yet can't be dropped
    const int code = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (code != 0) {
      problem = strerror(code);
    } else if (!count_resident(fd, (uint64_t)info.st_size, out_left)) {
      problem = "the system does not tell what is in its page cache";
    }
  }
  (void)close(fd);
  return problem;
}

#else

static const char *drop_cache(const char *path, uint64_t *out_left) {
  (void)path;
  *out_left = 0;
  return "not known how on this system";
}

#endif

static void sort_columns(series_t *series) {
  for (size_t i = 0; i <= PHASE_COUNT; ++i) {
    qsort(series->columns + i * series->rounds, series->count, sizeof *series->columns,
          compare_doubles);
  }
}

static double median_of(const series_t *series, size_t column) {
  return quantile(series->columns + column * series->rounds, series->count, 0.5);
}

static void print_series_json(const series_t *series) {
  (void)printf("{\"rounds\": %zu, \"phases_ms\": {", series->count);
  for (size_t i = 0; i < PHASE_COUNT; ++i) {
    (void)printf("\"%s\": %.6f%s", phase_names[i], median_of(series, i),
                 i + 1 < PHASE_COUNT ? ", " : "}");
  }
  (void)printf(", \"total_ms\": %.6f, \"min_total_ms\": %.6f, \"peak_rss_kb\": %" PRId64 "}",
               median_of(series, PHASE_COUNT), series->columns[PHASE_COUNT * series->rounds],
               series->peak_rss_kb);
}

static void print_table(const series_t *series, size_t count) {
  (void)printf("%-10s", "phase");
  for (size_t s = 0; s < count; ++s)
    (void)printf("  %12s", series[s].name);
  for (size_t i = 0; i <= PHASE_COUNT; ++i) {
    (void)printf("\n%-10s", i < PHASE_COUNT ? phase_names[i] : "total");
    for (size_t s = 0; s < count; ++s)
      (void)printf("  %9.3f ms", median_of(&series[s], i));
  }
  (void)printf("\nmedians of %zu processes, exec to the first result\n", series[0].count);
}

// With warm pages, and with dropped ones where asked; `problem` says why that was not done.
static void print_cold(const options_t *options, const series_t *series, size_t count,
                       const char *problem, uint64_t left) {
  if (!options->is_json) {
    print_table(series, count);
    if (problem != NULL) {
      (void)printf("the page cache was not dropped: %s\n", problem);
    } else if (count > 1 && left > 0) {
      (void)printf("%" PRIu64 " bytes stayed in the page cache\n", left);
    }
    return;
  }
  (void)fputs("{\"cold\": {", stdout);
  for (size_t s = 0; s < count; ++s) {
    (void)printf("%s\"%s\": ", s > 0 ? ", " : "", series[s].name);
    print_series_json(&series[s]);
  }
  if (problem != NULL) {
    (void)fputs(", \"not_dropped\": ", stdout);
    print_json_text(problem);
  }
  (void)printf(", \"left_in_cache_bytes\": %" PRIu64 "}}\n", left);
}

bool report_cold_starts(const options_t *options, const char *program, char **arguments) {
  static const char self[] = "/proc/self/exe";
  char path[4096];
  const ssize_t length = readlink(self, path, sizeof path - 1);
  if (length > 0) {
    path[length] = '\0';
    program = path;
  }
  const size_t rounds =
      options->cold_rounds < MOST_ROUNDS ? (size_t)options->cold_rounds : MOST_ROUNDS;
  series_t series[2] = {{.name = "warm", .rounds = rounds}, {.name = "dropped", .rounds = rounds}};
  bool is_done = true;
  for (size_t s = 0; s < 2; ++s) {
    series[s].columns = calloc((PHASE_COUNT + 1) * rounds, sizeof *series[s].columns);
    if (series[s].columns == NULL) is_done = fail("out of memory");
  }
  const char *problem = NULL;
  uint64_t left = 0;
  bool drops = options->drops_cache;
  // One that is not counted: it brings the program itself into the cache.
  start_t start;
  int64_t total_ns = 0;
  is_done = is_done && start_one(arguments, program, &start, &total_ns);
  for (size_t i = 0; is_done && i < rounds; ++i) {
    if (drops) {
      uint64_t now_left = 0;
      problem = drop_cache(options->module, &now_left);
      if (now_left > left) left = now_left;
      drops = problem == NULL;
      if (drops) is_done = add_round(&series[1], arguments, program);
    }
    is_done = is_done && add_round(&series[0], arguments, program);
  }
  if (is_done) {
    const size_t count = series[1].count > 0 ? 2 : 1;
    for (size_t s = 0; s < count; ++s)
      sort_columns(&series[s]);
    print_cold(options, series, count, problem, left);
  }
  free(series[0].columns);
  free(series[1].columns);
  return is_done && flush_report();
}
