// Verifies a program once, at load: lengths, operands, blocks, and what may stand in which part.
// After this the interpreter reads instructions without a check.
#include "module.h"
#include "module_fbs.h"
#include "status.h"

// Operands of an instruction, one letter a word:
//   r register    k any word     b block of the same part    i input, then a its axis
//   o output, then a its axis    m message    u arena buffer    c class    w class that is written
//   t integer dtype    x executable, then its grid and parameters    * any more registers
//   s state scalar, in prepare one that is a key
typedef struct aot_rule_t {
  const char *operands;
  enum { ANYWHERE, IN_PREPARE, IN_EXECUTE } part;
  bool is_terminator;
} aot_rule_t;

static const aot_rule_t rules[AOT_FBS_OPCODE_COUNT] = {
    [AOT_FBS_OPCODE_NOP] = {"", ANYWHERE, false},
    [AOT_FBS_OPCODE_CONST] = {"rkk", ANYWHERE, false},
    [AOT_FBS_OPCODE_MOVE] = {"rr", ANYWHERE, false},
    [AOT_FBS_OPCODE_INPUT_DIM] = {"ria", ANYWHERE, false},
    [AOT_FBS_OPCODE_OUTPUT_DIM] = {"oar", IN_PREPARE, false},
    [AOT_FBS_OPCODE_ADD] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_SUB] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_MUL] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_FLOORDIV] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_FLOORMOD] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_MIN] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_MAX] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_EQ] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_NE] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_LT] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_LE] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_AND] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_OR] = {"rrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_SELECT] = {"rrrr", ANYWHERE, false},
    [AOT_FBS_OPCODE_CHECK] = {"rm*", ANYWHERE, false},
    [AOT_FBS_OPCODE_BUFFER] = {"ur", IN_PREPARE, false},
    [AOT_FBS_OPCODE_LOAD] = {"rcrt", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_DISPATCH] = {"xrrr*", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_COPY] = {"wrcrr", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_FILL] = {"wrrk", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_JUMP] = {"b", ANYWHERE, true},
    [AOT_FBS_OPCODE_BRANCH] = {"rbb", ANYWHERE, true},
    [AOT_FBS_OPCODE_RETURN] = {"", ANYWHERE, true},
    [AOT_FBS_OPCODE_STATE] = {"rs", ANYWHERE, false},
    [AOT_FBS_OPCODE_SET_STATE] = {"sr", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_STORE] = {"wrrt", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_TO_HOST] = {"crr", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_TO_DEVICE] = {"wrr", IN_EXECUTE, false},
    [AOT_FBS_OPCODE_BESIDE] = {"", IN_EXECUTE, false},
};

typedef struct aot_verifier_t {
  const aot_variant_t *variant;
  const aot_entry_t *entry;
  aot_code_t *code;
  aot_error_t *error;
} aot_verifier_t;

static aot_status_t reject(const aot_verifier_t *v, uint32_t word, const char *what) {
  return aot_fail(v->error, AOT_ERROR_MALFORMED, "program of entry point \"%s\", word %u: %s",
                  v->entry->name, (unsigned)word, what);
}

// What is wrong with operand `kind` of value `value`, or NULL.
static const char *operand_fault(const aot_verifier_t *v, char kind, uint32_t value,
                                 bool is_execute) {
  const aot_code_t *code = v->code;
  const aot_entry_t *entry = v->entry;
  switch (kind) {
    case 'r':
      return value < code->register_count ? NULL : "no such register";
    case 'b':
      return value < code->block_count && (value >= code->execute_block) == is_execute
                 ? NULL
                 : "no such block in this part";
    case 'i':
      return value < entry->input_count ? NULL : "no such input";
    case 'o':
      return value < entry->output_count ? NULL : "no such output";
    case 'm':
      return value < code->message_count ? NULL : "no such message";
    case 'u':
      return value < code->buffer_count ? NULL : "no such arena buffer";
    case 'c':
      return value < AOT_FBS_BUFFER_CLASS_COUNT ? NULL : "no such buffer class";
    case 'w':
      return value == AOT_FBS_BUFFER_CLASS_ARENA || value == AOT_FBS_BUFFER_CLASS_OUTPUTS
                 ? NULL
                 : "this buffer class can't be written";
    case 't':
      return value < AOT_FBS_DTYPE_COUNT && value != AOT_FBS_DTYPE_F16 &&
                     value != AOT_FBS_DTYPE_F32 && value != AOT_FBS_DTYPE_F64
                 ? NULL
                 : "not an integer dtype";
    case 's':
      return value < (is_execute ? code->state_count : code->state_key_count)
                 ? NULL
                 : "no such state scalar in this part";
    case 'x':
      return value < v->variant->executable_count ? NULL : "no such executable";
    default:
      return NULL;
  }
}

// `rank` of the input or output named by the word before an axis.
static uint32_t rank_of(const aot_verifier_t *v, char kind, uint32_t index) {
  return kind == 'i' ? v->entry->inputs[index].rank : v->entry->outputs[index].rank;
}

// Verifies the instruction at `at`, inside a block that ends at `end`.
static aot_status_t verify_instruction(aot_verifier_t *v, uint32_t at, uint32_t end,
                                       bool is_execute, uint32_t *out_length,
                                       bool *out_is_terminator) {
  const uint32_t *words = v->code->words + at;
  const uint32_t opcode = words[0] & 0xff;
  const uint32_t length = words[0] >> 8;
  if (opcode >= AOT_FBS_OPCODE_COUNT) return reject(v, at, "no such instruction");
  if (length == 0 || length > end - at) return reject(v, at, "the instruction crosses its block");
  const aot_rule_t *rule = &rules[opcode];
  uint32_t used = 1;
  for (const char *kind = rule->operands; *kind != '\0'; ++kind, ++used) {
    if (*kind == '*') {
      for (; used < length; ++used) {
        if (words[used] >= v->code->register_count) return reject(v, at + used, "no such register");
      }
      break;
    }
    if (used >= length) return reject(v, at, "the instruction is too short");
    const char *what = NULL;
    if (*kind == 'a') {
      // The word before was checked as an input or output in the turn before.
      if (words[used] >= rank_of(v, kind[-1], words[used - 1])) what = "no such axis";
    } else {
      what = operand_fault(v, *kind, words[used], is_execute);
    }
    if (what != NULL) return reject(v, at + used, what);
  }
  if (opcode == AOT_FBS_OPCODE_DISPATCH) {
    const aot_executable_t *executable = &v->variant->executables[words[1]];
    const uint32_t params = executable->param_words;
    const int64_t scratch_offset = v->code->scratch_offset;
    if (scratch_offset >= 0 && aot_executable_is_code(executable) &&
        executable->scratch_bytes > v->code->arena_bytes - (uint64_t)scratch_offset) {
      return reject(v, at, "the executable's scratch is not in the arena");
    }
    if (length - 5 != params) {
      return reject(v, at, "the parameter count is not the executable's");
    }
    if (params > v->code->most_param_words) v->code->most_param_words = params;
  }
  if (used != length) return reject(v, at, "the instruction is too long");
  if (opcode == AOT_FBS_OPCODE_BESIDE &&
      (length >= end - at || (words[length] & 0xff) != AOT_FBS_OPCODE_DISPATCH)) {
    return reject(v, at, "no dispatch stands behind the instruction");
  }
  if (v->variant->device == AOT_FBS_DEVICE_CPU && opcode >= AOT_FBS_OPCODE_TO_HOST) {
    return reject(v, at, "the instruction is not for a CPU");
  }
#if defined(AOT_VULKAN)
  if (v->variant->host == NULL &&
      (opcode == AOT_FBS_OPCODE_TO_HOST || opcode == AOT_FBS_OPCODE_TO_DEVICE)) {
    return reject(v, at, "the instruction is for a variant with a host");
  }
#endif
  if ((rule->part == IN_PREPARE && is_execute) || (rule->part == IN_EXECUTE && !is_execute)) {
    return reject(v, at, "the instruction is not allowed in this part");
  }
  *out_length = length;
  *out_is_terminator = rule->is_terminator;
  return AOT_OK;
}

static aot_status_t verify_block(aot_verifier_t *v, uint32_t block) {
  const aot_code_t *code = v->code;
  const uint32_t begin = code->blocks[block];
  const uint32_t end = block + 1 < code->block_count ? code->blocks[block + 1] : code->word_count;
  if ((block == 0 && begin != 0) || begin >= end || end > code->word_count) {
    return reject(v, begin, "blocks are not in ascending order from word 0");
  }
  bool is_terminator = false;
  for (uint32_t at = begin, length = 0; at < end; at += length) {
    if (is_terminator) return reject(v, at, "an instruction follows the end of its block");
    AOT_TRY(verify_instruction(v, at, end, block >= code->execute_block, &length, &is_terminator));
  }
  return is_terminator ? AOT_OK : reject(v, end - 1, "the block has no terminator");
}

aot_status_t aot_code_verify(const aot_variant_t *variant, const aot_entry_t *entry,
                             aot_code_t *code, aot_error_t *error) {
  aot_verifier_t v = {.variant = variant, .entry = entry, .code = code, .error = error};
  code->most_param_words = 0;
  for (uint32_t block = 0; block < code->block_count; ++block) {
    AOT_TRY(verify_block(&v, block));
  }
  return AOT_OK;
}
