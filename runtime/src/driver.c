// The drivers of this build and the choice of a variant.
#include "driver.h"

#include <string.h>

#include "module_fbs.h"
#include "status.h"

const aot_driver_t *aot_driver_find(uint8_t device) {
#if defined(AOT_VULKAN)
  if (device == AOT_FBS_DEVICE_VULKAN) return &aot_vulkan_driver;
#endif
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
                              const aot_allocator_t *allocator, aot_error_t *error,
                              aot_choice_t *out_choice) {
  memset(out_choice, 0, sizeof *out_choice);
  aot_text_t *why = &out_choice->skipped;
  for (uint32_t i = 0; i < module->variant_count; ++i) {
    const aot_variant_t *variant = &module->variants[i];
    if (!is_wanted(variant, options)) continue;
    const aot_driver_t *driver = aot_driver_find(variant->device);
    aot_error_t reason = {AOT_OK, ""};
    const aot_status_t status = driver != NULL ? driver->open(module, variant, options, allocator,
                                                              &reason, &out_choice->device)
                                               : aot_variant_check(variant, &reason);
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

aot_status_t aot_variant_find_entry(const aot_variant_t *variant, const char *name,
                                    aot_error_t *error, const aot_entry_t **out_entry) {
  aot_text_t known = {.length = 0};
  for (uint32_t i = 0; i < variant->entry_count; ++i) {
    *out_entry = &variant->entries[i];
    if (name == NULL || strcmp(name, variant->entries[i].name) == 0) return AOT_OK;
    aot_text_append(&known, "%s\"%s\"", known.length > 0 ? ", " : "", variant->entries[i].name);
  }
  *out_entry = NULL;
  return aot_fail(error, AOT_ERROR_NOT_FOUND, "no entry point \"%s\", variant \"%s\" has %s",
                  name != NULL ? name : "", variant->target,
                  known.length > 0 ? known.bytes : "none");
}
