// Threads that share the workgroups of one dispatch with the caller's.  Owns who runs which piece
// and when threads sleep; knows nothing of kernels.
#ifndef AOT_DRIVERS_CPU_WORKERS_H_
#define AOT_DRIVERS_CPU_WORKERS_H_

#include "alloc.h"
#include "os_threads.h"

// Thread-compatible: one caller at a time.
typedef struct aot_workers_t aot_workers_t;

// Does pieces begin..end-1 of a job.  `worker` is 0 for the caller, and below the thread count.
typedef void (*aot_work_t)(void *context, uint32_t worker, uint64_t begin, uint64_t end);

// `threads` of them, the caller's included: 2 to AOT_MOST_THREADS.  *Borrows* the allocator.
// *Returns owned*.
aot_status_t aot_workers_create(const aot_allocator_t *allocator, uint32_t threads,
                                aot_error_t *error, aot_workers_t **out_workers);
void aot_workers_destroy(aot_workers_t *workers);  // NULL is fine

// False in the child of a fork: there the threads are not.  They must not be used then, but may be
// destroyed.
bool aot_workers_are_alive(const aot_workers_t *workers);

// Those who sleep may get up: there will be a job soon.
void aot_workers_wake(aot_workers_t *workers);

// What the caller's thread did of a job.
typedef struct aot_own_part_t {
  uint64_t chunks;
  uint64_t
      end_ns;  // when there were no more for it, by aot_os_now_ns; then it waits for the others
} aot_own_part_t;

// Does 0..count-1, `chunk` at a time, on the caller and on whoever is awake, or is woken if
// `wakes`; returns when all is done.  *Borrows* context.
aot_own_part_t aot_workers_share(aot_workers_t *workers, aot_work_t work, void *context,
                                 uint64_t count, uint64_t chunk, bool wakes);

#endif  // AOT_DRIVERS_CPU_WORKERS_H_
