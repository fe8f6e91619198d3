#include "memory.h"

#include <string.h>

#include "status.h"

#define DEVICE_LOCAL VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
#define HOST_VISIBLE VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
#define HOST_COHERENT VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
#define HOST_CACHED VK_MEMORY_PROPERTY_HOST_CACHED_BIT
#define WORD_BYTES 4u
#define TEXEL_BYTES 16u

// What must be there, and what is worth how much.
typedef struct preference_t {
  uint32_t needed;
  int device_local;
  int host_visible;
  int coherent;
  int cached;
} preference_t;

static const preference_t preferences[] = {
    [AOT_VK_PLACE_DEVICE] = {0, 8, 0, 0, 0},
    // The host reads outputs: uncached reads cost more than what else is at stake.
    [AOT_VK_PLACE_UNIFIED] = {HOST_VISIBLE | DEVICE_LOCAL, 0, 0, 2, 4},
    [AOT_VK_PLACE_UPLOAD] = {HOST_VISIBLE, -1, 0, 4, 0},
    [AOT_VK_PLACE_READBACK] = {HOST_VISIBLE, -1, 0, 2, 8},
};

static int score(const preference_t *wanted, VkMemoryPropertyFlags flags) {
  return ((flags & DEVICE_LOCAL) != 0 ? wanted->device_local : 0) +
         ((flags & HOST_VISIBLE) != 0 ? wanted->host_visible : 0) +
         ((flags & HOST_COHERENT) != 0 ? wanted->coherent : 0) +
         ((flags & HOST_CACHED) != 0 ? wanted->cached : 0);
}

// The best type of those in `allowed`, or -1.  The first of equals: drivers list the quicker first.
static int find_type(const aot_vk_gpu_t *gpu, aot_vk_place_t place, uint32_t allowed) {
  const preference_t *wanted = &preferences[place];
  int best = -1;
  int best_score = 0;
  for (uint32_t i = 0; i < gpu->memory.memoryTypeCount; ++i) {
    const VkMemoryPropertyFlags flags = gpu->memory.memoryTypes[i].propertyFlags;
    const bool is_special = (flags & VK_MEMORY_PROPERTY_PROTECTED_BIT) != 0 ||
                            (flags & VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT) != 0;
    if ((allowed >> i & 1) == 0 || is_special || (flags & wanted->needed) != wanted->needed) {
      continue;
    }
    const int found = score(wanted, flags);
    if (best >= 0 && found <= best_score) continue;
    best = (int)i;
    best_score = found;
  }
  return best;
}

bool aot_vk_is_unified(const aot_vk_gpu_t *gpu) {
  const VkPhysicalDeviceType type = gpu->properties.deviceType;
  // A discrete GPU may show its memory to the host, but across a bus.
  if (type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU || type == VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU) {
    return false;
  }
  return find_type(gpu, AOT_VK_PLACE_UNIFIED, UINT32_MAX) >= 0;
}

static aot_status_t allocate(const aot_vk_gpu_t *gpu, aot_vk_place_t place, const char *what,
                             aot_error_t *error, aot_vk_buffer_t *buffer) {
  VkMemoryRequirements needs;
  gpu->vk.vkGetBufferMemoryRequirements(gpu->device, buffer->handle, &needs);
  const int type = find_type(gpu, place, needs.memoryTypeBits);
  if (type < 0) {
    return aot_fail(error, AOT_ERROR_DEVICE, "vulkan: %s has no memory for %s",
                    gpu->properties.deviceName, what);
  }
  const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     .allocationSize = needs.size,
                                     .memoryTypeIndex = (uint32_t)type};
  VkDeviceMemory memory = VK_NULL_HANDLE;
  const VkResult result = gpu->vk.vkAllocateMemory(gpu->device, &info, NULL, &memory);
  if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY) {
    return aot_fail(error, AOT_ERROR_MEMORY, "vulkan: out of device memory: %s of %llu bytes", what,
                    (unsigned long long)buffer->bytes);
  }
  if (result != VK_SUCCESS) return aot_vk_fail(result, "vkAllocateMemory", error);
  buffer->memory = memory;
  buffer->memory_bytes = needs.size;
  AOT_VK_TRY(error, &gpu->vk, vkBindBufferMemory, gpu->device, buffer->handle, memory, 0);
  const VkMemoryPropertyFlags flags = gpu->memory.memoryTypes[type].propertyFlags;
  buffer->is_coherent = (flags & HOST_COHERENT) != 0;
  if (place == AOT_VK_PLACE_DEVICE) return AOT_OK;
  void *mapped = NULL;
  AOT_VK_TRY(error, &gpu->vk, vkMapMemory, gpu->device, memory, 0, VK_WHOLE_SIZE, 0, &mapped);
  buffer->mapped = mapped;
  return AOT_OK;
}

static aot_status_t check_size(const aot_vk_gpu_t *gpu, uint64_t bytes, VkBufferUsageFlags usage,
                               const char *what, aot_error_t *error) {
  const VkPhysicalDeviceLimits *limits = &gpu->properties.limits;
  const VkBufferUsageFlags whole =
      usage & (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | AOT_VK_USAGE_IN_WINDOWS);
  if (whole == VK_BUFFER_USAGE_STORAGE_BUFFER_BIT && bytes > limits->maxStorageBufferRange) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "vulkan: %s of %llu bytes is above %s's maxStorageBufferRange, %lu", what,
                    (unsigned long long)bytes, gpu->properties.deviceName,
                    (unsigned long)limits->maxStorageBufferRange);
  }
  if ((usage & VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT) != 0 &&
      bytes / WORD_BYTES > limits->maxTexelBufferElements) {
    return aot_fail(
        error, AOT_ERROR_UNSUPPORTED,
        "vulkan: %s of %llu bytes is above %s's maxTexelBufferElements, %lu of %u bytes", what,
        (unsigned long long)bytes, gpu->properties.deviceName,
        (unsigned long)limits->maxTexelBufferElements, WORD_BYTES);
  }
  return AOT_OK;
}

// All of the buffer; as integers, so that every bit arrives.
static aot_status_t create_texels(const aot_vk_gpu_t *gpu, aot_error_t *error,
                                  aot_vk_buffer_t *buffer) {
  static const VkFormat formats[AOT_VK_TEXEL_KINDS] = {VK_FORMAT_R32G32B32A32_UINT,
                                                       VK_FORMAT_R32_UINT};
  for (uint32_t i = 0; i < AOT_VK_TEXEL_KINDS; ++i) {
    const VkBufferViewCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO,
                                         .buffer = buffer->handle,
                                         .format = formats[i],
                                         .range = VK_WHOLE_SIZE};
    VkBufferView texels = VK_NULL_HANDLE;
    AOT_VK_TRY(error, &gpu->vk, vkCreateBufferView, gpu->device, &info, NULL, &texels);
    buffer->texels[i] = texels;
  }
  return AOT_OK;
}

aot_status_t aot_vk_buffer_create(const aot_vk_gpu_t *gpu, aot_vk_place_t place, uint64_t bytes,
                                  VkBufferUsageFlags usage, const char *what, aot_error_t *error,
                                  aot_vk_buffer_t *out_buffer) {
  memset(out_buffer, 0, sizeof *out_buffer);
  const bool has_texels = (usage & VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT) != 0;
  const uint64_t unit = has_texels ? TEXEL_BYTES : WORD_BYTES;
  bytes = bytes < unit ? unit : (bytes + unit - 1) & ~(unit - 1);
  AOT_TRY(check_size(gpu, bytes, usage, what, error));
  const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                   .size = bytes,
                                   .usage = usage & ~AOT_VK_USAGE_IN_WINDOWS,
                                   .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
  aot_vk_buffer_t buffer = {.bytes = bytes};
  AOT_VK_TRY(error, &gpu->vk, vkCreateBuffer, gpu->device, &info, NULL, &buffer.handle);
  aot_status_t status = allocate(gpu, place, what, error, &buffer);
  if (status == AOT_OK && has_texels) status = create_texels(gpu, error, &buffer);
  if (status != AOT_OK) {
    aot_vk_buffer_destroy(gpu, &buffer);
    return status;
  }
  *out_buffer = buffer;
  return AOT_OK;
}

void aot_vk_buffer_destroy(const aot_vk_gpu_t *gpu, aot_vk_buffer_t *buffer) {
  if (buffer->bytes != 0) {
    for (uint32_t i = 0; i < AOT_VK_TEXEL_KINDS; ++i)
      gpu->vk.vkDestroyBufferView(gpu->device, buffer->texels[i], NULL);  // null is fine
    gpu->vk.vkDestroyBuffer(gpu->device, buffer->handle, NULL);
    gpu->vk.vkFreeMemory(gpu->device, buffer->memory, NULL);  // mapped or not; likewise
  }
  memset(buffer, 0, sizeof *buffer);
}

static VkMappedMemoryRange whole(const aot_vk_buffer_t *buffer) {
  return (VkMappedMemoryRange){.sType = VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE,
                               .memory = buffer->memory,
                               .size = VK_WHOLE_SIZE};
}

aot_status_t aot_vk_buffer_flush(const aot_vk_gpu_t *gpu, const aot_vk_buffer_t *buffer,
                                 aot_error_t *error) {
  if (buffer->bytes == 0 || buffer->is_coherent) return AOT_OK;
  const VkMappedMemoryRange range = whole(buffer);
  AOT_VK_TRY(error, &gpu->vk, vkFlushMappedMemoryRanges, gpu->device, 1, &range);
  return AOT_OK;
}

aot_status_t aot_vk_buffer_invalidate(const aot_vk_gpu_t *gpu, const aot_vk_buffer_t *buffer,
                                      aot_error_t *error) {
  if (buffer->bytes == 0 || buffer->is_coherent) return AOT_OK;
  const VkMappedMemoryRange range = whole(buffer);
  AOT_VK_TRY(error, &gpu->vk, vkInvalidateMappedMemoryRanges, gpu->device, 1, &range);
  return AOT_OK;
}
