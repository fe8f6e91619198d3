// From the flatbuffer to module.h's structs.  Each count, offset and enum is checked here, once.
#include <string.h>

#include "flatbuffer.h"
#include "module.h"
#include "module_fbs.h"
#include "status.h"

typedef struct aot_parser_t {
  aot_fb_t fb;
  aot_module_t *module;
  uint64_t segments_begin;  // segments stand behind the structure
  aot_error_t *error;
} aot_parser_t;

#define ALLOCATE(parser, count, out_pointer)                                            \
  do {                                                                                  \
    void *memory_ = NULL;                                                               \
    AOT_TRY(aot_pool_allocate(&(parser)->module->pool, (count), sizeof **(out_pointer), \
                              (parser)->error, &memory_));                              \
    *(out_pointer) = memory_;                                                           \
  } while (0)

static bool is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

static aot_status_t parse_segment(aot_parser_t *parser, const aot_fb_table_t *table,
                                  const char *what, aot_segment_t *out_segment) {
  aot_fb_t *fb = &parser->fb;
  aot_segment_t segment = {
      .offset = aot_fb_u64(fb, table, AOT_FBS_SEGMENT_OFFSET, 0),
      .length = aot_fb_u64(fb, table, AOT_FBS_SEGMENT_LENGTH, 0),
      .checksum = aot_fb_u64(fb, table, AOT_FBS_SEGMENT_CHECKSUM, 0),
      .alignment = aot_fb_u32(fb, table, AOT_FBS_SEGMENT_ALIGNMENT),
  };
  AOT_TRY(fb->status);
  const uint64_t file_bytes = parser->module->bytes;
  const bool is_inside =
      segment.offset <= file_bytes && segment.length <= file_bytes - segment.offset;
  if (!is_inside || (segment.length > 0 && segment.offset < parser->segments_begin)) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                    "%s: %llu bytes at offset %llu lie outside the file's segments", what,
                    (unsigned long long)segment.length, (unsigned long long)segment.offset);
  }
  if (segment.length > 0 &&
      (!is_power_of_two(segment.alignment) || segment.offset % segment.alignment != 0)) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                    "%s: offset %llu is not aligned to %u, or that is no power of two", what,
                    (unsigned long long)segment.offset, (unsigned)segment.alignment);
  }
  *out_segment = segment;
  return AOT_OK;
}

static aot_status_t parse_strings(aot_parser_t *parser, const aot_fb_table_t *table, uint32_t field,
                                  const char ***out_strings, uint32_t *out_count) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, field, 4, false);
  ALLOCATE(parser, vector.count, out_strings);
  for (uint32_t i = 0; i < vector.count; ++i) {
    (*out_strings)[i] = aot_fb_vector_string(fb, &vector, i);
  }
  *out_count = vector.count;
  return fb->status;
}

static aot_status_t parse_dims(aot_parser_t *parser, const aot_fb_table_t *table,
                               aot_tensor_info_t *tensor) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, AOT_FBS_TENSOR_DIMS, 4, true);
  aot_dim_info_t *dims = NULL;
  ALLOCATE(parser, vector.count, &dims);
  for (uint32_t i = 0; i < vector.count; ++i) {
    const aot_fb_table_t dim = aot_fb_vector_table(fb, &vector, i, "Dim");
    dims[i].extent = aot_fb_i64(fb, &dim, AOT_FBS_DIM_EXTENT, -1);
    dims[i].min = aot_fb_i64(fb, &dim, AOT_FBS_DIM_MIN, 0);
    dims[i].max = aot_fb_i64(fb, &dim, AOT_FBS_DIM_MAX, -1);
    dims[i].text = aot_fb_string(fb, &dim, AOT_FBS_DIM_TEXT, false);
    const bool is_bounded = dims[i].max != -1;
    if (dims[i].extent < -1 || dims[i].min < 0 || (is_bounded && dims[i].max < dims[i].min)) {
      return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                      "tensor \"%s\": the extent or bounds of axis %u are not valid", tensor->name,
                      (unsigned)i);
    }
  }
  tensor->rank = vector.count;
  tensor->dims = dims;
  return fb->status;
}

static aot_status_t parse_tensors(aot_parser_t *parser, const aot_fb_table_t *table, uint32_t field,
                                  aot_tensor_info_t **out_tensors, uint32_t *out_count,
                                  uint32_t *out_dim_count) {
  aot_fb_t *fb = &parser->fb;
  const bool is_required = field != AOT_FBS_ENTRY_POINT_STATES;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, field, 4, is_required);
  ALLOCATE(parser, vector.count, out_tensors);
  for (uint32_t i = 0; i < vector.count; ++i) {
    aot_tensor_info_t *tensor = &(*out_tensors)[i];
    const aot_fb_table_t child = aot_fb_vector_table(fb, &vector, i, "Tensor");
    tensor->name = aot_fb_string(fb, &child, AOT_FBS_TENSOR_NAME, true);
    tensor->dtype = (aot_dtype_t)aot_fb_enum(fb, &child, AOT_FBS_TENSOR_DTYPE, AOT_FBS_DTYPE_COUNT);
    AOT_TRY(parse_dims(parser, &child, tensor));
    *out_dim_count += tensor->rank;
  }
  *out_count = vector.count;
  return fb->status;
}

static aot_status_t parse_buffers(aot_parser_t *parser, const aot_fb_table_t *table,
                                  aot_code_t *code) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, AOT_FBS_PROGRAM_BUFFERS, 4, false);
  ALLOCATE(parser, vector.count, &code->buffers);
  for (uint32_t i = 0; i < vector.count; ++i) {
    aot_arena_buffer_t *buffer = &code->buffers[i];
    const aot_fb_table_t child = aot_fb_vector_table(fb, &vector, i, "ArenaBuffer");
    buffer->first = aot_fb_u32(fb, &child, AOT_FBS_ARENA_BUFFER_FIRST);
    buffer->last = aot_fb_u32(fb, &child, AOT_FBS_ARENA_BUFFER_LAST);
    buffer->offset_register = aot_fb_u32(fb, &child, AOT_FBS_ARENA_BUFFER_OFFSET_REGISTER);
    buffer->alignment = aot_fb_u32(fb, &child, AOT_FBS_ARENA_BUFFER_ALIGNMENT);
    buffer->bound_offset = aot_fb_u64(fb, &child, AOT_FBS_ARENA_BUFFER_BOUND_OFFSET, 0);
    if (buffer->alignment == 0) buffer->alignment = AOT_ALIGNMENT;
    if (!is_power_of_two(buffer->alignment) || buffer->alignment > AOT_ALIGNMENT ||
        buffer->last < buffer->first || buffer->bound_offset % buffer->alignment != 0) {
      return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                      "arena buffer %u: its alignment, lifetime or offset is not valid",
                      (unsigned)i);
    }
  }
  code->buffer_count = vector.count;
  return fb->status;
}

// One register an input or output; an absent vector means that no offset is wanted.
static aot_status_t parse_offset_registers(aot_parser_t *parser, const aot_fb_table_t *table,
                                           uint32_t field, uint32_t count,
                                           const uint32_t **out_registers) {
  const aot_fb_vector_t vector = aot_fb_vector(&parser->fb, table, field, 4, false);
  AOT_TRY(parser->fb.status);
  if (vector.count != 0 && vector.count != count) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                    "%u offset registers for %u inputs or outputs", (unsigned)vector.count,
                    (unsigned)count);
  }
  *out_registers = vector.count == 0 ? NULL : aot_fb_vector_words(&parser->fb, &vector);
  return AOT_OK;
}

static aot_status_t parse_program(aot_parser_t *parser, const aot_fb_table_t *table,
                                  aot_entry_t *entry) {
  aot_fb_t *fb = &parser->fb;
  aot_code_t *code = &entry->code;
  const aot_fb_vector_t words = aot_fb_vector(fb, table, AOT_FBS_PROGRAM_CODE, 4, true);
  const aot_fb_vector_t blocks = aot_fb_vector(fb, table, AOT_FBS_PROGRAM_BLOCKS, 4, true);
  code->words = aot_fb_vector_words(fb, &words);
  code->word_count = words.count;
  code->blocks = aot_fb_vector_words(fb, &blocks);
  code->block_count = blocks.count;
  code->register_count = aot_fb_u32(fb, table, AOT_FBS_PROGRAM_REGISTER_COUNT);
  code->execute_block = aot_fb_u32(fb, table, AOT_FBS_PROGRAM_EXECUTE_BLOCK);
  code->arena_bytes = aot_fb_u64(fb, table, AOT_FBS_PROGRAM_ARENA_BYTES, 0);
  code->arena_bound_bytes = aot_fb_u64(fb, table, AOT_FBS_PROGRAM_ARENA_BOUND_BYTES, 0);
  code->state_bytes = aot_fb_u64(fb, table, AOT_FBS_PROGRAM_STATE_BYTES, 0);
  code->scratch_offset = (int64_t)aot_fb_u64(fb, table, AOT_FBS_PROGRAM_SCRATCH_OFFSET, UINT64_MAX);
  code->state_count = aot_fb_u32(fb, table, AOT_FBS_PROGRAM_STATE_COUNT);
  code->state_key_count = aot_fb_u32(fb, table, AOT_FBS_PROGRAM_STATE_KEY_COUNT);
  AOT_TRY(parse_strings(parser, table, AOT_FBS_PROGRAM_MESSAGES, &code->messages,
                        &code->message_count));
  AOT_TRY(parse_buffers(parser, table, code));
  AOT_TRY(parse_offset_registers(parser, table, AOT_FBS_PROGRAM_INPUT_OFFSET_REGISTERS,
                                 entry->input_count, &code->input_offset_registers));
  return parse_offset_registers(parser, table, AOT_FBS_PROGRAM_OUTPUT_OFFSET_REGISTERS,
                                entry->output_count, &code->output_offset_registers);
}

static aot_status_t parse_entries(aot_parser_t *parser, const aot_fb_table_t *table,
                                  aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, AOT_FBS_VARIANT_ENTRY_POINTS, 4, true);
  ALLOCATE(parser, vector.count, &variant->entries);
  for (uint32_t i = 0; i < vector.count; ++i) {
    aot_entry_t *entry = &variant->entries[i];
    const aot_fb_table_t child = aot_fb_vector_table(fb, &vector, i, "EntryPoint");
    entry->name = aot_fb_string(fb, &child, AOT_FBS_ENTRY_POINT_NAME, true);
    AOT_TRY(parse_tensors(parser, &child, AOT_FBS_ENTRY_POINT_INPUTS, &entry->inputs,
                          &entry->input_count, &entry->input_dim_count));
    AOT_TRY(parse_tensors(parser, &child, AOT_FBS_ENTRY_POINT_OUTPUTS, &entry->outputs,
                          &entry->output_count, &entry->output_dim_count));
    uint32_t state_dim_count = 0;
    AOT_TRY(parse_tensors(parser, &child, AOT_FBS_ENTRY_POINT_STATES, &entry->states,
                          &entry->state_count, &state_dim_count));
    aot_fb_table_t program;
    if (!aot_fb_child(fb, &child, AOT_FBS_ENTRY_POINT_PROGRAM, true, "Program", &program)) {
      return fb->status;
    }
    AOT_TRY(parse_program(parser, &program, entry));
    AOT_TRY(fb->status);
    AOT_TRY(aot_code_verify(variant, entry, &entry->code, parser->error));
  }
  variant->entry_count = vector.count;
  return fb->status;
}

// Entry offsets follow the instruction set's alignment; Thumb's low bit is set by the runtime.
static uint32_t code_alignment(uint8_t arch) {
  switch (arch) {
    case AOT_FBS_ARCH_AARCH64:
    case AOT_FBS_ARCH_ARM:
      return 4;
    case AOT_FBS_ARCH_THUMB:
    case AOT_FBS_ARCH_RISCV64:
    case AOT_FBS_ARCH_RISCV32:
      return 2;
    default:
      return 1;
  }
}

// A loader for CPUs alone looks at a GPU's variants no closer than it takes to pass them over.
#if defined(AOT_VULKAN)
#define NEEDS_SHADER(cpu) ((cpu) == NULL)
#else
#define NEEDS_SHADER(cpu) false
#endif

static aot_status_t parse_executable(aot_parser_t *parser, const aot_fb_table_t *table,
                                     const aot_variant_t *variant, aot_executable_t *executable) {
  aot_fb_t *fb = &parser->fb;
  executable->name = aot_fb_string(fb, table, AOT_FBS_EXECUTABLE_NAME, true);
  executable->code_offset = aot_fb_u64(fb, table, AOT_FBS_EXECUTABLE_CODE_OFFSET, 0);
  executable->param_words = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_PARAM_WORDS);
  executable->scratch_bytes = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_SCRATCH_BYTES);
  const aot_fb_vector_t size =
      aot_fb_vector(fb, table, AOT_FBS_EXECUTABLE_WORKGROUP_SIZE, 4, false);
  for (uint32_t i = 0; i < 3; ++i) {
    executable->workgroup_size[i] = i < size.count ? aot_fb_vector_words(fb, &size)[i] : 1;
  }
  executable->param_buffer_bytes = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_PARAM_BUFFER_BYTES);
  const bool is_cpu = variant->device == AOT_FBS_DEVICE_CPU;
  const aot_variant_t *cpu = is_cpu ? variant : variant->host;
  executable->word_bytes = variant->word_bytes;
  aot_fb_table_t shader;
  if (!is_cpu &&
      aot_fb_child(fb, table, AOT_FBS_EXECUTABLE_SPIRV, NEEDS_SHADER(cpu), "Segment", &shader)) {
    AOT_TRY(parse_segment(parser, &shader, "shader", &executable->spirv));
    if (aot_fb_child(fb, table, AOT_FBS_EXECUTABLE_TEXEL_SPIRV, false, "Segment", &shader)) {
      AOT_TRY(parse_segment(parser, &shader, "shader", &executable->texel_spirv));
    }
  }
  AOT_TRY(fb->status);
  if (cpu == NULL || !aot_executable_is_code(executable)) return AOT_OK;
  executable->word_bytes = cpu->word_bytes;
  if (executable->code_offset >= variant->code.length ||
      executable->code_offset % code_alignment(cpu->arch) != 0) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                    "executable \"%s\": code offset %llu is outside the image or misaligned",
                    executable->name, (unsigned long long)executable->code_offset);
  }
  return AOT_OK;
}

static aot_status_t parse_executables(aot_parser_t *parser, const aot_fb_table_t *table,
                                      aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, AOT_FBS_VARIANT_EXECUTABLES, 4, true);
  ALLOCATE(parser, vector.count, &variant->executables);
  for (uint32_t i = 0; i < vector.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &vector, i, "Executable");
    AOT_TRY(parse_executable(parser, &child, variant, &variant->executables[i]));
  }
  variant->executable_count = vector.count;
  return fb->status;
}

static aot_status_t parse_limits(aot_parser_t *parser, const aot_fb_table_t *table,
                                 aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, AOT_FBS_VARIANT_LIMITS, 4, false);
  ALLOCATE(parser, vector.count, &variant->limits);
  for (uint32_t i = 0; i < vector.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &vector, i, "Limit");
    variant->limits[i].name = aot_fb_string(fb, &child, AOT_FBS_LIMIT_NAME, true);
    variant->limits[i].value = aot_fb_u64(fb, &child, AOT_FBS_LIMIT_VALUE, 0);
  }
  variant->limit_count = vector.count;
  return fb->status;
}

static aot_status_t check_word_bytes(const aot_parser_t *parser, const aot_variant_t *variant) {
  if (variant->word_bytes == 4 || variant->word_bytes == 8) return AOT_OK;
  return aot_fail(parser->error, AOT_ERROR_MALFORMED,
                  "variant \"%s\": parameter words of %u bytes, 4 or 8 expected", variant->target,
                  (unsigned)variant->word_bytes);
}

#if defined(AOT_VULKAN)
static aot_status_t parse_host(aot_parser_t *parser, const aot_fb_table_t *table,
                               aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  aot_fb_table_t child;
  if (!aot_fb_child(fb, table, AOT_FBS_VARIANT_HOST, false, "Host", &child)) return fb->status;
  if (variant->device == AOT_FBS_DEVICE_CPU) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED, "variant \"%s\": a host beside a CPU",
                    variant->target);
  }
  aot_variant_t *host = NULL;
  ALLOCATE(parser, 1, &host);
  host->device = AOT_FBS_DEVICE_CPU;
  host->target = aot_fb_string(fb, &child, AOT_FBS_HOST_TARGET, true);
  host->arch = aot_fb_enum(fb, &child, AOT_FBS_HOST_ARCH, AOT_FBS_ARCH_COUNT);
  host->word_bytes = aot_fb_u8(fb, &child, AOT_FBS_HOST_WORD_BYTES);
  AOT_TRY(
      parse_strings(parser, &child, AOT_FBS_HOST_FEATURES, &host->features, &host->feature_count));
  variant->host = host;
  return check_word_bytes(parser, host);
}

static void share_with_host(aot_variant_t *variant) {
  aot_variant_t *host = variant->host;
  if (host == NULL) return;
  host->code = variant->code;
  host->executables = variant->executables;
  host->executable_count = variant->executable_count;
  host->entries = variant->entries;
  host->entry_count = variant->entry_count;
}
#endif

static aot_status_t parse_variant(aot_parser_t *parser, const aot_fb_table_t *table,
                                  aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  variant->target = aot_fb_string(fb, table, AOT_FBS_VARIANT_TARGET, true);
  variant->device = aot_fb_enum(fb, table, AOT_FBS_VARIANT_DEVICE, AOT_FBS_DEVICE_COUNT);
  variant->arch = aot_fb_enum(fb, table, AOT_FBS_VARIANT_ARCH, AOT_FBS_ARCH_COUNT);
  variant->word_bytes = aot_fb_u8(fb, table, AOT_FBS_VARIANT_WORD_BYTES);
  AOT_TRY(fb->status);
  AOT_TRY(check_word_bytes(parser, variant));
  aot_fb_table_t code;
  if (aot_fb_child(fb, table, AOT_FBS_VARIANT_CODE, false, "Segment", &code)) {
    AOT_TRY(parse_segment(parser, &code, "code image", &variant->code));
  }
  AOT_TRY(parse_strings(parser, table, AOT_FBS_VARIANT_FEATURES, &variant->features,
                        &variant->feature_count));
  AOT_TRY(parse_limits(parser, table, variant));
#if defined(AOT_VULKAN)
  AOT_TRY(parse_host(parser, table, variant));
#endif
  AOT_TRY(parse_executables(parser, table, variant));
  AOT_TRY(parse_entries(parser, table, variant));
#if defined(AOT_VULKAN)
  share_with_host(variant);
#endif
  return AOT_OK;
}

static aot_status_t parse_rodata(aot_parser_t *parser, const aot_fb_table_t *root) {
  aot_fb_t *fb = &parser->fb;
  aot_module_t *module = parser->module;
  aot_fb_table_t pool;
  if (!aot_fb_child(fb, root, AOT_FBS_MODULE_RODATA, true, "Segment", &pool)) return fb->status;
  AOT_TRY(parse_segment(parser, &pool, "rodata", &module->rodata));
  if (module->rodata.length > 0 && module->rodata.offset % AOT_ALIGNMENT != 0) {
    return aot_fail(parser->error, AOT_ERROR_MALFORMED, "rodata is not aligned to %u bytes",
                    AOT_ALIGNMENT);
  }
  const aot_fb_vector_t parts = aot_fb_vector(fb, root, AOT_FBS_MODULE_RODATA_SEGMENTS, 4, false);
  ALLOCATE(parser, parts.count, &module->rodata_segments);
  for (uint32_t i = 0; i < parts.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &parts, i, "Segment");
    AOT_TRY(parse_segment(parser, &child, "rodata segment", &module->rodata_segments[i]));
  }
  module->rodata_segment_count = parts.count;
  return fb->status;
}

aot_status_t aot_module_parse(aot_module_t *module, const uint8_t *structure, uint32_t bytes,
                              aot_error_t *error) {
  aot_parser_t parser = {.module = module,
                         .segments_begin = (uint64_t)(structure - module->data) + bytes,
                         .error = error};
  aot_fb_t *fb = &parser.fb;
  aot_fb_init(fb, structure, bytes, error);
  const aot_fb_table_t root = aot_fb_root(fb, "AOTM", "Module");
  const uint32_t version = aot_fb_u32(fb, &root, AOT_FBS_MODULE_VERSION);
  AOT_TRY(fb->status);
  if (version != AOT_FILE_VERSION) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the structure has version %u, this runtime reads version %u",
                    (unsigned)version, AOT_FILE_VERSION);
  }
  module->producer = aot_fb_string(fb, &root, AOT_FBS_MODULE_PRODUCER, false);
  AOT_TRY(parse_rodata(&parser, &root));
  const aot_fb_vector_t variants = aot_fb_vector(fb, &root, AOT_FBS_MODULE_VARIANTS, 4, true);
  ALLOCATE(&parser, variants.count, &module->variants);
  for (uint32_t i = 0; i < variants.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &variants, i, "Variant");
    AOT_TRY(parse_variant(&parser, &child, &module->variants[i]));
  }
  module->variant_count = variants.count;
  return fb->status;
}
