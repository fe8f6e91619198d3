// What a module has, without a program of it: variants and what each needs, entry points, their
// inputs, outputs and states, and metadata.  Beside the loader, which asks nothing of this.
//
// All texts and infos are *borrowed* from the module.
#ifndef AOT_CONTENTS_H_
#define AOT_CONTENTS_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aot_variant_info_t {
  size_t size;
  const char *target;
  const char *device;  // "cpu" or "vulkan"; "" where unknown_feature says why it is not known
  const char *arch;    // of its machine code, as "x86-64"; "" where it has none
  const char *host;    // target of the CPU that runs what the GPU can't; "": none
  // Of the CPU by LLVM's names, or of the GPU by Vulkan's: what must be there.
  const char *const *features;
  uint32_t feature_count;
  uint32_t limit_count;  // of aot_module_get_limit
  uint32_t entry_count;
  uint32_t executable_count;
  uint64_t code_bytes;          // machine code and shaders
  const char *unknown_feature;  // that it requires of a runtime and this one doesn't know; "": none
} aot_variant_info_t;

typedef struct aot_entry_info_t {
  size_t size;
  const char *name;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t state_count;
  uint64_t state_bytes;        // that it keeps between runs, in the arena
  uint64_t arena_bound_bytes;  // the most that the arena takes at any shape; UINT64_MAX: not known
} aot_entry_info_t;

// AOT_ERROR_ARGUMENT where there is no such variant, entry point or limit.
AOT_API aot_status_t aot_module_get_variant(const aot_module_t *module, size_t variant,
                                            aot_error_t *error, aot_variant_info_t *out_info);
AOT_API aot_status_t aot_module_get_entry(const aot_module_t *module, size_t variant, size_t entry,
                                          aot_error_t *error, aot_entry_info_t *out_info);
// What a GPU must have at least: the name of a field of VkPhysicalDeviceLimits, with [i] for an
// element.
AOT_API aot_status_t aot_module_get_limit(const aot_module_t *module, size_t variant, size_t limit,
                                          aot_error_t *error, const char **out_name,
                                          uint64_t *out_value);

// NULL where there is none.  The same as of a program of the entry point.
AOT_API const aot_tensor_info_t *aot_module_input_info(const aot_module_t *module, size_t variant,
                                                       size_t entry, size_t index);
AOT_API const aot_tensor_info_t *aot_module_output_info(const aot_module_t *module, size_t variant,
                                                        size_t entry, size_t index);
AOT_API const aot_tensor_info_t *aot_module_state_info(const aot_module_t *module, size_t variant,
                                                       size_t entry, size_t index);

// Facts about the model, as "author" or "license", in the order of their keys.  NULL where there is
// none of that number or key.
AOT_API size_t aot_module_metadata_count(const aot_module_t *module);
AOT_API const char *aot_module_metadata_key(const aot_module_t *module, size_t index);
AOT_API const char *aot_module_metadata_value(const aot_module_t *module, size_t index);
AOT_API const char *aot_module_find_metadata(const aot_module_t *module, const char *key);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // AOT_CONTENTS_H_
