// Asynchronous runs: a thread that waits for one run after the other.
#include "aot/async.h"

#include <string.h>

#include "alloc.h"
#include "os_threads.h"
#include "program.h"
#include "status.h"

#if AOT_THREADS

typedef enum aot_async_state_t {
  AOT_ASYNC_FRESH,    // no run was begun
  AOT_ASYNC_ASKED,    // a run is to begin
  AOT_ASYNC_RUNNING,  // it is under way, or its `done` is
  AOT_ASYNC_ENDED
} aot_async_state_t;

struct aot_async_t {
  aot_program_t *program;
  aot_os_thread_t thread;
  aot_os_gate_t gate;  // of all below
  int64_t process;
  aot_async_state_t state;
  bool is_in_done;
  bool is_ending;
  aot_async_done_t *done;
  void *user;
  aot_error_t error;  // of the last run
};

static bool is_under_way(const aot_async_t *async) {
  return async->state == AOT_ASYNC_ASKED || async->state == AOT_ASYNC_RUNNING;
}

// Whether the caller is `done`, which must not wait for itself.
static bool is_called_by_done(const aot_async_t *async) {
  return async->is_in_done && aot_os_thread_is_current(&async->thread);
}

// One run and its `done`, with the gate unlocked meanwhile.  A `done` that began the next run
// leaves the state at that.
static void run_once(aot_async_t *async) {
  aot_async_done_t *done = async->done;
  void *user = async->user;
  async->state = AOT_ASYNC_RUNNING;
  aot_os_gate_unlock(&async->gate);
  aot_error_t error = {.status = AOT_OK};
  error.status = aot_program_run(async->program, &error);
  if (error.status == AOT_OK) error.message[0] = '\0';
  aot_os_gate_lock(&async->gate);
  async->error = error;
  if (done != NULL) {
    async->is_in_done = true;
    aot_os_gate_unlock(&async->gate);
    done(user, &error);
    aot_os_gate_lock(&async->gate);
    async->is_in_done = false;
  }
  if (async->state == AOT_ASYNC_RUNNING) async->state = AOT_ASYNC_ENDED;
  aot_os_gate_open(&async->gate);
}

static void serve(void *argument) {
  aot_async_t *async = argument;
  aot_os_gate_lock(&async->gate);
  while (true) {
    if (async->state == AOT_ASYNC_ASKED) {
      run_once(async);
    } else if (async->is_ending) {
      break;
    } else {
      aot_os_gate_wait(&async->gate);
    }
  }
  aot_os_gate_unlock(&async->gate);
}

static aot_status_t start(aot_async_t *async, aot_error_t *error) {
  AOT_TRY(aot_os_gate_create(&async->gate, error));
  const aot_status_t status =
      aot_os_thread_start(&async->thread, serve, async, AOT_OS_STACK_USUAL, error);
  if (status != AOT_OK) aot_os_gate_destroy(&async->gate);
  return status;
}

aot_status_t aot_async_create(aot_program_t *program, aot_error_t *error, aot_async_t **out_async) {
  if (out_async == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_async is NULL");
  *out_async = NULL;
  AOT_TRY(aot_program_enter(program, error));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&program->allocator, sizeof(aot_async_t), "an asynchronous run", error,
                       &memory));
  aot_async_t *async = memory;
  memset(async, 0, sizeof *async);
  async->program = program;
  async->process = aot_os_process();
  const aot_status_t status = start(async, error);
  if (status == AOT_OK) {
    *out_async = async;
  } else {
    aot_release(&program->allocator, async, sizeof *async);
  }
  return status;
}

static aot_status_t check_run(const aot_async_t *async, aot_error_t *error) {
  if (async->is_ending) {
    return aot_fail(error, AOT_ERROR_BUSY, "no run begins while the runs are being destroyed");
  }
  const bool is_free =
      !is_under_way(async) || (is_called_by_done(async) && async->state == AOT_ASYNC_RUNNING);
  if (is_free) return AOT_OK;
  return aot_fail(error, AOT_ERROR_BUSY, "a run is under way");
}

// Where a fork was made the thread is missing, and so may be who holds the gate.
static aot_status_t check_process(const aot_async_t *async, aot_error_t *error) {
  if (async == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "async is NULL");
  if (async->process == aot_os_process()) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "its thread is not in the child of a fork: make it there");
}

aot_status_t aot_async_run(aot_async_t *async, aot_async_done_t *done, void *user,
                           aot_error_t *error) {
  AOT_TRY(check_process(async, error));
  aot_os_gate_lock(&async->gate);
  const aot_status_t status = check_run(async, error);
  if (status == AOT_OK) {
    async->state = AOT_ASYNC_ASKED;
    async->done = done;
    async->user = user;
    aot_os_gate_open(&async->gate);
  }
  aot_os_gate_unlock(&async->gate);
  return status;
}

aot_status_t aot_async_wait(aot_async_t *async, aot_error_t *error) {
  AOT_TRY(check_process(async, error));
  aot_os_gate_lock(&async->gate);
  aot_status_t status = AOT_OK;
  if (is_called_by_done(async)) {
    status = aot_fail(error, AOT_ERROR_BUSY, "the run's completion waits for itself");
  } else if (async->state == AOT_ASYNC_FRESH) {
    status = aot_fail(error, AOT_ERROR_NOT_READY, "no run was begun");
  } else {
    while (is_under_way(async))
      aot_os_gate_wait(&async->gate);
    status = async->error.status;
    if (error != NULL) *error = async->error;
  }
  aot_os_gate_unlock(&async->gate);
  return status;
}

bool aot_async_is_running(aot_async_t *async) {
  if (async == NULL || async->process != aot_os_process()) return false;
  aot_os_gate_lock(&async->gate);
  const bool is_running = is_under_way(async);
  aot_os_gate_unlock(&async->gate);
  return is_running;
}

aot_status_t aot_async_destroy(aot_async_t *async) {
  if (async == NULL) return AOT_OK;
  if (async->process == aot_os_process()) {
    aot_os_gate_lock(&async->gate);
    const bool is_own = is_called_by_done(async);
    if (!is_own) {
      async->is_ending = true;
      aot_os_gate_open(&async->gate);
    }
    aot_os_gate_unlock(&async->gate);
    if (is_own) return AOT_ERROR_BUSY;
    aot_os_thread_join(&async->thread);
    aot_os_gate_destroy(&async->gate);
  }
  aot_release(&async->program->allocator, async, sizeof *async);
  return AOT_OK;
}

#else  // AOT_THREADS

aot_status_t aot_async_create(aot_program_t *program, aot_error_t *error, aot_async_t **out_async) {
  if (out_async == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_async is NULL");
  *out_async = NULL;
  AOT_TRY(aot_program_enter(program, error));
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "this build has no threads");
}

static aot_status_t no_threads(aot_error_t *error) {
  return aot_fail(error, AOT_ERROR_ARGUMENT, "async is NULL");
}

aot_status_t aot_async_run(aot_async_t *async, aot_async_done_t *done, void *user,
                           aot_error_t *error) {
  (void)async;
  (void)done;
  (void)user;
  return no_threads(error);
}

aot_status_t aot_async_wait(aot_async_t *async, aot_error_t *error) {
  (void)async;
  return no_threads(error);
}

bool aot_async_is_running(aot_async_t *async) {
  (void)async;
  return false;
}

aot_status_t aot_async_destroy(aot_async_t *async) {
  (void)async;
  return AOT_OK;
}

#endif  // AOT_THREADS
