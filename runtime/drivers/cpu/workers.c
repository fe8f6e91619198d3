#include "workers.h"

#include <string.h>

#include "fp_state.h"
#include "os.h"
#include "status.h"

#if AOT_THREADS
#include <stdatomic.h>

// How long an idle thread looks for work before it sleeps, and the caller for the others' ends.
#define SPIN_NS 200000u
// Looks between two questions for the time.
#define LOOKS 32u
// In place of the next chunk's number: no job is open.
#define CLOSED UINT32_MAX
#define MOST_CHUNKS ((uint64_t)1 << 30)
// What one thread writes lies apart from what others read: two cache lines, as some fetch pairs.
#define APART 128

typedef struct aot_job_t {
  bool is_known;
  uint32_t generation;
  aot_work_t work;
  void *context;
  uint64_t count;
  uint64_t chunk;
  uint32_t chunks;
  aot_fp_state_t fp_state;
} aot_job_t;

typedef struct aot_worker_t {
  aot_workers_t *workers;
  uint32_t number;
  aot_os_thread_t thread;
} aot_worker_t;

// A job is handed out by one word: its generation in the high half, the next chunk in the low one.
// No value of it comes back before 2^32 jobs.  Who swaps it for its successor owns the
// chunk, and has read the job's fields right: they change only while the word says CLOSED, so a
// swap that succeeds came before.
struct aot_workers_t {
  _Atomic uint64_t state;
  _Atomic(aot_work_t) work;
  _Atomic(void *) context;
  _Atomic uint64_t count;
  _Atomic uint64_t chunk;
  _Atomic uint32_t chunks;
  _Atomic uint64_t fp_state;
  uint8_t apart_0[APART];
  _Atomic uint32_t finished;  // chunks of the job that others than the caller have done
  uint8_t apart_1[APART];
  _Atomic uint32_t sleepers;
  _Atomic uint32_t alarms;
  _Atomic bool is_stopping;
  _Atomic bool caller_sleeps;
  uint8_t apart_2[APART];
  // The rest is the caller's own, or does not change.
  aot_allocator_t allocator;
  aot_os_gate_t gate;  // of workers without work
  aot_os_gate_t done;  // of the caller
  int64_t process;
  uint32_t generation;
  uint32_t worker_count;  // those that were started
  uint32_t spin_ns;
  size_t bytes;
  aot_worker_t workers[];
};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__ARM_ARCH) && __ARM_ARCH >= 7)
  __asm__ volatile("yield" ::: "memory");
#elif defined(__riscv)
  __asm__ volatile(".4byte 0x0100000f" ::: "memory");  // pause, a hint: older CPUs do nothing
#endif
}

// Takes the next chunk of the open job; `job` is what this thread knows of it.
static bool claim(aot_workers_t *w, aot_job_t *job, uint32_t *out_chunk) {
  uint64_t state = atomic_load_explicit(&w->state, memory_order_acquire);
  for (;;) {
    const uint32_t next = (uint32_t)state;
    const uint32_t generation = (uint32_t)(state >> 32);
    if (next == CLOSED) return false;
    if (!job->is_known || job->generation != generation) {
      job->is_known = true;
      job->generation = generation;
      job->work = atomic_load_explicit(&w->work, memory_order_relaxed);
      job->context = atomic_load_explicit(&w->context, memory_order_relaxed);
      job->count = atomic_load_explicit(&w->count, memory_order_relaxed);
      job->chunk = atomic_load_explicit(&w->chunk, memory_order_relaxed);
      job->chunks = atomic_load_explicit(&w->chunks, memory_order_relaxed);
      job->fp_state = atomic_load_explicit(&w->fp_state, memory_order_relaxed);
    }
    if (next >= job->chunks) return false;
    if (atomic_compare_exchange_weak_explicit(&w->state, &state, state + 1, memory_order_acq_rel,
                                              memory_order_acquire)) {
      *out_chunk = next;
      return true;
    }
  }
}

static void do_chunk(const aot_job_t *job, uint32_t worker, uint32_t chunk) {
  const uint64_t begin = chunk * job->chunk;
  const uint64_t left = job->count - begin;
  job->work(job->context, worker, begin, begin + (left < job->chunk ? left : job->chunk));
}

static bool has_job(aot_workers_t *w) {
  return (uint32_t)atomic_load(&w->state) != CLOSED;
}

// Sleeps until there is a job, an alarm or the end.  Sequentially consistent on both sides: who
// opens a job sees the sleeper, or the sleeper sees the job.
static void sleep_until_called(aot_workers_t *w, uint32_t *alarms) {
  aot_os_gate_lock(&w->gate);
  (void)atomic_fetch_add(&w->sleepers, 1);
  while (!atomic_load(&w->is_stopping) && !has_job(w) && atomic_load(&w->alarms) == *alarms) {
    aot_os_gate_wait(&w->gate);
  }
  (void)atomic_fetch_sub(&w->sleepers, 1);
  *alarms = atomic_load(&w->alarms);
  aot_os_gate_unlock(&w->gate);
}

static void run_worker(void *argument) {
  const aot_worker_t *self = argument;
  aot_workers_t *w = self->workers;
  aot_job_t job = {.is_known = false};
  uint32_t alarms = 0;
  uint64_t idle_since = 0;  // 0: not idle
  for (uint32_t looks = 1; !atomic_load_explicit(&w->is_stopping, memory_order_relaxed); ++looks) {
    uint32_t chunk = 0;
    if (claim(w, &job, &chunk)) {
      // The same rounding as on the caller's thread, so that the bits are the same.
      aot_fp_state_set(job.fp_state);
      do_chunk(&job, self->number, chunk);
      (void)atomic_fetch_add(&w->finished, 1);
      if (atomic_load(&w->caller_sleeps)) {
        aot_os_gate_lock(&w->done);
        aot_os_gate_open(&w->done);
        aot_os_gate_unlock(&w->done);
      }
      idle_since = 0;
      continue;
    }
    pause_briefly();
    if (w->spin_ns > 0 && looks % LOOKS != 0) continue;
    const uint64_t now = aot_os_now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < w->spin_ns) continue;
    sleep_until_called(w, &alarms);
    job.is_known = false;  // generations may have gone around meanwhile
    idle_since = 0;
  }
}

static void wake_sleepers(aot_workers_t *w) {
  if (atomic_load(&w->sleepers) == 0) return;
  aot_os_gate_lock(&w->gate);
  aot_os_gate_open(&w->gate);
  aot_os_gate_unlock(&w->gate);
}

void aot_workers_wake(aot_workers_t *workers) {
  (void)atomic_fetch_add(&workers->alarms, 1);
  wake_sleepers(workers);
}

// Waits until the others have done `expected` chunks.
static void wait_for_others(aot_workers_t *w, uint32_t expected) {
  uint64_t since = 0;
  for (uint32_t looks = 1; atomic_load_explicit(&w->finished, memory_order_acquire) != expected;
       ++looks) {
    pause_briefly();
    if (w->spin_ns > 0 && looks % LOOKS != 0) continue;
    const uint64_t now = aot_os_now_ns();
    if (since == 0) since = now;
    if (now - since < w->spin_ns) continue;
    aot_os_gate_lock(&w->done);
    atomic_store(&w->caller_sleeps, true);
    while (atomic_load(&w->finished) != expected)
      aot_os_gate_wait(&w->done);
    atomic_store(&w->caller_sleeps, false);
    aot_os_gate_unlock(&w->done);
    return;
  }
}

aot_own_part_t aot_workers_share(aot_workers_t *workers, aot_work_t work, void *context,
                                 uint64_t count, uint64_t chunk, bool wakes) {
  aot_workers_t *w = workers;
  if (chunk == 0) chunk = 1;
  if (count / chunk >= MOST_CHUNKS) chunk = count / MOST_CHUNKS + 1;
  const uint32_t chunks = (uint32_t)(count / chunk + (count % chunk != 0));
  atomic_store_explicit(&w->work, work, memory_order_relaxed);
  atomic_store_explicit(&w->context, context, memory_order_relaxed);
  atomic_store_explicit(&w->count, count, memory_order_relaxed);
  atomic_store_explicit(&w->chunk, chunk, memory_order_relaxed);
  atomic_store_explicit(&w->chunks, chunks, memory_order_relaxed);
  atomic_store_explicit(&w->fp_state, aot_fp_state_get(), memory_order_relaxed);
  atomic_store_explicit(&w->finished, 0, memory_order_relaxed);
  ++w->generation;
  atomic_store(&w->state, (uint64_t)w->generation << 32);
  if (wakes) wake_sleepers(w);
  aot_job_t job = {.is_known = false};
  uint32_t own = 0;
  for (uint32_t next = 0; claim(w, &job, &next); ++own)
    do_chunk(&job, 0, next);
  atomic_store(&w->state, (uint64_t)w->generation << 32 | CLOSED);
  const aot_own_part_t part = {own, aot_os_now_ns()};
  wait_for_others(w, chunks - own);
  return part;
}

static aot_status_t start(aot_workers_t *w, uint32_t count, aot_error_t *error) {
  for (uint32_t i = 0; i < count; ++i) {
    aot_worker_t *worker = &w->workers[i];
    worker->workers = w;
    worker->number = i + 1;
    aot_error_t detail = {AOT_OK, ""};
    const aot_status_t status = aot_os_thread_start(&worker->thread, run_worker, worker, &detail);
    if (status != AOT_OK) {
      return aot_fail(error, status, "thread %u of %u: %s", (unsigned)i + 2, (unsigned)count + 1,
                      detail.message);
    }
    w->worker_count = i + 1;
  }
  return AOT_OK;
}

static aot_status_t create_gates(aot_workers_t *w, aot_error_t *error) {
  AOT_TRY(aot_os_gate_create(&w->gate, error));
  const aot_status_t status = aot_os_gate_create(&w->done, error);
  if (status != AOT_OK) aot_os_gate_destroy(&w->gate);
  return status;
}

aot_status_t aot_workers_create(const aot_allocator_t *allocator, uint32_t threads,
                                aot_error_t *error, aot_workers_t **out_workers) {
  *out_workers = NULL;
  const size_t bytes = sizeof(aot_workers_t) + (threads - 1) * sizeof(aot_worker_t);
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "threads", error, &memory));
  memset(memory, 0, bytes);
  aot_workers_t *w = memory;
  w->allocator = *allocator;
  w->bytes = bytes;
  w->process = aot_os_process();
  // Who spins on a CPU that another thread of the job needs only keeps it from working.
  w->spin_ns = threads <= aot_os_cpu_count() ? SPIN_NS : 0;
  atomic_init(&w->state, CLOSED);
  aot_status_t status = create_gates(w, error);
  if (status != AOT_OK) {
    aot_release(allocator, w, bytes);
    return status;
  }
  status = start(w, threads - 1, error);
  if (status != AOT_OK) {
    aot_workers_destroy(w);
    return status;
  }
  *out_workers = w;
  return AOT_OK;
}

void aot_workers_destroy(aot_workers_t *workers) {
  if (workers == NULL) return;
  // After a fork there is nobody to join, and a lock may be held by nobody for ever.
  if (aot_workers_are_alive(workers)) {
    atomic_store(&workers->is_stopping, true);
    wake_sleepers(workers);
    for (uint32_t i = 0; i < workers->worker_count; ++i)
      aot_os_thread_join(&workers->workers[i].thread);
    aot_os_gate_destroy(&workers->gate);
    aot_os_gate_destroy(&workers->done);
  }
  const aot_allocator_t allocator = workers->allocator;
  aot_release(&allocator, workers, workers->bytes);
}

bool aot_workers_are_alive(const aot_workers_t *workers) {
  return workers->process == aot_os_process();
}

#else  // without threads

aot_status_t aot_workers_create(const aot_allocator_t *allocator, uint32_t threads,
                                aot_error_t *error, aot_workers_t **out_workers) {
  (void)allocator;
  *out_workers = NULL;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "%u threads wanted, this runtime was built without threads", (unsigned)threads);
}

void aot_workers_destroy(aot_workers_t *workers) {
  (void)workers;
}

bool aot_workers_are_alive(const aot_workers_t *workers) {
  (void)workers;
  return false;
}

void aot_workers_wake(aot_workers_t *workers) {
  (void)workers;
}

aot_own_part_t aot_workers_share(aot_workers_t *workers, aot_work_t work, void *context,
                                 uint64_t count, uint64_t chunk, bool wakes) {
  (void)workers;
  (void)chunk;
  (void)wakes;
  work(context, 0, 0, count);
  return (aot_own_part_t){1, aot_os_now_ns()};
}

#endif  // AOT_THREADS
