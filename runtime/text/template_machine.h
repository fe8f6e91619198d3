// A machine that runs a chat template's code: what its instructions and calls share.
#ifndef AOT_TEMPLATE_MACHINE_H_
#define AOT_TEMPLATE_MACHINE_H_

#include "template_value.h"

#define AOT_MOST_CALLS 100u
#define AOT_MOST_CAPTURES 128u

typedef struct aot_frame_t {
  const aot_template_function_t *function;
  aot_environment_t *environment;
  const uint32_t *next;  // the instruction to go on with
  aot_value_t *base;     // of its stack
  uint32_t captures;     // that were open before
} aot_frame_t;

typedef struct aot_machine_t {
  aot_render_t *render;
  const aot_template_t *code;
  aot_value_t *stack;  // AOT_TEMPLATE_STACK values
  aot_value_t *top;    // behind the last one
  const uint32_t *at;  // the instruction
  const uint32_t *next;
  aot_frame_t *frames;  // AOT_MOST_CALLS; the present one is the last
  uint32_t frame_count;
  aot_builder_t *outputs;  // AOT_MOST_CAPTURES; the last one is written to
  uint32_t output_count;
} aot_machine_t;

static inline aot_frame_t *aot_frame_of(aot_machine_t *m) {
  return &m->frames[m->frame_count - 1];
}

static inline void aot_push_value(aot_machine_t *m, aot_value_t value) {
  *m->top++ = value;
}

static inline aot_value_t aot_pop_value(aot_machine_t *m) {
  return *--m->top;
}

// What is written from here on is kept apart.
void aot_begin_capture(aot_machine_t *m);
// Goes on with a function, whose variables are inside of others.
void aot_enter(aot_machine_t *m, uint32_t index, aot_environment_t *outer);

// The instructions MACRO, CALL and RETURN.
void aot_push_macro(aot_machine_t *m, uint32_t operand);
void aot_call(aot_machine_t *m, uint32_t operand);
void aot_leave(aot_machine_t *m, uint32_t operand);

// Runs the code of `render` with its variables; what it writes lives as long as the run's memory.
aot_string_t *aot_template_run(aot_render_t *render);

#endif  // AOT_TEMPLATE_MACHINE_H_
