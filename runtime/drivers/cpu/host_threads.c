#include "host_threads.h"

#include "fp_state.h"
#include "os.h"
#include "status.h"

#if AOT_THREADS
#include <stdatomic.h>

typedef struct aot_host_job_t {
  aot_work_t work;
  void *context;
  uint64_t count;
  uint64_t chunk;
  uint32_t chunks;
  uint32_t threads;
  aot_fp_state_t fp_state;
  _Atomic uint32_t next;      // the first chunk that nobody has
  _Atomic uint32_t finished;  // chunks
  aot_own_part_t own;
} aot_host_job_t;

// Does chunks until there are none left.  `index` chooses the scratch.
static void run_task(void *context, uint32_t index) {
  aot_host_job_t *job = context;
  if (index >= job->threads) return;
  // The same rounding as on the caller's thread, so that the bits are the same.
  const aot_fp_state_t fp_state = aot_fp_state_get();
  aot_fp_state_set(job->fp_state);
  uint32_t done = 0;
  for (;; ++done) {
    const uint32_t number = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (number >= job->chunks) break;
    const uint64_t begin = number * job->chunk;
    const uint64_t left = job->count - begin;
    job->work(job->context, index, begin, begin + (left < job->chunk ? left : job->chunk));
  }
  aot_fp_state_set(fp_state);
  if (index == 0) job->own = (aot_own_part_t){done, aot_os_now_ns()};
  (void)atomic_fetch_add_explicit(&job->finished, done, memory_order_release);
}

aot_status_t aot_host_threads_share(const aot_host_threads_t *host, aot_work_t work, void *context,
                                    uint64_t count, uint64_t chunk, aot_error_t *error,
                                    aot_own_part_t *out_own) {
  if (chunk == 0) chunk = 1;
  if (count / chunk >= UINT16_MAX) chunk = count / UINT16_MAX + 1;
  aot_host_job_t job = {.work = work,
                        .context = context,
                        .count = count,
                        .chunk = chunk,
                        .chunks = (uint32_t)(count / chunk + (count % chunk != 0)),
                        .threads = host->threads,
                        .fp_state = aot_fp_state_get(),
                        .own = {0, aot_os_now_ns()}};
  const uint32_t tasks = job.chunks < host->threads ? job.chunks : host->threads;
  host->parallel_for(host->user, tasks, run_task, &job);
  *out_own = job.own;
  if (atomic_load_explicit(&job.finished, memory_order_acquire) == job.chunks) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT,
                  "parallel_for has returned before its %u tasks have ended", (unsigned)tasks);
}

#else  // without threads

aot_status_t aot_host_threads_share(const aot_host_threads_t *host, aot_work_t work, void *context,
                                    uint64_t count, uint64_t chunk, aot_error_t *error,
                                    aot_own_part_t *out_own) {
  (void)host;
  (void)chunk;
  (void)error;
  work(context, 0, 0, count);
  *out_own = (aot_own_part_t){1, aot_os_now_ns()};
  return AOT_OK;
}

#endif  // AOT_THREADS
