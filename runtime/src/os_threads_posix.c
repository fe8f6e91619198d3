#define _GNU_SOURCE 1  // sched_getaffinity, dl_iterate_phdr

#include "os_threads.h"

#if AOT_THREADS
#include <errno.h>
#ifdef __linux__
#include <link.h>
#endif
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "status.h"

// Kernels keep little on the stack: what is large is scratch.
#define STACK_BYTES ((size_t)256 * 1024)
#define MOST_PAGE_BYTES ((size_t)64 * 1024)

#ifdef __linux__
static int add_thread_local(struct dl_phdr_info *object, size_t size, void *sum) {
  (void)size;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type == PT_TLS) *(size_t *)sum += segment->p_memsz + segment->p_align;
  }
  return 0;
}
#endif

// C libraries of Linux take a thread's own storage, whose size is up to the application and its
// libraries, out of the stack.  Whole pages, which some systems want, of any size there is.
static size_t stack_bytes(void) {
  size_t bytes = STACK_BYTES;
#ifdef __linux__
  (void)dl_iterate_phdr(add_thread_local, &bytes);
#endif
  return (bytes + MOST_PAGE_BYTES - 1) / MOST_PAGE_BYTES * MOST_PAGE_BYTES;
}

static void *enter(void *memory) {
  const aot_os_thread_t *thread = memory;
  thread->run(thread->argument);
  return NULL;
}

// The stack's size is a wish: where the system refuses it, its own will do.
static int create(aot_os_thread_t *thread, aot_os_stack_t stack) {
  if (stack == AOT_OS_STACK_USUAL) return pthread_create(&thread->id, NULL, enter, thread);
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return pthread_create(&thread->id, NULL, enter, thread);
  (void)pthread_attr_setstacksize(&attributes, stack_bytes());
  const int code = pthread_create(&thread->id, &attributes, enter, thread);
  (void)pthread_attr_destroy(&attributes);
  return code == EINVAL ? pthread_create(&thread->id, NULL, enter, thread) : code;
}

// All signals but those that a thread raises by what it does itself, which end the process where
// they are blocked, and a profiler's.
static void fill_mask(sigset_t *mask) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
  (void)sigfillset(mask);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; ++i)
    (void)sigdelset(mask, own[i]);
}

aot_status_t aot_os_thread_start(aot_os_thread_t *thread, void (*run)(void *argument),
                                 void *argument, aot_os_stack_t stack, aot_error_t *error) {
  thread->run = run;
  thread->argument = argument;
  // A new thread has the mask of the one that makes it; handlers belong to the application's own.
  sigset_t masked;
  sigset_t before;
  fill_mask(&masked);
  const bool is_masked = pthread_sigmask(SIG_SETMASK, &masked, &before) == 0;
  const int code = create(thread, stack);
  if (is_masked) (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code == 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_MEMORY, "the system starts no more threads (errno %d)", code);
}

bool aot_os_thread_is_current(const aot_os_thread_t *thread) {
  return pthread_equal(thread->id, pthread_self()) != 0;
}

void aot_os_thread_join(aot_os_thread_t *thread) {
  (void)pthread_join(thread->id, NULL);
}

aot_status_t aot_os_gate_create(aot_os_gate_t *gate, aot_error_t *error) {
  if (pthread_mutex_init(&gate->mutex, NULL) == 0) {
    if (pthread_cond_init(&gate->opened, NULL) == 0) return AOT_OK;
    (void)pthread_mutex_destroy(&gate->mutex);
  }
  return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: a lock");
}

void aot_os_gate_destroy(aot_os_gate_t *gate) {
  (void)pthread_cond_destroy(&gate->opened);
  (void)pthread_mutex_destroy(&gate->mutex);
}

void aot_os_gate_lock(aot_os_gate_t *gate) {
  (void)pthread_mutex_lock(&gate->mutex);
}

void aot_os_gate_unlock(aot_os_gate_t *gate) {
  (void)pthread_mutex_unlock(&gate->mutex);
}

void aot_os_gate_wait(aot_os_gate_t *gate) {
  (void)pthread_cond_wait(&gate->opened, &gate->mutex);
}

void aot_os_gate_open(aot_os_gate_t *gate) {
  (void)pthread_cond_broadcast(&gate->opened);
}

uint32_t aot_os_cpu_count(void) {
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return (uint32_t)CPU_COUNT(&allowed);
#endif
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

int64_t aot_os_process(void) {
  return (int64_t)getpid();
}

#else
typedef int aot_no_threads_t;  // a file of C needs something in it
#endif
