// The Vulkan driver.  A run is a log, done when something is loaded and at its end.
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "host.h"
#include "imports.h"
#include "os.h"
#include "outside.h"
#include "program.h"
#include "recording.h"
#include "sizes.h"
#include "start.h"
#include "status.h"
#include "system.h"
#include "tell.h"

#define UPLOAD_CHUNK_BYTES ((uint64_t)16 << 20)
// A shader takes more workgroups along x as rows along z (aot/backends/vulkan/shader.py).
#define GRID_ROW 65535u
#define STORAGE                                                            \
  (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | \
   VK_BUFFER_USAGE_TRANSFER_DST_BIT)
#define STAGING (VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)

static const aot_vulkan_options_t default_options;

aot_status_t aot_vulkan_take_options(const aot_program_options_t *options, aot_error_t *error,
                                     aot_vulkan_options_t *out_options) {
  *out_options = default_options;
  if (options->vulkan == NULL) return AOT_OK;
  return aot_struct_take(options->vulkan, "aot_vulkan_options_t", out_options, sizeof *out_options,
                         error);
}

static aot_status_t check_words(const aot_variant_t *variant, aot_error_t *error) {
  if (variant->word_bytes == 4) return AOT_OK;
  return aot_fail(error, AOT_ERROR_MALFORMED, "parameter words of %u bytes in a vulkan variant",
                  (unsigned)variant->word_bytes);
}

static aot_status_t vulkan_check(const aot_variant_t *variant, aot_error_t *error) {
  aot_vk_gpu_t gpu;
  AOT_TRY(check_words(variant, error));
  AOT_TRY(aot_vk_host_check(variant, error));
  const aot_status_t status = aot_vk_gpu_open(&gpu, variant, &default_options, false, error);
  aot_vk_gpu_close(&gpu);
  return status;
}

// ---- opening and closing ----

static aot_vk_place_t place_of(const aot_device_t *device) {
  return device->is_unified ? AOT_VK_PLACE_UNIFIED : AOT_VK_PLACE_DEVICE;
}

// The buffer of a class.
static aot_status_t create_class(const aot_device_t *device, uint32_t buffer_class, uint64_t bytes,
                                 const char *what, aot_error_t *error,
                                 aot_vk_buffer_t *out_buffer) {
  VkBufferUsageFlags usage = STORAGE;
  if (device->gpu.reads_texels) usage |= VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT;
  if (device->descriptors.windows.has_class[buffer_class]) usage |= AOT_VK_USAGE_IN_WINDOWS;
  return aot_vk_buffer_create(&device->gpu, place_of(device), bytes, usage, what, error,
                              out_buffer);
}

static aot_status_t create_pool_and_fence(aot_device_t *device, aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const VkCommandPoolCreateInfo pool_info = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
      .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
      .queueFamilyIndex = gpu->queue_family};
  VkCommandPool pool = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreateCommandPool, gpu->device, &pool_info, NULL, &pool);
  device->command_pool = pool;
  const VkFenceCreateInfo fence_info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  VkFence fence = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreateFence, gpu->device, &fence_info, NULL, &fence);
  device->fence = fence;
  return AOT_OK;
}

// A buffer that was copied from or to.  A device that was given up may be at it still: what it
// hangs on stays.
static void destroy_copied(const aot_device_t *device, aot_vk_buffer_t *buffer) {
  if (device->is_hung) return;
  if (device->is_lost) (void)aot_vk_wait_idle(device);
  aot_vk_buffer_destroy(&device->gpu, buffer);
}

// Copies from the host's memory to a buffer that it does not see, a chunk at a time.
static aot_status_t upload_staged(aot_device_t *device, const aot_vk_buffer_t *to,
                                  const uint8_t *data, uint64_t bytes, aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const uint64_t chunk = bytes < UPLOAD_CHUNK_BYTES ? bytes : UPLOAD_CHUNK_BYTES;
  aot_vk_buffer_t staging;
  AOT_TRY(aot_vk_buffer_create(gpu, AOT_VK_PLACE_UPLOAD, chunk, VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
                               "staging", error, &staging));
  aot_status_t status = AOT_OK;
  for (uint64_t at = 0; at < bytes && status == AOT_OK; at += chunk) {
    const uint64_t count = bytes - at < chunk ? bytes - at : chunk;
    memcpy(staging.mapped, data + at, (size_t)count);
    status = aot_vk_buffer_flush(gpu, &staging, error);
    if (status == AOT_OK) status = aot_vk_copy_now(device, to, at, &staging, 0, count, error);
  }
  destroy_copied(device, &staging);
  return status;
}

// Shaders read four words at once, the last of them behind the end.
static aot_status_t upload(aot_device_t *device, aot_error_t *error) {
  const uint64_t start = aot_os_now_ns();
  const uint64_t bytes = device->module->rodata.length;
  const uint64_t room = (bytes + 15) & ~(uint64_t)15;
  const uint8_t *data = device->module->data + device->module->rodata.offset;
  aot_vk_buffer_t buffer;
  AOT_TRY(create_class(device, AOT_FBS_BUFFER_CLASS_CONSTANTS, room > 0 ? room : 16, "constants",
                       error, &buffer));
  aot_status_t status = AOT_OK;
  if (bytes > 0 && device->is_unified) {
    memcpy(buffer.mapped, data, (size_t)bytes);
    status = aot_vk_buffer_flush(&device->gpu, &buffer, error);
  } else if (bytes > 0) {
    status = upload_staged(device, &buffer, data, bytes, error);
  }
  if (status != AOT_OK) {
    destroy_copied(device, &buffer);
    return status;
  }
  device->shared->constants = buffer;
  device->upload_ns = aot_os_now_ns() - start;
  return AOT_OK;
}

// By the first of the module's programs on the device; the others wait for it, and upload where it
// has failed.
static aot_status_t upload_constants(aot_device_t *device, aot_error_t *error) {
  aot_vk_shared_t *shared = device->shared;
  aot_os_gate_lock(&shared->loading);
  const aot_status_t status = shared->constants.bytes > 0 ? AOT_OK : upload(device, error);
  device->buffers[AOT_FBS_BUFFER_CLASS_CONSTANTS] = shared->constants;
  aot_os_gate_unlock(&shared->loading);
  return status;
}

static bool wants_timestamps(const aot_vulkan_options_t *options) {
  const char *setting = aot_vk_environment("AOT_VULKAN_TIMESTAMPS");
  return !options->no_timestamps && (setting == NULL || strcmp(setting, "0") != 0);
}

// Where dispatches are timed, the time of each must be its own.
static bool wants_overlap(const aot_device_t *device, const aot_vulkan_options_t *options) {
  const char *setting = aot_vk_environment("AOT_VULKAN_OVERLAP");
  return device->profile == NULL && !options->no_overlap &&
         (setting == NULL || strcmp(setting, "0") != 0);
}

#define DEFAULT_TIMEOUT_MS 60000u
#define NS_PER_MS ((uint64_t)1000000)

// Software is slow, but does not hang a display.
static uint64_t timeout_of(const aot_vk_gpu_t *gpu, const aot_vulkan_options_t *options) {
  const char *setting = aot_vk_environment("AOT_VULKAN_TIMEOUT_MS");
  uint64_t ms = options->timeout_ms;
  if (ms == 0 && setting != NULL) ms = strtoul(setting, NULL, 10) & UINT32_MAX;
  if (ms != 0) return ms * NS_PER_MS;
  const bool is_software = gpu->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
  return is_software ? UINT64_MAX : DEFAULT_TIMEOUT_MS * NS_PER_MS;
}

// Drivers have crashed on what an earlier version wrote to a cache, and on shaders.
static aot_status_t create_pipelines(aot_device_t *device, const aot_vulkan_options_t *options,
                                     const aot_entry_t *entry, aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  aot_vk_start_t start;
  aot_vk_cache_find(gpu, options, &device->cache);
  AOT_TRY(aot_vk_start_begin(gpu, device->cache.path, &device->allocator, error, &start));
  aot_vk_cache_open(gpu, &device->allocator, start.without_cache, &device->cache);
  const aot_status_t status = aot_vk_pipelines_open(
      gpu, device->module, device->variant, entry, options, device->descriptors.layout,
      device->cache.handle, &device->allocator, error, &device->pipelines);
  if (status == AOT_OK) aot_vk_cache_save(gpu, &device->allocator, &device->cache);
  aot_vk_start_end(&start);
  aot_vk_cache_tell(&device->cache, options, start.without_cache);
  return status;
}

static aot_status_t set_up(aot_device_t *device, const aot_program_options_t *options,
                           aot_error_t *error) {
  aot_vulkan_options_t taken;
  AOT_TRY(aot_vulkan_take_options(options, error, &taken));
  const aot_vulkan_options_t *own = &taken;
  const uint64_t start = aot_os_now_ns();
  const bool any = options->device == AOT_DEVICE_ANY && options->target == NULL;
  const aot_entry_t *entry = NULL;
  AOT_TRY(check_words(device->variant, error));
  AOT_TRY(aot_vk_host_check(device->variant, error));
  AOT_TRY(aot_vk_shared_open(device->module, device->variant, own, any, error, &device->shared));
  device->gpu = device->shared->gpu;
  device->is_unified = device->shared->is_unified;
  device->instance_ns = aot_os_now_ns() - start;
  device->profile = options->profile;
  device->profile_user = options->profile_user;
  device->has_timestamps =
      options->profile != NULL && device->gpu.timestamp_bits > 0 && wants_timestamps(own);
  device->has_overlap = wants_overlap(device, own);
  device->timeout_ns = timeout_of(&device->gpu, own);
  AOT_TRY(aot_variant_find_entry(device->variant, options->entry, error, &entry));
  AOT_TRY(aot_vk_descriptors_open(&device->gpu, device->variant, AOT_VK_MOST_RECORDINGS, error,
                                  &device->descriptors));
  AOT_TRY(create_pipelines(device, own, entry, error));
  AOT_TRY(create_pool_and_fence(device, error));
  AOT_TRY(aot_vk_host_open(device, options, error));
  return upload_constants(device, error);
}

// Whether a device that was given up is at its work still.  To wait for it, or to destroy what it
// uses, may take forever or crash: it is left alone, with all memory of the program on it.
static bool is_at_work(const aot_device_t *device) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  return device->is_hung &&
         gpu->vk.vkWaitForFences(gpu->device, 1, &device->fence, 1, 0) == VK_TIMEOUT;
}

// Drivers have threads, locks and files that the child of a fork does not share.
static bool is_others(const aot_device_t *device) {
  return device->shared != NULL && device->shared->process != aot_vk_process();
}

static aot_status_t check_process(aot_device_t *device, aot_error_t *error) {
  if (!is_others(device)) return AOT_OK;
  device->is_hung = true;
  return aot_fail(error, AOT_ERROR_DEVICE,
                  "vulkan: the device of a program is not in the child of a fork: make the program "
                  "there");
}

static void vulkan_close(aot_device_t *device) {
  const aot_allocator_t allocator = device->allocator;
  const aot_vk_gpu_t *gpu = &device->gpu;
  if (is_others(device) || is_at_work(device)) {
    aot_vk_host_close(device);
    return;
  }
  // Something may be in flight after a failed wait.
  if (device->is_lost) (void)aot_vk_wait_idle(device);
  aot_vk_host_close(device);
  aot_vk_free_recordings(device);
  aot_vk_log_free(&device->log, &allocator);
  for (uint32_t i = 0; i < AOT_FBS_BUFFER_CLASS_COUNT; ++i) {
    if (i != AOT_FBS_BUFFER_CLASS_CONSTANTS) aot_vk_buffer_destroy(gpu, &device->buffers[i]);
  }
  aot_vk_buffer_destroy(gpu, &device->upload);
  aot_vk_buffer_destroy(gpu, &device->readback);
  aot_vk_buffer_destroy(gpu, &device->mirror);
  aot_vk_imports_free(device);
  aot_vk_pipelines_close(gpu, &allocator, &device->pipelines);
  aot_vk_cache_close(gpu, &device->cache);
  if (gpu->device != NULL) {
    gpu->vk.vkDestroyFence(gpu->device, device->fence, NULL);
    aot_vk_descriptors_close(gpu, &device->descriptors);
    gpu->vk.vkDestroyCommandPool(gpu->device, device->command_pool, NULL);
  }
  aot_vk_shared_close(device->module, device->shared);
  aot_release(&allocator, device, sizeof *device);
}

// Which device runs the variant, or why none does.
static void tell_of_opening(const aot_device_t *device, const aot_program_options_t *options,
                            const aot_error_t *reason) {
  aot_vulkan_options_t own;
  if (aot_vulkan_take_options(options, NULL, &own) != AOT_OK) return;
  if (reason->status == AOT_OK) {
    aot_vk_tell(&own, AOT_VULKAN_INFO, "vulkan: %s runs %s", device->gpu.properties.deviceName,
                device->variant->target);
  } else {
    aot_vk_tell(&own, AOT_VULKAN_WARNING, "%s is passed over: %s", device->variant->target,
                reason->message);
  }
}

static aot_status_t vulkan_open(const aot_module_t *module, const aot_variant_t *variant,
                                const aot_program_options_t *options,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_device_t **out_device) {
  *out_device = NULL;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, sizeof(aot_device_t), "the device", error, &memory));
  memset(memory, 0, sizeof(aot_device_t));
  aot_device_t *device = memory;
  device->module = module;
  device->variant = variant;
  device->allocator = *allocator;
  aot_error_t reason = {AOT_OK, ""};
  const aot_status_t status = set_up(device, options, &reason);
  tell_of_opening(device, options, &reason);
  if (status != AOT_OK) {
    vulkan_close(device);
    return aot_fail(error, status, "%s", reason.message);
  }
  *out_device = device;
  return AOT_OK;
}

static void vulkan_get_info(const aot_device_t *device, aot_program_info_t *info) {
  info->threads = 1;
  if (device->host != NULL) aot_cpu_driver.get_info(device->host, info);
  info->arena_bytes = device->arena_bytes;
  for (uint32_t i = 0; i < device->pipelines.count; ++i) {
    const uint32_t executable = device->pipelines.pipelines[i].executable;
    info->code_bytes +=
        aot_vk_shader_of(&device->gpu, device->module, &device->variant->executables[executable])
            ->length;
  }
}

// ---- memory ----

// What is kept between two runs is never in the mirror alone.
static aot_status_t create_mirror(const aot_device_t *device, uint64_t bytes, aot_error_t *error,
                                  aot_vk_buffer_t *out_mirror) {
  if (device->host == NULL || device->is_unified) return AOT_OK;
  return aot_vk_buffer_create(&device->gpu, AOT_VK_PLACE_READBACK, bytes, STAGING,
                              "the host's image of the arena", error, out_mirror);
}

static aot_status_t vulkan_reserve(aot_device_t *device, uint64_t arena_bytes, uint64_t kept_bytes,
                                   aot_error_t *error) {
  aot_vk_buffer_t *arena = &device->buffers[AOT_FBS_BUFFER_CLASS_ARENA];
  if (arena->bytes > 0 && arena_bytes <= device->arena_bytes) return AOT_OK;
  AOT_TRY(check_process(device, error));
  aot_vk_forget_recordings(device);
  if (kept_bytes == 0) {
    aot_vk_buffer_destroy(&device->gpu, arena);
    aot_vk_buffer_destroy(&device->gpu, &device->mirror);
    device->arena_bytes = 0;
  }
  aot_vk_buffer_t grown;
  aot_vk_buffer_t mirror = {.bytes = 0};
  AOT_TRY(
      create_class(device, AOT_FBS_BUFFER_CLASS_ARENA, arena_bytes, "the arena", error, &grown));
  aot_status_t status = create_mirror(device, arena_bytes, error, &mirror);
  if (status == AOT_OK && kept_bytes > 0) {
    status = aot_vk_copy_now(device, &grown, 0, arena, 0, (kept_bytes + 3) & ~(uint64_t)3, error);
  }
  // The host may read what was kept before anything else is submitted.
  if (status == AOT_OK && device->host != NULL && grown.mapped != NULL) {
    status = aot_vk_buffer_invalidate(&device->gpu, &grown, error);
  }
  if (status != AOT_OK) {
    destroy_copied(device, &grown);
    destroy_copied(device, &mirror);
    return status;
  }
  aot_vk_buffer_destroy(&device->gpu, arena);
  aot_vk_buffer_destroy(&device->gpu, &device->mirror);
  *arena = grown;
  device->mirror = mirror;
  device->arena_bytes = arena_bytes;
  return AOT_OK;
}

// One after the other in the class's buffer.  Returns how long that is.
static uint64_t lay_out(aot_binding_t *bindings, uint32_t count) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    end = (end + AOT_ALIGNMENT - 1) & ~(uint64_t)(AOT_ALIGNMENT - 1);
    bindings[i].offset = (uintptr_t)end;
    end += bindings[i].bytes;
  }
  return end;
}

static aot_status_t reserve_class(aot_device_t *device, uint32_t buffer_class, uint64_t bytes,
                                  const char *what, aot_error_t *error) {
  aot_vk_buffer_t *buffer = &device->buffers[buffer_class];
  const bool is_output = buffer_class == AOT_FBS_BUFFER_CLASS_OUTPUTS;
  aot_vk_buffer_t *staging = is_output ? &device->readback : &device->upload;
  if (buffer->bytes > 0 && bytes <= buffer->bytes && (device->is_unified || staging->bytes > 0)) {
    return AOT_OK;
  }
  aot_vk_forget_recordings(device);
  aot_vk_buffer_destroy(&device->gpu, buffer);
  aot_vk_buffer_destroy(&device->gpu, staging);
  AOT_TRY(create_class(device, buffer_class, bytes, what, error, buffer));
  if (device->is_unified) return AOT_OK;
  // The CPU reads inputs from there, where it runs a part, and writes outputs.
  const bool is_read = is_output || device->host != NULL;
  return aot_vk_buffer_create(&device->gpu, is_read ? AOT_VK_PLACE_READBACK : AOT_VK_PLACE_UPLOAD,
                              buffer->bytes + AOT_VK_LOAD_BYTES, STAGING, what, error, staging);
}

// ---- a run ----

static aot_status_t add_whole(aot_device_t *device, aot_vk_op_t op, uint64_t bytes,
                              aot_error_t *error) {
  uint32_t *operands = NULL;
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, op, 2, error, &operands));
  aot_vk_put_u64(operands, bytes);
  return AOT_OK;
}

static aot_status_t vulkan_begin(aot_device_t *device, aot_bindings_t *bindings,
                                 aot_error_t *error) {
  AOT_TRY(check_process(device, error));
  aot_vk_log_clear(&device->log);
  device->bindings = bindings;
  const uint64_t input_bytes = lay_out(bindings->inputs, bindings->input_count);
  const uint64_t output_bytes = lay_out(bindings->outputs, bindings->output_count);
  AOT_TRY(reserve_class(device, AOT_FBS_BUFFER_CLASS_INPUTS, input_bytes, "the inputs", error));
  AOT_TRY(reserve_class(device, AOT_FBS_BUFFER_CLASS_OUTPUTS, output_bytes, "the outputs", error));
  uint8_t *memory = device->is_unified ? device->buffers[AOT_FBS_BUFFER_CLASS_INPUTS].mapped
                                       : device->upload.mapped;
  for (uint32_t i = 0; i < bindings->input_count; ++i) {
    const aot_binding_t *binding = &bindings->inputs[i];
    if (binding->bytes == 0 || binding->outside.buffer != 0) continue;
    memcpy(memory + binding->offset, (const void *)binding->address, binding->bytes);
  }
  AOT_TRY(aot_vk_host_begin(device, error));
  if (!device->is_unified && aot_vk_has_hosts(bindings->inputs, bindings->input_count)) {
    AOT_TRY(add_whole(device, AOT_VK_OP_UPLOAD, input_bytes, error));
  }
  return aot_vk_add_imports(device, error);
}

// Around each launch: what instruction it is, and, where only the host can time it, a submission
// of its own.
static bool is_timed_by_host(const aot_device_t *device) {
  return device->profile != NULL && !device->has_timestamps;
}

static aot_status_t begin_launch(aot_device_t *device, aot_error_t *error) {
  AOT_TRY(is_timed_by_host(device) ? aot_vk_submit(device, error)
                                   : aot_vk_make_room(device, error));
  if (device->profile == NULL) return AOT_OK;
  return aot_vk_log_add_launch(&device->log, &device->allocator, device->bindings->word, error);
}

static aot_status_t end_launch(aot_device_t *device, aot_error_t *error) {
  return is_timed_by_host(device) ? aot_vk_submit(device, error) : AOT_OK;
}

static aot_status_t check_grid(const aot_device_t *device, uint32_t executable, aot_grid_t *grid,
                               aot_error_t *error) {
  const uint32_t *most = device->gpu.properties.limits.maxComputeWorkGroupCount;
  int axis = grid->y > most[1] ? 1 : grid->z > most[2] ? 2 : -1;
  if (grid->x > GRID_ROW) {
    const uint64_t rows = ((uint64_t)grid->x + GRID_ROW - 1) / GRID_ROW;
    if (grid->z != 1 || rows > most[2]) axis = 0;
    grid->x = GRID_ROW;
    grid->z = (uint32_t)rows;
  }
  if (axis < 0) return AOT_OK;
  return aot_fail(
      error, AOT_ERROR_UNSUPPORTED,
      "vulkan: executable \"%s\": more workgroups than %s's maxComputeWorkGroupCount[%d]",
      device->variant->executables[executable].name, device->gpu.properties.deviceName, axis);
}

// A system ends what keeps its GPU for long, often after two seconds, and a display stands still
// meanwhile.
#define MOST_SUBMITTED_NS 1e8

// Before a dispatch: submits what came before it where both together would take too long.
static aot_status_t make_time(aot_device_t *device, uint32_t executable, const aot_grid_t *grid,
                              aot_error_t *error) {
  const double each = device->variant->executables[executable].group_ns;
  const double price = each * (double)grid->x * (double)grid->y * (double)grid->z;
  if (device->log.priced_ns > 0 && device->log.priced_ns + price > MOST_SUBMITTED_NS) {
    AOT_TRY(aot_vk_submit(device, error));
  }
  device->log.priced_ns += price;
  return AOT_OK;
}

static aot_status_t vulkan_dispatch(aot_device_t *device, uint32_t executable, const void *params,
                                    aot_grid_t grid, aot_error_t *error) {
  const uint32_t words = device->variant->executables[executable].param_words;
  uint32_t *operands = NULL;
  if (aot_executable_is_code(&device->variant->executables[executable])) {
    return aot_vk_host_dispatch(device, executable, params, grid, error);
  }
  AOT_TRY(check_grid(device, executable, &grid, error));
  AOT_TRY(make_time(device, executable, &grid, error));
  AOT_TRY(begin_launch(device, error));
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, AOT_VK_OP_DISPATCH, 5 + (size_t)words,
                         error, &operands));
  operands[0] = executable;
  operands[1] = device->has_overlap && device->bindings->is_beside;
  operands[2] = grid.x;
  operands[3] = grid.y;
  operands[4] = grid.z;
  if (words > 0) memcpy(operands + 5, params, 4 * (size_t)words);
  return end_launch(device, error);
}

static aot_status_t add_copy(aot_device_t *device, aot_place_t to, aot_place_t from, uint64_t bytes,
                             aot_error_t *error) {
  uint32_t *operands = NULL;
  AOT_TRY(begin_launch(device, error));
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, AOT_VK_OP_COPY, 8, error, &operands));
  operands[0] = to.buffer_class;
  aot_vk_put_u64(operands + 1, to.offset);
  operands[3] = from.buffer_class;
  aot_vk_put_u64(operands + 4, from.offset);
  aot_vk_put_u64(operands + 6, bytes);
  return end_launch(device, error);
}

static aot_status_t vulkan_copy(aot_device_t *device, aot_place_t to, aot_place_t from,
                                size_t bytes, aot_error_t *error) {
  const uint64_t distance =
      to.offset < from.offset ? from.offset - to.offset : to.offset - from.offset;
  if (to.buffer_class != from.buffer_class || distance >= bytes) {
    return add_copy(device, to, from, bytes, error);
  }
  // A copy must not overlap itself: pieces of the distance's length don't, in the right order.
  for (uint64_t done = 0; distance > 0 && done < bytes; done += distance) {
    const uint64_t count = bytes - done < distance ? bytes - done : distance;
    const uint64_t at = to.offset < from.offset ? done : bytes - done - count;
    const aot_place_t piece_to = {to.buffer_class, to.offset + at};
    const aot_place_t piece_from = {from.buffer_class, from.offset + at};
    AOT_TRY(add_copy(device, piece_to, piece_from, count, error));
  }
  return AOT_OK;
}

static aot_status_t vulkan_fill(aot_device_t *device, aot_place_t to, size_t bytes,
                                uint32_t pattern, aot_error_t *error) {
  uint32_t *operands = NULL;
  AOT_TRY(begin_launch(device, error));
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, AOT_VK_OP_FILL, 6, error, &operands));
  operands[0] = to.buffer_class;
  aot_vk_put_u64(operands + 1, to.offset);
  aot_vk_put_u64(operands + 3, bytes);
  operands[5] = pattern;
  return end_launch(device, error);
}

static aot_status_t add_place(aot_device_t *device, aot_vk_op_t op, aot_place_t place,
                              uint64_t bytes, aot_error_t *error) {
  uint32_t *operands = NULL;
  AOT_TRY(aot_vk_log_add(&device->log, &device->allocator, op, 5, error, &operands));
  operands[0] = place.buffer_class;
  aot_vk_put_u64(operands + 1, place.offset);
  aot_vk_put_u64(operands + 3, bytes);
  return AOT_OK;
}

static aot_status_t vulkan_store(aot_device_t *device, aot_place_t to, size_t bytes, uint64_t value,
                                 aot_error_t *error) {
  AOT_TRY(aot_vk_make_room(device, error));
  AOT_TRY(aot_vk_log_add_value(&device->log, &device->allocator, value, error));
  return add_place(device, AOT_VK_OP_STORE, to, bytes, error);
}

// What no run ever writes lies in the host's memory already.
static const uint8_t *host_memory(const aot_device_t *device, aot_place_t from, size_t bytes) {
  if (from.buffer_class == AOT_FBS_BUFFER_CLASS_CONSTANTS) {
    return device->module->data + device->module->rodata.offset + from.offset;
  }
  for (uint32_t i = 0;
       from.buffer_class == AOT_FBS_BUFFER_CLASS_INPUTS && i < device->bindings->input_count; ++i) {
    const aot_binding_t *input = &device->bindings->inputs[i];
    if (input->outside.buffer == 0 && from.offset >= input->offset &&
        from.offset + bytes <= input->offset + input->bytes) {
      return (const uint8_t *)input->address + (from.offset - input->offset);
    }
  }
  return NULL;
}

static aot_status_t vulkan_load(aot_device_t *device, aot_place_t from, size_t bytes, void *memory,
                                aot_error_t *error) {
  const uint8_t *source = host_memory(device, from, bytes);
  if (source != NULL) {
    memcpy(memory, source, bytes);
    return AOT_OK;
  }
  device->reads_back = true;
  if (device->is_unified) {
    AOT_TRY(aot_vk_submit(device, error));
    source = device->buffers[from.buffer_class].mapped + from.offset;
  } else {
    AOT_TRY(add_place(device, AOT_VK_OP_LOAD, from, bytes, error));
    AOT_TRY(aot_vk_submit(device, error));
    source = device->readback.mapped + device->readback.bytes - AOT_VK_LOAD_BYTES;
  }
  memcpy(memory, source, bytes);
  return AOT_OK;
}

static aot_status_t vulkan_end(aot_device_t *device, aot_error_t *error) {
  const aot_bindings_t *bindings = device->bindings;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < bindings->output_count; ++i) {
    const aot_binding_t *binding = &bindings->outputs[i];
    if (binding->bytes > 0) bytes = (uint64_t)binding->offset + binding->bytes;
  }
  if (!device->is_unified && aot_vk_has_hosts(bindings->outputs, bindings->output_count)) {
    AOT_TRY(add_whole(device, AOT_VK_OP_DOWNLOAD, bytes, error));
  }
  AOT_TRY(aot_vk_add_exports(device, error));
  AOT_TRY(aot_vk_submit(device, error));
  const uint8_t *memory = device->is_unified ? device->buffers[AOT_FBS_BUFFER_CLASS_OUTPUTS].mapped
                                             : device->readback.mapped;
  for (uint32_t i = 0; i < bindings->output_count; ++i) {
    const aot_binding_t *binding = &bindings->outputs[i];
    if (binding->bytes == 0 || binding->outside.buffer != 0) continue;
    memcpy((void *)binding->address, memory + binding->offset, binding->bytes);
  }
  return AOT_OK;
}

const aot_driver_t aot_vulkan_driver = {
    .name = "vulkan",
    .device = AOT_FBS_DEVICE_VULKAN,
    .splits_overlaps = true,
    .check = vulkan_check,
    .open = vulkan_open,
    .close = vulkan_close,
    .get_info = vulkan_get_info,
    .reserve = vulkan_reserve,
    .begin = vulkan_begin,
    .dispatch = vulkan_dispatch,
    .copy = vulkan_copy,
    .fill = vulkan_fill,
    .load = vulkan_load,
    .store = vulkan_store,
    .hand_over = aot_vk_host_hand_over,
    .end = vulkan_end,
};

// ---- aot/vulkan.h ----

static const aot_device_t *device_of(const aot_program_t *program) {
  return program != NULL && program->driver == &aot_vulkan_driver ? program->device : NULL;
}

static uint64_t device_bytes(const aot_device_t *device) {
  uint64_t bytes =
      device->upload.memory_bytes + device->readback.memory_bytes + device->mirror.memory_bytes;
  for (uint32_t i = 0; i < AOT_FBS_BUFFER_CLASS_COUNT; ++i)
    bytes += device->buffers[i].memory_bytes;
  for (uint32_t i = 0; i < AOT_VK_MOST_RECORDINGS; ++i)
    bytes += device->recordings[i].params.memory_bytes;
  return bytes;
}

bool aot_vulkan_get_info(const aot_program_t *program, aot_vulkan_info_t *out_info) {
  if (aot_struct_clear(out_info, "aot_vulkan_info_t", NULL) != AOT_OK) return false;
  const aot_device_t *device = device_of(program);
  if (device == NULL) return false;
  const VkPhysicalDeviceProperties *properties = &device->gpu.properties;
  const aot_vulkan_info_t info = {
      .device_name = properties->deviceName,
      .cache_path = device->cache.path,
      .api_version = properties->apiVersion,
      .driver_version = properties->driverVersion,
      .vendor = properties->vendorID,
      .device_type = (uint32_t)properties->deviceType,
      .cache = device->cache.state,
      .cache_was_written = device->cache.was_written,
      .is_unified = device->is_unified,
      .has_timestamps = device->gpu.timestamp_bits > 0,
      .reads_texels = device->gpu.reads_texels,
      .pipeline_count = device->pipelines.count,
      .recording_count = device->recording_count,
      .submit_count = device->submit_count,
      .instance_ns = device->instance_ns,
      .pipelines_ns = device->pipelines.total_ns,
      .upload_ns = device->upload_ns,
      .device_bytes = device_bytes(device),
      .sharing_count = aot_vk_shared_count(device->module, device->shared)};
  aot_struct_give(&info, sizeof info, out_info);
  return true;
}

bool aot_vulkan_get_pipeline(const aot_program_t *program, size_t index,
                             aot_vulkan_pipeline_t *out_pipeline) {
  if (aot_struct_clear(out_pipeline, "aot_vulkan_pipeline_t", NULL) != AOT_OK) return false;
  const aot_device_t *device = device_of(program);
  if (device == NULL || index >= device->pipelines.count) return false;
  const aot_vk_pipeline_t *pipeline = &device->pipelines.pipelines[index];
  const aot_executable_t *executable = &device->variant->executables[pipeline->executable];
  const aot_vulkan_pipeline_t found = {
      .executable = executable->name,
      .words = (uint32_t)(aot_vk_shader_of(&device->gpu, device->module, executable)->length / 4),
      .create_ns = pipeline->create_ns};
  aot_struct_give(&found, sizeof found, out_pipeline);
  return true;
}
