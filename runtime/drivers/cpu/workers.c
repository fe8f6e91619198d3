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
// Chunks of a job are numbered in half a word.
#define MOST_CHUNKS ((uint64_t)UINT16_MAX)
// What one thread writes lies apart from what others read: two cache lines, as some fetch pairs.
#define APART 128

// A thread's part of the open job, in one word: the job's generation in the high half, then the
// first chunk that is left and the one after the last.  A thread takes its own chunks from the
// front, and then others' from the back: neighbouring chunks, in jobs one after the other, are
// mostly done by the same thread, whose cache has what it wrote.
// Who swaps the word for one with a chunk less owns that chunk, and may read the job's fields: they
// change only after all of its chunks are done.  No word with chunks left comes back before 2^32
// jobs.
typedef struct aot_worker_t {
  _Atomic uint64_t part;
  aot_workers_t *workers;
  uint32_t number;
  aot_os_thread_t thread;  // not of the caller, the first one
  uint8_t apart[APART];
} aot_worker_t;

struct aot_workers_t {
  // the open job
  aot_work_t work;
  void *context;
  uint64_t count;
  uint64_t chunk;
  aot_fp_state_t fp_state;
  _Atomic uint32_t opened;  // its generation
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
  uint32_t threads;
  uint32_t started;  // workers, the caller not counted
  uint32_t spin_ns;
  size_t bytes;
  uint8_t apart_3[APART];
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

static uint32_t begin_of(uint64_t part) {
  return (uint32_t)part >> 16;
}

static uint32_t end_of(uint64_t part) {
  return (uint32_t)part & UINT16_MAX;
}

// Takes a chunk of `from`'s part of the open job.
static bool claim(aot_workers_t *w, uint32_t self, uint32_t from, uint32_t *out_chunk) {
  _Atomic uint64_t *place = &w->workers[from].part;
  uint64_t part = atomic_load_explicit(place, memory_order_acquire);
  while (begin_of(part) < end_of(part)) {
    const bool is_own = from == self;
    *out_chunk = is_own ? begin_of(part) : end_of(part) - 1;
    if (atomic_compare_exchange_weak_explicit(place, &part, is_own ? part + (1u << 16) : part - 1,
                                              memory_order_acq_rel, memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

// Does a chunk of `self`'s own part, or, when there is none left, of the next one that has any.
// False if nobody's has.
static bool do_chunk(aot_workers_t *w, uint32_t self) {
  uint32_t chunk = 0;
  uint32_t from = self;
  while (!claim(w, self, from, &chunk)) {
    from = from + 1 < w->threads ? from + 1 : 0;
    if (from == self) return false;
  }
  // The same rounding as on the caller's thread, so that the bits are the same.
  if (self > 0) aot_fp_state_set(w->fp_state);
  const uint64_t begin = chunk * w->chunk;
  const uint64_t left = w->count - begin;
  w->work(w->context, self, begin, begin + (left < w->chunk ? left : w->chunk));
  return true;
}

// Sleeps until a job is opened after that of generation `emptied`, an alarm or the end.
// Sequentially consistent on both sides: who opens a job sees the sleeper, or the sleeper sees the
// job.
static void sleep_until_called(aot_workers_t *w, uint32_t emptied, uint32_t *alarms) {
  aot_os_gate_lock(&w->gate);
  (void)atomic_fetch_add(&w->sleepers, 1);
  while (!atomic_load(&w->is_stopping) && atomic_load(&w->opened) == emptied &&
         atomic_load(&w->alarms) == *alarms) {
    aot_os_gate_wait(&w->gate);
  }
  (void)atomic_fetch_sub(&w->sleepers, 1);
  *alarms = atomic_load(&w->alarms);
  aot_os_gate_unlock(&w->gate);
}

static void run_worker(void *argument) {
  const aot_worker_t *self = argument;
  aot_workers_t *w = self->workers;
  uint32_t alarms = 0;
  uint32_t emptied = 0;     // the last job that was looked at and had no chunks left
  uint64_t idle_since = 0;  // 0: not idle
  for (uint32_t looks = 1; !atomic_load_explicit(&w->is_stopping, memory_order_relaxed); ++looks) {
    const uint32_t opened = atomic_load_explicit(&w->opened, memory_order_acquire);
    if (opened != emptied && do_chunk(w, self->number)) {
      (void)atomic_fetch_add(&w->finished, 1);
      if (atomic_load(&w->caller_sleeps)) {
        aot_os_gate_lock(&w->done);
        aot_os_gate_open(&w->done);
        aot_os_gate_unlock(&w->done);
      }
      idle_since = 0;
      continue;
    }
    emptied = opened;
    pause_briefly();
    if (w->spin_ns > 0 && looks % LOOKS != 0) continue;
    const uint64_t now = aot_os_now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < w->spin_ns) continue;
    sleep_until_called(w, emptied, &alarms);
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
  w->work = work;
  w->context = context;
  w->count = count;
  w->chunk = chunk;
  w->fp_state = aot_fp_state_get();
  atomic_store_explicit(&w->finished, 0, memory_order_relaxed);
  ++w->generation;
  // Equal parts, the caller's first.
  uint64_t begin = 0;
  for (uint32_t i = 0; i < w->threads; ++i) {
    const uint64_t end = begin + (chunks - begin + w->threads - i - 1) / (w->threads - i);
    atomic_store_explicit(&w->workers[i].part, (uint64_t)w->generation << 32 | begin << 16 | end,
                          memory_order_release);
    begin = end;
  }
  atomic_store(&w->opened, w->generation);  // after all parts: who sees it sees them
  if (wakes) wake_sleepers(w);
  uint32_t own = 0;
  while (do_chunk(w, 0))
    ++own;
  const aot_own_part_t part = {own, aot_os_now_ns()};
  wait_for_others(w, chunks - own);
  return part;
}

static aot_status_t start(aot_workers_t *w, uint32_t count, aot_error_t *error) {
  for (uint32_t i = 0; i < count; ++i) {
    aot_worker_t *worker = &w->workers[i + 1];
    worker->workers = w;
    worker->number = i + 1;
    aot_error_t detail = {AOT_OK, ""};
    const aot_status_t status =
        aot_os_thread_start(&worker->thread, run_worker, worker, AOT_OS_STACK_SMALL, &detail);
    if (status != AOT_OK) {
      return aot_fail(error, status, "thread %u of %u: %s", (unsigned)i + 2, (unsigned)count + 1,
                      detail.message);
    }
    w->started = i + 1;
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
  const size_t bytes = sizeof(aot_workers_t) + threads * sizeof(aot_worker_t);
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "threads", error, &memory));
  memset(memory, 0, bytes);
  aot_workers_t *w = memory;
  w->allocator = *allocator;
  w->bytes = bytes;
  w->threads = threads;
  w->process = aot_os_process();
  // Who spins on a CPU that another thread of the job needs only keeps it from working.
  w->spin_ns = threads <= aot_os_cpu_count() ? SPIN_NS : 0;
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
    for (uint32_t i = 1; i <= workers->started; ++i)
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
