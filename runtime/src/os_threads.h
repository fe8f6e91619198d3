// Threads as the operating system has them.  One implementation a system: os_threads_posix.c.
// Builds with AOT_THREADS=0 have none, and need no more than the C library.
#ifndef AOT_OS_THREADS_H_
#define AOT_OS_THREADS_H_

#include "aot/aot.h"

#ifndef AOT_THREADS
#define AOT_THREADS 1
#endif

#if AOT_THREADS
#include <pthread.h>

typedef struct aot_os_thread_t {
  pthread_t id;
  void (*run)(void *argument);
  void *argument;
} aot_os_thread_t;

// Where threads sleep until another opens it: a mutex with a condition.
typedef struct aot_os_gate_t {
  pthread_mutex_t mutex;
  pthread_cond_t opened;
} aot_os_gate_t;

typedef enum aot_os_stack_t {
  AOT_OS_STACK_SMALL,  // enough for kernels
  AOT_OS_STACK_USUAL   // the system's own size: drivers of GPUs compile on it
} aot_os_stack_t;

// Starts a thread that handles no signals.  `thread` stays where it is until it is joined.
aot_status_t aot_os_thread_start(aot_os_thread_t *thread, void (*run)(void *argument),
                                 void *argument, aot_os_stack_t stack, aot_error_t *error);
bool aot_os_thread_is_current(const aot_os_thread_t *thread);
void aot_os_thread_join(aot_os_thread_t *thread);

aot_status_t aot_os_gate_create(aot_os_gate_t *gate, aot_error_t *error);
void aot_os_gate_destroy(aot_os_gate_t *gate);
void aot_os_gate_lock(aot_os_gate_t *gate);
void aot_os_gate_unlock(aot_os_gate_t *gate);
void aot_os_gate_wait(aot_os_gate_t *gate);  // locked before and after, not meanwhile
void aot_os_gate_open(aot_os_gate_t *gate);  // for all who wait

// CPUs that this process may use, at least 1.
uint32_t aot_os_cpu_count(void);

// Differs in the child of a fork, which has one thread only.
int64_t aot_os_process(void);

#endif  // AOT_THREADS
#endif  // AOT_OS_THREADS_H_
