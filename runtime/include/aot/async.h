// Runs on a thread of the runtime's: a call that returns at once, and a completion.  Beside the
// loader.
//
// One aot_async_t runs one program, one run at a time.  While a run is under way the program is its
// own: of the calls on it only aot_program_set_cancelled may be made, and inputs and outputs that
// the program borrows stay as they are.
#ifndef AOT_ASYNC_H_
#define AOT_ASYNC_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aot_async_t aot_async_t;

// Called on the runtime's thread when a run has ended: `error` is valid until it returns, its
// status is the run's.  May read outputs, set inputs, and start the next run (aot_async_run);
// aot_async_wait and aot_async_destroy give AOT_ERROR_BUSY there.
typedef void aot_async_done_t(void *user, const aot_error_t *error);

// Starts the thread.  *Borrows* the program, which is destroyed after it.  Fails with
// AOT_ERROR_UNSUPPORTED in a build without threads.
AOT_API aot_status_t aot_async_create(aot_program_t *program, aot_error_t *error,
                                      aot_async_t **out_async);

// Begins aot_program_run on the thread and returns; `done`, if not NULL, is called with `user` when
// it has ended.  Fails with AOT_ERROR_BUSY while a run is under way, and with AOT_ERROR_UNSUPPORTED
// in the child of a fork, which the thread is not in.
AOT_API aot_status_t aot_async_run(aot_async_t *async, aot_async_done_t *done, void *user,
                                   aot_error_t *error);

// Returns when no run is under way and its `done` has returned: the status of the last run, and its
// message.  AOT_ERROR_NOT_READY where none was begun.
AOT_API aot_status_t aot_async_wait(aot_async_t *async, aot_error_t *error);

// Whether a run, or its `done`, is under way; false for NULL.
AOT_API bool aot_async_is_running(aot_async_t *async);

// Waits for a run that is under way (aot_program_set_cancelled shortens that), and ends the thread.
// A `done` that begins another run meanwhile gets AOT_ERROR_BUSY.  NULL is AOT_OK.
AOT_API aot_status_t aot_async_destroy(aot_async_t *async);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // AOT_ASYNC_H_
