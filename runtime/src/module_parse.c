// From the flatbuffer to module.h's structs.  Each count, offset and enum is checked here, once, by
// the rules of module_rules.toml.
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

#include "module_rules.h"

// Fails for a rule that does not hold in the `kind` called `name`.
static aot_status_t refuse(const aot_parser_t *parser, const char *kind, const char *name,
                           const char *rule) {
  if (parser->fb.status != AOT_OK || rule == NULL) return parser->fb.status;
  return aot_fail(parser->error, AOT_ERROR_MALFORMED, "%s \"%s\": %s", kind, name, rule);
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
  AOT_TRY(refuse(parser, "segment", what, segment_fault(&segment, parser)));
  *out_segment = segment;
  return AOT_OK;
}

// A segment that is absent has length 0.
static aot_status_t parse_segment_of(aot_parser_t *parser, const aot_fb_table_t *table,
                                     uint32_t field, const char *name, aot_segment_t *out_segment) {
  aot_fb_table_t child;
  if (!aot_fb_child(&parser->fb, table, field, false, "Segment", &child)) return parser->fb.status;
  return parse_segment(parser, &child, name, out_segment);
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
    AOT_TRY(refuse(parser, "tensor", tensor->name, dim_fault(&dims[i])));
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
                                  aot_entry_t *entry) {
  aot_fb_t *fb = &parser->fb;
  aot_code_t *code = &entry->code;
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
    AOT_TRY(refuse(parser, "entry point", entry->name, arena_buffer_fault(buffer, code)));
    if (buffer->alignment == 0) buffer->alignment = AOT_ALIGNMENT;
  }
  code->buffer_count = vector.count;
  return fb->status;
}

static const uint32_t *parse_words(aot_parser_t *parser, const aot_fb_table_t *table,
                                   uint32_t field, bool is_required, uint32_t *out_count) {
  const aot_fb_vector_t vector = aot_fb_vector(&parser->fb, table, field, 4, is_required);
  *out_count = vector.count;
  return aot_fb_vector_words(&parser->fb, &vector);
}

static aot_status_t parse_program(aot_parser_t *parser, const aot_fb_table_t *table,
                                  const aot_variant_t *variant, aot_entry_t *entry) {
  aot_fb_t *fb = &parser->fb;
  aot_code_t *code = &entry->code;
  code->words = parse_words(parser, table, AOT_FBS_PROGRAM_CODE, true, &code->word_count);
  code->blocks = parse_words(parser, table, AOT_FBS_PROGRAM_BLOCKS, true, &code->block_count);
  code->input_offset_registers = parse_words(parser, table, AOT_FBS_PROGRAM_INPUT_OFFSET_REGISTERS,
                                             false, &code->input_offset_count);
  code->output_offset_registers = parse_words(
      parser, table, AOT_FBS_PROGRAM_OUTPUT_OFFSET_REGISTERS, false, &code->output_offset_count);
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
  AOT_TRY(parse_buffers(parser, table, entry));
  return refuse(parser, "entry point", entry->name, program_fault(code, entry, variant));
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
    AOT_TRY(parse_program(parser, &program, variant, entry));
    AOT_TRY(aot_code_verify(variant, entry, &entry->code, parser->error));
  }
  variant->entry_count = vector.count;
  return fb->status;
}

static aot_status_t parse_executable(aot_parser_t *parser, const aot_fb_table_t *table,
                                     const aot_variant_t *variant, aot_executable_t *executable) {
  aot_fb_t *fb = &parser->fb;
  executable->name = aot_fb_string(fb, table, AOT_FBS_EXECUTABLE_NAME, true);
  executable->code_offset = aot_fb_u64(fb, table, AOT_FBS_EXECUTABLE_CODE_OFFSET, 0);
  executable->param_words = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_PARAM_WORDS);
  executable->scratch_bytes = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_SCRATCH_BYTES);
  const uint32_t *size = parse_words(parser, table, AOT_FBS_EXECUTABLE_WORKGROUP_SIZE, false,
                                     &executable->workgroup_count);
  for (uint32_t i = 0; i < 3; ++i) {
    executable->workgroup_size[i] = i < executable->workgroup_count ? size[i] : 1;
  }
  executable->param_buffer_bytes = aot_fb_u32(fb, table, AOT_FBS_EXECUTABLE_PARAM_BUFFER_BYTES);
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_EXECUTABLE_SPIRV, "spirv", &executable->spirv));
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_EXECUTABLE_TEXEL_SPIRV, "texel_spirv",
                           &executable->texel_spirv));
  const aot_variant_t *cpu = variant->device == AOT_FBS_DEVICE_CPU ? variant : variant->host;
  const bool is_code = cpu != NULL && aot_executable_is_code(executable);
  executable->word_bytes = is_code ? cpu->word_bytes : variant->word_bytes;
  return refuse(parser, "executable", executable->name, executable_fault(executable, variant, cpu));
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

#if defined(AOT_VULKAN)
static aot_status_t parse_host(aot_parser_t *parser, const aot_fb_table_t *table,
                               aot_variant_t *variant) {
  aot_fb_t *fb = &parser->fb;
  aot_fb_table_t child;
  if (!aot_fb_child(fb, table, AOT_FBS_VARIANT_HOST, false, "Host", &child)) return fb->status;
  aot_variant_t *host = NULL;
  ALLOCATE(parser, 1, &host);
  host->device = AOT_FBS_DEVICE_CPU;
  host->target = aot_fb_string(fb, &child, AOT_FBS_HOST_TARGET, true);
  host->arch = aot_fb_enum(fb, &child, AOT_FBS_HOST_ARCH, AOT_FBS_ARCH_COUNT);
  host->word_bytes = aot_fb_u8(fb, &child, AOT_FBS_HOST_WORD_BYTES);
  AOT_TRY(
      parse_strings(parser, &child, AOT_FBS_HOST_FEATURES, &host->features, &host->feature_count));
  variant->host = host;
  return refuse(parser, "host", host->target, host_fault(host));
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
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_VARIANT_CODE, "code", &variant->code));
  AOT_TRY(parse_strings(parser, table, AOT_FBS_VARIANT_FEATURES, &variant->features,
                        &variant->feature_count));
  AOT_TRY(parse_limits(parser, table, variant));
#if defined(AOT_VULKAN)
  AOT_TRY(parse_host(parser, table, variant));
#endif
  AOT_TRY(refuse(parser, "variant", variant->target, variant_fault(variant)));
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
  const aot_fb_vector_t parts = aot_fb_vector(fb, root, AOT_FBS_MODULE_RODATA_SEGMENTS, 4, false);
  ALLOCATE(parser, parts.count, &module->rodata_segments);
  for (uint32_t i = 0; i < parts.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &parts, i, "Segment");
    AOT_TRY(parse_segment(parser, &child, "rodata_segments", &module->rodata_segments[i]));
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
  module->variant_count = variants.count;
  AOT_TRY(refuse(&parser, "module", module->producer, module_fault(module)));
  for (uint32_t i = 0; i < variants.count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(fb, &variants, i, "Variant");
    AOT_TRY(parse_variant(&parser, &child, &module->variants[i]));
  }
  return fb->status;
}
