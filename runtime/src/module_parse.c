// From the flatbuffer to module.h's structs.  Each count, offset and enum is checked here, once, by
// the rules of module_rules.toml.
#include <stddef.h>
#include <string.h>

#include "flatbuffer.h"
#include "module.h"
#include "module_fbs.h"
#include "status.h"

// Segments may be shared: executables have the same shader, and constants lie in the pool.
#define SHARED_BYTES ((uint64_t)1 << 30)
#define SHARED_TIMES 64u

typedef struct aot_parser_t {
  aot_fb_t fb;
  aot_module_t *module;
  uint64_t segments_begin;  // segments stand behind the structure
  uint64_t segments_left;   // bytes that they may have together: each is read to be verified
  aot_error_t *error;
} aot_parser_t;

// The descriptions of fields that aot_fb_read reads: the member of a struct, the field, and more.
#define MEMBER(type, name, id) \
  .field = AOT_FBS_##id, .member = offsetof(type, name), .bytes = sizeof(((type *)0)->name)
#define NUMBER(type, name, id) {.kind = AOT_FB_NUMBER, MEMBER(type, name, id)}
#define NUMBER_OR(type, name, id, value) \
  {.kind = AOT_FB_NUMBER, MEMBER(type, name, id), .absent = (value)}
#define ENUM(type, name, id, enumeration) \
  {.kind = AOT_FB_ENUM, MEMBER(type, name, id), .values = AOT_FBS_##enumeration##_COUNT}
#define STRING(type, name, id, is_needed) \
  {.kind = AOT_FB_STRING, MEMBER(type, name, id), .is_required = (is_needed)}
#define WORDS(type, name, count, id, is_needed) \
  {.kind = AOT_FB_WORDS,                        \
   MEMBER(type, name, id),                      \
   .count_member = offsetof(type, count),       \
   .is_required = (is_needed)}
#define READ(parser, table, fields, out) \
  aot_fb_read(&(parser)->fb, (table), (fields), sizeof(fields) / sizeof *(fields), (out))

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

// What is read of one table in a vector of them; `around` is what it is part of.
typedef aot_status_t (*aot_parse_t)(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                    const void *around);

// Parses a vector of tables into items of `size` bytes each.
static aot_status_t parse_each(aot_parser_t *parser, const aot_fb_vector_t *vector,
                               const char *type, size_t size, aot_parse_t parse, const void *around,
                               void **out_items) {
  void *items = NULL;
  AOT_TRY(aot_pool_allocate(&parser->module->pool, vector->count, size, parser->error, &items));
  *out_items = items;
  for (uint32_t i = 0; i < vector->count; ++i) {
    const aot_fb_table_t child = aot_fb_vector_table(&parser->fb, vector, i, type);
    AOT_TRY(parse(parser, &child, (uint8_t *)items + i * size, around));
  }
  return parser->fb.status;
}

// The vector in field `id` of `table`, as items in `*out_items`, `*out_count` of them.
#define PARSE_EACH(parser, table, id, is_required, type, parse, around, out_items, out_count)      \
  do {                                                                                             \
    const aot_fb_vector_t vector_ = aot_fb_vector(&(parser)->fb, (table), (id), 4, (is_required)); \
    void *items_ = NULL;                                                                           \
    AOT_TRY(                                                                                       \
        parse_each((parser), &vector_, (type), sizeof **(out_items), (parse), (around), &items_)); \
    *(out_items) = items_;                                                                         \
    *(out_count) = vector_.count;                                                                  \
  } while (0)

static aot_status_t parse_segment(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                  const void *name) {
  static const aot_fb_field_t fields[] = {
      NUMBER(aot_segment_t, offset, SEGMENT_OFFSET),
      NUMBER(aot_segment_t, length, SEGMENT_LENGTH),
      NUMBER(aot_segment_t, checksum, SEGMENT_CHECKSUM),
      NUMBER(aot_segment_t, alignment, SEGMENT_ALIGNMENT),
  };
  READ(parser, table, fields, item);
  const uint64_t length = ((const aot_segment_t *)item)->length;
  const char *fault = segment_fault(item, parser);
  if (fault == NULL && length > parser->segments_left) {
    fault = "segments share the file's bytes too often";
  }
  parser->segments_left -= length;
  return refuse(parser, "segment", name, fault);
}

// A segment that is absent has length 0.
static aot_status_t parse_segment_of(aot_parser_t *parser, const aot_fb_table_t *table,
                                     uint32_t field, const char *name, aot_segment_t *out_segment) {
  aot_fb_table_t child;
  if (!aot_fb_child(&parser->fb, table, field, false, "Segment", &child)) return parser->fb.status;
  return parse_segment(parser, &child, out_segment, name);
}

// NULL where there is no such vector.
static aot_status_t parse_strings(aot_parser_t *parser, const aot_fb_table_t *table, uint32_t field,
                                  const char ***out_strings, uint32_t *out_count) {
  aot_fb_t *fb = &parser->fb;
  const aot_fb_vector_t vector = aot_fb_vector(fb, table, field, 4, false);
  *out_strings = NULL;
  *out_count = 0;
  if (vector.position == 0) return fb->status;
  ALLOCATE(parser, vector.count, out_strings);
  for (uint32_t i = 0; i < vector.count; ++i) {
    (*out_strings)[i] = aot_fb_vector_string(fb, &vector, i);
  }
  *out_count = vector.count;
  return fb->status;
}

static aot_status_t parse_dim(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                              const void *tensor) {
  static const aot_fb_field_t fields[] = {
      NUMBER_OR(aot_dim_info_t, extent, DIM_EXTENT, -1),
      NUMBER(aot_dim_info_t, min, DIM_MIN),
      NUMBER_OR(aot_dim_info_t, max, DIM_MAX, -1),
      STRING(aot_dim_info_t, text, DIM_TEXT, false),
  };
  READ(parser, table, fields, item);
  return refuse(parser, "tensor", ((const aot_tensor_info_t *)tensor)->name, dim_fault(item));
}

static aot_status_t parse_tensor(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                 const void *around) {
  static const aot_fb_field_t fields[] = {
      STRING(aot_tensor_info_t, name, TENSOR_NAME, true),
      ENUM(aot_tensor_info_t, dtype, TENSOR_DTYPE, DTYPE),
  };
  (void)around;
  aot_tensor_info_t *tensor = item;
  READ(parser, table, fields, tensor);
  aot_dim_info_t *dims = NULL;
  PARSE_EACH(parser, table, AOT_FBS_TENSOR_DIMS, true, "Dim", parse_dim, tensor, &dims,
             &tensor->rank);
  tensor->dims = dims;
  const char **strings = NULL;
  AOT_TRY(parse_strings(parser, table, AOT_FBS_TENSOR_STRINGS, &strings, &tensor->string_count));
  tensor->strings = strings;
  return AOT_OK;
}

static aot_status_t parse_tensors(aot_parser_t *parser, const aot_fb_table_t *table, uint32_t field,
                                  aot_tensor_info_t **out_tensors, uint32_t *out_count,
                                  uint32_t *out_dim_count) {
  const bool is_required = field != AOT_FBS_ENTRY_POINT_STATES;
  PARSE_EACH(parser, table, field, is_required, "Tensor", parse_tensor, NULL, out_tensors,
             out_count);
  *out_dim_count = 0;
  for (uint32_t i = 0; i < *out_count; ++i)
    *out_dim_count += (*out_tensors)[i].rank;
  return AOT_OK;
}

static aot_status_t parse_buffer(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                 const void *around) {
  static const aot_fb_field_t fields[] = {
      NUMBER(aot_arena_buffer_t, first, ARENA_BUFFER_FIRST),
      NUMBER(aot_arena_buffer_t, last, ARENA_BUFFER_LAST),
      NUMBER(aot_arena_buffer_t, offset_register, ARENA_BUFFER_OFFSET_REGISTER),
      NUMBER(aot_arena_buffer_t, alignment, ARENA_BUFFER_ALIGNMENT),
      NUMBER(aot_arena_buffer_t, bound_offset, ARENA_BUFFER_BOUND_OFFSET),
  };
  const aot_entry_t *entry = around;
  aot_arena_buffer_t *buffer = item;
  READ(parser, table, fields, buffer);
  AOT_TRY(refuse(parser, "entry point", entry->name, arena_buffer_fault(buffer, &entry->code)));
  if (buffer->alignment == 0) buffer->alignment = AOT_ALIGNMENT;
  return AOT_OK;
}

static aot_status_t parse_growth(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                 const void *around) {
  static const aot_fb_field_t fields[] = {
      NUMBER(aot_growth_t, offset, GROWTH_OFFSET),
      NUMBER(aot_growth_t, blocks, GROWTH_BLOCKS),
      NUMBER(aot_growth_t, stride_bytes, GROWTH_STRIDE_BYTES),
      NUMBER(aot_growth_t, row_bytes, GROWTH_ROW_BYTES),
      NUMBER(aot_growth_t, scalar, GROWTH_SCALAR),
      NUMBER(aot_growth_t, window, GROWTH_WINDOW),
  };
  const aot_entry_t *entry = around;
  READ(parser, table, fields, item);
  return refuse(parser, "entry point", entry->name, growth_fault(item, &entry->code));
}

static aot_status_t parse_program(aot_parser_t *parser, const aot_fb_table_t *table,
                                  const aot_variant_t *variant, aot_entry_t *entry) {
  static const aot_fb_field_t fields[] = {
      WORDS(aot_code_t, words, word_count, PROGRAM_CODE, true),
      WORDS(aot_code_t, blocks, block_count, PROGRAM_BLOCKS, true),
      WORDS(aot_code_t, input_offset_registers, input_offset_count, PROGRAM_INPUT_OFFSET_REGISTERS,
            false),
      WORDS(aot_code_t, output_offset_registers, output_offset_count,
            PROGRAM_OUTPUT_OFFSET_REGISTERS, false),
      WORDS(aot_code_t, updates, update_count, PROGRAM_UPDATES, false),
      NUMBER(aot_code_t, register_count, PROGRAM_REGISTER_COUNT),
      NUMBER(aot_code_t, execute_block, PROGRAM_EXECUTE_BLOCK),
      NUMBER(aot_code_t, arena_bytes, PROGRAM_ARENA_BYTES),
      NUMBER(aot_code_t, arena_bound_bytes, PROGRAM_ARENA_BOUND_BYTES),
      NUMBER(aot_code_t, state_bytes, PROGRAM_STATE_BYTES),
      NUMBER_OR(aot_code_t, scratch_offset, PROGRAM_SCRATCH_OFFSET, -1),
      NUMBER(aot_code_t, state_count, PROGRAM_STATE_COUNT),
      NUMBER(aot_code_t, state_key_count, PROGRAM_STATE_KEY_COUNT),
  };
  aot_code_t *code = &entry->code;
  READ(parser, table, fields, code);
  AOT_TRY(parse_strings(parser, table, AOT_FBS_PROGRAM_MESSAGES, &code->messages,
                        &code->message_count));
  PARSE_EACH(parser, table, AOT_FBS_PROGRAM_BUFFERS, false, "ArenaBuffer", parse_buffer, entry,
             &code->buffers, &code->buffer_count);
  PARSE_EACH(parser, table, AOT_FBS_PROGRAM_GROWTHS, false, "Growth", parse_growth, entry,
             &code->growths, &code->growth_count);
  return refuse(parser, "entry point", entry->name, program_fault(code, entry, variant));
}

static aot_status_t parse_entry(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                const void *variant) {
  aot_fb_t *fb = &parser->fb;
  aot_entry_t *entry = item;
  entry->name = aot_fb_string(fb, table, AOT_FBS_ENTRY_POINT_NAME, true);
  AOT_TRY(parse_tensors(parser, table, AOT_FBS_ENTRY_POINT_INPUTS, &entry->inputs,
                        &entry->input_count, &entry->input_dim_count));
  AOT_TRY(parse_tensors(parser, table, AOT_FBS_ENTRY_POINT_OUTPUTS, &entry->outputs,
                        &entry->output_count, &entry->output_dim_count));
  uint32_t state_dim_count = 0;
  AOT_TRY(parse_tensors(parser, table, AOT_FBS_ENTRY_POINT_STATES, &entry->states,
                        &entry->state_count, &state_dim_count));
  aot_fb_table_t program;
  if (!aot_fb_child(fb, table, AOT_FBS_ENTRY_POINT_PROGRAM, true, "Program", &program)) {
    return fb->status;
  }
  AOT_TRY(parse_program(parser, &program, variant, entry));
  return aot_code_verify(variant, entry, &entry->code, parser->error);
}

static aot_status_t parse_executable(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                     const void *around) {
  static const aot_fb_field_t fields[] = {
      STRING(aot_executable_t, name, EXECUTABLE_NAME, true),
      NUMBER(aot_executable_t, code_offset, EXECUTABLE_CODE_OFFSET),
      NUMBER(aot_executable_t, param_words, EXECUTABLE_PARAM_WORDS),
      NUMBER(aot_executable_t, scratch_bytes, EXECUTABLE_SCRATCH_BYTES),
      WORDS(aot_executable_t, workgroup_size, workgroup_count, EXECUTABLE_WORKGROUP_SIZE, false),
      NUMBER(aot_executable_t, param_buffer_bytes, EXECUTABLE_PARAM_BUFFER_BYTES),
      NUMBER(aot_executable_t, group_ns, EXECUTABLE_GROUP_NS),
      WORDS(aot_executable_t, windows, window_count, EXECUTABLE_WINDOWS, false),
  };
  const aot_variant_t *variant = around;
  aot_executable_t *executable = item;
  READ(parser, table, fields, executable);
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_EXECUTABLE_SPIRV, "spirv", &executable->spirv));
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_EXECUTABLE_TEXEL_SPIRV, "texel_spirv",
                           &executable->texel_spirv));
  const aot_variant_t *cpu = variant->device == AOT_FBS_DEVICE_CPU ? variant : variant->host;
  const bool is_code = cpu != NULL && aot_executable_is_code(executable);
  executable->word_bytes = is_code ? cpu->word_bytes : variant->word_bytes;
  return refuse(parser, "executable", executable->name, executable_fault(executable, variant, cpu));
}

static aot_status_t parse_limit(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                const void *around) {
  static const aot_fb_field_t fields[] = {
      STRING(aot_limit_t, name, LIMIT_NAME, true),
      NUMBER(aot_limit_t, value, LIMIT_VALUE),
  };
  (void)around;
  READ(parser, table, fields, item);
  return AOT_OK;
}

#if defined(AOT_VULKAN)
static aot_status_t parse_host(aot_parser_t *parser, const aot_fb_table_t *table,
                               aot_variant_t *variant) {
  static const aot_fb_field_t fields[] = {
      STRING(aot_variant_t, target, HOST_TARGET, true),
      ENUM(aot_variant_t, arch, HOST_ARCH, ARCH),
      NUMBER(aot_variant_t, word_bytes, HOST_WORD_BYTES),
  };
  aot_fb_t *fb = &parser->fb;
  aot_fb_table_t child;
  if (!aot_fb_child(fb, table, AOT_FBS_VARIANT_HOST, false, "Host", &child)) return fb->status;
  aot_variant_t *host = NULL;
  ALLOCATE(parser, 1, &host);
  host->device = AOT_FBS_DEVICE_CPU;
  READ(parser, &child, fields, host);
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

// The first name of a vector of features that this runtime doesn't know; NULL where it knows all.
static aot_status_t find_unknown(aot_parser_t *parser, const aot_fb_table_t *table, uint32_t field,
                                 const char **out_name) {
  const aot_fb_vector_t names = aot_fb_vector(&parser->fb, table, field, 4, false);
  *out_name = NULL;
  for (uint32_t i = 0; i < names.count && *out_name == NULL; ++i) {
    const char *name = aot_fb_vector_string(&parser->fb, &names, i);
    AOT_TRY(parser->fb.status);
    if (!is_known_feature(name)) *out_name = name;
  }
  return parser->fb.status;
}

static aot_status_t parse_variant(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                  const void *around) {
  static const aot_fb_field_t fields[] = {
      ENUM(aot_variant_t, device, VARIANT_DEVICE, DEVICE),
      ENUM(aot_variant_t, arch, VARIANT_ARCH, ARCH),
      NUMBER(aot_variant_t, word_bytes, VARIANT_WORD_BYTES),
  };
  (void)around;
  aot_variant_t *variant = item;
  variant->target = aot_fb_string(&parser->fb, table, AOT_FBS_VARIANT_TARGET, true);
  AOT_TRY(find_unknown(parser, table, AOT_FBS_VARIANT_REQUIRES, &variant->unknown_feature));
  if (variant->unknown_feature != NULL) return AOT_OK;
  READ(parser, table, fields, variant);
  AOT_TRY(parse_segment_of(parser, table, AOT_FBS_VARIANT_CODE, "code", &variant->code));
  AOT_TRY(parse_strings(parser, table, AOT_FBS_VARIANT_FEATURES, &variant->features,
                        &variant->feature_count));
  PARSE_EACH(parser, table, AOT_FBS_VARIANT_LIMITS, false, "Limit", parse_limit, NULL,
             &variant->limits, &variant->limit_count);
#if defined(AOT_VULKAN)
  AOT_TRY(parse_host(parser, table, variant));
#endif
  AOT_TRY(refuse(parser, "variant", variant->target, variant_fault(variant)));
  PARSE_EACH(parser, table, AOT_FBS_VARIANT_EXECUTABLES, true, "Executable", parse_executable,
             variant, &variant->executables, &variant->executable_count);
  PARSE_EACH(parser, table, AOT_FBS_VARIANT_ENTRY_POINTS, true, "EntryPoint", parse_entry, variant,
             &variant->entries, &variant->entry_count);
#if defined(AOT_VULKAN)
  share_with_host(variant);
#endif
  return AOT_OK;
}

static aot_status_t parse_metadata(aot_parser_t *parser, const aot_fb_table_t *table, void *item,
                                   const void *around) {
  static const aot_fb_field_t fields[] = {
      STRING(aot_metadata_t, key, METADATA_KEY, true),
      STRING(aot_metadata_t, value, METADATA_VALUE, true),
  };
  (void)around;
  READ(parser, table, fields, item);
  return parser->fb.status;
}

static aot_status_t parse_rodata(aot_parser_t *parser, const aot_fb_table_t *root) {
  aot_module_t *module = parser->module;
  aot_fb_table_t pool;
  if (!aot_fb_child(&parser->fb, root, AOT_FBS_MODULE_RODATA, true, "Segment", &pool)) {
    return parser->fb.status;
  }
  AOT_TRY(parse_segment(parser, &pool, &module->rodata, "rodata"));
  PARSE_EACH(parser, root, AOT_FBS_MODULE_RODATA_SEGMENTS, false, "Segment", parse_segment,
             "rodata_segments", &module->rodata_segments, &module->rodata_segment_count);
  return parse_segment_of(parser, root, AOT_FBS_MODULE_VOCABULARY, "vocabulary",
                          &module->vocabulary);
}

aot_status_t aot_module_parse(aot_module_t *module, const uint8_t *structure, uint32_t bytes,
                              aot_error_t *error) {
  aot_parser_t parser = {.module = module,
                         .segments_begin = sizeof(aot_file_header_t) + bytes,
                         .segments_left = SHARED_BYTES + SHARED_TIMES * (uint64_t)module->bytes,
                         .error = error};
  aot_fb_t *fb = &parser.fb;
  aot_fb_init(fb, structure, bytes, error);
  const aot_fb_table_t root = aot_fb_root(fb, "AOTM", "Module");
  const uint32_t version = (uint32_t)aot_fb_number(fb, &root, AOT_FBS_MODULE_VERSION, 4, 0);
  AOT_TRY(fb->status);
  if (version != AOT_FILE_VERSION) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the structure has version %u, this runtime reads version %u",
                    (unsigned)version, AOT_FILE_VERSION);
  }
  const char *unknown = NULL;
  AOT_TRY(find_unknown(&parser, &root, AOT_FBS_MODULE_REQUIRES, &unknown));
  if (unknown != NULL) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the module needs \"%s\", which runtime %s does not know", unknown,
                    aot_runtime_version());
  }
  module->producer = aot_fb_string(fb, &root, AOT_FBS_MODULE_PRODUCER, false);
  AOT_TRY(parse_rodata(&parser, &root));
  PARSE_EACH(&parser, &root, AOT_FBS_MODULE_METADATA, false, "Metadata", parse_metadata, NULL,
             &module->metadata, &module->metadata_count);
  const aot_fb_vector_t variants = aot_fb_vector(fb, &root, AOT_FBS_MODULE_VARIANTS, 4, true);
  module->variant_count = variants.count;
  AOT_TRY(refuse(&parser, "module", module->producer, module_fault(module)));
  void *items = NULL;
  AOT_TRY(parse_each(&parser, &variants, "Variant", sizeof *module->variants, parse_variant, NULL,
                     &items));
  module->variants = items;
  return AOT_OK;
}
