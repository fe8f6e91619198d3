// The CPU driver: kernels are functions in a code image, run by the caller's thread.
#include "driver.h"

#include <string.h>

#include "cpu_features.h"
#include "module_fbs.h"
#include "status.h"

struct aot_device_t {
  const aot_variant_t *variant;
  aot_allocator_t allocator;
  const uint8_t *code;  // executable
  aot_code_mapping_t mapping;
  size_t scratch_bytes;
  size_t arena_bytes;
  aot_dispatch_t dispatch;  // its arena and scratch are owned
};

static aot_status_t cpu_check(const aot_variant_t *variant, aot_error_t *error) {
  if (!aot_cpu_has_arch(variant->arch)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "made for %s", aot_cpu_arch_name(variant->arch));
  }
  if (variant->word_bytes != sizeof(void *)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "parameter words of %u bytes, not %zu",
                    (unsigned)variant->word_bytes, sizeof(void *));
  }
  for (uint32_t i = 0; i < variant->feature_count; ++i) {
    if (!aot_cpu_has_feature(variant->features[i])) {
      return aot_fail(error, AOT_ERROR_UNSUPPORTED, "needs the CPU feature %s",
                      variant->features[i]);
    }
  }
  return AOT_OK;
}

// Executable pages of the file's mapping if the system lets us, else a copy.
static aot_status_t map_code(aot_device_t *device, const aot_module_t *module, aot_error_t *error) {
  const aot_segment_t *segment = &device->variant->code;
  if (segment->length == 0) return AOT_OK;
  AOT_TRY(aot_module_verify_segment(module, segment, "the code of variant", device->variant->target,
                                    error));
  const uint8_t *code = module->data + segment->offset;
  const size_t bytes = (size_t)segment->length;
  const bool is_mapped = module->map.base != NULL;
  if (is_mapped && (uintptr_t)code % aot_os_page_bytes() == 0 &&
      aot_os_make_executable(code, bytes)) {
    aot_os_flush_code(code, bytes);
    device->code = code;
    device->mapping = AOT_CODE_MAPPED;
    return AOT_OK;
  }
  AOT_TRY(aot_os_copy_code(code, bytes, error, &device->code));
  device->mapping = AOT_CODE_COPIED;
  return AOT_OK;
}

static void cpu_close(aot_device_t *device) {
  const aot_allocator_t allocator = device->allocator;
  if (device->mapping == AOT_CODE_COPIED) {
    aot_os_free_code(device->code, (size_t)device->variant->code.length);
  }
  aot_release(&allocator, device->dispatch.arena, device->arena_bytes);
  aot_release(&allocator, device->dispatch.scratch, device->scratch_bytes);
  aot_release(&allocator, device, sizeof *device);
}

static aot_status_t set_up(aot_device_t *device, const aot_module_t *module, aot_error_t *error) {
  size_t scratch_bytes = 0;
  for (uint32_t i = 0; i < device->variant->executable_count; ++i) {
    const uint32_t bytes = device->variant->executables[i].scratch_bytes;
    if (bytes > scratch_bytes) scratch_bytes = bytes;
  }
  void *scratch = NULL;
  AOT_TRY(aot_allocate(&device->allocator, scratch_bytes, "scratch", error, &scratch));
  device->scratch_bytes = scratch_bytes;
  device->dispatch.scratch = scratch;
  device->dispatch.constants = module->data + module->rodata.offset;
  return map_code(device, module, error);
}

static aot_status_t cpu_open(const aot_module_t *module, const aot_variant_t *variant,
                             const aot_allocator_t *allocator, aot_error_t *error,
                             aot_device_t **out_device) {
  *out_device = NULL;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, sizeof(aot_device_t), "the device", error, &memory));
  memset(memory, 0, sizeof(aot_device_t));
  aot_device_t *device = memory;
  device->variant = variant;
  device->allocator = *allocator;
  const aot_status_t status = set_up(device, module, error);
  if (status != AOT_OK) {
    cpu_close(device);
    return status;
  }
  *out_device = device;
  return AOT_OK;
}

static void cpu_get_info(const aot_device_t *device, aot_program_info_t *info) {
  info->code_mapping = device->mapping;
  info->arena_bytes = device->arena_bytes;
  info->scratch_bytes = device->scratch_bytes;
}

static aot_status_t cpu_reserve(aot_device_t *device, uint64_t arena_bytes, aot_error_t *error) {
  if (device->dispatch.arena != NULL && arena_bytes <= device->arena_bytes) return AOT_OK;
  // The old one first: both at once may not fit.
  aot_release(&device->allocator, device->dispatch.arena, device->arena_bytes);
  device->dispatch.arena = NULL;
  device->arena_bytes = 0;
  void *arena = NULL;
  AOT_TRY(aot_allocate(&device->allocator, arena_bytes, "the arena", error, &arena));
  device->dispatch.arena = arena;
  device->arena_bytes = (size_t)arena_bytes;
  return AOT_OK;
}

// The class's base is the first tensor's memory; the others' offsets wrap around from there.
static uintptr_t bind(aot_binding_t *bindings, uint32_t count) {
  const uintptr_t base = count > 0 ? bindings[0].address : 0;
  for (uint32_t i = 0; i < count; ++i)
    bindings[i].offset = bindings[i].address - base;
  return base;
}

static aot_status_t cpu_begin(aot_device_t *device, aot_bindings_t *bindings, aot_error_t *error) {
  (void)error;
  device->dispatch.inputs = (const uint8_t *)bind(bindings->inputs, bindings->input_count);
  device->dispatch.outputs = (uint8_t *)bind(bindings->outputs, bindings->output_count);
  return AOT_OK;
}

static aot_kernel_t find_kernel(const aot_device_t *device, uint32_t executable) {
  uintptr_t address =
      (uintptr_t)device->code + (uintptr_t)device->variant->executables[executable].code_offset;
  if (device->variant->arch == AOT_FBS_ARCH_THUMB) address |= 1;
  aot_kernel_t kernel;
  memcpy(&kernel, &address, sizeof kernel);
  return kernel;
}

static aot_status_t cpu_dispatch(aot_device_t *device, uint32_t executable, const void *params,
                                 aot_grid_t grid, aot_error_t *error) {
  (void)error;
  const aot_kernel_t kernel = find_kernel(device, executable);
  device->dispatch.params = params;
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x)
        kernel(&device->dispatch, x, y, z);
    }
  }
  return AOT_OK;
}

// Only arena and outputs are ever written: programs are verified for that.
static uint8_t *resolve(const aot_device_t *device, aot_place_t place) {
  const aot_dispatch_t *d = &device->dispatch;
  const uintptr_t bases[AOT_FBS_BUFFER_CLASS_COUNT] = {(uintptr_t)d->constants, (uintptr_t)d->arena,
                                                       (uintptr_t)d->inputs, (uintptr_t)d->outputs};
  return (uint8_t *)(bases[place.buffer_class] + (uintptr_t)place.offset);
}

static aot_status_t cpu_copy(aot_device_t *device, aot_place_t to, aot_place_t from, size_t bytes,
                             aot_error_t *error) {
  (void)error;
  memmove(resolve(device, to), resolve(device, from), bytes);
  return AOT_OK;
}

static aot_status_t cpu_fill(aot_device_t *device, aot_place_t to, size_t bytes, uint32_t pattern,
                             aot_error_t *error) {
  (void)error;
  uint8_t *target = resolve(device, to);
  const uint32_t low = pattern & 0xff;
  if (pattern == low * 0x01010101u) {
    memset(target, (int)low, bytes);
    return AOT_OK;
  }
  for (; bytes >= sizeof pattern; bytes -= sizeof pattern, target += sizeof pattern) {
    memcpy(target, &pattern, sizeof pattern);
  }
  memcpy(target, &pattern, bytes);
  return AOT_OK;
}

static aot_status_t cpu_load(aot_device_t *device, aot_place_t from, size_t bytes, void *memory,
                             aot_error_t *error) {
  (void)error;
  memcpy(memory, resolve(device, from), bytes);
  return AOT_OK;
}

static aot_status_t cpu_end(aot_device_t *device, aot_error_t *error) {
  (void)device;
  (void)error;
  return AOT_OK;
}

const aot_driver_t aot_cpu_driver = {
    .name = "cpu",
    .device = AOT_FBS_DEVICE_CPU,
    .check = cpu_check,
    .open = cpu_open,
    .close = cpu_close,
    .get_info = cpu_get_info,
    .reserve = cpu_reserve,
    .begin = cpu_begin,
    .dispatch = cpu_dispatch,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .load = cpu_load,
    .end = cpu_end,
};
