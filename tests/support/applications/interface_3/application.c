// An application as it was written when AOT_INTERFACE was 3, with the headers of then beside it.
// It has an allocator and threads of its own, sets deadlines, cancels from another thread, gives
// inputs and outputs strides, and lists what a module has.  Neither it nor its headers change.
//
//   application SCALE.aotm COUNTS.aotm ENDLESS.aotm
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aot/aot.h"
#include "aot/contents.h"
#include "aot/strides.h"

#define ROWS 5
#define COUNTS 400
#define TASKS 3

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      (void)fprintf(stderr, "application.c:%d: %s\n", __LINE__, #condition); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

// ---- memory ----

typedef struct memory_t {
  size_t held;
  size_t calls;
} memory_t;

static void *allocate(void *user, size_t bytes, size_t alignment) {
  memory_t *memory = user;
  void *block = NULL;
  CHECK(bytes > 0 && alignment != 0 && (alignment & (alignment - 1)) == 0);
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  if (posix_memalign(&block, alignment, bytes) != 0) return NULL;
  memory->held += bytes;
  memory->calls += 1;
  return block;
}

static void release(void *user, void *pointer, size_t bytes, size_t alignment) {
  memory_t *memory = user;
  CHECK(pointer != NULL && alignment != 0 && bytes <= memory->held);
  memory->held -= bytes;
  free(pointer);
}

// ---- threads ----

typedef struct task_t {
  void (*task)(void *context, uint32_t index);
  void *context;
  uint32_t index;
} task_t;

static void *run_task(void *argument) {
  const task_t *task = argument;
  task->task(task->context, task->index);
  return NULL;
}

static void parallel_for(void *user, uint32_t count, void (*task)(void *context, uint32_t index),
                         void *context) {
  size_t *calls = user;
  pthread_t threads[TASKS];
  task_t tasks[TASKS];
  CHECK(count >= 1 && count <= TASKS);
  for (uint32_t i = 0; i < count; ++i) {
    tasks[i] = (task_t){task, context, i};
    CHECK(pthread_create(&threads[i], NULL, run_task, &tasks[i]) == 0);
  }
  for (uint32_t i = 0; i < count; ++i)
    CHECK(pthread_join(threads[i], NULL) == 0);
  *calls += 1;
}

static void *cancel_soon(void *program) {
  const struct timespec pause = {0, 20000000};
  (void)nanosleep(&pause, NULL);
  CHECK(aot_program_set_cancelled(program, true, NULL) == AOT_OK);
  return NULL;
}

// ---- what it does ----

static aot_program_t *open_program(const char *path, memory_t *memory,
                                   const aot_program_options_t *options) {
  const aot_module_options_t module_options = {.size = sizeof module_options,
                                               .allocator = {memory, allocate, release}};
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  aot_error_t error;
  CHECK(aot_module_open_path(path, &module_options, &error, &module) == AOT_OK);
  aot_variant_info_t variant = {.size = sizeof variant};
  CHECK(aot_module_get_variant(module, 0, &error, &variant) == AOT_OK);
  CHECK(strcmp(variant.device, "cpu") == 0 && variant.entry_count == 1);
  aot_entry_info_t entry = {.size = sizeof entry};
  CHECK(aot_module_get_entry(module, 0, 0, &error, &entry) == AOT_OK);
  CHECK(strcmp(entry.name, "main") == 0);
  CHECK(aot_module_find_metadata(module, "no such key") == NULL);
  CHECK(aot_program_create(module, options, &error, &program) == AOT_OK);
  CHECK(aot_program_input_count(program) == entry.input_count);
  aot_module_close(module);  // the program keeps it alive
  return program;
}

// y = 2 * x, of columns of a larger array to columns of another.
static void run_strided(const char *path, memory_t *memory) {
  float x[ROWS][7];
  float y[ROWS][8];
  for (int row = 0; row < ROWS; ++row) {
    for (int column = 0; column < 7; ++column)
      x[row][column] = (float)(10 * row + column);
    for (int column = 0; column < 8; ++column)
      y[row][column] = -1;
  }
  aot_program_t *program = open_program(path, memory, NULL);
  const int64_t dims[2] = {ROWS, 3};
  const int64_t from[2] = {sizeof x[0], 2 * sizeof x[0][0]};
  const int64_t to[2] = {sizeof y[0], sizeof y[0][0]};
  const aot_tensor_t input = {.size = sizeof input,
                              .dtype = AOT_DTYPE_F32,
                              .rank = 2,
                              .dims = dims,
                              .data = &x[0][1],
                              .bytes = sizeof x - sizeof x[0][0]};
  const aot_tensor_t output = {.size = sizeof output,
                               .dtype = AOT_DTYPE_F32,
                               .rank = 2,
                               .dims = dims,
                               .data = &y[0][2],
                               .bytes = sizeof y - 2 * sizeof y[0][0]};
  aot_error_t error;
  CHECK(aot_program_set_input_strided(program, 0, &input, from, &error) == AOT_OK);
  CHECK(aot_program_set_output_strided(program, 0, &output, to, &error) == AOT_OK);
  CHECK(aot_program_set_deadline(program, aot_runtime_now_ns() + 3600000000000u, &error) == AOT_OK);
  CHECK(aot_program_run(program, &error) == AOT_OK);
  for (int row = 0; row < ROWS; ++row) {
    for (int column = 0; column < 8; ++column) {
      const bool is_result = column >= 2 && column < 5;
      CHECK(y[row][column] == (is_result ? 2 * x[row][1 + 2 * (column - 2)] : -1));
    }
  }
  aot_tensor_t dense = {.size = sizeof dense};
  CHECK(aot_program_get_output(program, 0, &error, &dense) == AOT_OK);
  CHECK(dense.rank == 2 && dense.dims[0] == ROWS && ((const float *)dense.data)[0] == 2 * x[0][1]);
  aot_program_info_t info = {.size = sizeof info};
  CHECK(aot_program_get_info(program, &error, &info) == AOT_OK);
  CHECK(info.memory_bytes > 0 && info.memory_bytes <= memory->held);
  CHECK(aot_program_destroy(program) == AOT_OK);
}

// Each of some workgroups adds to its own count.
static void run_on_own_threads(const char *path, memory_t *memory) {
  size_t calls = 0;
  const aot_program_options_t options = {.size = sizeof options,
                                         .threads = TASKS,
                                         .parallel_for = parallel_for,
                                         .parallel_for_user = &calls};
  aot_program_t *program = open_program(path, memory, &options);
  uint32_t counts[COUNTS];
  aot_error_t error;
  CHECK(aot_program_set_output(program, 0, counts, sizeof counts, &error) == AOT_OK);
  for (int run = 0; run < 40; ++run) {
    memset(counts, 0, sizeof counts);
    CHECK(aot_program_run(program, &error) == AOT_OK);
    for (int i = 0; i < COUNTS; ++i)
      CHECK(counts[i] == 3);
  }
  CHECK(calls > 0);
  CHECK(aot_program_destroy(program) == AOT_OK);
}

static void run_what_never_ends(const char *path, memory_t *memory) {
  aot_program_t *program = open_program(path, memory, NULL);
  aot_error_t error;
  pthread_t thread;
  CHECK(aot_program_set_deadline(program, aot_runtime_now_ns() + 10000000, &error) == AOT_OK);
  CHECK(aot_program_run(program, &error) == AOT_ERROR_DEADLINE);
  CHECK(aot_program_set_deadline(program, 0, &error) == AOT_OK);
  CHECK(pthread_create(&thread, NULL, cancel_soon, program) == 0);
  CHECK(aot_program_run(program, &error) == AOT_ERROR_CANCELLED);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(aot_program_destroy(program) == AOT_OK);
}

int main(int count, char **arguments) {
  memory_t memory = {0, 0};
  CHECK(count == 4);
  CHECK(aot_runtime_interface() == AOT_INTERFACE);
  run_strided(arguments[1], &memory);
  run_on_own_threads(arguments[2], &memory);
  run_what_never_ends(arguments[3], &memory);
  CHECK(memory.held == 0 && memory.calls > 0);
  (void)printf("ok\n");
  return 0;
}
