// Rendering conversations by a vocabulary's chat template: what it is given, and within what
// limits.
#include <string.h>

#include "alloc.h"
#include "sizes.h"
#include "template_machine.h"
#include "vocabulary.h"

// Of a run, unless the caller says others: templates of real models take some thousand steps.
#define USUAL_STEPS ((uint64_t)10000000)
#define USUAL_BYTES ((uint64_t)128 << 20)
#define MOST_TEXT ((uint32_t)8 << 20)

static aot_string_t *token_text(aot_render_t *render, const aot_vocabulary_t *vocabulary,
                                int64_t token) {
  aot_string_t *text = aot_render_allocate(render, sizeof *text);
  if (text == NULL) return &render->empty;
  *text = render->empty;
  if (token >= 0) text->bytes = aot_symbol_text(vocabulary, (uint32_t)token, &text->length);
  return text;
}

static void set_usual(aot_render_t *render, const char *name, aot_value_t value) {
  aot_builder_t builder = {.render = render};
  if (aot_map_find_text(render, render->variables, name) != NULL) return;
  aot_build_text(&builder, name);
  aot_map_set(render, render->variables, aot_built(&builder), value);
}

// The variables that every template has, where the caller gives no others.
static bool set_variables(aot_render_t *render, const aot_vocabulary_t *vocabulary,
                          const char *text, size_t bytes) {
  aot_value_t given;
  if (!aot_read_json(render, text, bytes, &given)) return false;
  if (!aot_is(given, AOT_MAP)) return aot_render_fail(render, "its variables are no JSON object");
  render->variables = given.as.map;
  set_usual(render, "messages", aot_list(aot_list_new(render, 0, AOT_IS_LIST)));
  set_usual(render, "tools", aot_none());
  set_usual(render, "documents", aot_none());
  set_usual(render, "add_generation_prompt", aot_bool(false));
  set_usual(render, "bos_token", aot_string(token_text(render, vocabulary, vocabulary->bos)));
  set_usual(render, "eos_token", aot_string(token_text(render, vocabulary, vocabulary->eos)));
  return render->status == AOT_OK;
}

static aot_status_t give(const aot_vocabulary_t *vocabulary, const aot_string_t *made,
                         aot_error_t *error, aot_rendered_t *out) {
  void *memory = NULL;
  AOT_TRY(aot_allocate(&vocabulary->allocator, 2 * (uint64_t)made->length + 1,
                       "a rendered conversation", error, &memory));
  uint8_t *text = memory;
  uint8_t *marks = text + made->length + 1;
  if (made->length > 0) memcpy(text, made->bytes, made->length);
  text[made->length] = '\0';
  for (uint32_t i = 0; i < made->length; ++i)
    marks[i] = aot_mark_at(made, i);
  const aot_rendered_t rendered = {
      .text = (const char *)text, .marks = marks, .bytes = made->length};
  aot_struct_give(&rendered, sizeof rendered, out);
  return AOT_OK;
}

static aot_status_t check_template(const aot_vocabulary_t *vocabulary, aot_error_t *error) {
  if (vocabulary->chat.code_count > 0) return AOT_OK;
  if (vocabulary->chat_template[0] == '\0') {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "the model has no chat template: it takes text to be continued only");
  }
  const bool is_old = vocabulary->chat_refusal[0] == '\0';
  return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                  "the module does not keep the model's chat template, which conversations need: "
                  "%s; it takes text to be continued only",
                  is_old ? "compile the model again" : vocabulary->chat_refusal);
}

// ---- what is left out ----

static bool has_mark(const aot_string_t *made, uint8_t mark) {
  if (made->marks == NULL) return made->length > 0 && made->mark == mark;
  return made->length > 0 && memchr(made->marks, mark, made->length) != NULL;
}

static bool is_list_of_some(const aot_value_t *value) {
  return value != NULL && aot_is(*value, AOT_LIST) && value->as.list->count > 0;
}

// Whether the template writes the same where a variable is another: nothing of it has a mark in the
// text, but a template may also decide by it, as those do that think unless a message says no.
static bool is_same_with(aot_render_t *render, const aot_string_t *made, const char *name,
                         aot_value_t value) {
  aot_render_t other = *render;
  other.error = NULL;
  other.variables = aot_map_new(&other, render->variables->count);
  for (uint32_t i = 0; i < render->variables->count; ++i)
    aot_map_set(&other, other.variables, render->variables->pairs[2 * (size_t)i],
                render->variables->pairs[2 * (size_t)i + 1]);
  aot_builder_t key = {.render = &other};
  aot_build_text(&key, name);
  aot_map_set(&other, other.variables, aot_built(&key), value);
  const aot_string_t *without = aot_template_run(&other);
  render->chunks = other.chunks;
  render->bytes = other.bytes;
  render->steps = other.steps;
  return other.status == AOT_OK && aot_strings_equal(made, without);
}

static aot_value_t without_first(aot_render_t *render, const aot_list_t *list) {
  aot_list_t *rest = aot_list_new(render, list->count, list->sort);
  for (uint32_t i = 1; i < list->count; ++i)
    aot_list_push(render, rest, list->items[i]);
  return aot_list(rest);
}

// Whether the first message is the system's, and says something.
static bool has_system(aot_render_t *render, const aot_value_t *messages) {
  if (!is_list_of_some(messages) || !aot_is(messages->as.list->items[0], AOT_MAP)) return false;
  const aot_map_t *first = messages->as.list->items[0].as.map;
  const aot_value_t *role = aot_map_find_text(render, first, "role");
  const aot_value_t *content = aot_map_find_text(render, first, "content");
  if (role == NULL || content == NULL || !aot_is(*role, AOT_STRING) ||
      !aot_is(*content, AOT_STRING)) {
    return false;
  }
  const aot_string_t *said = aot_stripped(render, content->as.string, NULL, AOT_STRIP_BEGIN);
  const aot_string_t *name = role->as.string;
  return name->length == 6 && memcmp(name->bytes, "system", 6) == 0 && said->length > 0;
}

// Fails where what the caller asked for makes no difference to the text.
static void check_left_out(aot_render_t *render, const aot_string_t *made) {
  static const char *const names[] = {"tools", "documents"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    const aot_value_t *asked = aot_map_find_text(render, render->variables, names[i]);
    if (!is_list_of_some(asked) || has_mark(made, 255)) continue;
    if (is_same_with(render, made, names[i], aot_none())) {
      (void)aot_render_fail(render, "it knows no %s, and leaves them out", names[i]);
    }
  }
  const aot_value_t *messages = aot_map_find_text(render, render->variables, "messages");
  if (!has_system(render, messages) || has_mark(made, 1)) return;
  const aot_value_t rest = without_first(render, messages->as.list);
  if (is_same_with(render, made, "messages", rest)) {
    (void)aot_render_fail(render, "it knows no system message, and leaves it out");
  }
}

aot_status_t aot_chat_render(const aot_vocabulary_t *vocabulary, const char *variables,
                             size_t bytes, const aot_render_options_t *options, aot_error_t *error,
                             aot_rendered_t *out_rendered) {
  aot_render_options_t how = {.size = sizeof how};
  AOT_TRY(aot_struct_clear(out_rendered, "aot_rendered_t", error));
  if (out_rendered->size < offsetof(aot_rendered_t, bytes) + sizeof out_rendered->bytes) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the aot_rendered_t has no room for the result");
  }
  if (options != NULL) {
    AOT_TRY(aot_struct_take(options, "aot_render_options_t", &how, sizeof how, error));
  }
  if (vocabulary == NULL || (variables == NULL && bytes > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary or the variables are NULL");
  }
  AOT_TRY(check_template(vocabulary, error));
  static const uint8_t nothing[1];
  aot_render_t render = {
      .allocator = &vocabulary->allocator,
      .code = &vocabulary->chat,
      .error = error,
      .status = AOT_OK,
      .steps = how.max_steps > 0 ? how.max_steps : USUAL_STEPS,
      .bytes = how.max_bytes > 0 ? how.max_bytes : USUAL_BYTES,
      .seconds = how.has_clock ? how.local_seconds : INT64_MIN,
      .empty = {.bytes = nothing, .characters = 0},
  };
  if (set_variables(&render, vocabulary, variables, bytes)) {
    const aot_string_t *made = aot_template_run(&render);
    if (made->length > MOST_TEXT) {
      (void)aot_render_fail(&render, "it writes more than %u MiB", (unsigned)(MOST_TEXT >> 20));
    }
    if (render.status == AOT_OK && how.is_strict) check_left_out(&render, made);
    if (render.status == AOT_OK) render.status = give(vocabulary, made, error, out_rendered);
  }
  aot_render_free(&render);
  return render.status;
}

void aot_rendered_release(const aot_vocabulary_t *vocabulary, aot_rendered_t *rendered) {
  if (vocabulary == NULL || rendered == NULL || rendered->text == NULL) return;
  aot_release(&vocabulary->allocator, (void *)(uintptr_t)rendered->text, 2 * rendered->bytes + 1);
  (void)aot_struct_clear(rendered, "aot_rendered_t", NULL);
}

aot_status_t aot_chat_tokens(const aot_vocabulary_t *vocabulary, const char *text,
                             const uint8_t *marks, size_t bytes, bool is_first, int32_t *tokens,
                             size_t capacity, aot_error_t *error, size_t *out_count) {
  if (marks == NULL && bytes > 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the marks are NULL");
  }
  const aot_encode_options_t how = {
      .size = sizeof how, .parses_control = true, .is_part = true, .plain = marks};
  AOT_TRY(aot_encode(vocabulary, text, bytes, &how, tokens, capacity, error, out_count));
  const bool has_bos = *out_count > 0 && tokens[0] == vocabulary->bos;
  if (!is_first || !vocabulary->adds_bos || vocabulary->bos < 0 || has_bos) return AOT_OK;
  if (*out_count == capacity) {
    ++*out_count;
    return aot_fail(error, AOT_ERROR_CAPACITY, "the text is %zu tokens, there is room for %zu",
                    *out_count, capacity);
  }
  memmove(tokens + 1, tokens, *out_count * sizeof *tokens);
  tokens[0] = (int32_t)vocabulary->bos;
  ++*out_count;
  return AOT_OK;
}
