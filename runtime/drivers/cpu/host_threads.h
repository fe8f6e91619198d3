// The host's threads, behind its parallel_for: they share the workgroups of one dispatch.
#ifndef AOT_DRIVERS_CPU_HOST_THREADS_H_
#define AOT_DRIVERS_CPU_HOST_THREADS_H_

#include "workers.h"

typedef struct aot_host_threads_t {
  aot_parallel_for_t *parallel_for;
  void *user;
  uint32_t threads;
} aot_host_threads_t;

// As aot_workers_share; the own part is that of task 0.  Fails with AOT_ERROR_ARGUMENT where the
// host has returned before all was done.
aot_status_t aot_host_threads_share(const aot_host_threads_t *host, aot_work_t work, void *context,
                                    uint64_t count, uint64_t chunk, aot_error_t *error,
                                    aot_own_part_t *out_own);

#endif  // AOT_DRIVERS_CPU_HOST_THREADS_H_
