// From a log to commands: barriers, parameter blocks, transfers.
#include "recorder.h"

#include <string.h>

#include "host_buffers.h"
#include "status.h"

#define BLOCK_ALIGNMENT 16u
#define MOST_RANGES 8u

// What does something in a command buffer, and where it writes and reads.
typedef struct actor_t {
  VkPipelineStageFlags stage;
  VkAccessFlags writes;
  VkAccessFlags reads;
} actor_t;

static const actor_t shaders = {VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                                VK_ACCESS_SHADER_READ_BIT};
static const actor_t transfers = {VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                                  VK_ACCESS_TRANSFER_READ_BIT};
static const actor_t both = {VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                             VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                             VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT};
static const actor_t host = {VK_PIPELINE_STAGE_HOST_BIT, 0, VK_ACCESS_HOST_READ_BIT};

// What was touched since the last barrier.  The driver does not know which bytes a dispatch reads
// and writes, but the program says where that does not matter; of transfers it knows.
typedef struct range_t {
  uint32_t buffer_class;
  bool is_write;
  uint64_t begin;
  uint64_t end;
} range_t;

typedef struct recorder_t {
  aot_device_t *device;
  aot_vk_recording_t *recording;
  VkCommandBuffer commands;
  uint32_t pipeline;       // bound, or UINT32_MAX
  VkDescriptorSet set;     // bound
  uint64_t window;         // of parameter blocks, bound
  uint64_t block_end;      // of the parameter blocks so far
  uint64_t store_count;    // so far
  uint64_t literal_count;  // so far
  uint64_t first_literal;  // slot, behind those of the stores
  uint32_t query;          // the next
  bool has_dispatch;       // since the last barrier
  uint32_t range_count;
  range_t ranges[MOST_RANGES];
  aot_status_t status;  // of the first set that could not be made
  aot_error_t *error;
} recorder_t;

// ---- what a log takes ----

static const aot_executable_t *executable_of(const aot_device_t *device,
                                             const aot_vk_entry_t *entry) {
  return &device->variant->executables[entry->operands[0]];
}

// Where the next parameter block starts: it lies in one window.
static uint64_t place_block(uint64_t *block_end, const aot_executable_t *executable) {
  const uint64_t window = AOT_VK_PARAM_WINDOW_BYTES;
  const uint64_t bytes = 4 * (uint64_t)executable->param_words;
  uint64_t begin = (*block_end + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
  if (begin % window + bytes > window) begin = (begin / window + 1) * window;
  *block_end = begin + bytes;
  return begin;
}

aot_vk_needs_t aot_vk_measure(const aot_device_t *device) {
  const aot_vk_log_t *log = &device->log;
  aot_vk_needs_t needs = {0, 0, 0, 0, 0};
  uint64_t block_end = 0;
  aot_vk_entry_t entry;
  for (size_t at = 0; aot_vk_log_next(log->words, log->count, &at, &entry);) {
    const bool is_launch =
        entry.op == AOT_VK_OP_DISPATCH || entry.op == AOT_VK_OP_COPY || entry.op == AOT_VK_OP_FILL;
    if (is_launch) ++needs.launches;
    if (entry.op == AOT_VK_OP_STORE) ++needs.stores;
    if (entry.op == AOT_VK_OP_FILL) needs.literals += 2;
    if (entry.op != AOT_VK_OP_DISPATCH) continue;
    const aot_executable_t *executable = executable_of(device, &entry);
    if (executable->window_count > 0) ++needs.windows;
    if (executable->param_buffer_bytes != 0) (void)place_block(&block_end, executable);
  }
  const uint64_t window = AOT_VK_PARAM_WINDOW_BYTES;
  needs.block_bytes = (block_end + window - 1) / window * window;
  return needs;
}

// ---- barriers ----

// What comes next waits for all that came before; what came since the last barrier was done by
// `from`.
static void barrier(recorder_t *r, const actor_t *from, const actor_t *to) {
  const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                  .srcAccessMask = from->writes,
                                  .dstAccessMask = to->reads | to->writes};
  r->device->gpu.vk.vkCmdPipelineBarrier(r->commands, from->stage, to->stage, 0, 1, &memory, 0,
                                         NULL, 0, NULL);
  r->has_dispatch = false;
  r->range_count = 0;
}

// Who did something since the last barrier: transfers never follow a dispatch without one, nor the
// other way round.
static const actor_t *recent(const recorder_t *r) {
  return r->has_dispatch ? &shaders : &transfers;
}

static void before_dispatch(recorder_t *r, bool is_beside) {
  const bool is_after_dispatch = r->has_dispatch;
  const bool is_first = !is_after_dispatch && r->range_count == 0;
  if (!is_first && !(is_after_dispatch && is_beside)) barrier(r, recent(r), &shaders);
  r->has_dispatch = true;
}

static bool conflicts(const recorder_t *r, const range_t *range) {
  for (uint32_t i = 0; i < r->range_count; ++i) {
    const range_t *other = &r->ranges[i];
    if (other->buffer_class == range->buffer_class && (other->is_write || range->is_write) &&
        other->begin < range->end && range->begin < other->end) {
      return true;
    }
  }
  return r->has_dispatch;
}

// Before a transfer that reads `from`, where there is one, and writes `to`.
static void before_transfer(recorder_t *r, const range_t *to, const range_t *from) {
  if (r->range_count + 2 > MOST_RANGES || conflicts(r, to) ||
      (from != NULL && conflicts(r, from))) {
    barrier(r, recent(r), &transfers);
  }
  r->ranges[r->range_count++] = *to;
  if (from != NULL) r->ranges[r->range_count++] = *from;
}

// ---- entries ----

static void copy_buffer(const recorder_t *r, VkBuffer to, uint64_t to_offset, VkBuffer from,
                        uint64_t from_offset, uint64_t bytes) {
  const VkBufferCopy region = {.srcOffset = from_offset, .dstOffset = to_offset, .size = bytes};
  r->device->gpu.vk.vkCmdCopyBuffer(r->commands, from, to, 1, &region);
}

static void bind(recorder_t *r, VkDescriptorSet set, uint64_t window) {
  const aot_device_t *device = r->device;
  const uint32_t offset = (uint32_t)(window * AOT_VK_PARAM_WINDOW_BYTES);
  if (set == r->set && window == r->window) return;
  device->gpu.vk.vkCmdBindDescriptorSets(r->commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                         device->pipelines.layout, 0, 1, &set, 1, &offset);
  r->set = set;
  r->window = window;
}

// The set of a dispatch, whose parameter block is changed where it has windows.
static VkDescriptorSet set_of(recorder_t *r, const aot_executable_t *executable, uint32_t *block) {
  const aot_device_t *device = r->device;
  VkDescriptorSet set = VK_NULL_HANDLE;
  if (executable->window_count == 0 || r->status != AOT_OK) return r->recording->set;
  r->status = aot_vk_descriptors_allocate(&device->gpu, &device->descriptors, r->recording->windows,
                                          r->error, &set);
  if (r->status != AOT_OK) return r->recording->set;
  const aot_vk_buffer_t *params = &r->recording->params;
  aot_vk_descriptors_write(&device->gpu, set, device->buffers,
                           executable->param_buffer_bytes != 0 ? params : NULL);
  aot_vk_descriptors_write_windows(&device->gpu, set, device->buffers, executable, block);
  return set;
}

static void bind_pipeline(recorder_t *r, uint32_t executable) {
  const aot_vk_pipelines_t *pipelines = &r->device->pipelines;
  const uint32_t pipeline = pipelines->of_executable[executable];
  if (pipeline == r->pipeline) return;
  r->device->gpu.vk.vkCmdBindPipeline(r->commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                      pipelines->pipelines[pipeline].handle);
  r->pipeline = pipeline;
}

// Binds the parameter block of a dispatch, and the set that it reads.
static void bind_block(recorder_t *r, const aot_executable_t *executable, const uint32_t *params) {
  const aot_device_t *device = r->device;
  uint32_t pushed[AOT_VK_MOST_WINDOW_PUSH_WORDS];
  uint32_t push_bytes = 4 * executable->param_words;
  if (executable->param_buffer_bytes != 0) {
    const uint64_t at = place_block(&r->block_end, executable);
    uint32_t *block = (uint32_t *)(void *)(r->recording->params.mapped + at);
    memcpy(block, params, push_bytes);
    bind(r, set_of(r, executable, block), at / AOT_VK_PARAM_WINDOW_BYTES);
    pushed[0] = (uint32_t)(at % AOT_VK_PARAM_WINDOW_BYTES / 4);
    params = pushed;
    push_bytes = sizeof pushed[0];
  } else if (executable->window_count > 0) {
    memcpy(pushed, params, push_bytes);
    bind(r, set_of(r, executable, pushed), 0);
    params = pushed;
  } else if (r->set != r->recording->set) {
    bind(r, r->recording->set, 0);
  }
  if (push_bytes == 0) return;
  device->gpu.vk.vkCmdPushConstants(r->commands, device->pipelines.layout,
                                    VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, params);
}

static void record_dispatch(recorder_t *r, const aot_vk_entry_t *entry) {
  const uint32_t *grid = entry->operands + 2;
  before_dispatch(r, entry->operands[1] != 0);
  bind_pipeline(r, entry->operands[0]);
  bind_block(r, executable_of(r->device, entry), entry->operands + 5);
  r->device->gpu.vk.vkCmdDispatch(r->commands, grid[0], grid[1], grid[2]);
}

// Copies from a slot of the values.
static void copy_value(recorder_t *r, uint64_t slot, uint32_t to_class, uint64_t offset,
                       uint64_t bytes) {
  copy_buffer(r, r->device->buffers[to_class].handle, offset, r->recording->params.handle,
              r->recording->values_offset + slot * AOT_VK_VALUE_BYTES, bytes);
}

static void copy_literal(recorder_t *r, uint32_t pattern, uint32_t to_class, uint64_t offset,
                         uint64_t bytes) {
  const uint64_t slot = r->first_literal + r->literal_count++;
  if (bytes == 0) return;
  memcpy(r->recording->params.mapped + r->recording->values_offset + slot * AOT_VK_VALUE_BYTES,
         &pattern, sizeof pattern);
  copy_value(r, slot, to_class, offset, bytes);
}

// vkCmdFillBuffer wants whole words; what is left at both ends is copied.
static void record_fill(recorder_t *r, const aot_vk_entry_t *entry) {
  const uint32_t to_class = entry->operands[0];
  const uint64_t begin = aot_vk_get_u64(entry->operands + 1);
  const uint64_t bytes = aot_vk_get_u64(entry->operands + 3);
  const uint32_t pattern = entry->operands[5];
  const range_t to = {to_class, true, begin, begin + bytes};
  before_transfer(r, &to, NULL);
  uint64_t head = (4 - begin % 4) % 4;
  if (head > bytes) head = bytes;
  const uint64_t middle = (bytes - head) & ~(uint64_t)3;
  const uint32_t shift = (uint32_t)(8 * head);
  const uint32_t turned = shift == 0 ? pattern : pattern >> shift | pattern << (32 - shift);
  copy_literal(r, pattern, to_class, begin, head);
  if (middle > 0) {
    r->device->gpu.vk.vkCmdFillBuffer(r->commands, r->device->buffers[to_class].handle,
                                      begin + head, middle, turned);
  }
  copy_literal(r, turned, to_class, begin + head + middle, bytes - head - middle);
}

static void record_copy(recorder_t *r, const aot_vk_entry_t *entry) {
  const uint32_t to_class = entry->operands[0];
  const uint64_t to_offset = aot_vk_get_u64(entry->operands + 1);
  const uint32_t from_class = entry->operands[3];
  const uint64_t from_offset = aot_vk_get_u64(entry->operands + 4);
  const uint64_t bytes = aot_vk_get_u64(entry->operands + 6);
  const range_t to = {to_class, true, to_offset, to_offset + bytes};
  const range_t from = {from_class, false, from_offset, from_offset + bytes};
  before_transfer(r, &to, &from);
  copy_buffer(r, r->device->buffers[to_class].handle, to_offset,
              r->device->buffers[from_class].handle, from_offset, bytes);
}

static void record_transfer(recorder_t *r, const aot_vk_entry_t *entry) {
  const aot_device_t *device = r->device;
  const uint32_t *operands = entry->operands;
  const bool is_whole = entry->op == AOT_VK_OP_UPLOAD || entry->op == AOT_VK_OP_DOWNLOAD;
  const uint32_t buffer_class = entry->op == AOT_VK_OP_UPLOAD     ? AOT_FBS_BUFFER_CLASS_INPUTS
                                : entry->op == AOT_VK_OP_DOWNLOAD ? AOT_FBS_BUFFER_CLASS_OUTPUTS
                                                                  : operands[0];
  const uint64_t offset = is_whole ? 0 : aot_vk_get_u64(operands + 1);
  const uint64_t bytes = aot_vk_get_u64(is_whole ? operands : operands + 3);
  const bool is_read = entry->op == AOT_VK_OP_DOWNLOAD || entry->op == AOT_VK_OP_LOAD;
  // What goes to the host is written there, at the same place.
  const range_t range = {buffer_class, !is_read, offset, offset + bytes};
  const VkBuffer handle = device->buffers[buffer_class].handle;
  before_transfer(r, &range, NULL);
  switch (entry->op) {
    case AOT_VK_OP_UPLOAD:
      copy_buffer(r, handle, 0, device->upload.handle, 0, bytes);
      break;
    case AOT_VK_OP_DOWNLOAD:
      copy_buffer(r, device->readback.handle, 0, handle, 0, bytes);
      break;
    case AOT_VK_OP_STORE:
      copy_value(r, r->store_count++, buffer_class, offset, bytes);
      break;
    case AOT_VK_OP_TO_HOST:
      copy_buffer(r, aot_vk_host_buffer(device, buffer_class)->handle, offset, handle, offset,
                  bytes);
      break;
    case AOT_VK_OP_TO_DEVICE:
      copy_buffer(r, handle, offset, aot_vk_host_buffer(device, buffer_class)->handle, offset,
                  bytes);
      break;
    default:
      copy_buffer(r, device->readback.handle, device->readback.bytes - AOT_VK_LOAD_BYTES, handle,
                  offset, bytes);
      break;
  }
}

// Buffers outside are one range with another number, and so is the upload buffer.
enum { OUTSIDE = AOT_FBS_BUFFER_CLASS_COUNT, UPLOADS };

// Gives a buffer that others use to the device's queue, or back to them.
static void hand_over(const recorder_t *r, VkBuffer buffer, VkAccessFlags access, bool is_taken) {
  const uint32_t own = r->device->gpu.queue_family;
  const uint32_t foreign = VK_QUEUE_FAMILY_FOREIGN_EXT;
  const VkBufferMemoryBarrier info = {.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER,
                                      .srcAccessMask = is_taken ? 0 : access,
                                      .dstAccessMask = is_taken ? access : 0,
                                      .srcQueueFamilyIndex = is_taken ? foreign : own,
                                      .dstQueueFamilyIndex = is_taken ? own : foreign,
                                      .buffer = buffer,
                                      .size = VK_WHOLE_SIZE};
  r->device->gpu.vk.vkCmdPipelineBarrier(r->commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                         VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, NULL, 1, &info, 0,
                                         NULL);
}

static void record_outside(recorder_t *r, const aot_vk_entry_t *entry) {
  const aot_device_t *device = r->device;
  const uint32_t *operands = entry->operands;
  const bool is_export = entry->op == AOT_VK_OP_EXPORT;
  const bool is_upload = operands[0] != 0;
  const uint64_t offset = aot_vk_get_u64(operands + 1);
  const uint64_t bytes = aot_vk_get_u64(operands + 3);
  const uint64_t handle = aot_vk_get_u64(operands + 5);
  const uint64_t place = aot_vk_get_u64(operands + 7);
  VkBuffer outside;
  memcpy(&outside, &handle, sizeof outside);
  const uint32_t buffer_class =
      is_export ? AOT_FBS_BUFFER_CLASS_OUTPUTS : AOT_FBS_BUFFER_CLASS_INPUTS;
  const aot_vk_buffer_t *inside = is_upload ? &device->upload : &device->buffers[buffer_class];
  const range_t in = {is_upload ? UPLOADS : buffer_class, !is_export, offset, offset + bytes};
  const range_t out = {OUTSIDE, is_export, place, place + bytes};
  if (is_upload) barrier(r, recent(r), &transfers);  // the upload has read it
  before_transfer(r, &in, &out);
  const bool is_foreign = operands[10] != 0;
  const VkAccessFlags access = is_export ? transfers.writes : transfers.reads;
  if (is_foreign) hand_over(r, outside, access, true);
  if (is_export) {
    copy_buffer(r, outside, place, inside->handle, offset, bytes);
  } else {
    copy_buffer(r, inside->handle, offset, outside, place, bytes);
  }
  if (is_foreign) hand_over(r, outside, access, false);
}

static void record_entry(recorder_t *r, const aot_vk_entry_t *entry) {
  const aot_device_t *device = r->device;
  switch (entry->op) {
    case AOT_VK_OP_DISPATCH:
      record_dispatch(r, entry);
      break;
    case AOT_VK_OP_COPY:
      record_copy(r, entry);
      break;
    case AOT_VK_OP_FILL:
      record_fill(r, entry);
      break;
    case AOT_VK_OP_IMPORT:
    case AOT_VK_OP_EXPORT:
      record_outside(r, entry);
      return;
    default:
      record_transfer(r, entry);
      return;
  }
  if (device->has_timestamps) {
    device->gpu.vk.vkCmdWriteTimestamp(r->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                                       r->recording->queries, r->query++);
  }
}

// ---- command buffers ----

static aot_status_t begin(const recorder_t *r, aot_error_t *error) {
  const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  AOT_VK_TRY(error, &r->device->gpu.vk, vkBeginCommandBuffer, r->commands, &info);
  return AOT_OK;
}

static aot_status_t end(recorder_t *r, aot_error_t *error) {
  barrier(r, &both, &host);
  AOT_VK_TRY(error, &r->device->gpu.vk, vkEndCommandBuffer, r->commands);
  return AOT_OK;
}

aot_status_t aot_vk_record_log(aot_device_t *device, aot_vk_recording_t *recording,
                               const aot_vk_needs_t *needs, aot_error_t *error) {
  const aot_vk_log_t *log = &device->log;
  const aot_vk_functions_t *vk = &device->gpu.vk;
  recorder_t r = {.device = device,
                  .recording = recording,
                  .commands = recording->commands,
                  .pipeline = UINT32_MAX,
                  .first_literal = needs->stores,
                  .error = error};
  AOT_TRY(begin(&r, error));
  if (device->has_timestamps) {
    vk->vkCmdResetQueryPool(r.commands, recording->queries, 0, recording->query_count);
    vk->vkCmdWriteTimestamp(r.commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, recording->queries,
                            r.query++);
  }
  // What was submitted before is done, but its writes are seen by barriers only.
  barrier(&r, &both, &both);
  bind(&r, recording->set, 0);
  aot_vk_entry_t entry;
  for (size_t at = 0; aot_vk_log_next(log->words, log->count, &at, &entry);) {
    record_entry(&r, &entry);
  }
  const aot_status_t status = end(&r, r.status == AOT_OK ? error : NULL);
  return r.status == AOT_OK ? status : r.status;
}

aot_status_t aot_vk_record_copy(aot_device_t *device, aot_vk_recording_t *recording,
                                const aot_vk_buffer_t *to, uint64_t to_offset,
                                const aot_vk_buffer_t *from, uint64_t from_offset, uint64_t bytes,
                                aot_error_t *error) {
  recorder_t r = {.device = device, .recording = recording, .commands = recording->commands};
  AOT_TRY(begin(&r, error));
  barrier(&r, &both, &both);
  copy_buffer(&r, to->handle, to_offset, from->handle, from_offset, bytes);
  return end(&r, error);
}
