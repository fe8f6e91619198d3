// Verifies a program once, at load: lengths, operands, blocks, and what may stand in which part.
// After this the interpreter reads instructions without a check.
#include "module.h"
#include "module_fbs.h"
#include "program_rules.h"
#include "status.h"

typedef struct aot_verifier_t {
  aot_around_t around;
  aot_error_t *error;
} aot_verifier_t;

static aot_status_t reject(const aot_verifier_t *v, uint32_t word, const char *what) {
  return aot_fail(v->error, AOT_ERROR_MALFORMED, "program of entry point \"%s\", word %u: %s",
                  v->around.entry->name, (unsigned)word, what);
}

// Verifies the operands of the instruction at `at`, which has `length` words.
static aot_status_t verify_operands(aot_verifier_t *v, uint32_t at, uint32_t length,
                                    const char *kinds) {
  aot_around_t *around = &v->around;
  const uint32_t *words = around->program->words + at;
  uint32_t used = 1;
  for (const char *kind = kinds; *kind != '\0' && *kind != '*'; ++kind) {
    const bool is_any_number = kind[1] == '*';
    if (used >= length && !is_any_number) return reject(v, at, "the instruction is too short");
    for (const uint32_t end = is_any_number ? length : used + 1; used < end; ++used) {
      const uint32_t it = words[used];
      if (!is_operand(around, *kind, it)) return reject(v, at + used, operand_faults[*kind - 'a']);
      if (*kind == 'i') around->rank = around->entry->inputs[it].rank;
      if (*kind == 'o') around->rank = around->entry->outputs[it].rank;
    }
  }
  return used == length ? AOT_OK : reject(v, at, "the instruction is too long");
}

// Verifies the instruction at `at`, inside a block that ends at `end`.
static aot_status_t verify_instruction(aot_verifier_t *v, uint32_t at, uint32_t end,
                                       uint32_t *out_length, bool *out_is_terminator) {
  aot_around_t *around = &v->around;
  const uint32_t *words = around->program->words + at;
  const uint32_t opcode = words[0] & 0xff;
  const uint32_t length = words[0] >> 8;
  if (opcode >= AOT_FBS_OPCODE_COUNT) return reject(v, at, "no such instruction");
  if (length == 0 || length > end - at) return reject(v, at, "the instruction crosses its block");
  const aot_instruction_rule_t *rule = &instruction_rules[opcode];
  AOT_TRY(verify_operands(v, at, length, rule->operands));
  if (opcode == AOT_FBS_OPCODE_BESIDE &&
      (length >= end - at || (words[length] & 0xff) != AOT_FBS_OPCODE_DISPATCH)) {
    return reject(v, at, "no dispatch stands behind the instruction");
  }
  if (opcode == AOT_FBS_OPCODE_DISPATCH) {
    around->executable = &around->variant->executables[words[1]];
    around->param_count = length - 5;
    uint32_t *most = &around->program->most_param_words;
    if (around->param_count > *most) *most = around->param_count;
  }
  const char *what = instruction_fault(around, opcode);
  if (what == NULL && rule->part == (around->is_execute ? IN_PREPARE : IN_EXECUTE)) {
    what = "the instruction is not allowed in this part";
  }
  *out_length = length;
  *out_is_terminator = rule->is_terminator;
  return what == NULL ? AOT_OK : reject(v, at, what);
}

static aot_status_t verify_block(aot_verifier_t *v, uint32_t block) {
  const aot_code_t *code = v->around.program;
  const uint32_t begin = code->blocks[block];
  const uint32_t end = block + 1 < code->block_count ? code->blocks[block + 1] : code->word_count;
  if ((block == 0 && begin != 0) || begin >= end || end > code->word_count) {
    return reject(v, begin, "blocks are not in ascending order from word 0");
  }
  bool is_terminator = false;
  v->around.is_execute = block >= code->execute_block;
  for (uint32_t at = begin, length = 0; at < end; at += length) {
    if (is_terminator) return reject(v, at, "an instruction follows the end of its block");
    AOT_TRY(verify_instruction(v, at, end, &length, &is_terminator));
  }
  return is_terminator ? AOT_OK : reject(v, end - 1, "the block has no terminator");
}

aot_status_t aot_code_verify(const aot_variant_t *variant, const aot_entry_t *entry,
                             aot_code_t *code, aot_error_t *error) {
  aot_verifier_t v = {{.variant = variant, .entry = entry, .program = code}, error};
  code->most_param_words = 0;
  for (uint32_t block = 0; block < code->block_count; ++block) {
    AOT_TRY(verify_block(&v, block));
  }
  return AOT_OK;
}
