// Runs verified programs.  Operands are trusted (program_verify.c); values never are: arithmetic is
// checked for overflow, and every load, copy and fill against its buffer.
#include <string.h>

#include "module_fbs.h"
#include "os.h"
#include "program.h"
#include "status.h"

typedef struct aot_machine_t {
  aot_program_t *program;
  aot_plan_t *plan;  // written by prepare only
  int64_t *registers;
  uint64_t budget;
  uint32_t word;   // of the instruction, for messages
  bool is_beside;  // BESIDE stands before the next dispatch
  bool must_wait;  // of the dispatches since the last that ran one must wait: the next one for it
  aot_error_t *error;
} aot_machine_t;

static aot_status_t spend(aot_machine_t *m, uint64_t work) {
  if (work > m->budget) {
    return aot_fail(m->error, AOT_ERROR_BUDGET, "the work budget of %llu is used up at word %u",
                    (unsigned long long)m->program->work_budget, (unsigned)m->word);
  }
  if (m->budget != UINT64_MAX) m->budget -= work;
  return AOT_OK;
}

// Whether the run may go on: asked before each launch, and where loops turn.
static aot_status_t check_stop(const aot_machine_t *m) {
  const aot_program_t *program = m->program;
  if (__atomic_load_n(&program->is_cancelled, __ATOMIC_RELAXED)) {
    return aot_fail(m->error, AOT_ERROR_CANCELLED, "cancelled at word %u", (unsigned)m->word);
  }
  if (program->deadline_ns != 0 && aot_os_now_ns() >= program->deadline_ns) {
    return aot_fail(m->error, AOT_ERROR_DEADLINE, "the deadline has passed at word %u",
                    (unsigned)m->word);
  }
  return AOT_OK;
}

static aot_status_t spend_on_launch(aot_machine_t *m, uint64_t work) {
  AOT_TRY(check_stop(m));
  return spend(m, work);
}

// Floor division and its remainder; false on division by zero and on overflow.
static bool divide(int64_t a, int64_t b, int64_t *out_quotient, int64_t *out_remainder) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    quotient -= 1;
    remainder += b;
  }
  *out_quotient = quotient;
  *out_remainder = remainder;
  return true;
}

// False when the result does not exist or does not fit.
static bool calculate(uint32_t opcode, int64_t a, int64_t b, int64_t *out_result) {
  int64_t other = 0;
  switch (opcode) {
    case AOT_FBS_OPCODE_ADD:
      return !__builtin_add_overflow(a, b, out_result);
    case AOT_FBS_OPCODE_SUB:
      return !__builtin_sub_overflow(a, b, out_result);
    case AOT_FBS_OPCODE_MUL:
      return !__builtin_mul_overflow(a, b, out_result);
    case AOT_FBS_OPCODE_FLOORDIV:
      return divide(a, b, out_result, &other);
    case AOT_FBS_OPCODE_FLOORMOD:
      return divide(a, b, &other, out_result);
    case AOT_FBS_OPCODE_MIN:
      *out_result = a < b ? a : b;
      return true;
    case AOT_FBS_OPCODE_MAX:
      *out_result = a > b ? a : b;
      return true;
    case AOT_FBS_OPCODE_EQ:
      *out_result = a == b;
      return true;
    case AOT_FBS_OPCODE_NE:
      *out_result = a != b;
      return true;
    case AOT_FBS_OPCODE_LT:
      *out_result = a < b;
      return true;
    case AOT_FBS_OPCODE_LE:
      *out_result = a <= b;
      return true;
    case AOT_FBS_OPCODE_AND:
      *out_result = a != 0 && b != 0;
      return true;
    default:
      *out_result = a != 0 || b != 0;
      return true;
  }
}

static aot_status_t binary(aot_machine_t *m, uint32_t opcode, const uint32_t *operands) {
  static const char *const names[] = {"add", "sub", "mul", "floordiv", "floormod"};
  const int64_t a = m->registers[operands[1]];
  const int64_t b = m->registers[operands[2]];
  int64_t result = 0;
  if (!calculate(opcode, a, b, &result)) {
    return aot_fail(m->error, AOT_ERROR_ARITHMETIC, "%s of %lld and %lld %s, word %u",
                    names[opcode - AOT_FBS_OPCODE_ADD], (long long)a, (long long)b,
                    b == 0 ? "divides by zero" : "overflows", (unsigned)m->word);
  }
  m->registers[operands[0]] = result;
  return AOT_OK;
}

static bool is_in_binding(const aot_binding_t *bindings, uint32_t count, uintptr_t offset,
                          uint64_t bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    const uintptr_t inside = offset - bindings[i].offset;
    if (inside <= bindings[i].bytes && bytes <= bindings[i].bytes - inside) return true;
  }
  return false;
}

// Checks that `bytes` at an offset lie in constants, the plan's arena, one input or one output.  An
// offset in the last two is as wide as an address, on 32 bits the register's low half; the place
// has what was checked, so that no driver sees the rest.
static aot_status_t resolve(const aot_machine_t *m, uint32_t buffer_class, int64_t offset,
                            int64_t bytes, aot_place_t *out_place) {
  static const char *const names[] = {"constants", "the arena", "any input", "any output"};
  const aot_bindings_t *bindings = &m->program->bindings;
  const uint64_t size = (uint64_t)bytes;
  uint64_t place = (uint64_t)offset;
  bool is_inside = bytes >= 0;
  if (buffer_class <= AOT_FBS_BUFFER_CLASS_ARENA) {
    const uint64_t limit = buffer_class == AOT_FBS_BUFFER_CLASS_ARENA
                               ? m->plan->arena_bytes
                               : m->program->module->rodata.length;
    is_inside = is_inside && place <= limit && size <= limit - place;
  } else {
    const bool is_input = buffer_class == AOT_FBS_BUFFER_CLASS_INPUTS;
    place = (uintptr_t)offset;
    is_inside =
        is_inside && is_in_binding(is_input ? bindings->inputs : bindings->outputs,
                                   is_input ? bindings->input_count : bindings->output_count,
                                   (uintptr_t)place, size);
  }
  if (!is_inside) {
    return aot_fail(m->error, AOT_ERROR_BOUNDS, "%lld bytes at offset %lld are not in %s, word %u",
                    (long long)bytes, (long long)offset, names[buffer_class], (unsigned)m->word);
  }
  *out_place = (aot_place_t){buffer_class, place};
  return AOT_OK;
}

static aot_status_t load(aot_machine_t *m, const uint32_t *operands) {
  const aot_dtype_t dtype = (aot_dtype_t)operands[3];
  const size_t bytes = aot_dtype_bytes(dtype);
  const aot_program_t *program = m->program;
  aot_place_t place = {0, 0};
  AOT_TRY(resolve(m, operands[1], m->registers[operands[2]], (int64_t)bytes, &place));
  uint64_t raw = 0;
  AOT_TRY(program->driver->load(program->device, place, bytes, &raw, m->error));
  if (dtype == AOT_DTYPE_U64 && raw > INT64_MAX) {
    return aot_fail(m->error, AOT_ERROR_ARITHMETIC, "a loaded u64 overflows, word %u",
                    (unsigned)m->word);
  }
  const bool is_signed = dtype == AOT_DTYPE_I8 || dtype == AOT_DTYPE_I16 || dtype == AOT_DTYPE_I32;
  if (is_signed && (raw >> (8 * bytes - 1)) != 0) raw |= UINT64_MAX << (8 * bytes);
  m->registers[operands[0]] = (int64_t)raw;
  return AOT_OK;
}

static aot_status_t store(aot_machine_t *m, const uint32_t *operands) {
  const size_t bytes = aot_dtype_bytes((aot_dtype_t)operands[3]);
  const aot_program_t *program = m->program;
  aot_place_t place = {0, 0};
  AOT_TRY(resolve(m, operands[0], m->registers[operands[1]], (int64_t)bytes, &place));
  const uint64_t value = (uint64_t)m->registers[operands[2]];
  return program->driver->store(program->device, place, bytes, value, m->error);
}

// Units of 64 bytes, and commands where the driver splits a copy that overlaps itself.
static uint64_t copy_work(const aot_driver_t *driver, aot_place_t to, aot_place_t from,
                          uint64_t bytes) {
  const uint64_t distance =
      to.offset < from.offset ? from.offset - to.offset : to.offset - from.offset;
  const bool is_split = driver->splits_overlaps && to.buffer_class == from.buffer_class &&
                        distance > 0 && distance < bytes;
  return bytes / 64 + (is_split ? bytes / distance : 0);
}

static aot_status_t copy(aot_machine_t *m, const uint32_t *operands) {
  const int64_t *r = m->registers;
  const int64_t bytes = r[operands[4]];
  if (bytes == 0) return AOT_OK;
  const aot_program_t *program = m->program;
  aot_place_t to = {0, 0};
  aot_place_t from = {0, 0};
  AOT_TRY(resolve(m, operands[0], r[operands[1]], bytes, &to));
  AOT_TRY(resolve(m, operands[2], r[operands[3]], bytes, &from));
  AOT_TRY(spend_on_launch(m, copy_work(program->driver, to, from, (uint64_t)bytes)));
  return program->driver->copy(program->device, to, from, (size_t)bytes, m->error);
}

static aot_status_t fill(aot_machine_t *m, const uint32_t *operands) {
  const int64_t bytes = m->registers[operands[2]];
  if (bytes == 0) return AOT_OK;
  const aot_program_t *program = m->program;
  aot_place_t to = {0, 0};
  AOT_TRY(resolve(m, operands[0], m->registers[operands[1]], bytes, &to));
  AOT_TRY(spend_on_launch(m, (uint64_t)bytes / 64));
  return program->driver->fill(program->device, to, (size_t)bytes, operands[3], m->error);
}

#if defined(AOT_VULKAN)
// What the device and the host made there, as the other one finds it.
static aot_status_t hand_over(aot_machine_t *m, uint32_t opcode, const uint32_t *operands) {
  const int64_t bytes = m->registers[operands[2]];
  if (bytes == 0) return AOT_OK;
  const aot_program_t *program = m->program;
  aot_place_t place = {0, 0};
  AOT_TRY(resolve(m, operands[0], m->registers[operands[1]], bytes, &place));
  AOT_TRY(spend(m, (uint64_t)bytes / 64));
  return program->driver->hand_over(program->device, place, (size_t)bytes,
                                    opcode == AOT_FBS_OPCODE_TO_HOST, m->error);
}
#endif

static aot_status_t dispatch(aot_machine_t *m, const uint32_t *operands) {
  const aot_program_t *program = m->program;
  const int64_t *r = m->registers;
  const int64_t x = r[operands[1]];
  const int64_t y = r[operands[2]];
  const int64_t z = r[operands[3]];
  const aot_executable_t *executable = &program->variant->executables[operands[0]];
  const bool is_empty = x == 0 || y == 0 || z == 0;
  int64_t count = 0;
  if (x < 0 || y < 0 || z < 0 || x > UINT32_MAX || y > UINT32_MAX || z > UINT32_MAX ||
      (!is_empty &&
       (__builtin_mul_overflow(x, y, &count) || __builtin_mul_overflow(count, z, &count)))) {
    return aot_fail(m->error, AOT_ERROR_BOUNDS,
                    "executable \"%s\": a grid of %lld x %lld x %lld workgroups, word %u",
                    executable->name, (long long)x, (long long)y, (long long)z, (unsigned)m->word);
  }
  const bool is_beside = m->is_beside;
  m->is_beside = false;
  m->must_wait = m->must_wait || !is_beside;
  if (is_empty) return AOT_OK;
  AOT_TRY(spend_on_launch(m, (uint64_t)count));
  if (executable->word_bytes == 8) {
    for (uint32_t i = 0; i < executable->param_words; ++i) {
      program->params[i] = (uint64_t)r[operands[4 + i]];
    }
  } else {
    uint8_t *params = (uint8_t *)program->params;
    for (uint32_t i = 0; i < executable->param_words; ++i) {
      const uint32_t word = (uint32_t)r[operands[4 + i]];
      memcpy(params + 4 * (size_t)i, &word, sizeof word);
    }
  }
  const aot_grid_t grid = {(uint32_t)x, (uint32_t)y, (uint32_t)z};
  m->program->bindings.is_beside = !m->must_wait;
  m->must_wait = false;
  aot_poison_before(m->program, m->word);
  AOT_TRY(program->driver->dispatch(program->device, operands[0], program->params, grid, m->error));
  return aot_poison_after(m->program, m->word, operands[0], m->error);
}

static aot_status_t declare_output(aot_machine_t *m, const uint32_t *operands) {
  const aot_program_t *program = m->program;
  const uint32_t first = program->outputs[operands[0]].first_dim;
  int64_t *output_dims = m->registers + program->entry->code.register_count;
  output_dims[first + operands[1]] = m->registers[operands[2]];
  return AOT_OK;
}

static aot_status_t declare_buffer(aot_machine_t *m, const uint32_t *operands) {
  const int64_t bytes = m->registers[operands[1]];
  if (bytes < 0) {
    return aot_fail(m->error, AOT_ERROR_BOUNDS, "arena buffer %u of %lld bytes, word %u",
                    (unsigned)operands[0], (long long)bytes, (unsigned)m->word);
  }
  m->program->placements[operands[0]].bytes = (uint64_t)bytes;
  return AOT_OK;
}

// Ends the run with the message of a CHECK: "{0}" is the first value's place in it, "{{" a brace.
static aot_status_t fail_check(const aot_machine_t *m, const uint32_t *operands) {
  const uint32_t value_count = (operands[-1] >> 8) - 3;
  aot_text_t text = {.length = 0};
  for (const char *c = m->program->entry->code.messages[operands[1]]; *c != '\0'; ++c) {
    const uint32_t value = (uint32_t)(c[1] - '0');
    if (*c == '{' && value < value_count && value < 10 && c[2] == '}') {
      aot_text_append(&text, "%lld", (long long)m->registers[operands[2 + value]]);
      c += 2;
      continue;
    }
    if ((*c == '{' || *c == '}') && c[1] == *c) ++c;
    const size_t more = strcspn(c + 1, "{}");
    aot_text_append(&text, "%.*s", (int)more + 1, c);
    c += more;
  }
  return aot_fail(m->error, AOT_ERROR_CHECK, "%s", text.bytes);
}

// Everything but control flow.
static aot_status_t step(aot_machine_t *m, uint32_t opcode, const uint32_t *operands) {
  const aot_program_t *program = m->program;
  int64_t *r = m->registers;
  switch (opcode) {
    case AOT_FBS_OPCODE_NOP:
      return AOT_OK;
    case AOT_FBS_OPCODE_CONST:
      r[operands[0]] = (int64_t)((uint64_t)operands[2] << 32 | operands[1]);
      return AOT_OK;
    case AOT_FBS_OPCODE_MOVE:
      r[operands[0]] = r[operands[1]];
      return AOT_OK;
    case AOT_FBS_OPCODE_INPUT_DIM:
      r[operands[0]] = m->plan->input_dims[program->inputs[operands[1]].first_dim + operands[2]];
      return AOT_OK;
    case AOT_FBS_OPCODE_OUTPUT_DIM:
      return declare_output(m, operands);
    case AOT_FBS_OPCODE_SELECT:
      r[operands[0]] = r[operands[1]] != 0 ? r[operands[2]] : r[operands[3]];
      return AOT_OK;
    case AOT_FBS_OPCODE_CHECK:
      return r[operands[0]] != 0 ? AOT_OK : fail_check(m, operands);
    case AOT_FBS_OPCODE_BUFFER:
      return declare_buffer(m, operands);
    case AOT_FBS_OPCODE_LOAD:
      return load(m, operands);
    case AOT_FBS_OPCODE_STORE:
      return store(m, operands);
    case AOT_FBS_OPCODE_STATE:
      r[operands[0]] = program->states[operands[1]];
      return AOT_OK;
    case AOT_FBS_OPCODE_SET_STATE:
      program->next_states[operands[0]] = r[operands[1]];
      return AOT_OK;
    case AOT_FBS_OPCODE_DISPATCH:
      return dispatch(m, operands);
    case AOT_FBS_OPCODE_COPY:
      return copy(m, operands);
    case AOT_FBS_OPCODE_FILL:
      return fill(m, operands);
#if defined(AOT_VULKAN)
    case AOT_FBS_OPCODE_TO_HOST:
    case AOT_FBS_OPCODE_TO_DEVICE:
      return hand_over(m, opcode, operands);
    case AOT_FBS_OPCODE_BESIDE:
      m->is_beside = true;
      return AOT_OK;
#endif
    default:
      return binary(m, opcode, operands);
  }
}

static aot_status_t interpret(aot_machine_t *m, uint32_t block) {
  const aot_code_t *code = &m->program->entry->code;
  uint32_t word = code->blocks[block];
  for (;;) {
    const uint32_t *instruction = code->words + word;
    const uint32_t *operands = instruction + 1;
    const uint32_t opcode = instruction[0] & 0xff;
    m->word = m->program->bindings.word = word;
    AOT_TRY(spend(m, 1));
    if (opcode == AOT_FBS_OPCODE_JUMP || opcode == AOT_FBS_OPCODE_BRANCH) AOT_TRY(check_stop(m));
    switch (opcode) {
      case AOT_FBS_OPCODE_JUMP:
        word = code->blocks[operands[0]];
        break;
      case AOT_FBS_OPCODE_BRANCH:
        word = code->blocks[m->registers[operands[0]] != 0 ? operands[1] : operands[2]];
        break;
      case AOT_FBS_OPCODE_RETURN:
        return AOT_OK;
      default:
        AOT_TRY(step(m, opcode, operands));
        word += instruction[0] >> 8;
        break;
    }
  }
}

aot_status_t aot_interpret_prepare(aot_program_t *program, aot_plan_t *plan, uint64_t *work,
                                   aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  memset(plan->registers, 0, code->register_count * sizeof *plan->registers);
  aot_machine_t machine = {.program = program,
                           .plan = plan,
                           .registers = plan->registers,
                           .budget = *work,
                           .error = error};
  const aot_status_t status = interpret(&machine, 0);
  *work = machine.budget;
  return status;
}

aot_status_t aot_interpret_execute(aot_program_t *program, aot_plan_t *plan, aot_error_t *error) {
  const aot_code_t *code = &program->entry->code;
  const aot_bindings_t *bindings = &program->bindings;
  // A run starts from what prepare left, whatever the run before did to its registers.
  int64_t *registers = program->registers;
  const size_t count = (size_t)code->register_count + program->entry->output_dim_count;
  memcpy(registers, plan->registers, count * sizeof *registers);
  for (uint32_t i = 0; i < code->input_offset_count; ++i) {
    registers[code->input_offset_registers[i]] = (intptr_t)bindings->inputs[i].offset;
  }
  for (uint32_t i = 0; i < code->output_offset_count; ++i) {
    registers[code->output_offset_registers[i]] = (intptr_t)bindings->outputs[i].offset;
  }
  aot_machine_t machine = {.program = program,
                           .plan = plan,
                           .registers = registers,
                           .budget = program->work_budget,
                           .error = error};
  return interpret(&machine, code->execute_block);
}
