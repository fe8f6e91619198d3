// Recordings of logs, and their way to the device.  Nothing is in flight between two calls.
#include "recording.h"

#include <string.h>

#include "host_buffers.h"
#include "os.h"
#include "outside.h"
#include "recorder.h"
#include "status.h"
#include "xxh64.h"

// ---- recordings ----

static aot_status_t allocate_handles(aot_device_t *device, aot_vk_recording_t *recording,
                                     aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  if (recording->commands == NULL) {
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = device->command_pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1};
    VkCommandBuffer commands = NULL;
    AOT_VK_TRY(error, &gpu->vk, vkAllocateCommandBuffers, gpu->device, &info, &commands);
    recording->commands = commands;
  }
  if (recording->set != VK_NULL_HANDLE) return AOT_OK;
  return aot_vk_descriptors_allocate(gpu, &device->descriptors, device->descriptors.pool, error,
                                     &recording->set);
}

// The buffer of blocks and values, and the timestamps, large enough.
static aot_status_t reserve(aot_device_t *device, aot_vk_recording_t *recording,
                            const aot_vk_needs_t *needs, aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const uint64_t bytes =
      needs->block_bytes + (needs->stores + needs->literals) * AOT_VK_VALUE_BYTES;
  recording->values_offset = needs->block_bytes;
  if (bytes > recording->params.bytes) {
    aot_vk_buffer_destroy(gpu, &recording->params);
    AOT_TRY(
        aot_vk_buffer_create(gpu, AOT_VK_PLACE_UPLOAD, bytes,
                             VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
                             "parameters", error, &recording->params));
  }
  if (needs->windows > 0) {
    gpu->vk.vkDestroyDescriptorPool(gpu->device, recording->windows, NULL);
    AOT_TRY(aot_vk_descriptors_pool(gpu, &device->descriptors, needs->windows, error,
                                    &recording->windows));
  }
  const uint32_t queries = needs->launches + 1;
  if (!device->has_timestamps || queries <= recording->query_count) return AOT_OK;
  gpu->vk.vkDestroyQueryPool(gpu->device, recording->queries, NULL);
  recording->queries = VK_NULL_HANDLE;
  recording->query_count = 0;
  const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                      .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                      .queryCount = queries};
  VkQueryPool pool = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreateQueryPool, gpu->device, &info, NULL, &pool);
  recording->queries = pool;
  recording->query_count = queries;
  return AOT_OK;
}

// The recording of this very log, else the slot for it: an unused one, or the oldest.
static aot_vk_recording_t *find(aot_device_t *device, uint64_t hash) {
  const size_t bytes = device->log.count * sizeof *device->log.words;
  aot_vk_recording_t *slot = &device->recordings[0];
  for (uint32_t i = 0; i < AOT_VK_MOST_RECORDINGS; ++i) {
    aot_vk_recording_t *other = &device->recordings[i];
    if (other->is_valid && other->hash == hash && other->words_bytes == bytes &&
        memcmp(other->words, device->log.words, bytes) == 0) {
      return other;
    }
    if (slot->is_valid && (!other->is_valid || other->last_use < slot->last_use)) slot = other;
  }
  slot->is_valid = false;
  return slot;
}

// Room for a log of so many bytes; words that are there stay.
static aot_status_t make_room(aot_device_t *device, aot_vk_recording_t *recording, size_t bytes,
                              const aot_vk_needs_t *needs, aot_error_t *error) {
  if (bytes > recording->room) {
    void *words = NULL;
    AOT_TRY(aot_allocate(&device->allocator, bytes, "recorded commands", error, &words));
    if (recording->is_valid) memcpy(words, recording->words, recording->words_bytes);
    aot_release(&device->allocator, recording->words, recording->room);
    recording->words = words;
    recording->room = bytes;
  }
  if (recording->is_valid) return AOT_OK;
  AOT_TRY(allocate_handles(device, recording, error));
  return reserve(device, recording, needs, error);
}

// Where what is read back decides how runs go on, the first run makes room for what the others
// leave: other extents make other logs, and those must not allocate.
static aot_status_t make_all_room(aot_device_t *device, const aot_vk_needs_t *needs,
                                  aot_error_t *error) {
  const size_t bytes = device->log.room * sizeof *device->log.words;
  for (uint32_t i = 0; i < AOT_VK_MOST_RECORDINGS; ++i)
    AOT_TRY(make_room(device, &device->recordings[i], bytes, needs, error));
  return AOT_OK;
}

static aot_status_t make(aot_device_t *device, aot_vk_recording_t *recording, uint64_t hash,
                         aot_error_t *error) {
  const size_t bytes = device->log.count * sizeof *device->log.words;
  const aot_vk_needs_t needs = aot_vk_measure(device);
  AOT_TRY(make_room(device, recording, bytes, &needs, error));
  if (device->reads_back) AOT_TRY(make_all_room(device, &needs, error));
  aot_vk_descriptors_write(&device->gpu, recording->set, device->buffers,
                           needs.block_bytes > 0 ? &recording->params : NULL);
  AOT_TRY(aot_vk_record_log(device, recording, &needs, error));
  memcpy(recording->words, device->log.words, bytes);
  recording->words_bytes = bytes;
  recording->hash = hash;
  recording->is_valid = true;
  ++device->recording_count;
  return AOT_OK;
}

// ---- submission ----

static aot_status_t flush(aot_device_t *device, const aot_vk_recording_t *recording,
                          aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  AOT_TRY(aot_vk_host_buffers_flush(device, error));
  if (recording != NULL && recording->params.mapped != NULL) {
    AOT_TRY(aot_vk_buffer_flush(gpu, &recording->params, error));
  }
  const aot_vk_buffer_t *inputs =
      device->is_unified ? &device->buffers[AOT_FBS_BUFFER_CLASS_INPUTS] : &device->upload;
  return inputs->mapped != NULL ? aot_vk_buffer_flush(gpu, inputs, error) : AOT_OK;
}

static aot_status_t invalidate(const aot_device_t *device, aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  AOT_TRY(aot_vk_host_buffers_invalidate(device, error));
  AOT_TRY(aot_vk_imports_invalidate(device, error));
  if (!device->is_unified) {
    return device->readback.mapped != NULL ? aot_vk_buffer_invalidate(gpu, &device->readback, error)
                                           : AOT_OK;
  }
  AOT_TRY(aot_vk_buffer_invalidate(gpu, &device->buffers[AOT_FBS_BUFFER_CLASS_ARENA], error));
  return aot_vk_buffer_invalidate(gpu, &device->buffers[AOT_FBS_BUFFER_CLASS_OUTPUTS], error);
}

VkResult aot_vk_wait_idle(const aot_device_t *device) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  aot_vk_shared_lock(device->shared);
  // The caller may use other queues of a device of its own.
  const VkResult result =
      gpu->is_callers ? gpu->vk.vkQueueWaitIdle(gpu->queue) : gpu->vk.vkDeviceWaitIdle(gpu->device);
  aot_vk_shared_unlock(device->shared);
  return result;
}

// No program that is made from now on takes the device.
static void lose(aot_device_t *device) {
  device->is_lost = true;
  aot_vk_shared_give_up(device->shared);
}

static VkResult submit_commands(const aot_device_t *device, const VkCommandBuffer *commands) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const VkSubmitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = commands};
  aot_vk_shared_lock(device->shared);
  const VkResult result = gpu->vk.vkQueueSubmit(gpu->queue, 1, &info, device->fence);
  aot_vk_shared_unlock(device->shared);
  return result;
}

static aot_status_t submit_and_wait(aot_device_t *device, VkCommandBuffer commands,
                                    aot_error_t *error) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  AOT_VK_TRY(error, &gpu->vk, vkResetFences, gpu->device, 1, &device->fence);
  VkResult result = submit_commands(device, &commands);
  if (result != VK_SUCCESS) {
    if (result == VK_ERROR_DEVICE_LOST) lose(device);
    return aot_vk_fail(result, "vkQueueSubmit", error);
  }
  ++device->submit_count;
  result = gpu->vk.vkWaitForFences(gpu->device, 1, &device->fence, 1, device->timeout_ns);
  if (result == VK_SUCCESS) return AOT_OK;
  if (result == VK_TIMEOUT) {
    device->is_hung = true;
    lose(device);
    return aot_fail(error, AOT_ERROR_DEVICE,
                    "vulkan: %s has not finished after %llu ms: it hangs, or needs more time "
                    "(AOT_VULKAN_TIMEOUT_MS)",
                    gpu->properties.deviceName, (unsigned long long)(device->timeout_ns / 1000000));
  }
  // It may run still, on buffers that the next run would write.
  if (result == VK_ERROR_DEVICE_LOST || aot_vk_wait_idle(device) != VK_SUCCESS) lose(device);
  return aot_vk_fail(result, "vkWaitForFences", error);
}

// ---- times ----

static aot_launch_t launch_of(const aot_device_t *device, const aot_vk_entry_t *entry) {
  aot_launch_t launch = {.threads = 1};
  if (entry->op == AOT_VK_OP_DISPATCH) {
    launch.kind = AOT_LAUNCH_DISPATCH;
    launch.executable = entry->operands[0];
    memcpy(launch.grid, entry->operands + 2, sizeof launch.grid);
    launch.name = device->variant->executables[launch.executable].name;
  } else {
    const bool is_copy = entry->op == AOT_VK_OP_COPY;
    launch.kind = is_copy ? AOT_LAUNCH_COPY : AOT_LAUNCH_FILL;
    launch.bytes = aot_vk_get_u64(entry->operands + (is_copy ? 6 : 3));
    launch.name = is_copy ? "copy" : "fill";
  }
  return launch;
}

// The timestamps of the launches, and one before; NULL without them.
static aot_status_t read_times(aot_device_t *device, const aot_vk_recording_t *recording,
                               aot_error_t *error, const uint64_t **out_times) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const uint32_t count = (uint32_t)device->log.launch_count + 1;
  const size_t bytes = count * sizeof(uint64_t);
  *out_times = NULL;
  if (!device->has_timestamps) return AOT_OK;
  if (bytes > device->times_bytes) {
    aot_release(&device->allocator, device->times, device->times_bytes);
    device->times = NULL;
    device->times_bytes = 0;
    AOT_TRY(aot_allocate(&device->allocator, bytes, "timestamps", error, &device->times));
    device->times_bytes = bytes;
  }
  AOT_VK_TRY(error, &gpu->vk, vkGetQueryPoolResults, gpu->device, recording->queries, 0, count,
             bytes, device->times, sizeof(uint64_t),
             VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
  *out_times = device->times;
  return AOT_OK;
}

// Tells of each launch.  Without timestamps there is one, which took the time from start to end.
static aot_status_t tell_profile(aot_device_t *device, const aot_vk_recording_t *recording,
                                 uint64_t start_ns, uint64_t end_ns, aot_error_t *error) {
  const aot_vk_log_t *log = &device->log;
  const uint64_t *times = NULL;
  AOT_TRY(read_times(device, recording, error, &times));
  const uint32_t bits = device->gpu.timestamp_bits;
  const uint64_t mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
  const double period = (double)device->gpu.properties.limits.timestampPeriod;
  size_t index = 0;
  aot_vk_entry_t entry;
  for (size_t at = 0; aot_vk_log_next(log->words, log->count, &at, &entry);) {
    if (entry.op > AOT_VK_OP_FILL) continue;
    aot_launch_t launch = launch_of(device, &entry);
    launch.word = log->launches[index];
    launch.start_ns = start_ns;
    launch.duration_ns = end_ns - start_ns;
    if (times != NULL) {
      launch.start_ns += (uint64_t)((double)((times[index] - times[0]) & mask) * period);
      launch.duration_ns = (uint64_t)((double)((times[index + 1] - times[index]) & mask) * period);
    }
    device->profile(device->profile_user, &launch);
    ++index;
  }
  return AOT_OK;
}

// ---- the interface ----

static aot_status_t submit(aot_device_t *device, aot_error_t *error) {
  const aot_vk_log_t *log = &device->log;
  if (device->is_lost) {
    return aot_fail(error, AOT_ERROR_DEVICE, "vulkan: the device is lost");
  }
  if (log->count == 0) return AOT_OK;
  const uint64_t hash = aot_xxh64(log->words, log->count * sizeof *log->words, 0);
  aot_vk_recording_t *recording = find(device, hash);
  if (!recording->is_valid) AOT_TRY(make(device, recording, hash, error));
  recording->last_use = ++device->use_count;
  if (log->value_count > 0) {
    memcpy(recording->params.mapped + recording->values_offset, log->values,
           log->value_count * sizeof *log->values);
  }
  AOT_TRY(flush(device, recording, error));
  const uint64_t start_ns = device->profile != NULL ? aot_os_now_ns() : 0;
  AOT_TRY(submit_and_wait(device, recording->commands, error));
  const uint64_t end_ns = device->profile != NULL ? aot_os_now_ns() : 0;
  AOT_TRY(invalidate(device, error));
  return device->profile != NULL ? tell_profile(device, recording, start_ns, end_ns, error)
                                 : AOT_OK;
}

aot_status_t aot_vk_submit(aot_device_t *device, aot_error_t *error) {
  const aot_status_t status = submit(device, error);
  aot_vk_log_clear(&device->log);
  return status;
}

aot_status_t aot_vk_make_room(aot_device_t *device, aot_error_t *error) {
  return device->log.count < AOT_VK_MOST_LOG_WORDS ? AOT_OK : aot_vk_submit(device, error);
}

void aot_vk_forget_recordings(aot_device_t *device) {
  for (uint32_t i = 0; i < AOT_VK_MOST_RECORDINGS; ++i)
    device->recordings[i].is_valid = false;
}

void aot_vk_free_recordings(aot_device_t *device) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  for (uint32_t i = 0; i < AOT_VK_MOST_RECORDINGS; ++i) {
    aot_vk_recording_t *recording = &device->recordings[i];
    aot_release(&device->allocator, recording->words, recording->room);
    aot_vk_buffer_destroy(gpu, &recording->params);
    // These are there only where the functions are.
    if (recording->windows != VK_NULL_HANDLE) {
      gpu->vk.vkDestroyDescriptorPool(gpu->device, recording->windows, NULL);
    }
    if (recording->query_count > 0) {
      gpu->vk.vkDestroyQueryPool(gpu->device, recording->queries, NULL);
    }
    memset(recording, 0, sizeof *recording);
  }
  aot_release(&device->allocator, device->times, device->times_bytes);
  device->times = NULL;
}

aot_status_t aot_vk_copy_now(aot_device_t *device, const aot_vk_buffer_t *to, uint64_t to_offset,
                             const aot_vk_buffer_t *from, uint64_t from_offset, uint64_t bytes,
                             aot_error_t *error) {
  // The slot's recording is lost, and made again when it is wanted.
  aot_vk_recording_t *recording = &device->recordings[0];
  recording->is_valid = false;
  AOT_TRY(allocate_handles(device, recording, error));
  AOT_TRY(aot_vk_record_copy(device, recording, to, to_offset, from, from_offset, bytes, error));
  return submit_and_wait(device, recording->commands, error);
}
