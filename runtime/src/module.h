// A module as the runtime holds it: what the flatbuffer says, checked once and laid out as structs.
// Strings and vectors of words stay in the file's bytes.
#ifndef AOT_MODULE_H_
#define AOT_MODULE_H_

#include "alloc.h"
#include "aot/abi.h"
#include "aot/aot.h"
#include "os.h"
#include "os_threads.h"

typedef struct aot_segment_t {
  uint64_t offset;  // from the module's start; inside the file
  uint64_t length;
  uint64_t checksum;
  uint32_t alignment;
} aot_segment_t;

typedef struct aot_arena_buffer_t {
  uint32_t first;  // lifetime, inclusive
  uint32_t last;
  uint32_t offset_register;
  uint32_t alignment;  // a power of two, at most AOT_ALIGNMENT
  uint64_t bound_offset;
} aot_arena_buffer_t;

// A state that grows at its end: blocks, at the start of each the rows in use.
typedef struct aot_growth_t {
  uint64_t offset;
  uint32_t blocks;
  uint32_t stride_bytes;
  uint32_t row_bytes;
  uint32_t scalar;  // of its length
  uint32_t window;  // the last rows, which a run reads: others may have left; 0: all stay
} aot_growth_t;

// A program whose every operand was checked (program_verify.c): the interpreter trusts it.
typedef struct aot_code_t {
  uint32_t register_count;
  uint32_t word_count;
  uint32_t block_count;
  uint32_t execute_block;
  uint32_t message_count;
  uint32_t buffer_count;
  uint32_t most_param_words;  // of its dispatches
  const uint32_t *words;
  const uint32_t *blocks;
  const char **messages;
  aot_arena_buffer_t *buffers;
  uint64_t arena_bytes;
  uint64_t arena_bound_bytes;              // 0: not known
  uint64_t state_bytes;                    // at the arena's start, kept between runs
  int64_t scratch_offset;                  // of the caller's scratch in the arena; -1: elsewhere
  uint32_t state_count;                    // scalars
  uint32_t state_key_count;                // the first of them are part of a plan's key
  const uint32_t *input_offset_registers;  // one an input, or none
  const uint32_t *output_offset_registers;
  uint32_t input_offset_count;
  uint32_t output_offset_count;
  uint32_t growth_count;
  aot_growth_t *growths;
  const uint32_t *updates;  // one an output, or none: 1 + the input that it is copied to; 0: none
  uint32_t update_count;
} aot_code_t;

// What is zero after a reset: the state's bytes before those that grow.
static inline uint64_t aot_code_reset_bytes(const aot_code_t *code) {
  return code->growth_count > 0 ? code->growths[0].offset : code->state_bytes;
}

// The most that the arena takes at any shape; UINT64_MAX where that is not known.
static inline uint64_t aot_code_arena_bound(const aot_code_t *code) {
  if (code->buffer_count == 0) return code->arena_bytes;
  return code->arena_bound_bytes != 0 ? code->arena_bound_bytes : UINT64_MAX;
}

typedef struct aot_entry_t {
  const char *name;
  aot_tensor_info_t *inputs;
  aot_tensor_info_t *outputs;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t input_dim_count;  // of all inputs together
  uint32_t output_dim_count;
  uint32_t state_count;  // variables that `states` describes
  aot_tensor_info_t *states;
  aot_code_t code;
} aot_entry_t;

typedef struct aot_executable_t {
  const char *name;
  uint64_t code_offset;
  aot_segment_t spirv;
  aot_segment_t texel_spirv;  // empty: spirv serves always
  uint32_t param_words;
  uint32_t scratch_bytes;
  uint32_t workgroup_count;  // of the numbers in the file: 3, or none for a workgroup of one lane
  const uint32_t *workgroup_size;
  uint32_t param_buffer_bytes;  // of a shader; 0: its parameter block is push constants
  uint32_t group_ns;            // of a shader: price of a workgroup
  uint32_t window_count;        // of a shader
  const uint32_t *windows;
  uint8_t word_bytes;  // of its parameter block
} aot_executable_t;

// What a device must have at least, by Vulkan's name for it.
typedef struct aot_limit_t {
  const char *name;
  uint64_t value;
} aot_limit_t;

typedef struct aot_variant_t aot_variant_t;
struct aot_variant_t {
  const char *unknown_feature;  // that it requires; the rest is not read then.  NULL: none
  const char *target;
  uint8_t device;  // Device of module.fbs
  uint8_t arch;    // Arch of module.fbs
  uint8_t word_bytes;
  uint32_t feature_count;
  uint32_t executable_count;
  uint32_t entry_count;
  uint32_t limit_count;
  const char **features;
  aot_limit_t *limits;
  aot_segment_t code;
  aot_executable_t *executables;
  aot_entry_t *entries;
  // What the CPU runs of a Vulkan variant, as a variant for its driver: executables, entry points
  // and code are the same.  NULL where all executables have shaders.
  aot_variant_t *host;
};

// Whether an executable has no shader, and is the host's in a Vulkan variant.
static inline bool aot_executable_is_code(const aot_executable_t *executable) {
  return executable->spirv.length == 0;
}

typedef struct aot_metadata_t {
  const char *key;
  const char *value;
} aot_metadata_t;

struct aot_module_t {
  uint32_t references;  // the caller's handle and its programs
  aot_pool_t pool;      // the descriptions; its allocator is the module's
  const uint8_t *data;
  size_t bytes;
  aot_file_map_t map;  // when data is a mapping of a file
  void *memory;        // when data is memory of the allocator
  size_t memory_bytes;
  const char *producer;
  uint32_t variant_count;
  uint32_t rodata_segment_count;
  aot_variant_t *variants;
  aot_segment_t rodata;
  aot_segment_t *rodata_segments;
  aot_segment_t vocabulary;
  uint32_t metadata_count;
  aot_metadata_t *metadata;
  bool copies_code;
#if defined(AOT_VULKAN)
  // What its programs share on GPUs: made by the first of them, released with the module.
  void *shared;
  void (*free_shared)(aot_module_t *module);
#endif
};

// module_parse.c: reads the structure, which has the right checksum, and verifies all of it.  What
// it says refers to these bytes as long as the module lives.
aot_status_t aot_module_parse(aot_module_t *module, const uint8_t *structure, uint32_t bytes,
                              aot_error_t *error);

// program_verify.c: every instruction, operand and block, of a program whose fields hold what
// module_rules.h says; sets code->most_param_words.
aot_status_t aot_code_verify(const aot_variant_t *variant, const aot_entry_t *entry,
                             aot_code_t *code, aot_error_t *error);

// module.c: another handle, to be closed as the first.
void aot_module_retain(const aot_module_t *module);

// module.c: compares a segment with its checksum; `what` and `name` are for the message.
aot_status_t aot_module_verify_segment(const aot_module_t *module, const aot_segment_t *segment,
                                       const char *what, const char *name, aot_error_t *error);

// module.c: the same of a copy of the segment's bytes.
aot_status_t aot_segment_verify(const aot_segment_t *segment, const uint8_t *data, const char *what,
                                const char *name, aot_error_t *error);

// module.c: the entry point of a name; the first one where `name` is NULL.
aot_status_t aot_variant_find_entry(const aot_variant_t *variant, const char *name,
                                    aot_error_t *error, const aot_entry_t **out_entry);

#endif  // AOT_MODULE_H_
