// aot-run --prompt: a language model's reply, as it comes.  What a chat template would write around
// the prompt is in the module, rendered when it was compiled.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

#if !defined(AOT_TEXT) || !defined(AOT_STATE)

bool generate(runner_t *runner) {
  (void)runner;
  return fail("this build has no language models: build it with AOT_TEXT and AOT_STATE");
}

#else

#include "aot/state.h"
#include "aot/text.h"

typedef struct generator_t {
  runner_t *runner;
  aot_program_t *program;
  aot_vocabulary_t *vocabulary;
  aot_sampler_t *sampler;
  aot_vocabulary_info_t info;
  int32_t *tokens;  // of the prompt
  size_t token_count;
  int64_t most_tokens;  // of one call
  const float *logits;  // of the last token
  size_t logit_count;
  uint64_t reply_count;
  int32_t pending;  // the last token of the reply, which was not run; -1: there is none
  double prompt_ms, decode_ms, first_token_ms;
} generator_t;

static bool check(const generator_t *g) {
  const aot_program_t *program = g->program;
  aot_program_info_t info;
  aot_program_get_info(program, &info);
  const aot_tensor_info_t *tokens = aot_program_input_info(program, 0);
  const aot_tensor_info_t *logits = aot_program_output_info(program, 0);
  const bool is_model = aot_program_input_count(program) == 1 && tokens->rank == 1 &&
                        tokens->dtype == AOT_DTYPE_I32 && aot_program_output_count(program) == 1 &&
                        logits->rank == 2 && logits->dtype == AOT_DTYPE_F32 &&
                        aot_program_capacity(program) > 0;
  return is_model ||
         fail(
             "%s: entry point \"%s\" is no language model's: expected an input, tokens i32[T], an "
             "output, logits f32[N, V], and a state that grows",
             g->runner->options.module, info.entry);
}

static bool open_text(generator_t *g) {
  const options_t *options = &g->runner->options;
  const aot_sampler_options_t sampling = {
      .repetition_penalty = (float)options->repetition_penalty,
      .top_k = (uint32_t)(options->top_k < UINT32_MAX ? options->top_k : UINT32_MAX),
      .top_p = (float)options->top_p,
      .min_p = (float)options->min_p,
      .temperature = (float)options->temperature,
      .seed = options->seed};
  aot_error_t error;
  if (aot_vocabulary_open(g->runner->module, NULL, &error, &g->vocabulary) != AOT_OK ||
      aot_sampler_create(&sampling, NULL, &error, &g->sampler) != AOT_OK) {
    return fail("%s: %s", options->module, error.message);
  }
  aot_vocabulary_get_info(g->vocabulary, &g->info);
  const aot_dim_info_t *dim = &aot_program_input_info(g->program, 0)->dims[0];
  const int64_t bound = dim->extent >= 0 ? dim->extent : dim->max;
  g->most_tokens = bound >= 0 ? bound : (int64_t)aot_program_capacity(g->program);
  return true;
}

// ---- the prompt ----

static bool add_text(generator_t *g, const char *text, aot_encode_options_t how) {
  const size_t bytes = strlen(text);
  size_t capacity = bytes + 4;
  for (;;) {
    int32_t *grown = realloc(g->tokens, (g->token_count + capacity) * sizeof *grown);
    if (grown == NULL) return fail("out of memory");
    g->tokens = grown;
    size_t count = 0;
    aot_error_t error;
    const aot_status_t status = aot_encode(g->vocabulary, text, bytes, &how,
                                           g->tokens + g->token_count, capacity, &error, &count);
    if (status == AOT_OK) g->token_count += count;
    if (status == AOT_OK) return true;
    if (status != AOT_ERROR_CAPACITY || count <= capacity) return fail("%s", error.message);
    capacity = count;
  }
}

// What the template wrote may name control tokens; what a user wrote is plain text.
static bool add_template(generator_t *g, const char *text) {
  return add_text(g, text, (aot_encode_options_t){.parses_control = true, .is_part = true});
}

// A message; without a text, what stands behind one that is there.
static bool add_message(generator_t *g, const char *role, const char *text) {
  const char *name = NULL, *before = NULL, *after = NULL;
  for (uint32_t i = 0; i < g->info.chat_role_count; ++i) {
    if (!aot_vocabulary_get_chat_role(g->vocabulary, i, &name, &before, &after)) break;
    if (strcmp(name, role) != 0) continue;
    if (text == NULL) return add_template(g, after);
    return add_template(g, before) && add_text(g, text, (aot_encode_options_t){.is_part = true}) &&
           add_template(g, after);
  }
  return fail("the model's chat template knows no message of role \"%s\"", role);
}

static bool begin_chat(generator_t *g) {
  const options_t *options = &g->runner->options;
  if (!add_template(g, g->info.chat_begin)) return false;
  const bool has_bos = g->token_count > 0 && g->tokens[0] == g->info.bos;
  if (g->info.adds_bos && g->info.bos >= 0 && !has_bos) {
    memmove(g->tokens + 1, g->tokens, g->token_count * sizeof *g->tokens);  // there is room for 4
    g->tokens[0] = g->info.bos;
    ++g->token_count;
  }
  return options->system != NULL ? add_message(g, "system", options->system)
                                 : add_template(g, g->info.chat_default);
}

// The tokens of the prompt.  Behind a state that was loaded, a message of its own.
static bool encode_prompt(generator_t *g) {
  const options_t *options = &g->runner->options;
  const bool is_first = aot_program_length(g->program) == 0;
  if (options->is_raw || g->info.chat_role_count == 0) {
    if (!add_text(g, options->prompt, (aot_encode_options_t){.is_part = !is_first})) return false;
    return g->token_count > 0 || fail("the prompt has no tokens");
  }
  if (is_first ? !begin_chat(g) : !add_message(g, "assistant", NULL)) return false;
  return add_message(g, "user", options->prompt) && add_template(g, g->info.chat_reply);
}

// ---- the reply ----

static bool run_tokens(generator_t *g, const int32_t *tokens, size_t count) {
  aot_error_t error;
  for (size_t done = 0; done < count;) {
    const size_t left = count - done;
    const int64_t part = left < (size_t)g->most_tokens ? (int64_t)left : g->most_tokens;
    const aot_tensor_t input = {.dtype = AOT_DTYPE_I32,
                                .rank = 1,
                                .dims = &part,
                                .data = (void *)(uintptr_t)(tokens + done),
                                .bytes = (size_t)part * sizeof *tokens};
    if (aot_program_set_input(g->program, 0, &input, &error) != AOT_OK ||
        aot_program_run(g->program, &error) != AOT_OK) {
      return fail("%s", error.message);
    }
    done += (size_t)part;
  }
  aot_tensor_t logits;
  if (aot_program_get_output(g->program, 0, &error, &logits) != AOT_OK) {
    return fail("%s", error.message);
  }
  g->logit_count = (size_t)logits.dims[1];
  g->logits = (const float *)logits.data + (size_t)(logits.dims[0] - 1) * g->logit_count;
  return true;
}

static bool write_piece(generator_t *g, aot_decoder_t *decoder, int32_t token) {
  char text[1024];
  size_t bytes = 0;
  aot_error_t error;
  if (aot_decode(g->vocabulary, decoder, &token, 1, text, sizeof text, &error, &bytes) != AOT_OK) {
    return fail("%s", error.message);
  }
  (void)fwrite(text, 1, bytes, stdout);
  return flush_report();
}

static bool write_reply(generator_t *g, int64_t start_ns) {
  const options_t *options = &g->runner->options;
  aot_decoder_t decoder = {.is_begun = true};
  aot_error_t error;
  int64_t first_ns = 0;
  for (;;) {
    int32_t token = 0;
    if (aot_sampler_next(g->sampler, g->logits, g->logit_count, &error, &token) != AOT_OK) {
      return fail("%s", error.message);
    }
    const int64_t now = now_ns();
    if (first_ns == 0) first_ns = now;
    g->decode_ms = (double)(now - first_ns) / 1e6;
    g->first_token_ms = (double)(first_ns - start_ns) / 1e6;
    g->pending = aot_vocabulary_is_end(g->vocabulary, token) ? -1 : token;
    if (g->pending < 0) break;
    if (!write_piece(g, &decoder, token)) return false;
    if (++g->reply_count == options->max_tokens) break;
    if (aot_program_length(g->program) >= aot_program_capacity(g->program)) break;
    if (!run_tokens(g, &token, 1)) return false;
  }
  char rest[3];
  (void)fwrite(rest, 1, aot_decode_end(&decoder, rest), stdout);
  (void)putchar('\n');
  return flush_report();
}

// Lets the state have the last token of a reply that was cut off.
static bool settle(generator_t *g) {
  const bool has_room = aot_program_length(g->program) < aot_program_capacity(g->program);
  return g->pending < 0 || !has_room || run_tokens(g, &g->pending, 1);
}

static double rate(double count, double ms) {
  return ms > 0.0 && count > 0.0 ? count / ms * 1e3 : 0.0;
}

static bool report_rates(const generator_t *g) {
  const double prompt = rate((double)g->token_count, g->prompt_ms);
  const double decode = rate((double)g->reply_count - 1.0, g->decode_ms);
  if (!g->runner->options.is_json) return true;
  (void)printf("{\"prompt_tokens\": %zu, \"tokens\": %" PRIu64
               ", \"prompt_tokens_per_s\": %.3f, \"decode_tokens_per_s\": %.3f"
               ", \"first_token_ms\": %.3f, \"context\": %" PRIu64 ", \"context_used\": %" PRIu64
               ", \"threads\": %" PRIu32 ", \"peak_rss_kb\": %ld}\n",
               g->token_count, g->reply_count, prompt, decode, g->first_token_ms,
               aot_program_capacity(g->program), aot_program_length(g->program),
               g->runner->options.threads, peak_rss_kb());
  return flush_report();
}

static bool reply(generator_t *g) {
  const options_t *options = &g->runner->options;
  aot_error_t error;
  if (!check(g) || !open_text(g)) return false;
  if (options->load_state != NULL &&
      aot_program_load_state(g->program, options->load_state, &error) != AOT_OK) {
    return fail("%s", error.message);
  }
  const int64_t start = now_ns();
  if (!encode_prompt(g)) return false;
  const uint64_t used = aot_program_length(g->program);
  const uint64_t capacity = aot_program_capacity(g->program);
  if (g->token_count > capacity - used) {
    return fail("the prompt is %zu tokens, and the context holds %" PRIu64 ", of which %" PRIu64
                " are in use",
                g->token_count, capacity, used);
  }
  if (!run_tokens(g, g->tokens, g->token_count)) return false;
  g->prompt_ms = (double)(now_ns() - start) / 1e6;
  for (size_t i = 0; i < g->token_count; ++i)
    aot_sampler_accept(g->sampler, g->tokens[i]);
  if (!write_reply(g, start)) return false;
  if (options->save_state != NULL && !settle(g)) return false;
  if (options->save_state != NULL &&
      aot_program_save_state(g->program, options->save_state, &error) != AOT_OK) {
    return fail("%s", error.message);
  }
  return report_rates(g);
}

bool generate(runner_t *runner) {
  generator_t generator = {.runner = runner, .program = runner->program, .pending = -1};
  const bool is_done = reply(&generator);
  free(generator.tokens);
  aot_sampler_destroy(generator.sampler);
  aot_vocabulary_close(generator.vocabulary);
  return is_done;
}

#endif
