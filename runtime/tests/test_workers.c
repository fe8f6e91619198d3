// Tests of the threads that share a dispatch: every piece once, whatever the timing; sleeping and
// waking; stacks; rounding; forks; threads that can't be started.  Meant for sanitizers too.
// Link with -Wl,--wrap=pthread_create.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../drivers/cpu/fp_state.h"
#include "../drivers/cpu/workers.h"
#include "os.h"

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      (void)fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#define MOST 5000u

static const aot_allocator_t allocator = {NULL, aot_os_allocate, aot_os_release};

static int creations_left = 1000;

// An application's own, which takes most of what a thread's stack was asked to be.
static _Thread_local volatile char of_each_thread[240 * 1024];

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
  return creations_left-- > 0 ? __real_pthread_create(id, attributes, run, argument) : 11;
}

static aot_workers_t *create(uint32_t threads) {
  aot_workers_t *workers = NULL;
  aot_error_t error;
  CHECK(aot_workers_create(&allocator, threads, &error, &workers) == AOT_OK);
  CHECK(workers != NULL);
  return workers;
}

static void sleep_ms(long ms) {
  const struct timespec time = {0, ms * 1000000};
  (void)nanosleep(&time, NULL);
}

// Plain memory: a piece that two threads do is a data race, which the thread sanitizer sees.
typedef struct tally_t {
  uint32_t times[MOST];
  uint32_t by[MOST];
  uint32_t threads;
  uint32_t round;
  long nap_ms;  // of workers other than the caller
} tally_t;

static void count_pieces(void *context, uint32_t worker, uint64_t begin, uint64_t end) {
  tally_t *tally = context;
  CHECK(worker < tally->threads && begin < end && end <= MOST);
  if (worker > 0 && tally->nap_ms > 0) sleep_ms(tally->nap_ms);
  for (uint64_t i = begin; i < end; ++i) {
    ++tally->times[i];
    tally->by[i] = worker;
  }
}

static void share(aot_workers_t *workers, tally_t *tally, uint64_t count, uint64_t chunk,
                  bool wakes) {
  memset(tally->times, 0, sizeof tally->times);
  const uint64_t own = aot_workers_share(workers, count_pieces, tally, count, chunk, wakes).chunks;
  const uint64_t chunks = chunk == 0 ? count : (count + chunk - 1) / chunk;
  CHECK(own <= chunks);
  uint64_t of_caller = 0;
  for (uint64_t i = 0; i < MOST; ++i) {
    CHECK(tally->times[i] == (i < count ? 1u : 0u));
    of_caller += i < count && tally->by[i] == 0;
  }
  CHECK(of_caller <= own * (chunk == 0 ? 1 : chunk));
}

static void every_piece_is_done_once(uint32_t threads) {
  static tally_t tally;
  tally = (tally_t){.threads = threads};
  aot_workers_t *workers = create(threads);
  uint32_t random = 12345;
  for (uint32_t round = 0; round < 3000; ++round) {
    random = random * 1664525u + 1013904223u;
    const uint64_t count = 1 + (random >> 8) % (round % 16 == 0 ? MOST : 40);
    const uint64_t chunk = (random >> 4) % 7;
    if (round % 500 == 0) sleep_ms(2);  // until the others sleep
    if (round % 700 == 0) aot_workers_wake(workers);
    share(workers, &tally, count, chunk, round % 3 != 0);
  }
  aot_workers_destroy(workers);
}

// The caller sleeps until they are done, and sleepers do get up.
static void slow_workers_are_waited_for(void) {
  static tally_t tally;
  tally = (tally_t){.threads = 3, .nap_ms = 3};
  aot_workers_t *workers = create(3);
  bool has_helped = false;
  for (int round = 0; round < 20; ++round) {
    if (round % 5 == 0) sleep_ms(5);
    share(workers, &tally, 2000, 1, true);
    for (size_t i = 0; i < 2000; ++i)
      has_helped = has_helped || tally.by[i] > 0;
    sleep_ms(1);
  }
  aot_workers_destroy(workers);
  CHECK(has_helped);
}

static void idle_workers_end(void) {
  for (uint32_t threads = 2; threads <= 6; ++threads)
    aot_workers_destroy(create(threads));
  aot_workers_t *workers = create(4);
  sleep_ms(5);
  aot_workers_destroy(workers);
  aot_workers_destroy(NULL);
}

static void use_stack(void *context, uint32_t worker, uint64_t begin, uint64_t end) {
  volatile char own[128 * 1024];
  (void)context;
  for (size_t i = 0; i < sizeof own; i += 1024)
    own[i] = of_each_thread[i] = (char)worker;
  for (size_t i = 0; i < sizeof own; i += 1024)
    CHECK(own[i] == (char)worker && of_each_thread[i] == (char)worker && begin < end);
  sleep_ms(1);
}

static void storage_of_threads_leaves_them_a_stack(void) {
  aot_workers_t *workers = create(3);
  (void)aot_workers_share(workers, use_stack, NULL, 12, 1, true);
  aot_workers_destroy(workers);
}

static void check_fp_state(void *context, uint32_t worker, uint64_t begin, uint64_t end) {
  (void)worker;
  (void)begin;
  (void)end;
  CHECK(aot_fp_state_get() == *(const aot_fp_state_t *)context);
  sleep_ms(1);
}

static void workers_round_as_the_caller_does(void) {
#if defined(__SSE__)
  const aot_fp_state_t before = aot_fp_state_get();
  aot_workers_t *workers = create(3);
  // Flush to zero, denormals are zero, toward zero; then back.
  aot_fp_state_t states[] = {before | 0x8040u | 0x6000u, before};
  for (int i = 0; i < 2; ++i) {
    aot_fp_state_set(states[i]);
    (void)aot_workers_share(workers, check_fp_state, &states[i], 12, 1, true);
  }
  aot_workers_destroy(workers);
  CHECK(aot_fp_state_get() == before);
#else
  (void)check_fp_state;
#endif
}

static void a_fork_leaves_the_threads_behind(void) {
  aot_workers_t *workers = create(3);
  CHECK(aot_workers_are_alive(workers));
  const pid_t child = fork();
  if (child == 0) {
    const bool is_alive = aot_workers_are_alive(workers);
    aot_workers_destroy(workers);
    _exit(is_alive ? 1 : 0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  aot_workers_destroy(workers);
}

// What a handler of the application is for is its own threads' to handle; what a thread raises
// itself, and a profiler's clock, reach the one that they are about.
static void check_mask(void *context, uint32_t worker, uint64_t begin, uint64_t end) {
  static const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
  static const int blocked[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGCHLD, SIGPIPE};
  (void)begin;
  (void)end;
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
  for (size_t i = 0; i < sizeof open / sizeof open[0]; ++i)
    CHECK(sigismember(&mask, open[i]) == 0);
  for (size_t i = 0; i < sizeof blocked / sizeof blocked[0]; ++i)
    CHECK(sigismember(&mask, blocked[i]) == (worker > 0 ? 1 : 0));
  if (worker > 0) atomic_fetch_add((atomic_int *)context, 1);
  sleep_ms(1);
}

static void workers_leave_signals_to_the_application(void) {
  aot_workers_t *workers = create(3);
  atomic_int masks = 0;
  while (atomic_load(&masks) == 0)
    (void)aot_workers_share(workers, check_mask, &masks, 12, 1, true);
  aot_workers_destroy(workers);
}

static void threads_that_cannot_be_started_are_a_status(void) {
  for (int started = 0; started < 4; ++started) {
    creations_left = started;
    aot_workers_t *workers = NULL;
    aot_error_t error = {AOT_OK, ""};
    CHECK(aot_workers_create(&allocator, 5, &error, &workers) == AOT_ERROR_MEMORY);
    CHECK(workers == NULL);
    char expected[100];
    (void)snprintf(expected, sizeof expected,
                   "thread %d of 5: the system starts no more threads (errno 11)", started + 2);
    CHECK(strcmp(error.message, expected) == 0);
  }
  creations_left = 1000;
}

int main(void) {
  for (uint32_t threads = 2; threads <= 5; ++threads)
    every_piece_is_done_once(threads);
  slow_workers_are_waited_for();
  idle_workers_end();
  storage_of_threads_leaves_them_a_stack();
  workers_round_as_the_caller_does();
  workers_leave_signals_to_the_application();
  threads_that_cannot_be_started_are_a_status();
  a_fork_leaves_the_threads_behind();
  (void)puts("ok");
  return 0;
}
