// aot-run --prompt: a language model's reply, as it comes.  What is written around the prompt is
// the chat template's, which is in the module.
#include "generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "print.h"

#if !defined(AOT_TEXT) || !defined(AOT_STATE)

bool generate(runner_t *runner) {
  (void)runner;
  return fail("this build has no language models: build it with AOT_TEXT and AOT_STATE");
}

#else

#include "aot/chat.h"
#include "aot/state.h"

typedef struct times_t {
  int64_t start_ns;
  int64_t prompt_ns;  // when the prompt had been read
  int64_t first_ns;   // when the reply's first token was known
  int64_t last_ns;
} times_t;

static bool open_chat(runner_t *runner, aot_chat_t **out_chat) {
  const options_t *options = &runner->options;
  const aot_chat_options_t how = {.size = sizeof how,
                                  .system = options->system,
                                  .variables = options->variables,
                                  .is_raw = options->is_raw,
                                  .max_tokens = options->max_tokens,
                                  .shifts_context = options->shifts_context,
                                  .sampling = &options->sampling,
                                  .stops = options->stops,
                                  .stop_count = options->stop_count,
                                  .logprobs = options->logprobs};
  aot_error_t error;
  return aot_chat_create(runner->program, &how, NULL, &error, out_chat) == AOT_OK ||
         fail("%s: %s", options->module, error.message);
}

// A line of JSON for the token that was chosen last.
static void report_logprobs(const aot_chat_t *chat) {
  aot_chat_info_t info = {.size = sizeof info};
  if (aot_chat_get_info(chat, NULL, &info) != AOT_OK) return;
  (void)printf("\n{\"token\": %" PRId32 ", \"logprob\": %.6g, \"top\": [", info.token,
               (double)info.logprob);
  for (uint32_t i = 0; i < info.top_count; ++i) {
    (void)printf("%s{\"token\": %" PRId32 ", \"logprob\": %.6g}", i > 0 ? ", " : "",
                 info.top[i].token, (double)info.top[i].logprob);
  }
  (void)printf("]}\n");
}

static bool write_reply(const runner_t *runner, aot_chat_t *chat, times_t *times) {
  const bool has_logprobs = runner->options.is_json && runner->options.logprobs > 0;
  for (;;) {
    aot_error_t error;
    const char *piece = NULL;
    size_t bytes = 0;
    if (aot_chat_next(chat, &error, &piece, &bytes) != AOT_OK) return fail("%s", error.message);
    times->last_ns = now_ns();
    if (times->first_ns == 0) times->first_ns = times->last_ns;
    if (piece == NULL) break;
    print_text(stdout, piece, bytes, "\n\t");
    if (has_logprobs) report_logprobs(chat);
    if (!flush_report()) return false;
  }
  (void)putchar('\n');
  return flush_report();
}

static double rate(double count, int64_t ns) {
  return ns > 0 && count > 0.0 ? count / (double)ns * 1e9 : 0.0;
}

static bool report_rates(const runner_t *runner, const aot_chat_t *chat, const times_t *times) {
  static const char *const ends[] = {"", "end", "stop", "tokens", "context", "caller"};
  if (!runner->options.is_json) return true;
  aot_chat_info_t info = {.size = sizeof info};
  if (aot_chat_get_info(chat, NULL, &info) != AOT_OK) return false;
  (void)printf(
      "{\"prefix_tokens\": %" PRIu64 ", \"prompt_tokens\": %" PRIu64 ", \"tokens\": %" PRIu64
      ", \"prompt_tokens_per_s\": %.3f, \"decode_tokens_per_s\": %.3f"
      ", \"first_token_ms\": %.3f, \"context\": %" PRIu64 ", \"context_used\": %" PRIu64
      ", \"stopped_by\": \"%s\", \"threads\": %" PRIu32 ", \"peak_rss_kb\": %ld}\n",
      info.prefix_tokens, info.prompt_tokens, info.tokens,
      rate((double)info.prompt_tokens, times->prompt_ns - times->start_ns),
      rate((double)info.tokens - 1.0, times->last_ns - times->first_ns),
      (double)(times->first_ns - times->start_ns) / 1e6, aot_program_capacity(runner->program),
      aot_program_length(runner->program), ends[info.end], runner->options.threads, peak_rss_kb());
  return flush_report();
}

static bool reply(runner_t *runner, aot_chat_t *chat) {
  const options_t *options = &runner->options;
  aot_error_t error;
  if (options->load_state != NULL &&
      aot_program_load_state(runner->program, options->load_state, &error) != AOT_OK) {
    return fail("%s", error.message);
  }
  times_t times = {.start_ns = now_ns()};
  if (aot_chat_say(chat, options->prompt, strlen(options->prompt), &error) != AOT_OK) {
    return fail("%s", error.message);
  }
  times.prompt_ns = now_ns();
  if (!write_reply(runner, chat, &times)) return false;
  if (options->save_state != NULL &&
      (aot_chat_settle(chat, &error) != AOT_OK ||
       aot_program_save_state(runner->program, options->save_state, &error) != AOT_OK)) {
    return fail("%s", error.message);
  }
  return report_rates(runner, chat, &times);
}

bool generate(runner_t *runner) {
  aot_chat_t *chat = NULL;
  const bool is_done = open_chat(runner, &chat) && reply(runner, chat);
  aot_chat_destroy(chat);
  return is_done;
}

#endif
