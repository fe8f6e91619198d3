// Calls of a chat template: macros with their arguments, and the functions that templates have.
#include <string.h>

#include "module_fbs.h"
#include "template_machine.h"

#define FUNCTION(name) AOT_FBS_TEMPLATE_FUNCTION_##name
#define MOST_RANGE 100000

void aot_begin_capture(aot_machine_t *m) {
  if (m->output_count == AOT_MOST_CAPTURES) {
    (void)aot_render_fail(m->render, "its blocks and calls are nested too deep");
    return;
  }
  m->outputs[m->output_count++] = (aot_builder_t){.render = m->render};
}

void aot_enter(aot_machine_t *m, uint32_t index, aot_environment_t *outer) {
  const aot_template_function_t *function = aot_template_function(m->code, index);
  if (m->frame_count == AOT_MOST_CALLS ||
      (size_t)(m->top - m->stack) + function->stack > AOT_TEMPLATE_STACK) {
    (void)aot_render_fail(m->render, "its macros are nested too deep");
    return;
  }
  aot_environment_t *own = aot_render_allocate(
      m->render, sizeof *own + (uint64_t)function->slots * sizeof own->slots[0]);
  aot_begin_capture(m);
  if (own == NULL || m->render->status != AOT_OK) return;
  own->parent = outer;
  if (m->frame_count > 0) aot_frame_of(m)->next = m->next;
  m->frames[m->frame_count++] = (aot_frame_t){function, own, NULL, m->top, m->output_count - 1};
  m->next = m->code->code + function->begin;
}

void aot_leave(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  const aot_frame_t frame = *aot_frame_of(m);
  if (m->frame_count == 1) {
    m->next = NULL;
    return;
  }
  --m->frame_count;
  m->top = frame.base;
  m->output_count = frame.captures;
  aot_push_value(m, aot_built(&m->outputs[frame.captures]));
  m->next = aot_frame_of(m)->next;
}

void aot_push_macro(aot_machine_t *m, uint32_t operand) {
  aot_macro_t *macro = aot_render_allocate(m->render, sizeof *macro);
  if (macro != NULL) *macro = (aot_macro_t){operand, aot_frame_of(m)->environment};
  aot_push_value(m,
                 macro == NULL ? aot_none() : (aot_value_t){.kind = AOT_MACRO, .as.macro = macro});
}

// Gives a macro its arguments; those with a name are behind the others.
static void call_macro(aot_machine_t *m, const aot_macro_t *macro, const aot_value_t *arguments,
                       uint32_t count) {
  const aot_template_function_t *function = aot_template_function(m->code, macro->function);
  const uint32_t *names = m->at + 2;
  const uint32_t name_count = m->at[1];
  const aot_frame_t *caller = aot_frame_of(m);
  aot_enter(m, macro->function, macro->outer);
  if (m->render->status != AOT_OK || aot_frame_of(m) == caller) return;
  aot_value_t *slots = aot_frame_of(m)->environment->slots;
  if (count > function->positional) {
    (void)aot_render_fail(m->render, "a macro takes %u arguments, found %u",
                          (unsigned)function->positional, (unsigned)count);
    return;
  }
  for (uint32_t i = 0; i < count; ++i)
    slots[i] = arguments[i];
  for (uint32_t i = 0; i < name_count; ++i) {
    const aot_string_t *name = &m->render->texts[names[i]];
    uint32_t slot = 0;
    while (slot < function->parameters &&
           !aot_strings_equal(&m->render->texts[m->code->code[function->names_at + slot]], name))
      ++slot;
    (void)aot_render_work(m->render, slot / 8);
    if (slot == function->parameters || !aot_is(slots[slot], AOT_MISSING)) {
      (void)aot_render_fail(m->render, "a macro does not take the argument '%.*s'", aot_shown(name),
                            (const char *)name->bytes);
      return;
    }
    slots[slot] = arguments[count + i];
  }
}

static aot_value_t range(aot_machine_t *m, const aot_value_t *arguments, uint32_t count) {
  int64_t bounds[3] = {0, 0, 1};
  bool is_known = count >= 1 && count <= 3;
  for (uint32_t i = 0; i < count && is_known; ++i)
    is_known = aot_whole(arguments[i], &bounds[count == 1 ? 1 : i]);
  if (!is_known || bounds[2] == 0) {
    (void)aot_render_fail(m->render, "a range is of one to three numbers");
    return aot_none();
  }
  aot_list_t *list = aot_list_new(m->render, 0, AOT_IS_RANGE);
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    if (list->count == MOST_RANGE) {
      (void)aot_render_fail(m->render, "a range has more than %d numbers", MOST_RANGE);
    }
    if (!aot_render_work(m->render, 1)) break;
    aot_list_push(m->render, list, aot_int(i));
    if (__builtin_add_overflow(i, bounds[2], &i)) break;
  }
  return aot_list(list);
}

// dict() and namespace(): of a dict, and of names.
static aot_value_t mapping(aot_machine_t *m, const aot_value_t *arguments, uint32_t count,
                           bool is_namespace) {
  aot_map_t *map = aot_map_new(m->render, m->at[1]);
  if (count > 1 || (count == 1 && !aot_is(arguments[0], AOT_MAP))) {
    (void)aot_render_fail(m->render, "a dict or namespace is made of other than one dict");
    count = 0;
  }
  for (uint32_t i = 0; count == 1 && i < arguments[0].as.map->count; ++i)
    aot_map_set(m->render, map, arguments[0].as.map->pairs[2 * (size_t)i],
                arguments[0].as.map->pairs[2 * (size_t)i + 1]);
  for (uint32_t i = 0; i < m->at[1]; ++i)
    aot_map_set(m->render, map, aot_string(&m->render->texts[m->at[2 + i]]), arguments[count + i]);
  return (aot_value_t){.kind = is_namespace ? AOT_NAMESPACE : AOT_MAP, .as.map = map};
}

static aot_value_t call_function(aot_machine_t *m, uint32_t function, const aot_value_t *arguments,
                                 uint32_t count) {
  aot_render_t *render = m->render;
  if (function == FUNCTION(DICT) || function == FUNCTION(NAMESPACE)) {
    return mapping(m, arguments, count, function == FUNCTION(NAMESPACE));
  }
  if (m->at[1] > 0 || (function != FUNCTION(RANGE) && count != 1)) {
    (void)aot_render_fail(render, "a function is called with other arguments than it has");
    return aot_none();
  }
  if (function == FUNCTION(RANGE)) return range(m, arguments, count);
  const aot_string_t *text = aot_as_string(render, arguments[0]);
  if (function == FUNCTION(STRFTIME_NOW)) return aot_formatted_time(render, text);
  if (render->status == AOT_OK) {
    render->status = aot_fail(render->error, AOT_ERROR_ARGUMENT,
                              "the chat template refuses the conversation: %.*s", aot_shown(text),
                              (const char *)text->bytes);
  }
  return aot_none();
}

void aot_call(aot_machine_t *m, uint32_t operand) {
  const uint32_t given = operand + m->at[1];
  m->top -= given;
  const aot_value_t *arguments = m->top;
  const aot_value_t callee = aot_pop_value(m);
  if (aot_is(callee, AOT_MACRO)) {
    // The arguments lie above the stack's top, where nothing is written before they are taken.
    call_macro(m, callee.as.macro, arguments, operand);
    return;
  }
  aot_value_t made = aot_none();
  if (aot_is(callee, AOT_FUNCTION)) {
    made = call_function(m, callee.as.function, arguments, operand);
  } else if (aot_is(callee, AOT_UNDEFINED)) {
    (void)aot_attribute(m->render, callee, &m->render->empty, 0);
  } else {
    (void)aot_render_fail(m->render, "a %s cannot be called", aot_type_name(callee));
  }
  aot_push_value(m, made);
}
