// What aot-run measures: the clock, this process's memory, quantiles.
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE 1  // ru_maxrss

#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// The kernel's own figure where it has one: getrusage counts what this process was before exec.
long peak_rss_kb(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  long kb = 0;
  while (file != NULL && kb == 0 && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "VmHWM:", 6) == 0) kb = strtol(line + 6, NULL, 10);
  }
  if (file != NULL) (void)fclose(file);
  struct rusage usage;
#ifdef __APPLE__
  const long unit = 1024;
#else
  const long unit = 1;
#endif
  if (kb == 0 && getrusage(RUSAGE_SELF, &usage) == 0) kb = usage.ru_maxrss / unit;
  return kb;
}

double quantile(const double *sorted, size_t count, double part) {
  return sorted[(size_t)(part * (double)(count - 1) + 0.5)];
}

int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}
