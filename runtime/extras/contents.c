// What a module has, without a program of it: reads the descriptions that opening made.
#include "aot/contents.h"

#include <string.h>

#include "../drivers/cpu/cpu_features.h"
#include "module.h"
#include "module_fbs.h"
#include "sizes.h"
#include "status.h"

static const aot_variant_t *variant_of(const aot_module_t *module, size_t variant) {
  return variant < aot_module_variant_count(module) ? &module->variants[variant] : NULL;
}

static const aot_entry_t *entry_of(const aot_module_t *module, size_t variant, size_t entry) {
  const aot_variant_t *found = variant_of(module, variant);
  return found != NULL && entry < found->entry_count ? &found->entries[entry] : NULL;
}

static aot_status_t fail_missing(const aot_module_t *module, const char *what, size_t index,
                                 aot_error_t *error) {
  if (module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "module is NULL");
  return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no %s %zu", what, index);
}

static uint64_t code_bytes(const aot_variant_t *variant) {
  uint64_t bytes = variant->code.length;
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const aot_executable_t *executable = &variant->executables[i];
    bytes += executable->spirv.length + executable->texel_spirv.length;
  }
  return bytes;
}

aot_status_t aot_module_get_variant(const aot_module_t *module, size_t variant, aot_error_t *error,
                                    aot_variant_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_variant_info_t", error));
  const aot_variant_t *found = variant_of(module, variant);
  if (found == NULL) return fail_missing(module, "variant", variant, error);
  const bool is_known = found->unknown_feature == NULL;
  const bool is_gpu = found->device == AOT_FBS_DEVICE_VULKAN;
  const uint8_t arch = found->host != NULL ? found->host->arch : found->arch;
  const aot_variant_info_t info = {.target = found->target,
                                   .device = !is_known ? ""
                                             : is_gpu  ? "vulkan"
                                                       : "cpu",
                                   .arch = arch != AOT_FBS_ARCH_NONE ? aot_cpu_arch_name(arch) : "",
                                   .host = found->host != NULL ? found->host->target : "",
                                   .features = found->features,
                                   .feature_count = found->feature_count,
                                   .limit_count = found->limit_count,
                                   .entry_count = found->entry_count,
                                   .executable_count = found->executable_count,
                                   .code_bytes = code_bytes(found),
                                   .unknown_feature = is_known ? "" : found->unknown_feature};
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}

aot_status_t aot_module_get_entry(const aot_module_t *module, size_t variant, size_t entry,
                                  aot_error_t *error, aot_entry_info_t *out_info) {
  AOT_TRY(aot_struct_clear(out_info, "aot_entry_info_t", error));
  if (variant_of(module, variant) == NULL) return fail_missing(module, "variant", variant, error);
  const aot_entry_t *found = entry_of(module, variant, entry);
  if (found == NULL) return fail_missing(module, "entry point", entry, error);
  const aot_entry_info_t info = {.name = found->name,
                                 .input_count = found->input_count,
                                 .output_count = found->output_count,
                                 .state_count = found->state_count,
                                 .state_bytes = found->code.state_bytes,
                                 .arena_bound_bytes = aot_code_arena_bound(&found->code)};
  aot_struct_give(&info, sizeof info, out_info);
  return AOT_OK;
}

aot_status_t aot_module_get_limit(const aot_module_t *module, size_t variant, size_t limit,
                                  aot_error_t *error, const char **out_name, uint64_t *out_value) {
  if (out_name == NULL || out_value == NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s is NULL",
                    out_name == NULL ? "out_name" : "out_value");
  }
  *out_name = NULL;
  *out_value = 0;
  const aot_variant_t *found = variant_of(module, variant);
  if (found == NULL) return fail_missing(module, "variant", variant, error);
  if (limit >= found->limit_count) return fail_missing(module, "limit", limit, error);
  *out_name = found->limits[limit].name;
  *out_value = found->limits[limit].value;
  return AOT_OK;
}

const aot_tensor_info_t *aot_module_input_info(const aot_module_t *module, size_t variant,
                                               size_t entry, size_t index) {
  const aot_entry_t *found = entry_of(module, variant, entry);
  return found != NULL && index < found->input_count ? &found->inputs[index] : NULL;
}

const aot_tensor_info_t *aot_module_output_info(const aot_module_t *module, size_t variant,
                                                size_t entry, size_t index) {
  const aot_entry_t *found = entry_of(module, variant, entry);
  return found != NULL && index < found->output_count ? &found->outputs[index] : NULL;
}

const aot_tensor_info_t *aot_module_state_info(const aot_module_t *module, size_t variant,
                                               size_t entry, size_t index) {
  const aot_entry_t *found = entry_of(module, variant, entry);
  return found != NULL && index < found->state_count ? &found->states[index] : NULL;
}

size_t aot_module_metadata_count(const aot_module_t *module) {
  return module != NULL ? module->metadata_count : 0;
}

const char *aot_module_metadata_key(const aot_module_t *module, size_t index) {
  return index < aot_module_metadata_count(module) ? module->metadata[index].key : NULL;
}

const char *aot_module_metadata_value(const aot_module_t *module, size_t index) {
  return index < aot_module_metadata_count(module) ? module->metadata[index].value : NULL;
}

const char *aot_module_find_metadata(const aot_module_t *module, const char *key) {
  for (size_t i = 0; key != NULL && i < aot_module_metadata_count(module); ++i) {
    if (strcmp(module->metadata[i].key, key) == 0) return module->metadata[i].value;
  }
  return NULL;
}
