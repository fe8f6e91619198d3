// What must hold of a chat template's code before any of it is run: each instruction is whole and
// known, names what is there, and finds the same number of values on the stack from wherever it is
// reached.  Code comes from strangers.
#include <stddef.h>
#include <string.h>

#include "alloc.h"
#include "module_fbs.h"
#include "status.h"
#include "template.h"
#include "unicode.h"

#define OP(name) AOT_FBS_TEMPLATE_OP_##name
#define FILTER(name) AOT_FBS_TEMPLATE_FILTER_##name
#define TEST(name) AOT_FBS_TEMPLATE_TEST_##name
#define METHOD(name) AOT_FBS_TEMPLATE_METHOD_##name

// What an operand is.
enum { ANY = 0, TEXT_INDEX, SLOT_INDEX, COUNT, FUNCTION_INDEX };

typedef struct rule_t {
  uint8_t pops;
  uint8_t pushes;
  uint8_t operand;
  uint8_t words;
  uint8_t label;        // the word that is a place, from 1; 0: none
  int8_t label_pushes;  // what is on the stack there beside what was before
  uint8_t pops_each;    // so many more for each of COUNT
} rule_t;

static const rule_t rules[AOT_FBS_TEMPLATE_OP_COUNT] = {
    [OP(MISSING)] = {0, 1, ANY, 0, 0, 0, 0},
    [OP(UNDEFINED)] = {0, 1, TEXT_INDEX, 0, 0, 0, 0},
    [OP(NONE)] = {0, 1, ANY, 0, 0, 0, 0},
    [OP(TRUE)] = {0, 1, ANY, 0, 0, 0, 0},
    [OP(FALSE)] = {0, 1, ANY, 0, 0, 0, 0},
    [OP(INT)] = {0, 1, ANY, 2, 0, 0, 0},
    [OP(FLOAT)] = {0, 1, ANY, 2, 0, 0, 0},
    [OP(TEXT)] = {0, 1, TEXT_INDEX, 0, 0, 0, 0},
    [OP(POP)] = {1, 0, ANY, 0, 0, 0, 0},
    [OP(TUCK)] = {2, 3, ANY, 0, 0, 0, 0},
    [OP(SWAP)] = {2, 2, ANY, 0, 0, 0, 0},
    [OP(SLOT)] = {0, 0, ANY, 2, 2, 1, 0},
    [OP(GLOBAL)] = {0, 1, TEXT_INDEX, 0, 0, 0, 0},
    [OP(STORE)] = {1, 0, SLOT_INDEX, 0, 0, 0, 0},
    [OP(CLEAR)] = {0, 0, SLOT_INDEX, 1, 0, 0, 0},
    [OP(IF_SET)] = {0, 0, SLOT_INDEX, 1, 1, 0, 0},
    [OP(SET_ATTRIBUTE)] = {2, 0, TEXT_INDEX, 0, 0, 0, 0},
    [OP(UNPACK)] = {1, 0, COUNT, 0, 0, 0, 0},
    [OP(LIST)] = {0, 1, COUNT, 0, 0, 0, 1},
    [OP(TUPLE)] = {0, 1, COUNT, 0, 0, 0, 1},
    [OP(MAP)] = {0, 1, COUNT, 0, 0, 0, 2},
    [OP(ATTRIBUTE)] = {1, 1, TEXT_INDEX, 1, 0, 0, 0},
    [OP(ITEM)] = {2, 1, ANY, 1, 0, 0, 0},
    [OP(SLICE)] = {4, 1, ANY, 0, 0, 0, 0},
    [OP(NEGATE)] = {1, 1, ANY, 0, 0, 0, 0},
    [OP(POSITIVE)] = {1, 1, ANY, 0, 0, 0, 0},
    [OP(NOT)] = {1, 1, ANY, 0, 0, 0, 0},
    [OP(ADD)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(SUBTRACT)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(MULTIPLY)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(DIVIDE)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(FLOOR_DIVIDE)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(MODULO)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(POWER)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(EQUAL)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(NOT_EQUAL)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(LESS)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(LESS_EQUAL)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(GREATER)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(GREATER_EQUAL)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(IN)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(NOT_IN)] = {2, 1, ANY, 0, 0, 0, 0},
    [OP(CONCAT)] = {0, 1, COUNT, 0, 0, 0, 1},
    [OP(JUMP)] = {0, 0, ANY, 1, 1, 0, 0},
    [OP(IF_FALSE)] = {1, 0, ANY, 1, 1, -1, 0},
    [OP(AND)] = {1, 0, ANY, 1, 1, 0, 0},
    [OP(OR)] = {1, 0, ANY, 1, 1, 0, 0},
    [OP(WRITE)] = {1, 0, ANY, 0, 0, 0, 0},
    [OP(WRITE_TEXT)] = {0, 0, TEXT_INDEX, 0, 0, 0, 0},
    [OP(CAPTURE)] = {0, 0, ANY, 0, 0, 0, 0},
    [OP(END_CAPTURE)] = {0, 1, ANY, 0, 0, 0, 0},
    [OP(FOR)] = {1, 0, SLOT_INDEX, 0, 0, 0, 0},
    [OP(NEXT)] = {0, 1, SLOT_INDEX, 1, 1, 0, 0},
    [OP(IF_ANY)] = {0, 0, SLOT_INDEX, 1, 1, 0, 0},
    [OP(APPEND)] = {1, 0, SLOT_INDEX, 0, 0, 0, 0},
    [OP(MACRO)] = {0, 1, FUNCTION_INDEX, 0, 0, 0, 0},
    [OP(CALL)] = {1, 1, COUNT, 1, 0, 0, 1},
    [OP(RETURN)] = {0, 0, ANY, 0, 0, 0, 0},
    [OP(FILTER)] = {1, 1, COUNT, 1, 0, 0, 1},
    [OP(MAP_FILTER)] = {1, 1, COUNT, 1, 0, 0, 1},
    [OP(MAP_ATTRIBUTE)] = {3, 1, ANY, 0, 0, 0, 0},
    [OP(SELECT)] = {1, 1, COUNT, 2, 0, 0, 1},
    [OP(TEST)] = {1, 1, COUNT, 1, 0, 0, 1},
    [OP(METHOD)] = {1, 1, COUNT, 1, 0, 0, 1},
};

uint32_t aot_template_words(const uint32_t *instruction) {
  const uint32_t op = *instruction & 0xFF;
  return rules[op].words + (op == OP(CALL) ? instruction[1] : 0);
}

uint32_t aot_template_filter_arguments(uint32_t filter) {
  static const uint8_t counts[AOT_FBS_TEMPLATE_FILTER_COUNT] = {
      [FILTER(DEFAULT)] = 2, [FILTER(DICTSORT)] = 3, [FILTER(FLOAT)] = 1, [FILTER(INDENT)] = 3,
      [FILTER(INT)] = 2,     [FILTER(JOIN)] = 2,     [FILTER(MAX)] = 2,   [FILTER(MIN)] = 2,
      [FILTER(REPLACE)] = 3, [FILTER(SORT)] = 3,     [FILTER(SUM)] = 2,   [FILTER(TOJSON)] = 4,
      [FILTER(TRIM)] = 1,    [FILTER(UNIQUE)] = 2};
  return counts[filter];
}

uint32_t aot_template_test_arguments(uint32_t test) {
  static const uint8_t counts[AOT_FBS_TEMPLATE_TEST_COUNT] = {
      [TEST(DIVISIBLEBY)] = 1, [TEST(EQ)] = 1, [TEST(GE)] = 1, [TEST(GT)] = 1,    [TEST(IN)] = 1,
      [TEST(LE)] = 1,          [TEST(LT)] = 1, [TEST(NE)] = 1, [TEST(SAMEAS)] = 1};
  return counts[test];
}

uint32_t aot_template_method_arguments(uint32_t method) {
  static const uint8_t counts[AOT_FBS_TEMPLATE_METHOD_COUNT] = {
      [METHOD(COUNT_)] = 3,       [METHOD(ENDSWITH)] = 3,   [METHOD(FIND)] = 3,
      [METHOD(GET)] = 2,          [METHOD(INDEX)] = 3,      [METHOD(JOIN)] = 1,
      [METHOD(LSTRIP)] = 1,       [METHOD(PARTITION)] = 1,  [METHOD(REMOVEPREFIX)] = 1,
      [METHOD(REMOVESUFFIX)] = 1, [METHOD(REPLACE)] = 3,    [METHOD(RFIND)] = 3,
      [METHOD(RPARTITION)] = 1,   [METHOD(RSPLIT)] = 2,     [METHOD(RSTRIP)] = 1,
      [METHOD(SPLIT)] = 2,        [METHOD(SPLITLINES)] = 1, [METHOD(STARTSWITH)] = 3,
      [METHOD(STRIP)] = 1};
  return method == METHOD(CYCLE) ? UINT32_MAX : counts[method];
}

// ---- a function ----

#define IS_START 0x8000u
#define MOST_DEPTH 0x7FFEu

// What is known of each word of the code: 0, or the values on the stack where it is reached and 1;
// and whether an instruction begins there.
typedef struct check_t {
  const aot_template_t *code;
  const aot_template_function_t *function;
  uint32_t index;
  uint16_t *known;
  aot_error_t *error;
} check_t;

static aot_status_t damaged(const check_t *check, uint32_t at, const char *what) {
  return aot_fail(check->error, AOT_ERROR_MALFORMED, "the chat template's code: word %u: %s",
                  (unsigned)at, what);
}

// The function that is so many levels around another.
static const aot_template_function_t *function_out(const aot_template_t *code,
                                                   const aot_template_function_t *function,
                                                   uint32_t levels) {
  for (; levels > 0 && function->parent != UINT32_MAX; --levels)
    function = aot_template_function(code, function->parent);
  return levels == 0 ? function : NULL;
}

static const char *operand_fault(const check_t *check, const uint32_t *words) {
  const uint32_t op = words[0] & 0xFF, operand = words[0] >> 8;
  const aot_template_t *code = check->code;
  const uint32_t slots = check->function->slots;
  switch (rules[op].operand) {
    case TEXT_INDEX:
      return operand < code->text_count ? NULL : "there is no such text";
    case SLOT_INDEX:
      if (operand >= slots) return "there is no such slot";
      return op == OP(CLEAR) && words[1] > slots - operand ? "there are no such slots" : NULL;
    case FUNCTION_INDEX:
      if (operand >= code->code[0]) return "there is no such function";
      return aot_template_function(code, operand)->parent == check->index
                 ? NULL
                 : "the function is inside of another";
    default:
      break;
  }
  if (op != OP(SLOT)) return NULL;
  const aot_template_function_t *owner = function_out(code, check->function, words[1]);
  return owner != NULL && operand < owner->slots ? NULL : "there is no such slot";
}

static const char *argument_fault(const check_t *check, const uint32_t *words) {
  const uint32_t op = words[0] & 0xFF, count = words[0] >> 8;
  uint32_t wanted = UINT32_MAX;
  if (op == OP(FILTER) || op == OP(MAP_FILTER)) {
    if (words[1] >= AOT_FBS_TEMPLATE_FILTER_COUNT) return "there is no such filter";
    wanted = aot_template_filter_arguments(words[1]);
  } else if (op == OP(TEST) || op == OP(SELECT)) {
    if (words[1] >= AOT_FBS_TEMPLATE_TEST_COUNT) return "there is no such test";
    if (op == OP(SELECT) && words[2] > 7) return "there is no such way to select";
    const bool is_itself = op == OP(SELECT) && (words[2] & 4) != 0;
    wanted = is_itself ? 0 : aot_template_test_arguments(words[1]);
    if (op == OP(SELECT) && (words[2] & 2) != 0) ++wanted;
  } else if (op == OP(METHOD)) {
    if (words[1] >= AOT_FBS_TEMPLATE_METHOD_COUNT) return "there is no such method";
    wanted = aot_template_method_arguments(words[1]);
  } else if (op == OP(CALL)) {
    for (uint32_t i = 0; i < words[1]; ++i)
      if (words[2 + i] >= check->code->text_count) return "there is no such text";
  }
  return wanted == UINT32_MAX || wanted == count ? NULL : "the number of arguments is another";
}

static const char *jump(check_t *check, uint32_t at, uint32_t label, uint64_t depth) {
  const aot_template_function_t *function = check->function;
  if (label < function->begin || label >= function->end) return "it jumps out of its function";
  const uint16_t here = (uint16_t)(depth + 1);
  uint16_t *there = &check->known[label];
  if (label <= at && (*there & IS_START) == 0) return "it jumps into an instruction";
  if ((*there & ~IS_START) != 0) {
    return (*there & ~IS_START) == here ? NULL : "the stack is another from elsewhere";
  }
  *there = (uint16_t)(*there | here);
  return NULL;
}

// Checks an instruction; *depth is the stack before and behind it.
static const char *instruction_fault(check_t *check, uint32_t at, uint64_t *depth) {
  const uint32_t *words = check->code->code + at;
  const uint32_t op = words[0] & 0xFF, operand = words[0] >> 8;
  if (op >= AOT_FBS_TEMPLATE_OP_COUNT) return "there is no such instruction";
  const rule_t *rule = &rules[op];
  const uint32_t left = check->function->end - at - 1;
  if (rule->words > left) return "it is not whole";
  if (op == OP(CALL) && words[1] > left - 1) return "it is not whole";
  const char *fault = operand_fault(check, words);
  if (fault == NULL) fault = argument_fault(check, words);
  if (fault != NULL) return fault;
  uint64_t pops = rule->pops + (uint64_t)rule->pops_each * operand;
  if (op == OP(CALL)) pops += words[1];
  if (pops > *depth) return "the stack has too few values";
  const uint64_t before = *depth;
  *depth = before - pops + rule->pushes + (op == OP(UNPACK) ? operand : 0);
  const uint64_t most = *depth + (op == OP(SLOT) ? 1 : 0);
  if (most > check->function->stack) return "the stack has no room";
  if (rule->label == 0) return NULL;
  return jump(check, at, words[rule->label], before + (uint64_t)(int64_t)rule->label_pushes);
}

static aot_status_t check_function(check_t *check) {
  const aot_template_function_t *function = check->function;
  bool is_reached = true;
  uint64_t depth = 0;
  for (uint32_t at = function->begin; at < function->end;) {
    uint16_t *known = &check->known[at];
    if (*known != 0) {
      const uint64_t there = *known - 1u;
      if (is_reached && there != depth) {
        return damaged(check, at, "the stack is another from elsewhere");
      }
      depth = there;
      is_reached = true;
    }
    if (!is_reached) return damaged(check, at, "nothing leads here");
    *known = (uint16_t)((depth + 1) | IS_START);
    const char *fault = instruction_fault(check, at, &depth);
    if (fault != NULL) return damaged(check, at, fault);
    const uint32_t op = check->code->code[at] & 0xFF;
    is_reached = op != OP(JUMP) && op != OP(RETURN);
    at += 1 + aot_template_words(check->code->code + at);
  }
  if (is_reached) return damaged(check, function->end, "a function has no end");
  for (uint32_t at = function->begin; at < function->end; ++at) {
    if (check->known[at] != 0 && (check->known[at] & IS_START) == 0) {
      return damaged(check, at, "something jumps into an instruction");
    }
  }
  return AOT_OK;
}

// ---- the whole ----

static const char *function_fault(const aot_template_t *code, uint32_t index) {
  const aot_template_function_t *function = aot_template_function(code, index);
  const uint32_t first = 1 + AOT_TEMPLATE_HEADER_WORDS * code->code[0];
  const bool is_inside = function->begin >= first && function->begin < function->end &&
                         function->end <= code->code_count;
  if (!is_inside) return "its instructions are not there";
  if (index > 0 && function->begin < aot_template_function(code, index - 1)->end) {
    return "its instructions are another's";
  }
  if (function->stack > AOT_TEMPLATE_STACK) return "its stack is too large";
  if (function->slots > MOST_DEPTH || function->parameters > function->slots ||
      function->positional > function->parameters) {
    return "its parameters are more than its slots";
  }
  const uint32_t names = function->names_at;
  if (names < first || names > code->code_count ||
      function->parameters > code->code_count - names) {
    return "the names of its parameters are not there";
  }
  for (uint32_t i = 0; i < function->parameters; ++i)
    if (code->code[names + i] >= code->text_count) return "a parameter has no name";
  if (index == 0) return function->parent == UINT32_MAX ? NULL : "it is inside of another";
  if (function->parent >= index) return "it is inside of none";
  return function_out(code, function, AOT_TEMPLATE_LEVELS) == NULL ? NULL : "it is too far inside";
}

static const char *texts_fault(const aot_template_t *code) {
  uint32_t begin = 0;
  for (uint32_t i = 0; i < code->text_count; ++i) {
    const uint32_t end = code->text_ends[i];
    if (end < begin || end > code->text_bytes) return "a text is not there";
    if (end > begin && aot_utf8_check(code->texts + begin, end - begin) < end - begin) {
      return "a text is not UTF-8";
    }
    begin = end;
  }
  return NULL;
}

aot_status_t aot_template_verify(const aot_template_t *code, const aot_allocator_t *allocator,
                                 aot_error_t *error) {
  if (code->code_count == 0) return AOT_OK;
  const char *fault = texts_fault(code);
  const uint32_t count = code->code[0];
  if (fault == NULL && (count == 0 || count > (code->code_count - 1) / AOT_TEMPLATE_HEADER_WORDS)) {
    fault = "it has no functions";
  }
  uint64_t names = 0;
  for (uint32_t i = 0; fault == NULL && i < count; ++i) {
    names += aot_template_function(code, i)->parameters;
    fault = names > code->code_count ? "functions share the names of parameters"
                                     : function_fault(code, i);
  }
  if (fault != NULL) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "the chat template's code: %s", fault);
  }
  const size_t bytes = code->code_count * sizeof(uint16_t);
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "checking a chat template", error, &memory));
  memset(memory, 0, bytes);
  aot_status_t status = AOT_OK;
  for (uint32_t i = 0; i < count && status == AOT_OK; ++i) {
    check_t check = {code, aot_template_function(code, i), i, memory, error};
    status = check_function(&check);
  }
  aot_release(allocator, memory, bytes);
  return status;
}
