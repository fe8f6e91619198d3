// The Vulkan driver's device: a GPU with the buffers, pipelines and recorded runs of one program.
#ifndef AOT_DRIVERS_VULKAN_DEVICE_H_
#define AOT_DRIVERS_VULKAN_DEVICE_H_

#include "cache.h"
#include "descriptors.h"
#include "driver.h"
#include "log.h"
#include "memory.h"
#include "module_fbs.h"
#include "pipelines.h"
#include "shared.h"

#define AOT_VK_MOST_RECORDINGS 16u
// A log that has grown so long is submitted before more is added to it: the trips of a loop take
// time then, but no more memory.
#define AOT_VK_MOST_LOG_WORDS ((size_t)1 << 16)
// Behind the outputs in the readback buffer: what a load reads.
#define AOT_VK_LOAD_BYTES 16u

// A log that was made into a command buffer, to be submitted again whenever the same log comes up.
typedef struct aot_vk_recording_t {
  bool is_valid;
  uint64_t last_use;
  uint64_t hash;  // of the words
  void *words;    // owned
  size_t words_bytes;
  size_t room;
  VkCommandBuffer commands;
  VkDescriptorSet set;
  VkDescriptorPool windows;  // of the sets of dispatches with windows
  aot_vk_buffer_t params;    // parameter blocks, then what stores and fills copy from
  uint64_t values_offset;    // of the latter
  VkQueryPool queries;
  uint32_t query_count;  // of the pool
} aot_vk_recording_t;

// An AHardwareBuffer that an input or output has: imports.c.
typedef struct aot_vk_import_t {
  struct aot_vk_import_t *next;
  bool is_input;
  size_t index;
  VkBuffer buffer;
  VkDeviceMemory memory;
} aot_vk_import_t;

struct aot_device_t {
  const aot_module_t *module;
  const aot_variant_t *variant;
  aot_allocator_t allocator;
  aot_vk_shared_t *shared;  // with the module's other programs
  aot_vk_gpu_t gpu;         // the shared one
  aot_vk_cache_t cache;
  aot_vk_descriptors_t descriptors;
  aot_vk_pipelines_t pipelines;
  VkCommandPool command_pool;
  VkFence fence;
  bool is_unified;
  bool is_lost;
  bool is_hung;         // a submission was not done in time: the device may be at it still
  uint64_t timeout_ns;  // of a submission; UINT64_MAX: none
  void (*profile)(void *user, const aot_launch_t *launch);
  void *profile_user;
  bool has_timestamps;  // and profile is set
  bool reads_back;      // what a run reads decides how it goes on
  bool has_overlap;     // dispatches run at the same time where the program lets them
  void *times;          // of a segment's timestamps; owned
  size_t times_bytes;
  aot_vk_buffer_t buffers[AOT_FBS_BUFFER_CLASS_COUNT];  // that of constants is the shared one
  aot_vk_buffer_t upload;    // inputs on their way, where memory is not unified
  aot_vk_buffer_t readback;  // outputs likewise, and loads
  uint64_t arena_bytes;
  aot_device_t *host;  // the CPU driver's, for what has no shader; NULL: all has; owned
  aot_vk_buffer_t
      mirror;  // the arena as the host sees it, where there is one and memory not unified
  aot_binding_t host_inputs;
  aot_binding_t host_outputs;
  aot_bindings_t host_bindings;  // all inputs as one, and all outputs
  bool has_host_written;         // since the last submission
  bool has_imports;              // in this run
  uint32_t outside_count;        // how often a buffer outside was set
  aot_vk_import_t *imports;      // owned
  aot_bindings_t *bindings;      // of the run
  aot_vk_log_t log;              // since the last submission
  aot_vk_recording_t recordings[AOT_VK_MOST_RECORDINGS];
  uint64_t use_count;
  uint32_t recording_count;  // made so far
  uint32_t submit_count;
  uint64_t instance_ns;
  uint64_t upload_ns;
};

// driver.c: the driver's own options among a program's, zero where the caller's are shorter.
aot_status_t aot_vulkan_take_options(const aot_program_options_t *options, aot_error_t *error,
                                     aot_vulkan_options_t *out_options);

#endif  // AOT_DRIVERS_VULKAN_DEVICE_H_
