#define _GNU_SOURCE 1  // sched_getaffinity

#include "aot/cores.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __linux__
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "sizes.h"
#include "status.h"

#define MOST AOT_CORES_MOST_CPUS
#define TEXT_BYTES 4096  // of a list of CPUs

static bool has(const uint64_t *set, uint32_t cpu) {
  return (set[cpu / 64] >> (cpu % 64) & 1) != 0;
}

static void add(uint64_t *set, uint32_t cpu) {
  set[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

static void drop(uint64_t *set, uint32_t cpu) {
  set[cpu / 64] &= ~((uint64_t)1 << (cpu % 64));
}

static uint32_t count_of(const uint64_t *set) {
  uint32_t count = 0;
  for (uint32_t cpu = 0; cpu < MOST; ++cpu)
    count += has(set, cpu);
  return count;
}

// The first line of a file, without its end; false where there is none.
__attribute__((format(printf, 4, 5))) static bool read_line(const char *root, char *text,
                                                            size_t bytes, const char *format, ...) {
  char path[512];
  const int start = snprintf(path, sizeof path, "%s", root);
  if (start < 0 || (size_t)start >= sizeof path) return false;
  va_list arguments;
  va_start(arguments, format);
  const int more = vsnprintf(path + start, sizeof path - (size_t)start, format, arguments);
  va_end(arguments);
  if (more < 0 || (size_t)more >= sizeof path - (size_t)start) return false;
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  const bool is_read = fgets(text, (int)bytes, file) != NULL;
  (void)fclose(file);
  if (is_read) text[strcspn(text, "\n")] = '\0';
  return is_read;
}

// A number of digits at *text, which is moved behind it.
static bool read_number(const char **text, uint64_t *out_number) {
  uint64_t number = 0;
  const char *at = *text;
  for (; *at >= '0' && *at <= '9'; ++at) {
    if (number > (UINT64_MAX - 9) / 10) return false;
    number = number * 10 + (uint64_t)(*at - '0');
  }
  if (at == *text) return false;
  *text = at;
  *out_number = number;
  return true;
}

// A list as Linux writes it, "0-3,8".  False where it is none; CPUs beyond the most are left out.
static bool parse_list(const char *text, uint64_t *set) {
  memset(set, 0, MOST / 8);
  while (*text != '\0') {
    uint64_t first = 0;
    if (!read_number(&text, &first)) return false;
    uint64_t last = first;
    if (*text == '-') {
      ++text;
      if (!read_number(&text, &last)) return false;
    }
    for (uint64_t cpu = first; cpu <= last && cpu < MOST; ++cpu)
      add(set, (uint32_t)cpu);
    if (*text == ',') ++text;
  }
  return true;
}

static bool read_list(const char *root, const char *path, uint64_t *set) {
  char text[TEXT_BYTES];
  return read_line(root, text, sizeof text, "%s", path) && parse_list(text, set);
}

// A number that a file has for each of the CPUs; false where one has none.
static bool read_each(const char *root, const uint64_t *set, const char *name, uint64_t *values) {
  for (uint32_t cpu = 0; cpu < MOST; ++cpu) {
    if (!has(set, cpu)) continue;
    char text[64];
    const char *at = text;
    if (!read_line(root, text, sizeof text, "/sys/devices/system/cpu/cpu%" PRIu32 "/%s", cpu,
                   name) ||
        !read_number(&at, &values[cpu]) || values[cpu] == 0 || values[cpu] > UINT32_MAX) {
      return false;
    }
  }
  return true;
}

// Leaves the first CPU of each core.
static void drop_siblings(const char *root, uint64_t *set) {
  for (uint32_t cpu = 0; cpu < MOST; ++cpu) {
    char text[TEXT_BYTES];
    uint64_t siblings[MOST / 64];
    if (!has(set, cpu) ||
        !read_line(root, text, sizeof text,
                   "/sys/devices/system/cpu/cpu%" PRIu32 "/topology/thread_siblings_list", cpu) ||
        !parse_list(text, siblings)) {
      continue;
    }
    for (uint32_t other = cpu + 1; other < MOST; ++other) {
      if (has(siblings, other)) drop(set, other);
    }
  }
}

// Leaves what has at least `percent` of the largest value, and tells the largest of the others, in
// percent too; 0 where there are none.
static uint32_t drop_lesser(const uint64_t *values, uint64_t percent, uint64_t *set) {
  uint64_t most = 0;
  for (uint32_t cpu = 0; cpu < MOST; ++cpu) {
    if (has(set, cpu) && values[cpu] > most) most = values[cpu];
  }
  uint64_t dropped = 0;
  for (uint32_t cpu = 0; cpu < MOST; ++cpu) {
    if (!has(set, cpu) || values[cpu] * 100 >= most * percent) continue;
    if (values[cpu] > dropped) dropped = values[cpu];
    drop(set, cpu);
  }
  return most == 0 ? 0 : (uint32_t)(dropped * 100 / most);
}

// CPUs that a control group's quota is worth, rounded up; 0 where there is none.
static uint64_t quota(const char *root) {
  char text[64];
  const char *at = text;
  uint64_t time = 0;
  uint64_t period = 0;
  if (read_line(root, text, sizeof text, "/sys/fs/cgroup/cpu.max")) {  // "max 100000"
    if (!read_number(&at, &time) || *at++ != ' ' || !read_number(&at, &period)) return 0;
  } else {
    if (!read_line(root, text, sizeof text, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")) return 0;
    if (!read_number(&at, &time)) return 0;  // -1: no limit
    if (!read_line(root, text, sizeof text, "/sys/fs/cgroup/cpu/cpu.cfs_period_us")) return 0;
    at = text;
    if (!read_number(&at, &period)) return 0;
  }
  return period == 0 ? 0 : time / period + (time % period != 0);
}

// The CPUs that this process may use.
static bool read_allowed(const char *root, uint64_t *set) {
#ifdef __linux__
  cpu_set_t affinity;
  if (root[0] == '\0' && sched_getaffinity(0, sizeof affinity, &affinity) == 0) {
    memset(set, 0, MOST / 8);
    for (uint32_t cpu = 0; cpu < MOST && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &affinity)) add(set, cpu);
    }
    return count_of(set) != 0;
  }
#endif
  return read_list(root, "/sys/devices/system/cpu/online", set) && count_of(set) != 0;
}

static const char *plural(uint32_t count) {
  return count == 1 ? "" : "s";
}

// Of the CPUs that the process may use the ones that are worth a thread, and why.
static void choose(const char *root, aot_cores_t *cores) {
  uint64_t *set = cores->cpus;
  const uint32_t allowed = count_of(set);
  drop_siblings(root, set);
  const uint32_t all = count_of(set);
  uint64_t values[MOST] = {0};
  uint64_t efficient[MOST / 64];
  uint32_t percent = 0;
  const char *of_what = "capacity";
  if (read_each(root, set, "cpu_capacity", values)) {
    percent = drop_lesser(values, 50, set);
  } else if (read_list(root, "/sys/devices/cpu_atom/cpus", efficient)) {
    for (uint32_t cpu = 0; cpu < MOST; ++cpu) {
      if (has(efficient, cpu)) drop(set, cpu);
    }
    if (count_of(set) == 0) memcpy(set, efficient, sizeof efficient);  // it may use no others
    of_what = NULL;
  } else if (read_each(root, set, "cpufreq/cpuinfo_max_freq", values)) {
    percent = drop_lesser(values, 75, set);
    of_what = "clock";
  }
  const uint32_t chosen = count_of(set);
  cores->leaves_slower = chosen < all;
  cores->threads = chosen;
  char *text = cores->reason;
  const size_t bytes = sizeof cores->reason;
  if (chosen < all && of_what != NULL) {
    (void)snprintf(text, bytes,
                   "%" PRIu32 " of %" PRIu32 " cores: the others have at most %" PRIu32
                   " %% of the fastest one's %s",
                   chosen, all, percent, of_what);
  } else if (chosen < all) {
    (void)snprintf(text, bytes, "%" PRIu32 " of %" PRIu32 " cores: the others are efficiency cores",
                   chosen, all);
  } else if (all < allowed) {
    (void)snprintf(text, bytes, "all %" PRIu32 " core%s, which are %" PRIu32 " CPUs", all,
                   plural(all), allowed);
  } else {
    (void)snprintf(text, bytes, "all %" PRIu32 " core%s that the process may use", all,
                   plural(all));
  }
}

#ifdef __APPLE__
static bool choose_of_apple(aot_cores_t *cores) {
  int fast = 0;
  int all = 0;
  size_t size = sizeof fast;
  if (sysctlbyname("hw.physicalcpu", &all, &size, NULL, 0) != 0 || all < 1) return false;
  size = sizeof fast;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &fast, &size, NULL, 0) != 0 || fast < 1) fast = all;
  cores->threads = (uint32_t)fast;
  cores->leaves_slower = fast < all;
  (void)snprintf(cores->reason, sizeof cores->reason,
                 fast < all ? "%d of %d cores: the others are efficiency cores" : "all %d cores",
                 fast, all);
  return true;
}
#endif

static void limit(aot_cores_t *cores, uint64_t most, const char *what) {
  if (most == 0 || cores->threads <= most) return;
  cores->threads = (uint32_t)most;
  const size_t length = strlen(cores->reason);
  (void)snprintf(cores->reason + length, sizeof cores->reason - length, "; %s allows %" PRIu64,
                 what, most);
}

static void find(const char *root, aot_cores_t *out_cores) {
  out_cores->threads = 1;
  (void)snprintf(out_cores->reason, sizeof out_cores->reason, "the system tells of no cores");
  const char *folder = root != NULL ? root : "";
#ifdef __APPLE__
  if (folder[0] == '\0' && choose_of_apple(out_cores)) return;
#endif
  if (!read_allowed(folder, out_cores->cpus)) {
    memset(out_cores->cpus, 0, sizeof out_cores->cpus);
    return;
  }
  choose(folder, out_cores);
  limit(out_cores, quota(folder), "the control group's quota");
  limit(out_cores, AOT_MOST_THREADS, "the runtime");
}

aot_status_t aot_cores_find(const char *root, aot_error_t *error, aot_cores_t *out_cores) {
  AOT_TRY(aot_struct_clear(out_cores, "aot_cores_t", error));
  aot_cores_t found;
  memset(&found, 0, sizeof found);
  find(root, &found);
  aot_struct_give(&found, sizeof found, out_cores);
  return AOT_OK;
}

aot_status_t aot_cores_create_program(const aot_cores_t *cores, const aot_module_t *module,
                                      const aot_program_options_t *options, aot_error_t *error,
                                      aot_program_t **out_program) {
  if (out_program == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_program is NULL");
  *out_program = NULL;
  aot_cores_t own;
  AOT_TRY(aot_struct_take(cores, "aot_cores_t", &own, sizeof own, error));
  aot_program_options_t chosen;
  memset(&chosen, 0, sizeof chosen);
  if (options != NULL) {
    AOT_TRY(aot_struct_take(options, "aot_program_options_t", &chosen, sizeof chosen, error));
  }
  chosen.size = sizeof chosen;
  chosen.threads = own.threads;
#ifdef __linux__
  // Threads begin with what the one that starts them may use.
  cpu_set_t before;
  cpu_set_t kept;
  CPU_ZERO(&kept);
  for (uint32_t cpu = 0; cpu < MOST && cpu < CPU_SETSIZE; ++cpu) {
    if (has(own.cpus, cpu)) CPU_SET(cpu, &kept);
  }
  const bool is_kept = own.leaves_slower && sched_getaffinity(0, sizeof before, &before) == 0 &&
                       sched_setaffinity(0, sizeof kept, &kept) == 0;
#endif
  const aot_status_t status = aot_program_create(module, &chosen, error, out_program);
#ifdef __linux__
  if (is_kept) (void)sched_setaffinity(0, sizeof before, &before);
#endif
  return status;
}
