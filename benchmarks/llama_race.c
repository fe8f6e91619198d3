// race LIBRARIES MODEL THREADS PROMPT TOKENS TURNS: tokens a second of a prompt and behind it.
// race read MIB TURNS THREADS: bytes a second of a loop that reads as much memory, a part a thread.
// Prints the best turn as JSON. One thread is timed by the process's CPU time, more by the clock.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

enum { LANES = 64, AT_ONCE = 512, MOST_THREADS = 64 };

static double seconds(int threads) {
  struct timespec now;
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void errors_only(enum ggml_log_level level, const char *text, void *context) {
  (void)context;
  if (level >= GGML_LOG_LEVEL_ERROR) {
    fputs(text, stderr);
  }
}

struct part {
  const uint64_t *memory;
  size_t words;
  uint64_t sum;
};

static void *read_part(void *given) {
  struct part *part = given;
  uint64_t sums[LANES] = {0};
  for (size_t i = 0; i + LANES <= part->words; i += LANES) {
    for (size_t lane = 0; lane < LANES; lane++) {
      sums[lane] += part->memory[i + lane];
    }
  }
  for (size_t lane = 0; lane < LANES; lane++) {
    part->sum += sums[lane];
  }
  return NULL;
}

static int read_memory(size_t bytes, int turns, int threads) {
  uint64_t *memory = malloc(bytes);
  if (memory == NULL || threads < 1 || threads > MOST_THREADS) {
    return 1;
  }
  memset(memory, 1, bytes);
  const size_t words = bytes / sizeof(uint64_t) / (size_t)threads;
  double best = 1e9;
  for (int turn = 0; turn < turns; turn++) {
    struct part parts[MOST_THREADS] = {0};
    pthread_t others[MOST_THREADS];
    const double begin = seconds(threads);
    for (int t = 0; t < threads; t++) {
      parts[t] = (struct part){memory + (size_t)t * words, words, 0};
      if (t > 0 && pthread_create(&others[t], NULL, read_part, &parts[t]) != 0) {
        return 1;
      }
    }
    read_part(&parts[0]);
    volatile uint64_t sink = parts[0].sum;
    for (int t = 1; t < threads; t++) {
      pthread_join(others[t], NULL);
      sink += parts[t].sum;
    }
    const double taken = seconds(threads) - begin;
    best = taken < best ? taken : best;
  }
  printf("{\"bytes_per_s\": %.4g}\n", (double)bytes / best);
  return 0;
}

static int take(struct llama_context *context, llama_token *tokens, int count) {
  for (int at = 0; at < count; at += AT_ONCE) {
    const int some = count - at < AT_ONCE ? count - at : AT_ONCE;
    if (llama_decode(context, llama_batch_get_one(tokens + at, some)) != 0) {
      return 1;
    }
  }
  llama_synchronize(context);
  return 0;
}

int main(int count, char **arguments) {
  if (count == 5 && strcmp(arguments[1], "read") == 0) {
    return read_memory((size_t)atoi(arguments[2]) << 20, atoi(arguments[3]), atoi(arguments[4]));
  }
  if (count != 7) {
    return 1;
  }
  const int threads = atoi(arguments[3]), prompt = atoi(arguments[4]);
  const int more = atoi(arguments[5]), turns = atoi(arguments[6]);
  llama_log_set(errors_only, NULL);
  ggml_backend_load_all_from_path(arguments[1]);
  llama_backend_init();
  struct llama_model *model =
      llama_model_load_from_file(arguments[2], llama_model_default_params());
  if (model == NULL) {
    return 2;
  }
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)(prompt + more);
  params.n_batch = params.n_ubatch = AT_ONCE;
  params.n_threads = params.n_threads_batch = threads;
  struct llama_context *context = llama_init_from_model(model, params);
  llama_token *tokens = malloc(sizeof(llama_token) * (size_t)(prompt + more));
  if (context == NULL || tokens == NULL) {
    return 3;
  }
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < prompt + more; i++) {
    tokens[i] = (llama_token)((int64_t)i * 7919 % vocabulary);
  }
  double prompt_s = 1e9, decode_s = 1e9;
  for (int turn = 0; turn <= turns; turn++) {  // the first one is not timed
    llama_memory_clear(llama_get_memory(context), true);
    const double begin = seconds(threads);
    int status = take(context, tokens, prompt);
    const double middle = seconds(threads);
    for (int i = 0; i < more && status == 0; i++) {
      status = take(context, tokens + prompt + i, 1);
    }
    const double end = seconds(threads);
    if (status != 0) {
      return 4;
    }
    if (turn > 0) {
      prompt_s = middle - begin < prompt_s ? middle - begin : prompt_s;
      decode_s = end - middle < decode_s ? end - middle : decode_s;
    }
  }
  printf("{\"prompt\": %.5g, \"decode\": %.5g}\n", prompt / prompt_s, more / decode_s);
  fflush(stdout);
  _Exit(0);
}
