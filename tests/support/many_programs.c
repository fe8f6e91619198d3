// Runs programs of one module at once, each with threads of its own, while one more is cancelled
// again and again: what they compute has the same bits, and the thread sanitizer sees no race.
//
//   many_programs MODULE PROGRAMS ROUNDS
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/aot.h"
#include "xxh64.h"

#define MOST_PROGRAMS 64
#define MOST_VALUES 32768

typedef struct user_t {
  pthread_t thread;
  const aot_module_t *module;
  int rounds;
  uint64_t sum;  // of all outputs
} user_t;

static aot_program_t *cancelled;
static atomic_int unfinished;

static void check(aot_status_t status, const aot_error_t *error) {
  if (status == AOT_OK) return;
  (void)fprintf(stderr, "%s\n", error->message);
  exit(1);
}

static void set_inputs(aot_program_t *program, int64_t extent) {
  static float values[MOST_VALUES];
  aot_error_t error;
  for (size_t i = 0; i < aot_program_input_count(program); ++i) {
    const aot_tensor_info_t *info = aot_program_input_info(program, i);
    int64_t dims[8];
    size_t bytes = aot_dtype_bytes(info->dtype);
    for (uint32_t axis = 0; axis < info->rank; ++axis) {
      dims[axis] = info->dims[axis].extent >= 0 ? info->dims[axis].extent : extent;
      bytes *= (size_t)dims[axis];
    }
    if (bytes > sizeof values) exit(2);
    const aot_tensor_t tensor = {sizeof tensor, info->dtype, info->rank, dims, values, bytes};
    check(aot_program_set_input(program, i, &tensor, &error), &error);
  }
}

static uint64_t sum_outputs(const aot_program_t *program, uint64_t sum) {
  aot_error_t error;
  for (size_t i = 0; i < aot_program_output_count(program); ++i) {
    aot_tensor_t tensor = {.size = sizeof tensor};
    check(aot_program_get_output(program, i, &error, &tensor), &error);
    sum = aot_xxh64(tensor.data, tensor.bytes, sum);
  }
  return sum;
}

static void *use(void *argument) {
  user_t *user = argument;
  aot_error_t error;
  for (int round = 0; round < user->rounds; ++round) {
    aot_program_t *program = NULL;
    const aot_program_options_t options = {.size = sizeof options, .threads = 3};
    check(aot_program_create(user->module, &options, &error, &program), &error);
    for (int64_t extent = 1; extent <= 5; ++extent) {
      set_inputs(program, extent);
      check(aot_program_run(program, &error), &error);
      user->sum = sum_outputs(program, user->sum);
    }
    aot_program_destroy(program);
  }
  atomic_fetch_sub(&unfinished, 1);
  return NULL;
}

static void *cancel(void *argument) {
  (void)argument;
  aot_error_t error;
  for (bool is_cancelled = true; atomic_load(&unfinished) > 0; is_cancelled = !is_cancelled)
    check(aot_program_set_cancelled(cancelled, is_cancelled, &error), &error);
  check(aot_program_set_cancelled(cancelled, true, &error), &error);
  return NULL;
}

int main(int count, char **words) {
  static user_t users[MOST_PROGRAMS];
  aot_error_t error;
  aot_module_t *module = NULL;
  if (count != 4) return 2;
  const int programs = atoi(words[2]);
  if (programs < 1 || programs > MOST_PROGRAMS) return 2;
  check(aot_module_open_path(words[1], NULL, &error, &module), &error);
  pthread_t canceller;
  const aot_program_options_t options = {.size = sizeof options, .threads = 3};
  check(aot_program_create(module, &options, &error, &cancelled), &error);
  set_inputs(cancelled, 2);
  atomic_store(&unfinished, programs);
  for (int i = 0; i < programs; ++i) {
    users[i] = (user_t){.module = module, .rounds = atoi(words[3])};
    if (pthread_create(&users[i].thread, NULL, use, &users[i]) != 0) return 2;
  }
  if (pthread_create(&canceller, NULL, cancel, NULL) != 0) return 2;
  int runs = 0;
  int ends = 0;
  for (; atomic_load(&unfinished) > 0 || ends == 0; ++runs) {
    const aot_status_t status = aot_program_run(cancelled, &error);
    if (status == AOT_ERROR_CANCELLED) ++ends;
    if (status != AOT_OK && status != AOT_ERROR_CANCELLED) check(status, &error);
    if (runs > 1000000) break;
  }
  for (int i = 0; i < programs; ++i) {
    (void)pthread_join(users[i].thread, NULL);
    if (users[i].sum != users[0].sum) return 3;
  }
  (void)pthread_join(canceller, NULL);
  aot_program_destroy(cancelled);
  aot_module_close(module);
  return ends > 0 && puts("ok") >= 0 ? 0 : 4;
}
