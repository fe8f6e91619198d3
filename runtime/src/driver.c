// The drivers of this build and the choice of a variant.
#include "driver.h"

#include <string.h>

#include "module_fbs.h"
#include "status.h"

const aot_driver_t *aot_driver_find(uint8_t device) {
  return device == AOT_FBS_DEVICE_CPU ? &aot_cpu_driver : NULL;
}

static const char *device_name(uint8_t device) {
  return device == AOT_FBS_DEVICE_VULKAN ? "vulkan" : "cpu";
}

aot_status_t aot_variant_check(const aot_variant_t *variant, aot_error_t *error) {
  const aot_driver_t *driver = aot_driver_find(variant->device);
  if (driver == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "this runtime has no %s driver",
                    device_name(variant->device));
  }
  return driver->check(variant, error);
}

static bool is_wanted(const aot_variant_t *variant, const aot_program_options_t *options) {
  if (options->target != NULL && strcmp(options->target, variant->target) != 0) return false;
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

aot_status_t aot_variant_choose(const aot_module_t *module, const aot_program_options_t *options,
                                aot_error_t *error, const aot_variant_t **out_variant,
                                const aot_driver_t **out_driver) {
  aot_text_t why = {.length = 0};
  bool was_wanted = false;
  for (uint32_t i = 0; i < module->variant_count; ++i) {
    const aot_variant_t *variant = &module->variants[i];
    if (!is_wanted(variant, options)) continue;
    aot_error_t reason = {AOT_OK, ""};
    if (aot_variant_check(variant, &reason) == AOT_OK) {
      *out_variant = variant;
      *out_driver = aot_driver_find(variant->device);
      return AOT_OK;
    }
    aot_text_append(&why, "%s%s: %s", was_wanted ? "; " : "", variant->target, reason.message);
    was_wanted = true;
  }
  if (was_wanted) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "no variant runs on this machine: %s", why.bytes);
  }
  if (module->variant_count == 0) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "the module has no variants");
  }
  for (uint32_t i = 0; i < module->variant_count; ++i) {
    aot_text_append(&why, "%s%s (%s)", i > 0 ? ", " : "", module->variants[i].target,
                    device_name(module->variants[i].device));
  }
  const char *device = options->device == AOT_DEVICE_CPU      ? "the cpu"
                       : options->device == AOT_DEVICE_VULKAN ? "vulkan"
                                                              : "any device";
  return aot_fail(error, AOT_ERROR_NOT_FOUND, "no variant for %s%s%s, the module has %s", device,
                  options->target != NULL ? " and target " : "",
                  options->target != NULL ? options->target : "", why.bytes);
}
