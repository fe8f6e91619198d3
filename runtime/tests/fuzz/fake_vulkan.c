// A Vulkan for the fuzzer, in the place of system_posix.c: buffers are the host's memory, what a
// command touches is checked when it is recorded, copies and fills are done when it is submitted.
// Misuse, and handles that are left when the library is closed, end the process.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "loader.h"
#include "system.h"

// Signatures are Vulkan's, whatever of them is looked at.
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REQUIRE(condition)                                                                   \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      (void)fprintf(stderr, "fake_vulkan.c:%d: misuse, not so: %s\n", __LINE__, #condition); \
      abort();                                                                               \
    }                                                                                        \
  } while (0)
#define MOST_ALLOCATION_BYTES ((uint64_t)64 << 20)
#define MOST_BYTES ((uint64_t)256 << 20)
#define MOST_GROUPS 65535u
#define PUSH_BYTES 256u

volatile uint8_t aot_fuzz_sink;
bool aot_fuzz_is_unified;

static void no_kernel(const aot_dispatch_t *dispatch, uint32_t x, uint32_t y, uint32_t z) {}

__attribute__((weak)) aot_kernel_t aot_fuzz_kernel(const aot_executable_t *executable) {
  return no_kernel;
}

// The head of what is chained behind a structure.
typedef struct chained_t {
  VkStructureType type;
  struct chained_t *next;
} chained_t;

typedef struct memory_t {
  uint8_t *data;
  uint64_t bytes;
} memory_t;

typedef struct buffer_t {
  memory_t *memory;
  uint64_t bytes;
  VkFlags usage;
} buffer_t;

typedef struct command_t {
  const buffer_t *from;  // NULL: a fill
  const buffer_t *to;
  uint64_t from_offset;
  uint64_t to_offset;
  uint64_t bytes;
  uint32_t pattern;
} command_t;

typedef struct commands_t {
  struct commands_t *next;  // of the pool
  command_t *commands;
  size_t count;
  size_t room;
} commands_t;

static size_t live_count;
static uint64_t live_bytes;
static char placeholder[8];  // of handles that nobody destroys

static void *create(size_t bytes) {
  void *handle = calloc(1, bytes);
  REQUIRE(handle != NULL);
  ++live_count;
  return handle;
}

static void destroy(void *handle) {
  if (handle != NULL) --live_count;
  free(handle);
}

#define CREATE(name, info_type, handle_type)                                                \
  static VkResult create_##name(VkDevice device, const info_type *info,                     \
                                const VkAllocationCallbacks *callbacks, handle_type *out) { \
    *out = create(1);                                                                       \
    return VK_SUCCESS;                                                                      \
  }
#define DESTROY(name, handle_type)                                     \
  static void destroy_##name(VkDevice device, handle_type handle,      \
                             const VkAllocationCallbacks *callbacks) { \
    destroy((void *)handle);                                           \
  }

CREATE(view, VkBufferViewCreateInfo, VkBufferView)
DESTROY(view, VkBufferView)
CREATE(cache, VkPipelineCacheCreateInfo, VkPipelineCache)
DESTROY(cache, VkPipelineCache)
CREATE(set_layout, VkDescriptorSetLayoutCreateInfo, VkDescriptorSetLayout)
DESTROY(set_layout, VkDescriptorSetLayout)
CREATE(descriptors, VkDescriptorPoolCreateInfo, VkDescriptorPool)
DESTROY(descriptors, VkDescriptorPool)
CREATE(fence, VkFenceCreateInfo, VkFence)
DESTROY(fence, VkFence)
CREATE(queries, VkQueryPoolCreateInfo, VkQueryPool)
DESTROY(queries, VkQueryPool)
DESTROY(shader, VkShaderModule)
DESTROY(pipeline, VkPipeline)
DESTROY(layout, VkPipelineLayout)
DESTROY(buffer, VkBuffer)

// ---- instance and device ----

static VkResult instance_version(uint32_t *out_version) {
  *out_version = VK_MAKE_API_VERSION(1, 1);
  return VK_SUCCESS;
}

static VkResult create_instance(const VkInstanceCreateInfo *info,
                                const VkAllocationCallbacks *callbacks, VkInstance *out) {
  *out = create(1);
  return VK_SUCCESS;
}

static void destroy_instance(VkInstance instance, const VkAllocationCallbacks *callbacks) {
  destroy(instance);
}

static VkResult physical_devices(VkInstance instance, uint32_t *count, VkPhysicalDevice *devices) {
  if (devices != NULL && *count > 0) devices[0] = (VkPhysicalDevice)(void *)placeholder;
  *count = 1;
  return VK_SUCCESS;
}

static void get_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties *out) {
  *out = (VkPhysicalDeviceProperties){
      .apiVersion = VK_MAKE_API_VERSION(1, 1),
      .deviceType = aot_fuzz_is_unified ? VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU
                                        : VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
      // The one of whom texels are taken.
      .deviceName = "llvmpipe, a fake",
      .limits = {.maxStorageBufferRange = 1u << 27,
                 .maxTexelBufferElements = aot_fuzz_is_unified ? 1u << 25 : 1u << 16,
                 .maxPushConstantsSize = PUSH_BYTES,
                 .maxComputeSharedMemorySize = 32768,
                 .maxComputeWorkGroupInvocations = 1024,
                 .maxUniformBufferRange = 65536,
                 .maxPerStageDescriptorStorageBuffers = 16,
                 .maxComputeWorkGroupCount = {MOST_GROUPS, MOST_GROUPS, MOST_GROUPS},
                 .maxComputeWorkGroupSize = {1024, 1024, 64}}};
}

static void get_properties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *out) {
  get_properties(device, &out->properties);
  VkPhysicalDeviceSubgroupProperties *subgroup = out->pNext;
  if (subgroup == NULL) return;
  subgroup->supportedStages = VK_SHADER_STAGE_COMPUTE_BIT;
  subgroup->supportedOperations = 0xff;
}

// All that there is: bits from behind a structure's head.
static void get_features2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *out) {
  memset(&out->features, 1, sizeof out->features);
  for (chained_t *next = out->pNext; next != NULL; next = next->next) {
    VkBool32 *bits = (VkBool32 *)(void *)(next + 1);
    bits[0] = 1;
    if (next->type == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES) bits[1] = 1;
  }
}

static void get_memory_properties(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *out) {
  const VkFlags shared = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  *out = (VkPhysicalDeviceMemoryProperties){.memoryTypeCount = 2, .memoryHeapCount = 1};
  out->memoryTypes[0].propertyFlags =
      VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | (aot_fuzz_is_unified ? shared : 0);
  out->memoryTypes[1].propertyFlags =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  out->memoryHeaps[0].size = (uint64_t)1 << 30;
}

static void get_families(VkPhysicalDevice device, uint32_t *count, VkQueueFamilyProperties *out) {
  out[0] = (VkQueueFamilyProperties){
      .queueFlags = VK_QUEUE_COMPUTE_BIT, .queueCount = 1, .timestampValidBits = 64};
  *count = 1;
}

static VkResult get_extensions(VkPhysicalDevice device, const char *layer, uint32_t *count,
                               VkExtensionProperties *out) {
  static const VkExtensionProperties known[] = {
      {.extensionName = "VK_KHR_8bit_storage"},
      {.extensionName = "VK_KHR_shader_float16_int8"},
      {.extensionName = "VK_KHR_shader_integer_dot_product"}};
  const uint32_t all = sizeof known / sizeof known[0];
  const uint32_t given = out == NULL || *count > all ? all : *count;
  if (out != NULL) memcpy(out, known, given * sizeof known[0]);
  *count = given;
  return given < all ? VK_INCOMPLETE : VK_SUCCESS;
}

static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *callbacks, VkDevice *out) {
  *out = create(1);
  return VK_SUCCESS;
}

static void destroy_device(VkDevice device, const VkAllocationCallbacks *callbacks) {
  destroy(device);
}

static VkResult wait_idle(VkDevice device) {
  return VK_SUCCESS;
}

static VkResult wait_queue_idle(VkQueue queue) {
  return VK_SUCCESS;
}

static void get_queue(VkDevice device, uint32_t family, uint32_t index, VkQueue *out) {
  *out = (VkQueue)(void *)placeholder;
}

// ---- memory ----

static VkResult allocate_memory(VkDevice device, const VkMemoryAllocateInfo *info,
                                const VkAllocationCallbacks *callbacks, VkDeviceMemory *out) {
  if (info->allocationSize > MOST_ALLOCATION_BYTES ||
      info->allocationSize > MOST_BYTES - live_bytes) {
    return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  }
  memory_t *memory = create(sizeof *memory);
  memory->bytes = info->allocationSize;
  memory->data = calloc(1, (size_t)memory->bytes);
  REQUIRE(memory->data != NULL);
  live_bytes += memory->bytes;
  *out = (VkDeviceMemory)(void *)memory;
  return VK_SUCCESS;
}

static void free_memory(VkDevice device, VkDeviceMemory handle,
                        const VkAllocationCallbacks *callbacks) {
  memory_t *memory = (void *)handle;
  if (memory == NULL) return;
  live_bytes -= memory->bytes;
  free(memory->data);
  destroy(memory);
}

static VkResult map_memory(VkDevice device, VkDeviceMemory handle, VkDeviceSize offset,
                           VkDeviceSize bytes, VkMemoryMapFlags flags, void **out) {
  *out = ((memory_t *)(void *)handle)->data;
  return VK_SUCCESS;
}

static VkResult sync_memory(VkDevice device, uint32_t count, const VkMappedMemoryRange *ranges) {
  for (uint32_t i = 0; i < count; ++i)
    REQUIRE(ranges[i].memory != VK_NULL_HANDLE);
  return VK_SUCCESS;
}

static VkResult create_buffer(VkDevice device, const VkBufferCreateInfo *info,
                              const VkAllocationCallbacks *callbacks, VkBuffer *out) {
  REQUIRE(info->size > 0);
  buffer_t *buffer = create(sizeof *buffer);
  buffer->bytes = info->size;
  buffer->usage = info->usage;
  *out = (VkBuffer)(void *)buffer;
  return VK_SUCCESS;
}

static void get_requirements(VkDevice device, VkBuffer handle, VkMemoryRequirements *out) {
  const buffer_t *buffer = (void *)handle;
  *out = (VkMemoryRequirements){.size = buffer->bytes, .alignment = 16, .memoryTypeBits = 3};
}

static VkResult bind_memory(VkDevice device, VkBuffer handle, VkDeviceMemory memory,
                            VkDeviceSize offset) {
  buffer_t *buffer = (void *)handle;
  buffer->memory = (void *)memory;
  REQUIRE(buffer->memory->bytes >= buffer->bytes);
  return VK_SUCCESS;
}

// ---- pipelines and descriptors ----

static VkResult create_shader(VkDevice device, const VkShaderModuleCreateInfo *info,
                              const VkAllocationCallbacks *callbacks, VkShaderModule *out) {
  REQUIRE(info->codeSize > 0 && info->codeSize % 4 == 0 && (uintptr_t)info->pCode % 4 == 0);
  for (size_t i = 0; i < info->codeSize / 4; ++i)
    aot_fuzz_sink ^= (uint8_t)info->pCode[i];
  *out = (VkShaderModule)create(1);
  return VK_SUCCESS;
}

static VkResult create_layout(VkDevice device, const VkPipelineLayoutCreateInfo *info,
                              const VkAllocationCallbacks *callbacks, VkPipelineLayout *out) {
  uint32_t *push_bytes = create(sizeof *push_bytes);
  *push_bytes = info->pPushConstantRanges[0].size;
  REQUIRE(*push_bytes > 0 && *push_bytes <= PUSH_BYTES && *push_bytes % 4 == 0);
  *out = (VkPipelineLayout)(void *)push_bytes;
  return VK_SUCCESS;
}

static VkResult create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                 const VkComputePipelineCreateInfo *infos,
                                 const VkAllocationCallbacks *callbacks, VkPipeline *out) {
  for (uint32_t i = 0; i < count; ++i) {
    REQUIRE(infos[i].stage.module != VK_NULL_HANDLE);
    out[i] = (VkPipeline)create(1);
  }
  return VK_SUCCESS;
}

static VkResult get_cache_data(VkDevice device, VkPipelineCache cache, size_t *bytes, void *data) {
  *bytes = 0;
  return VK_SUCCESS;
}

static VkResult merge_caches(VkDevice device, VkPipelineCache cache, uint32_t count,
                             const VkPipelineCache *others) {
  return VK_SUCCESS;
}

static VkResult allocate_sets(VkDevice device, const VkDescriptorSetAllocateInfo *info,
                              VkDescriptorSet *out) {
  for (uint32_t i = 0; i < info->descriptorSetCount; ++i)
    out[i] = (VkDescriptorSet)(void *)placeholder;
  return VK_SUCCESS;
}

static void update_sets(VkDevice device, uint32_t count, const VkWriteDescriptorSet *writes,
                        uint32_t copy_count, const VkCopyDescriptorSet *copies) {
  for (uint32_t i = 0; i < count; ++i) {
    if (writes[i].pBufferInfo == NULL) {
      REQUIRE(*writes[i].pTexelBufferView != VK_NULL_HANDLE);
      continue;
    }
    const buffer_t *buffer = (void *)writes[i].pBufferInfo->buffer;
    REQUIRE(buffer != NULL && writes[i].pBufferInfo->range <= buffer->bytes);
  }
}

// ---- commands ----

static VkResult create_commands(VkDevice device, const VkCommandPoolCreateInfo *info,
                                const VkAllocationCallbacks *callbacks, VkCommandPool *out) {
  *out = (VkCommandPool)create(sizeof(commands_t));
  return VK_SUCCESS;
}

static void destroy_commands(VkDevice device, VkCommandPool pool,
                             const VkAllocationCallbacks *callbacks) {
  for (commands_t *commands = (void *)pool; commands != NULL;) {
    commands_t *next = commands->next;
    free(commands->commands);
    destroy(commands);
    commands = next;
  }
}

static VkResult allocate_commands(VkDevice device, const VkCommandBufferAllocateInfo *info,
                                  VkCommandBuffer *out) {
  commands_t *pool = (void *)info->commandPool;
  for (uint32_t i = 0; i < info->commandBufferCount; ++i) {
    commands_t *commands = create(sizeof *commands);
    commands->next = pool->next;
    pool->next = commands;
    out[i] = (VkCommandBuffer)(void *)commands;
  }
  return VK_SUCCESS;
}

// They go with their pool.
static void free_commands(VkDevice device, VkCommandPool pool, uint32_t count,
                          const VkCommandBuffer *commands) {}

static VkResult begin_commands(VkCommandBuffer handle, const VkCommandBufferBeginInfo *info) {
  ((commands_t *)(void *)handle)->count = 0;
  return VK_SUCCESS;
}

static VkResult end_commands(VkCommandBuffer handle) {
  return VK_SUCCESS;
}

static void add(VkCommandBuffer handle, command_t command) {
  commands_t *commands = (void *)handle;
  if (commands->count == commands->room) {
    commands->room = commands->room > 0 ? 2 * commands->room : 64;
    commands->commands = realloc(commands->commands, commands->room * sizeof command);
    REQUIRE(commands->commands != NULL);
  }
  commands->commands[commands->count++] = command;
}

static void bind_pipeline(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline handle) {
  REQUIRE(handle != VK_NULL_HANDLE);
}

static void bind_sets(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipelineLayout layout,
                      uint32_t first, uint32_t count, const VkDescriptorSet *sets,
                      uint32_t offset_count, const uint32_t *offsets) {
  REQUIRE(count == 1 && sets[0] != VK_NULL_HANDLE);
}

static void push(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stages,
                 uint32_t offset, uint32_t bytes, const void *data) {
  REQUIRE(bytes > 0 && bytes % 4 == 0 && offset == 0 && bytes <= *(uint32_t *)(void *)layout);
  for (uint32_t i = 0; i < bytes; ++i)
    aot_fuzz_sink ^= ((const uint8_t *)data)[i];
}

static void dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
  REQUIRE(x > 0 && y > 0 && z > 0 && x <= MOST_GROUPS && y <= MOST_GROUPS && z <= MOST_GROUPS);
}

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                    VkDependencyFlags flags, uint32_t count, const VkMemoryBarrier *barriers,
                    uint32_t buffer_count, const VkBufferMemoryBarrier *buffer_barriers,
                    uint32_t image_count, const VkImageMemoryBarrier *image_barriers) {}

static bool has(const buffer_t *buffer, uint64_t offset, uint64_t bytes) {
  return buffer != NULL && offset <= buffer->bytes && bytes > 0 && bytes <= buffer->bytes - offset;
}

static void copy_buffer(VkCommandBuffer commands, VkBuffer from_handle, VkBuffer to_handle,
                        uint32_t count, const VkBufferCopy *regions) {
  const buffer_t *from = (void *)from_handle;
  const buffer_t *to = (void *)to_handle;
  const VkBufferCopy *r = &regions[0];
  REQUIRE(count == 1 && has(from, r->srcOffset, r->size) && has(to, r->dstOffset, r->size));
  REQUIRE(from != to || r->srcOffset + r->size <= r->dstOffset ||
          r->dstOffset + r->size <= r->srcOffset);
  REQUIRE((from->usage & VK_BUFFER_USAGE_TRANSFER_SRC_BIT) != 0);
  REQUIRE((to->usage & VK_BUFFER_USAGE_TRANSFER_DST_BIT) != 0);
  add(commands, (command_t){from, to, r->srcOffset, r->dstOffset, r->size, 0});
}

static void fill_buffer(VkCommandBuffer commands, VkBuffer handle, VkDeviceSize offset,
                        VkDeviceSize bytes, uint32_t pattern) {
  const buffer_t *to = (void *)handle;
  REQUIRE(has(to, offset, bytes) && offset % 4 == 0 && bytes % 4 == 0);
  add(commands, (command_t){NULL, to, 0, offset, bytes, pattern});
}

static void reset_queries(VkCommandBuffer commands, VkQueryPool pool, uint32_t first,
                          uint32_t count) {}

static void write_timestamp(VkCommandBuffer commands, VkPipelineStageFlagBits stage,
                            VkQueryPool pool, uint32_t query) {}

static VkResult get_queries(VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count,
                            size_t bytes, void *data, VkDeviceSize stride,
                            VkQueryResultFlags flags) {
  memset(data, 0, bytes);
  return VK_SUCCESS;
}

static VkResult submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
  const commands_t *commands = (void *)infos[0].pCommandBuffers[0];
  REQUIRE(count == 1 && infos[0].commandBufferCount == 1);
  for (size_t i = 0; i < commands->count; ++i) {
    const command_t *c = &commands->commands[i];
    uint8_t *to = c->to->memory->data + c->to_offset;
    if (c->from != NULL) memmove(to, c->from->memory->data + c->from_offset, (size_t)c->bytes);
    for (uint64_t at = 0; c->from == NULL && at < c->bytes; at += 4)
      memcpy(to + at, &c->pattern, 4);
  }
  return VK_SUCCESS;
}

static VkResult reset_fences(VkDevice device, uint32_t count, const VkFence *fences) {
  return VK_SUCCESS;
}

static VkResult wait_for_fences(VkDevice device, uint32_t count, const VkFence *fences,
                                VkBool32 all, uint64_t timeout) {
  return VK_SUCCESS;
}

// ---- what the driver finds ----

static PFN_vkVoidFunction of_instance(VkInstance instance, const char *name);

static PFN_vkVoidFunction of_device(VkDevice device, const char *name) {
  return of_instance(NULL, name);
}

#define FUNCTION(name, function) {"vk" #name, (PFN_vkVoidFunction)(function)}

static const struct {
  const char *name;
  PFN_vkVoidFunction function;
} functions[] = {
    FUNCTION(GetInstanceProcAddr, of_instance),
    FUNCTION(GetDeviceProcAddr, of_device),
    FUNCTION(EnumerateInstanceVersion, instance_version),
    FUNCTION(CreateInstance, create_instance),
    FUNCTION(DestroyInstance, destroy_instance),
    FUNCTION(EnumeratePhysicalDevices, physical_devices),
    FUNCTION(GetPhysicalDeviceProperties, get_properties),
    FUNCTION(GetPhysicalDeviceProperties2, get_properties2),
    FUNCTION(GetPhysicalDeviceFeatures2, get_features2),
    FUNCTION(GetPhysicalDeviceMemoryProperties, get_memory_properties),
    FUNCTION(GetPhysicalDeviceQueueFamilyProperties, get_families),
    FUNCTION(EnumerateDeviceExtensionProperties, get_extensions),
    FUNCTION(CreateDevice, create_device),
    FUNCTION(DestroyDevice, destroy_device),
    FUNCTION(DeviceWaitIdle, wait_idle),
    FUNCTION(QueueWaitIdle, wait_queue_idle),
    FUNCTION(GetDeviceQueue, get_queue),
    FUNCTION(QueueSubmit, submit),
    FUNCTION(AllocateMemory, allocate_memory),
    FUNCTION(FreeMemory, free_memory),
    FUNCTION(MapMemory, map_memory),
    FUNCTION(FlushMappedMemoryRanges, sync_memory),
    FUNCTION(InvalidateMappedMemoryRanges, sync_memory),
    FUNCTION(CreateBuffer, create_buffer),
    FUNCTION(DestroyBuffer, destroy_buffer),
    FUNCTION(CreateBufferView, create_view),
    FUNCTION(DestroyBufferView, destroy_view),
    FUNCTION(GetBufferMemoryRequirements, get_requirements),
    FUNCTION(BindBufferMemory, bind_memory),
    FUNCTION(CreateShaderModule, create_shader),
    FUNCTION(DestroyShaderModule, destroy_shader),
    FUNCTION(CreatePipelineCache, create_cache),
    FUNCTION(DestroyPipelineCache, destroy_cache),
    FUNCTION(GetPipelineCacheData, get_cache_data),
    FUNCTION(MergePipelineCaches, merge_caches),
    FUNCTION(CreatePipelineLayout, create_layout),
    FUNCTION(DestroyPipelineLayout, destroy_layout),
    FUNCTION(CreateComputePipelines, create_pipelines),
    FUNCTION(DestroyPipeline, destroy_pipeline),
    FUNCTION(CreateDescriptorSetLayout, create_set_layout),
    FUNCTION(DestroyDescriptorSetLayout, destroy_set_layout),
    FUNCTION(CreateDescriptorPool, create_descriptors),
    FUNCTION(DestroyDescriptorPool, destroy_descriptors),
    FUNCTION(AllocateDescriptorSets, allocate_sets),
    FUNCTION(UpdateDescriptorSets, update_sets),
    FUNCTION(CreateCommandPool, create_commands),
    FUNCTION(DestroyCommandPool, destroy_commands),
    FUNCTION(AllocateCommandBuffers, allocate_commands),
    FUNCTION(FreeCommandBuffers, free_commands),
    FUNCTION(BeginCommandBuffer, begin_commands),
    FUNCTION(EndCommandBuffer, end_commands),
    FUNCTION(CmdBindPipeline, bind_pipeline),
    FUNCTION(CmdBindDescriptorSets, bind_sets),
    FUNCTION(CmdPushConstants, push),
    FUNCTION(CmdDispatch, dispatch),
    FUNCTION(CmdPipelineBarrier, barrier),
    FUNCTION(CmdCopyBuffer, copy_buffer),
    FUNCTION(CmdFillBuffer, fill_buffer),
    FUNCTION(CmdResetQueryPool, reset_queries),
    FUNCTION(CmdWriteTimestamp, write_timestamp),
    FUNCTION(CreateQueryPool, create_queries),
    FUNCTION(DestroyQueryPool, destroy_queries),
    FUNCTION(GetQueryPoolResults, get_queries),
    FUNCTION(CreateFence, create_fence),
    FUNCTION(DestroyFence, destroy_fence),
    FUNCTION(ResetFences, reset_fences),
    FUNCTION(WaitForFences, wait_for_fences),
};

static PFN_vkVoidFunction of_instance(VkInstance instance, const char *name) {
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
    if (strcmp(functions[i].name, name) == 0) return functions[i].function;
  }
  return NULL;
}

// ---- system.h ----

void *aot_vk_open_library(const char *path) {
  return placeholder;
}

PFN_vkVoidFunction aot_vk_find_function(void *library, const char *name) {
  return of_instance(NULL, name);
}

void aot_vk_close_library(void *library) {
  REQUIRE(live_count == 0);
}

const char *aot_vk_environment(const char *name) {
  return NULL;
}

bool aot_vk_read_file(const char *path, size_t least, size_t most, const aot_allocator_t *allocator,
                      void **out_data, size_t *out_bytes) {
  *out_data = NULL;
  *out_bytes = 0;
  return false;
}

bool aot_vk_file_exists(const char *path) {
  return false;
}

bool aot_vk_replace_file(const char *path, const void *head, size_t head_bytes, const void *body,
                         size_t body_bytes) {
  return false;
}

void aot_vk_remove_file(const char *path) {}

int64_t aot_vk_process(void) {
  return 1;
}

bool aot_vk_is_running(int64_t process) {
  return false;
}

void aot_vk_run_parallel(uint32_t count, void (*work)(void *user, uint32_t worker), void *user) {
  for (uint32_t i = 0; i < count; ++i)
    work(user, i);
}

uint32_t aot_vk_core_count(void) {
  return 1;
}
