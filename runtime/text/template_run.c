// Runs a chat template's code, which aot_template_verify has checked: values on a stack, functions
// with slots, loops in slots, output that may be captured.  A run ends within its budget of steps
// and bytes, and calls nothing of itself.
#include <string.h>

#include "alloc.h"
#include "module_fbs.h"
#include "template_machine.h"

#define OP(name) AOT_FBS_TEMPLATE_OP_##name
#define FUNCTION(name) AOT_FBS_TEMPLATE_FUNCTION_##name

static aot_value_t *slot_of(aot_machine_t *m, uint32_t slot) {
  return &aot_frame_of(m)->environment->slots[slot];
}

static void jump(aot_machine_t *m, uint32_t label) {
  m->next = m->code->code + label;
}

// ---- constants and variables ----

static void push_constant(aot_machine_t *m, uint32_t operand) {
  aot_string_t *text = m->render->texts;
  switch (*m->at & 0xFF) {
    case OP(MISSING):
      aot_push_value(m, aot_missing());
      break;
    case OP(UNDEFINED):
      aot_push_value(m, aot_undefined(&text[operand]));
      break;
    case OP(NONE):
      aot_push_value(m, aot_none());
      break;
    case OP(TEXT):
      aot_push_value(m, aot_string(&text[operand]));
      break;
    default:
      aot_push_value(m, aot_bool((*m->at & 0xFF) == OP(TRUE)));
  }
}

static void push_number(aot_machine_t *m, uint32_t operand) {
  const uint64_t bits = m->at[1] | (uint64_t)m->at[2] << 32;
  double number = 0;
  (void)operand;
  memcpy(&number, &bits, sizeof number);
  aot_push_value(m, (*m->at & 0xFF) == OP(INT) ? aot_int((int64_t)bits) : aot_float(number));
}

static void arrange(aot_machine_t *m, uint32_t operand) {
  const aot_value_t x = m->top[-1];
  (void)operand;
  switch (*m->at & 0xFF) {
    case OP(POP):
      --m->top;
      break;
    case OP(SWAP):
      m->top[-1] = m->top[-2];
      m->top[-2] = x;
      break;
    default:  // TUCK
      aot_push_value(m, x);
      m->top[-2] = m->top[-3];
      m->top[-3] = x;
  }
}

static void push_slot(aot_machine_t *m, uint32_t operand) {
  aot_environment_t *environment = aot_frame_of(m)->environment;
  for (uint32_t up = m->at[1]; up > 0; --up)
    environment = environment->parent;
  const aot_value_t value = environment->slots[operand];
  if (aot_is(value, AOT_MISSING)) return;
  aot_push_value(m, value);
  jump(m, m->at[2]);
}

static void push_global(aot_machine_t *m, uint32_t operand) {
  static const char *const functions[AOT_FBS_TEMPLATE_FUNCTION_COUNT] = {
      [FUNCTION(DICT)] = "dict",
      [FUNCTION(NAMESPACE)] = "namespace",
      [FUNCTION(RAISE_EXCEPTION)] = "raise_exception",
      [FUNCTION(RANGE)] = "range",
      [FUNCTION(STRFTIME_NOW)] = "strftime_now"};
  aot_string_t *name = &m->render->texts[operand];
  const aot_value_t *found = aot_map_find(m->render, m->render->variables, aot_string(name));
  if (found != NULL) {
    aot_push_value(m, *found);
    return;
  }
  for (uint32_t i = 0; i < AOT_FBS_TEMPLATE_FUNCTION_COUNT; ++i) {
    const size_t length = strlen(functions[i]);
    if (length != name->length || memcmp(functions[i], name->bytes, length) != 0) continue;
    aot_push_value(m, (aot_value_t){.kind = AOT_FUNCTION, .as.function = i});
    return;
  }
  aot_push_value(m, aot_undefined(name));
}

static void store(aot_machine_t *m, uint32_t operand) {
  *slot_of(m, operand) = aot_pop_value(m);
}

static void clear(aot_machine_t *m, uint32_t operand) {
  for (uint32_t i = 0; i < m->at[1]; ++i)
    *slot_of(m, operand + i) = aot_missing();
  (void)aot_render_work(m->render, m->at[1] / 8);
}

static void set_attribute(aot_machine_t *m, uint32_t operand) {
  const aot_value_t target = aot_pop_value(m), value = aot_pop_value(m);
  if (!aot_is(target, AOT_NAMESPACE)) {
    (void)aot_render_fail(m->render, "an attribute of a %s is set, which is no namespace",
                          aot_type_name(target));
    return;
  }
  aot_map_set(m->render, target.as.map, aot_string(&m->render->texts[operand]), value);
}

// ---- values of several ----

static void unpack(aot_machine_t *m, uint32_t operand) {
  const aot_value_t value = aot_pop_value(m);
  const aot_list_t *list = aot_elements(m->render, value);
  if (list->count != operand) {
    (void)aot_render_fail(m->render, "%u values are taken from %u", (unsigned)operand,
                          (unsigned)list->count);
  }
  for (uint32_t i = operand; i-- > 0;)
    aot_push_value(m, i < list->count ? list->items[i] : aot_none());
}

static void make_list(aot_machine_t *m, uint32_t operand) {
  const bool is_tuple = (*m->at & 0xFF) == OP(TUPLE);
  aot_list_t *list = aot_list_new(m->render, operand, is_tuple ? AOT_IS_TUPLE : AOT_IS_LIST);
  m->top -= operand;
  for (uint32_t i = 0; i < operand; ++i)
    aot_list_push(m->render, list, m->top[i]);
  aot_push_value(m, aot_list(list));
}

static void make_map(aot_machine_t *m, uint32_t operand) {
  aot_map_t *map = aot_map_new(m->render, operand);
  m->top -= 2 * (size_t)operand;
  for (uint32_t i = 0; i < operand; ++i)
    aot_map_set(m->render, map, m->top[2 * (size_t)i], m->top[2 * (size_t)i + 1]);
  aot_push_value(m, aot_map(map));
}

static void attribute(aot_machine_t *m, uint32_t operand) {
  m->top[-1] = aot_attribute(m->render, m->top[-1], &m->render->texts[operand], m->at[1]);
}

static void item(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  const aot_value_t key = aot_pop_value(m);
  m->top[-1] = aot_item(m->render, m->top[-1], key, m->at[1]);
}

static void slice(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  m->top -= 3;
  m->top[-1] = aot_slice(m->render, m->top[-1], m->top);
}

static void concat(aot_machine_t *m, uint32_t operand) {
  aot_builder_t builder = {.render = m->render};
  m->top -= operand;
  for (uint32_t i = 0; i < operand; ++i)
    aot_write(&builder, m->top[i]);
  aot_push_value(m, aot_built(&builder));
}

// ---- operators and jumps ----

static void unary(aot_machine_t *m, uint32_t operand) {
  const uint32_t op = *m->at & 0xFF;
  aot_value_t *x = &m->top[-1];
  int64_t whole = 0;
  (void)operand;
  if (op == OP(NOT)) {
    *x = aot_bool(!aot_truth(*x));
  } else if (aot_is(*x, AOT_FLOAT)) {
    if (op == OP(NEGATE)) x->as.number = -x->as.number;
  } else if (!aot_whole(*x, &whole)) {
    (void)aot_render_fail(m->render, "a %s has no sign", aot_type_name(*x));
  } else {
    *x = op == OP(NEGATE) ? aot_operate(m->render, OP(SUBTRACT), aot_int(0), aot_int(whole))
                          : aot_int(whole);
  }
}

static void binary(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  const aot_value_t right = aot_pop_value(m);
  m->top[-1] = aot_operate(m->render, *m->at & 0xFF, m->top[-1], right);
}

static void go(aot_machine_t *m, uint32_t operand) {
  const uint32_t op = *m->at & 0xFF;
  bool jumps = true;
  switch (op) {
    case OP(IF_SET):
      jumps = !aot_is(*slot_of(m, operand), AOT_MISSING);
      break;
    case OP(IF_FALSE):
      jumps = !aot_truth(aot_pop_value(m));
      break;
    case OP(AND):
    case OP(OR):
      jumps = aot_truth(m->top[-1]) == (op == OP(OR));
      if (!jumps) --m->top;
      break;
    default:
      break;
  }
  if (jumps) jump(m, m->at[1]);
}

// ---- output ----

static void write_value(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  aot_write(&m->outputs[m->output_count - 1], aot_pop_value(m));
}

static void write_text(aot_machine_t *m, uint32_t operand) {
  aot_build_string(&m->outputs[m->output_count - 1], &m->render->texts[operand]);
}

static void capture(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  if ((*m->at & 0xFF) == OP(CAPTURE)) {
    aot_begin_capture(m);
    return;
  }
  if (m->output_count <= aot_frame_of(m)->captures + 1) {
    (void)aot_render_fail(m->render, "a block ends that did not begin");
    aot_push_value(m, aot_none());
    return;
  }
  aot_push_value(m, aot_built(&m->outputs[--m->output_count]));
}

// ---- loops ----

static void begin_loop(aot_machine_t *m, uint32_t operand) {
  aot_loop_t *loop = aot_render_allocate(m->render, sizeof *loop);
  const aot_value_t value = aot_pop_value(m);
  if (loop == NULL) return;
  loop->list = aot_elements(m->render, value);
  *slot_of(m, operand) = (aot_value_t){.kind = AOT_LOOP, .as.loop = loop};
}

static aot_loop_t *loop_of(aot_machine_t *m, uint32_t slot) {
  const aot_value_t value = *slot_of(m, slot);
  if (aot_is(value, AOT_LOOP)) return value.as.loop;
  (void)aot_render_fail(m->render, "a loop goes on that did not begin");
  return NULL;
}

static void next(aot_machine_t *m, uint32_t operand) {
  aot_loop_t *loop = loop_of(m, operand);
  if (loop == NULL) {
    aot_push_value(m, aot_none());
  } else if (loop->next < loop->list->count) {
    aot_push_value(m, loop->list->items[loop->next++]);
  } else {
    jump(m, m->at[1]);
  }
}

static void if_any(aot_machine_t *m, uint32_t operand) {
  const aot_loop_t *loop = loop_of(m, operand);
  if (loop != NULL && loop->list->count > 0) jump(m, m->at[1]);
}

static void append(aot_machine_t *m, uint32_t operand) {
  const aot_value_t value = aot_pop_value(m), list = *slot_of(m, operand);
  if (aot_is(list, AOT_LIST)) {
    aot_list_push(m->render, list.as.list, value);
  } else {
    (void)aot_render_fail(m->render, "elements are kept in what is no list");
  }
}

// ---- filters, tests and methods ----

static void filter(aot_machine_t *m, uint32_t operand) {
  m->top -= operand;
  m->top[-1] = aot_filter(m->render, m->at[1], m->top[-1], m->top);
}

static void map_filter(aot_machine_t *m, uint32_t operand) {
  m->top -= operand;
  const aot_list_t *list = aot_elements(m->render, m->top[-1]);
  aot_list_t *made = aot_list_new(m->render, list->count, AOT_IS_GENERATOR);
  for (uint32_t i = 0; i < list->count && aot_render_work(m->render, 1); ++i)
    aot_list_push(m->render, made, aot_filter(m->render, m->at[1], list->items[i], m->top));
  m->top[-1] = aot_list(made);
}

static void map_attribute(aot_machine_t *m, uint32_t operand) {
  (void)operand;
  const aot_value_t usual = aot_pop_value(m), path = aot_pop_value(m);
  const aot_list_t *list = aot_elements(m->render, m->top[-1]);
  aot_list_t *made = aot_list_new(m->render, list->count, AOT_IS_GENERATOR);
  for (uint32_t i = 0; i < list->count && aot_render_work(m->render, 1); ++i) {
    const aot_value_t found = aot_path(m->render, list->items[i], path);
    const bool has_usual = !aot_is(usual, AOT_MISSING) && !aot_is(usual, AOT_NONE);
    aot_list_push(m->render, made, aot_is(found, AOT_UNDEFINED) && has_usual ? usual : found);
  }
  m->top[-1] = aot_list(made);
}

static void choose(aot_machine_t *m, uint32_t operand) {
  const uint32_t how = m->at[2];
  m->top -= operand;
  const aot_value_t *arguments = m->top;
  const aot_value_t path = (how & 2) != 0 ? *arguments++ : aot_missing();
  const bool has_argument = operand > ((how & 2) != 0 ? 1u : 0u);
  const aot_value_t argument = has_argument ? *arguments : aot_missing();
  const aot_list_t *list = aot_elements(m->render, m->top[-1]);
  aot_list_t *made = aot_list_new(m->render, 0, AOT_IS_GENERATOR);
  for (uint32_t i = 0; i < list->count && aot_render_work(m->render, 1); ++i) {
    aot_value_t value = list->items[i];
    if ((how & 2) != 0) value = aot_path(m->render, value, path);
    const bool holds =
        (how & 4) != 0 ? aot_truth(value) : aot_test(m->render, m->at[1], value, argument);
    if (holds == ((how & 1) == 0)) aot_list_push(m->render, made, list->items[i]);
  }
  m->top[-1] = aot_list(made);
}

static void test(aot_machine_t *m, uint32_t operand) {
  const aot_value_t argument = operand > 0 ? m->top[-1] : aot_missing();
  m->top -= operand;
  m->top[-1] = aot_bool(aot_test(m->render, m->at[1], m->top[-1], argument));
}

static void method(aot_machine_t *m, uint32_t operand) {
  m->top -= operand;
  m->top[-1] = aot_method(m->render, m->at[1], m->top[-1], m->top, operand);
}

// ---- running ----

typedef void (*instruction_t)(aot_machine_t *m, uint32_t operand);

static const instruction_t instructions[AOT_FBS_TEMPLATE_OP_COUNT] = {
    [OP(MISSING)] = push_constant,
    [OP(UNDEFINED)] = push_constant,
    [OP(NONE)] = push_constant,
    [OP(TRUE)] = push_constant,
    [OP(FALSE)] = push_constant,
    [OP(INT)] = push_number,
    [OP(FLOAT)] = push_number,
    [OP(TEXT)] = push_constant,
    [OP(POP)] = arrange,
    [OP(TUCK)] = arrange,
    [OP(SWAP)] = arrange,
    [OP(SLOT)] = push_slot,
    [OP(GLOBAL)] = push_global,
    [OP(STORE)] = store,
    [OP(CLEAR)] = clear,
    [OP(IF_SET)] = go,
    [OP(SET_ATTRIBUTE)] = set_attribute,
    [OP(UNPACK)] = unpack,
    [OP(LIST)] = make_list,
    [OP(TUPLE)] = make_list,
    [OP(MAP)] = make_map,
    [OP(ATTRIBUTE)] = attribute,
    [OP(ITEM)] = item,
    [OP(SLICE)] = slice,
    [OP(NEGATE)] = unary,
    [OP(POSITIVE)] = unary,
    [OP(NOT)] = unary,
    [OP(ADD)] = binary,
    [OP(SUBTRACT)] = binary,
    [OP(MULTIPLY)] = binary,
    [OP(DIVIDE)] = binary,
    [OP(FLOOR_DIVIDE)] = binary,
    [OP(MODULO)] = binary,
    [OP(POWER)] = binary,
    [OP(EQUAL)] = binary,
    [OP(NOT_EQUAL)] = binary,
    [OP(LESS)] = binary,
    [OP(LESS_EQUAL)] = binary,
    [OP(GREATER)] = binary,
    [OP(GREATER_EQUAL)] = binary,
    [OP(IN)] = binary,
    [OP(NOT_IN)] = binary,
    [OP(CONCAT)] = concat,
    [OP(JUMP)] = go,
    [OP(IF_FALSE)] = go,
    [OP(AND)] = go,
    [OP(OR)] = go,
    [OP(WRITE)] = write_value,
    [OP(WRITE_TEXT)] = write_text,
    [OP(CAPTURE)] = capture,
    [OP(END_CAPTURE)] = capture,
    [OP(FOR)] = begin_loop,
    [OP(NEXT)] = next,
    [OP(IF_ANY)] = if_any,
    [OP(APPEND)] = append,
    [OP(MACRO)] = aot_push_macro,
    [OP(CALL)] = aot_call,
    [OP(RETURN)] = aot_leave,
    [OP(FILTER)] = filter,
    [OP(MAP_FILTER)] = map_filter,
    [OP(MAP_ATTRIBUTE)] = map_attribute,
    [OP(SELECT)] = choose,
    [OP(TEST)] = test,
    [OP(METHOD)] = method,
};

static bool open_texts(aot_render_t *render) {
  const aot_template_t *code = render->code;
  render->texts =
      aot_render_allocate(render, ((uint64_t)code->text_count + 1) * sizeof *render->texts);
  if (render->texts == NULL) return false;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < code->text_count; begin = code->text_ends[i++]) {
    render->texts[i] = (aot_string_t){.bytes = code->texts + begin,
                                      .length = code->text_ends[i] - begin,
                                      .characters = UINT32_MAX};
  }
  return true;
}

aot_string_t *aot_template_run(aot_render_t *render) {
  aot_machine_t machine = {.render = render, .code = render->code};
  aot_machine_t *m = &machine;
  m->stack = aot_render_allocate(render, AOT_TEMPLATE_STACK * sizeof *m->stack);
  m->frames = aot_render_allocate(render, AOT_MOST_CALLS * sizeof *m->frames);
  m->outputs = aot_render_allocate(render, AOT_MOST_CAPTURES * sizeof *m->outputs);
  if (render->status != AOT_OK || !open_texts(render)) return &render->empty;
  m->top = m->stack;
  aot_enter(m, 0, NULL);
  while (m->next != NULL && aot_render_work(render, 1)) {
    m->at = m->next;
    m->next = m->at + 1 + aot_template_words(m->at);
    instructions[*m->at & 0xFF](m, *m->at >> 8);
  }
  if (render->status != AOT_OK) return &render->empty;
  return aot_built(&m->outputs[0]).as.string;
}
