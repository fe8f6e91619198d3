// A chat template as a module keeps it, and what it is run with.  Jinja's syntax tree was compiled
// to instructions of a stack machine (module.fbs, TemplateOp; aot/link/template_compiler.py).
#ifndef AOT_TEMPLATE_H_
#define AOT_TEMPLATE_H_

#include "aot/text.h"

// Code and the texts that it names, *borrowed* from the module.
typedef struct aot_template_t {
  const uint32_t *code;
  uint32_t code_count;  // 0: there is none
  const uint8_t *texts;
  uint32_t text_bytes;
  const uint32_t *text_ends;
  uint32_t text_count;
} aot_template_t;

// The words of a function's header, of which there are code[0] from word 1 on.
typedef struct aot_template_function_t {
  uint32_t begin;       // its first instruction
  uint32_t end;         // the word behind its last one
  uint32_t slots;       // its variables, the parameters first
  uint32_t stack;       // the most values that it has on the stack
  uint32_t parameters;  // that it has
  uint32_t positional;  // and those of them that are given by their position too
  uint32_t names_at;    // the word of the first parameter's name
  uint32_t parent;      // the function around it; UINT32_MAX: none
} aot_template_function_t;

#define AOT_TEMPLATE_HEADER_WORDS 8u
#define AOT_TEMPLATE_STACK 2048u  // values, of all functions that are running
#define AOT_TEMPLATE_LEVELS 64u   // of functions inside of functions

static inline const aot_template_function_t *aot_template_function(const aot_template_t *code,
                                                                   uint32_t index) {
  return (const aot_template_function_t *)(const void *)(code->code + 1 +
                                                         AOT_TEMPLATE_HEADER_WORDS * (size_t)index);
}

// template_verify.c: the words behind an instruction's first one.
uint32_t aot_template_words(const uint32_t *instruction);
// The arguments that a filter, a test or a method has; UINT32_MAX: any number.
uint32_t aot_template_filter_arguments(uint32_t filter);
uint32_t aot_template_test_arguments(uint32_t test);
uint32_t aot_template_method_arguments(uint32_t method);

// Checks that whatever the code does stays inside of it, of its texts, slots and stack.
aot_status_t aot_template_verify(const aot_template_t *code, const aot_allocator_t *allocator,
                                 aot_error_t *error);

#endif  // AOT_TEMPLATE_H_
