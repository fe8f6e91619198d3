// The drivers of this build and the choice of a variant.
#include "driver.h"

#include <string.h>

#include "module_fbs.h"
#include "status.h"

static const aot_driver_t *driver_of(uint8_t device) {
#if defined(AOT_VULKAN)
  if (device == AOT_FBS_DEVICE_VULKAN) return &aot_vulkan_driver;
#endif
  return device == AOT_FBS_DEVICE_CPU ? &aot_cpu_driver : NULL;
}

static const char *device_name(uint8_t device) {
  return device == AOT_FBS_DEVICE_VULKAN ? "vulkan" : "cpu";
}

static aot_status_t check_features(const aot_variant_t *variant, aot_error_t *error) {
  if (variant->unknown_feature == NULL) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "it needs \"%s\", which runtime %s does not know",
                  variant->unknown_feature, aot_runtime_version());
}

static aot_status_t check(const aot_variant_t *variant, aot_error_t *error) {
  AOT_TRY(check_features(variant, error));
  const aot_driver_t *driver = driver_of(variant->device);
  if (driver == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "this runtime has no %s driver",
                    device_name(variant->device));
  }
  return driver->check(variant, error);
}

aot_status_t aot_module_check_variant(const aot_module_t *module, size_t index,
                                      aot_error_t *error) {
  if (module == NULL || index >= module->variant_count) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "there is no variant %zu", index);
  }
  return check(&module->variants[index], error);
}

static bool is_wanted(const aot_variant_t *variant, const aot_program_options_t *options) {
  if (options->target != NULL && strcmp(options->target, variant->target) != 0) return false;
  if (variant->unknown_feature != NULL) return true;  // its device is not known
  switch (options->device) {
    case AOT_DEVICE_CPU:
      return variant->device == AOT_FBS_DEVICE_CPU;
    case AOT_DEVICE_VULKAN:
      return variant->device == AOT_FBS_DEVICE_VULKAN;
    case AOT_DEVICE_ANY:
    default:
      return true;
  }
}

// Whether another variant may do where one gave this status.  Out of memory, on a GPU, too.
static bool is_reason_to_go_on(const aot_variant_t *variant, aot_status_t status) {
  return status == AOT_ERROR_UNSUPPORTED || status == AOT_ERROR_DEVICE ||
         (status == AOT_ERROR_MEMORY && variant->device != AOT_FBS_DEVICE_CPU);
}

static aot_status_t fail_not_there(const aot_module_t *module, const aot_program_options_t *options,
                                   aot_error_t *error) {
  aot_text_t known = {.length = 0};
  for (uint32_t i = 0; i < module->variant_count; ++i) {
    aot_text_append(&known, "%s%s (%s)", i > 0 ? ", " : "", module->variants[i].target,
                    device_name(module->variants[i].device));
  }
  const char *device = options->device == AOT_DEVICE_CPU      ? "the cpu"
                       : options->device == AOT_DEVICE_VULKAN ? "vulkan"
                                                              : "any device";
  return aot_fail(error, AOT_ERROR_NOT_FOUND, "no variant for %s%s%s, the module has %s", device,
                  options->target != NULL ? " and target " : "",
                  options->target != NULL ? options->target : "", known.bytes);
}

aot_status_t aot_variant_open(const aot_module_t *module, const aot_program_options_t *options,
                              uint32_t first, const aot_allocator_t *allocator, aot_error_t *error,
                              aot_choice_t *out_choice) {
  memset(out_choice, 0, sizeof *out_choice);
  aot_text_t *why = &out_choice->skipped;
  for (uint32_t i = first; i < module->variant_count; ++i) {
    const aot_variant_t *variant = &module->variants[i];
    if (!is_wanted(variant, options)) continue;
    const bool is_known = variant->unknown_feature == NULL;
    const aot_driver_t *driver = is_known ? driver_of(variant->device) : NULL;
    aot_error_t reason = {AOT_OK, ""};
    const aot_status_t status = driver != NULL ? driver->open(module, variant, options, allocator,
                                                              &reason, &out_choice->device)
                                               : check(variant, &reason);
    if (status == AOT_OK) {
      out_choice->variant = variant;
      out_choice->driver = driver;
      return AOT_OK;
    }
    if (!is_reason_to_go_on(variant, status)) return aot_fail(error, status, "%s", reason.message);
    aot_text_append(why, "%s%s: %s", why->length > 0 ? "; " : "", variant->target, reason.message);
  }
  if (why->length == 0) return fail_not_there(module, options, error);
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "no variant runs on this machine: %s", why->bytes);
}
