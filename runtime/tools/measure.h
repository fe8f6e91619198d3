// Time, memory and the quantiles of samples.
#ifndef AOT_TOOLS_MEASURE_H_
#define AOT_TOOLS_MEASURE_H_

#include <stddef.h>
#include <stdint.h>

int64_t now_ns(void);

// Resident memory at its highest in this process, or 0.
long peak_rss_kb(void);

// Of `count` > 0 sorted values, nearest rank.
double quantile(const double *sorted, size_t count, double part);
int compare_doubles(const void *a, const void *b);

#endif  // AOT_TOOLS_MEASURE_H_
