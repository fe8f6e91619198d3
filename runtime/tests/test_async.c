// Several programs of one module that run asynchronously, each run beginning the next one: for the
// thread sanitizer.  MODULE has one input of f32[N, 3] and doubles it.
#include "aot/async.h"

#include <stdio.h>
#include <string.h>

enum { PROGRAMS = 6, RUNS = 40, ROWS = 4 };

typedef struct stream_t {
  aot_program_t *program;
  aot_async_t *async;
  int64_t dims[2];
  float x[3 * ROWS];
  int ended;
  bool is_wrong;
} stream_t;

static bool begin(stream_t *stream);

static void next(void *user, const aot_error_t *error) {
  stream_t *stream = user;
  aot_tensor_t y = {.size = sizeof y};
  if (error->status != AOT_OK || aot_program_get_output(stream->program, 0, NULL, &y) != AOT_OK ||
      ((const float *)y.data)[5] != 2.0f * stream->x[5] ||
      aot_async_wait(stream->async, NULL) != AOT_ERROR_BUSY ||
      aot_async_destroy(stream->async) != AOT_ERROR_BUSY) {
    stream->is_wrong = true;
    return;
  }
  if (++stream->ended < RUNS && !begin(stream)) stream->is_wrong = true;
}

static bool begin(stream_t *stream) {
  stream->x[5] = (float)stream->ended;
  return aot_async_run(stream->async, next, stream, NULL) == AOT_OK;
}

static bool start(const aot_module_t *module, stream_t *stream) {
  memset(stream, 0, sizeof *stream);
  stream->dims[0] = ROWS;
  stream->dims[1] = 3;
  const aot_tensor_t x = {.size = sizeof x,
                          .dtype = AOT_DTYPE_F32,
                          .rank = 2,
                          .dims = stream->dims,
                          .data = stream->x,
                          .bytes = sizeof stream->x};
  return aot_program_create(module, NULL, NULL, &stream->program) == AOT_OK &&
         aot_program_set_input(stream->program, 0, &x, NULL) == AOT_OK &&
         aot_async_create(stream->program, NULL, &stream->async) == AOT_OK && begin(stream);
}

int main(int count, char **arguments) {
  static stream_t streams[PROGRAMS];
  aot_module_t *module = NULL;
  if (count != 2 || aot_module_open_path(arguments[1], NULL, NULL, &module) != AOT_OK) return 2;
  for (int i = 0; i < PROGRAMS; ++i)
    if (!start(module, &streams[i])) return 3;
  for (int i = 0; i < PROGRAMS; ++i) {
    if (aot_async_wait(streams[i].async, NULL) != AOT_OK || streams[i].ended != RUNS) return 4;
    if (streams[i].is_wrong || aot_async_is_running(streams[i].async)) return 5;
    if (i % 2 == 0 && !begin(&streams[i])) return 6;  // destroy waits for it
    if (aot_async_destroy(streams[i].async) != AOT_OK) return 7;
    if (aot_program_destroy(streams[i].program) != AOT_OK) return 8;
  }
  aot_module_close(module);
  puts("ok");
  return 0;
}
