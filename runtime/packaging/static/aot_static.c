// Runs a packaged program: the instructions of a module's program (docs/internals/file-format.md),
// in a form that takes no parsing.  Programs are trusted, they are part of the application; values
// are not.
//
// `program` is a header, aot_program_header_t, and behind it, as words: the code, the first word of
// each block, for each executable the offset of its function, for each arena buffer its register
// and offset, the registers of the inputs' and of the outputs' offsets, and for each input and then
// each output {bytes of an element, rank, {least, most} of each axis}.
//
// The arena is: what the program places in it, scratch, then the loader's own words: registers, a
// parameter block, state scalars, and the same for the next run.
#include "aot_static.h"

#define NO_REGISTERS UINT32_MAX

typedef struct aot_program_header_t {
  uint32_t version;
  uint32_t word_bytes;  // of parameters
  uint32_t code_bias;   // 1 for Thumb
  uint32_t arena_bytes;
  uint32_t scratch_bytes;
  uint32_t weights_bytes;
  uint32_t state_bytes;
  uint32_t state_count;
  uint32_t register_count;
  uint32_t most_params;
  uint32_t execute_block;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t buffer_count;
  uint32_t code_at;  // where parts begin, in words from the header's start
  uint32_t blocks_at;
  uint32_t executables_at;
  uint32_t buffers_at;
  uint32_t input_registers_at;   // NO_REGISTERS: the program has none
  uint32_t output_registers_at;  // the same
  uint32_t tensors_at;
} aot_program_header_t;

// As in aot/abi.h.
typedef struct aot_kernel_dispatch_t {
  const uint8_t *constants;
  uint8_t *arena;
  const uint8_t *inputs;
  uint8_t *outputs;
  const void *params;
  uint8_t *scratch;
} aot_kernel_dispatch_t;

typedef void (*aot_kernel_function_t)(const aot_kernel_dispatch_t *dispatch, uint32_t x, uint32_t y,
                                      uint32_t z);

typedef struct aot_static_machine_t {
  const aot_static_entry_t *entry;
  const aot_program_header_t *header;
  const aot_static_tensor_t *inputs;
  const aot_static_tensor_t *outputs;
  aot_kernel_dispatch_t dispatch;
  int64_t *registers;
  uint64_t *params;
  int64_t *states;
  int64_t *next_states;
} aot_static_machine_t;

// The opcodes of runtime/module.fbs; tests compare them.
enum {
  OP_NOP,
  OP_CONST,
  OP_MOVE,
  OP_INPUT_DIM,
  OP_OUTPUT_DIM,
  OP_ADD,
  OP_SUB,
  OP_MUL,
  OP_FLOORDIV,
  OP_FLOORMOD,
  OP_MIN,
  OP_MAX,
  OP_EQ,
  OP_NE,
  OP_LT,
  OP_LE,
  OP_AND,
  OP_OR,
  OP_SELECT,
  OP_CHECK,
  OP_BUFFER,
  OP_LOAD,
  OP_DISPATCH,
  OP_COPY,
  OP_FILL,
  OP_JUMP,
  OP_BRANCH,
  OP_RETURN,
  OP_STATE,
  OP_SET_STATE,
  OP_STORE,
};

enum { CLASS_CONSTANTS, CLASS_ARENA, CLASS_INPUTS, CLASS_OUTPUTS };

static const uint32_t *part(const aot_static_machine_t *m, uint32_t at) {
  return m->entry->program + at;
}

// False where the sum or product does not fit; no library function is called for it.
static int multiply(int64_t a, int64_t b, int64_t *out_result) {
  const uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a;
  const uint64_t y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
  const uint64_t xh = x >> 32, xl = x & UINT32_MAX, yh = y >> 32, yl = y & UINT32_MAX;
  const uint64_t middle = xh * yl + xl * yh;  // one of the products is 0, or it does not fit
  if ((xh != 0 && yh != 0) || middle >> 32 != 0) return 0;
  const uint64_t low = xl * yl;
  const uint64_t size = low + (middle << 32);
  if (size < low || size > INT64_MAX) return 0;
  *out_result = (a < 0) != (b < 0) ? -(int64_t)size : (int64_t)size;
  return 1;
}

static int divide(int64_t a, int64_t b, int64_t *out_quotient, int64_t *out_remainder) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
  int64_t quotient = a / b;
  int64_t remainder = a - quotient * b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    quotient -= 1;
    remainder += b;
  }
  *out_quotient = quotient;
  *out_remainder = remainder;
  return 1;
}

static aot_static_status_t calculate(uint32_t opcode, int64_t a, int64_t b, int64_t *r) {
  int64_t other = 0;
  int is_right = 1;
  switch (opcode) {
    case OP_ADD:
      is_right = !__builtin_add_overflow(a, b, r);
      break;
    case OP_SUB:
      is_right = !__builtin_sub_overflow(a, b, r);
      break;
    case OP_MUL:
      is_right = multiply(a, b, r);
      break;
    case OP_FLOORDIV:
      is_right = divide(a, b, r, &other);
      break;
    case OP_FLOORMOD:
      is_right = divide(a, b, &other, r);
      break;
    case OP_MIN:
      *r = a < b ? a : b;
      break;
    case OP_MAX:
      *r = a > b ? a : b;
      break;
    case OP_EQ:
      *r = a == b;
      break;
    case OP_NE:
      *r = a != b;
      break;
    case OP_LT:
      *r = a < b;
      break;
    case OP_LE:
      *r = a <= b;
      break;
    case OP_AND:
      *r = a != 0 && b != 0;
      break;
    default:
      *r = a != 0 || b != 0;
      break;
  }
  return is_right ? AOT_STATIC_OK : AOT_STATIC_ERROR_ARITHMETIC;
}

// The words that describe tensor `index`, inputs first.
static const uint32_t *tensor_words(const aot_static_machine_t *m, uint32_t index) {
  const uint32_t *words = part(m, m->header->tensors_at);
  for (; index > 0; --index)
    words += 2 + 2 * words[1];
  return words;
}

// Compares extents with what is declared.
static aot_static_status_t check_shapes(const aot_static_machine_t *m,
                                        const aot_static_tensor_t *tensors, uint32_t first,
                                        uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t *words = tensor_words(m, first + i);
    for (uint32_t axis = 0; axis < words[1]; ++axis) {
      const int64_t extent = tensors[i].dims[axis];
      const int64_t least = words[2 + 2 * axis];
      const int64_t most = words[3 + 2 * axis];
      if (extent < least || extent > most) return AOT_STATIC_ERROR_SHAPE;
    }
  }
  return AOT_STATIC_OK;
}

// Whether `bytes` at an address lie in one of the tensors.
static int is_in_tensor(const aot_static_machine_t *m, const aot_static_tensor_t *tensors,
                        uint32_t first, uint32_t count, uintptr_t address, uint64_t bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t *words = tensor_words(m, first + i);
    uint64_t size = words[0];
    for (uint32_t axis = 0; axis < words[1]; ++axis)
      size *= (uint64_t)tensors[i].dims[axis];
    const uintptr_t inside = address - (uintptr_t)tensors[i].data;
    if (inside <= size && bytes <= size - inside) return 1;
  }
  return 0;
}

// The address of a place, or NULL where `bytes` there are not inside its buffer.
static uint8_t *resolve(const aot_static_machine_t *m, uint32_t buffer_class, int64_t offset,
                        int64_t bytes) {
  const aot_program_header_t *h = m->header;
  const uint64_t at = (uint64_t)offset;
  const uint64_t size = (uint64_t)bytes;
  uint64_t limit = buffer_class == CLASS_CONSTANTS ? h->weights_bytes : h->arena_bytes;
  uintptr_t base = (uintptr_t)m->dispatch.constants;
  if (buffer_class == CLASS_ARENA) base = (uintptr_t)m->dispatch.arena;
  if (buffer_class == CLASS_INPUTS) base = (uintptr_t)m->dispatch.inputs;
  if (buffer_class == CLASS_OUTPUTS) base = (uintptr_t)m->dispatch.outputs;
  const uintptr_t address = base + (uintptr_t)at;
  int is_inside = at <= limit && size <= limit - at;
  if (buffer_class == CLASS_INPUTS) {
    is_inside = is_in_tensor(m, m->inputs, 0, h->input_count, address, size);
  } else if (buffer_class == CLASS_OUTPUTS) {
    is_inside = is_in_tensor(m, m->outputs, h->input_count, h->output_count, address, size);
  }
  return bytes >= 0 && is_inside ? (uint8_t *)address : NULL;
}

// memmove, of which small systems have none.
static void move(uint8_t *to, const uint8_t *from, size_t bytes) {
  if (to < from) {
    for (size_t i = 0; i < bytes; ++i)
      to[i] = from[i];
  } else {
    while (bytes > 0) {
      --bytes;
      to[bytes] = from[bytes];
    }
  }
}

static aot_static_status_t copy(const aot_static_machine_t *m, const uint32_t *o) {
  const int64_t bytes = m->registers[o[4]];
  if (bytes == 0) return AOT_STATIC_OK;
  uint8_t *to = resolve(m, o[0], m->registers[o[1]], bytes);
  const uint8_t *from = resolve(m, o[2], m->registers[o[3]], bytes);
  if (to == NULL || from == NULL) return AOT_STATIC_ERROR_BOUNDS;
  move(to, from, (size_t)bytes);
  return AOT_STATIC_OK;
}

static aot_static_status_t fill(const aot_static_machine_t *m, const uint32_t *o) {
  const int64_t bytes = m->registers[o[2]];
  if (bytes == 0) return AOT_STATIC_OK;
  uint8_t *to = resolve(m, o[0], m->registers[o[1]], bytes);
  if (to == NULL) return AOT_STATIC_ERROR_BOUNDS;
  for (size_t i = 0; i < (size_t)bytes; ++i)
    to[i] = (uint8_t)(o[3] >> (8 * (i % 4)));
  return AOT_STATIC_OK;
}

// Bytes of an integer element, by DType's numbers: i8 i16 i32 i64 u8 u16 u32 u64 bool from 3 on.
static uint32_t integer_bytes(uint32_t dtype) {
  return dtype == 11 || dtype < 3 ? 1 : 1u << ((dtype - 3) % 4);
}

static aot_static_status_t load(const aot_static_machine_t *m, const uint32_t *o) {
  const uint32_t bytes = integer_bytes(o[3]);
  const uint8_t *from = resolve(m, o[1], m->registers[o[2]], bytes);
  if (from == NULL) return AOT_STATIC_ERROR_BOUNDS;
  uint64_t raw = 0;
  for (uint32_t i = 0; i < bytes; ++i)
    raw |= (uint64_t)from[i] << (8 * i);
  const int is_signed = o[3] < 7;
  if (!is_signed && raw > INT64_MAX) return AOT_STATIC_ERROR_ARITHMETIC;
  if (is_signed && bytes < 8 && raw >> (8 * bytes - 1) != 0) raw |= UINT64_MAX << (8 * bytes);
  m->registers[o[0]] = (int64_t)raw;
  return AOT_STATIC_OK;
}

static aot_static_status_t store(const aot_static_machine_t *m, const uint32_t *o) {
  const uint32_t bytes = integer_bytes(o[3]);
  uint8_t *to = resolve(m, o[0], m->registers[o[1]], bytes);
  if (to == NULL) return AOT_STATIC_ERROR_BOUNDS;
  for (uint32_t i = 0; i < bytes; ++i)
    to[i] = (uint8_t)((uint64_t)m->registers[o[2]] >> (8 * i));
  return AOT_STATIC_OK;
}

static aot_static_status_t dispatch(aot_static_machine_t *m, const uint32_t *o, uint32_t count) {
  const int64_t *r = m->registers;
  const int64_t x = r[o[1]];
  const int64_t y = r[o[2]];
  const int64_t z = r[o[3]];
  if (x < 0 || y < 0 || z < 0 || x > INT32_MAX || y > INT32_MAX || z > INT32_MAX) {
    return AOT_STATIC_ERROR_BOUNDS;
  }
  uint32_t *narrow = (uint32_t *)(void *)m->params;
  for (uint32_t i = 0; i + 4 < count; ++i) {
    if (m->header->word_bytes == 8) {
      m->params[i] = (uint64_t)r[o[4 + i]];
    } else {
      narrow[i] = (uint32_t)r[o[4 + i]];
    }
  }
  m->dispatch.params = m->params;
  const uintptr_t address =
      (uintptr_t)m->entry->code + part(m, m->header->executables_at)[o[0]] + m->header->code_bias;
  const aot_kernel_function_t kernel = (aot_kernel_function_t)address;
  for (uint32_t k = 0; k < (uint32_t)z; ++k) {
    for (uint32_t j = 0; j < (uint32_t)y; ++j) {
      for (uint32_t i = 0; i < (uint32_t)x; ++i)
        kernel(&m->dispatch, i, j, k);
    }
  }
  return AOT_STATIC_OK;
}

// Everything but control flow; `count` operands.
static aot_static_status_t step(aot_static_machine_t *m, uint32_t opcode, const uint32_t *o,
                                uint32_t count) {
  int64_t *r = m->registers;
  switch (opcode) {
    case OP_NOP:
    case OP_BUFFER:  // buffers have the places that the largest shapes need
      return AOT_STATIC_OK;
    case OP_CONST:
      r[o[0]] = (int64_t)((uint64_t)o[2] << 32 | o[1]);
      return AOT_STATIC_OK;
    case OP_MOVE:
      r[o[0]] = r[o[1]];
      return AOT_STATIC_OK;
    case OP_INPUT_DIM:
      r[o[0]] = m->inputs[o[1]].dims[o[2]];
      return AOT_STATIC_OK;
    case OP_OUTPUT_DIM:
      m->outputs[o[0]].dims[o[1]] = r[o[2]];
      return AOT_STATIC_OK;
    case OP_SELECT:
      r[o[0]] = r[o[1]] != 0 ? r[o[2]] : r[o[3]];
      return AOT_STATIC_OK;
    case OP_CHECK:
      return r[o[0]] != 0 ? AOT_STATIC_OK : AOT_STATIC_ERROR_CHECK;
    case OP_LOAD:
      return load(m, o);
    case OP_STORE:
      return store(m, o);
    case OP_STATE:
      r[o[0]] = m->states[o[1]];
      return AOT_STATIC_OK;
    case OP_SET_STATE:
      m->next_states[o[0]] = r[o[1]];
      return AOT_STATIC_OK;
    case OP_DISPATCH:
      return dispatch(m, o, count);
    case OP_COPY:
      return copy(m, o);
    case OP_FILL:
      return fill(m, o);
    default:
      return calculate(opcode, r[o[1]], r[o[2]], &r[o[0]]);
  }
}

static aot_static_status_t interpret(aot_static_machine_t *m, uint32_t block) {
  const uint32_t *code = part(m, m->header->code_at);
  const uint32_t *blocks = part(m, m->header->blocks_at);
  const uint32_t *at = code + blocks[block];
  for (;;) {
    const uint32_t opcode = at[0] & 0xff;
    if (opcode == OP_RETURN) return AOT_STATIC_OK;
    if (opcode == OP_JUMP) {
      at = code + blocks[at[1]];
    } else if (opcode == OP_BRANCH) {
      at = code + blocks[m->registers[at[1]] != 0 ? at[2] : at[3]];
    } else {
      const aot_static_status_t status = step(m, opcode, at + 1, (at[0] >> 8) - 1);
      if (status != AOT_STATIC_OK) return status;
      at += at[0] >> 8;
    }
  }
}

// Writes the distance of each tensor from the first one to its register.
static void place_tensors(const aot_static_machine_t *m, uint32_t registers_at,
                          const aot_static_tensor_t *tensors, uint32_t count) {
  if (registers_at == NO_REGISTERS) return;
  for (uint32_t i = 0; i < count; ++i) {
    const uintptr_t offset = (uintptr_t)tensors[i].data - (uintptr_t)tensors[0].data;
    m->registers[part(m, registers_at)[i]] = (intptr_t)offset;
  }
}

static aot_static_status_t set_up(aot_static_machine_t *m, const aot_static_entry_t *entry,
                                  void *arena) {
  const aot_program_header_t *h = (const aot_program_header_t *)(const void *)entry->program;
  if (h->version != AOT_STATIC_VERSION) return AOT_STATIC_ERROR_VERSION;
  if (arena == NULL || (uintptr_t)arena % AOT_STATIC_ALIGNMENT != 0) return AOT_STATIC_ERROR_ARENA;
  m->entry = entry;
  m->header = h;
  m->dispatch.constants = entry->weights;
  m->dispatch.arena = arena;
  m->dispatch.scratch = m->dispatch.arena + h->arena_bytes;
  m->registers = (int64_t *)(void *)(m->dispatch.scratch + h->scratch_bytes);
  m->params = (uint64_t *)(m->registers + h->register_count);
  m->states = (int64_t *)(m->params + h->most_params);
  m->next_states = m->states + h->state_count;
  return AOT_STATIC_OK;
}

aot_static_status_t aot_static_reset(const aot_static_entry_t *entry, void *arena) {
  aot_static_machine_t m;
  const aot_static_status_t status = set_up(&m, entry, arena);
  if (status != AOT_STATIC_OK) return status;
  for (uint32_t i = 0; i < m.header->state_bytes; ++i)
    m.dispatch.arena[i] = 0;
  for (uint32_t i = 0; i < m.header->state_count; ++i)
    m.states[i] = 0;
  return AOT_STATIC_OK;
}

aot_static_status_t aot_static_run(const aot_static_entry_t *entry,
                                   const aot_static_tensor_t *inputs,
                                   const aot_static_tensor_t *outputs, void *arena) {
  aot_static_machine_t m;
  aot_static_status_t status = set_up(&m, entry, arena);
  if (status != AOT_STATIC_OK) return status;
  const aot_program_header_t *h = m.header;
  m.inputs = inputs;
  m.outputs = outputs;
  m.dispatch.inputs = h->input_count > 0 ? inputs[0].data : NULL;
  m.dispatch.outputs = h->output_count > 0 ? outputs[0].data : NULL;
  status = check_shapes(&m, inputs, 0, h->input_count);
  if (status != AOT_STATIC_OK) return status;
  for (uint32_t i = 0; i < h->register_count; ++i)
    m.registers[i] = 0;
  for (uint32_t i = 0; i < h->state_count; ++i)
    m.next_states[i] = m.states[i];
  status = interpret(&m, 0);
  if (status != AOT_STATIC_OK) return status;
  status = check_shapes(&m, outputs, h->input_count, h->output_count);
  if (status != AOT_STATIC_OK) return status;
  const uint32_t *buffers = part(&m, h->buffers_at);
  for (uint32_t i = 0; i < h->buffer_count; ++i)
    m.registers[buffers[2 * i]] = buffers[2 * i + 1];
  place_tensors(&m, h->input_registers_at, inputs, h->input_count);
  place_tensors(&m, h->output_registers_at, outputs, h->output_count);
  status = interpret(&m, h->execute_block);
  if (status != AOT_STATIC_OK) return status;
  for (uint32_t i = 0; i < h->state_count; ++i)
    m.states[i] = m.next_states[i];
  return AOT_STATIC_OK;
}
