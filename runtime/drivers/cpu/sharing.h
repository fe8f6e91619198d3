// Which dispatches are worth sharing among threads, and in what pieces: by what they took before.
// Timing decides who computes, never what: workgroups are the same whoever runs them.
#ifndef AOT_DRIVERS_CPU_SHARING_H_
#define AOT_DRIVERS_CPU_SHARING_H_

#include "alloc.h"

// A dispatch instruction of the program.
typedef struct aot_site_t {
  uint64_t groups;       // of the dispatch that was measured; 0: none was
  uint32_t nanoseconds;  // that one thread takes for them
} aot_site_t;

// Whether sharing pays at all: where other processes keep the threads from running at a time, each
// dispatch waits for one of them, and one thread alone is faster.
typedef enum aot_sharing_mode_t {
  AOT_SHARING_ON = 0,
  AOT_SHARING_TRIAL = 1,  // runs on one thread, to compare
  AOT_SHARING_REST = 2,   // so does this, because it was faster
} aot_sharing_mode_t;

typedef struct aot_sharing_t {
  uint32_t threads;
  uint32_t site_count;
  aot_site_t *sites;  // owned
  uint64_t runs;
  // Of this run: what one undisturbed thread takes for dispatches that may be shared, and what they
  // took.
  uint64_t alone_ns;
  uint64_t wall_ns;
  aot_sharing_mode_t mode;
  uint32_t mode_runs;  // until it is judged
  uint32_t rest_runs;  // of the next rest
  uint64_t sum_wall_ns;
  uint64_t sum_alone_ns;
  uint64_t shared_wall_ns;  // what a trial compares with
} aot_sharing_t;

typedef struct aot_share_t {
  uint64_t chunk;    // workgroups a piece; 0: not to be shared
  bool wakes;        // it is worth waking threads for
  bool is_measured;  // pass its times to aot_sharing_measure
} aot_share_t;

// `words`: of the longest program.
aot_status_t aot_sharing_create(const aot_allocator_t *allocator, uint32_t threads, uint32_t words,
                                aot_error_t *error, aot_sharing_t *out_sharing);
void aot_sharing_destroy(const aot_allocator_t *allocator, aot_sharing_t *sharing);

// True when threads that sleep are worth waking: the last run had work for them.
bool aot_sharing_begin_run(aot_sharing_t *sharing);

// For a dispatch of `groups` > 0 workgroups by the instruction at `word`.
aot_share_t aot_sharing_ask(aot_sharing_t *sharing, uint32_t word, uint64_t groups);

// One thread did `done` of its `groups` workgroups in `own_ns`; all was done after `wall_ns`.
void aot_sharing_measure(aot_sharing_t *sharing, uint32_t word, uint64_t groups, uint64_t done,
                         uint64_t own_ns, uint64_t wall_ns);

#endif  // AOT_DRIVERS_CPU_SHARING_H_
