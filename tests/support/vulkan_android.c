// Android's part of Vulkan over the system's, for tests: AHardwareBuffers that are host memory, and
// a device that imports them.  It is a Vulkan loader and, by its name, libnativewindow.so.  What a
// buffer has is copied to the memory that imports it before each submission, and back once a fence
// was waited for, so that nothing but handing buffers over makes them right.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan_api.h"

typedef struct AHardwareBuffer_Desc {
  uint32_t width, height, layers, format;
  uint64_t usage;
  uint32_t stride, rfu0;
  uint64_t rfu1;
} AHardwareBuffer_Desc;

#define EXPORT __attribute__((visibility("default")))
enum { MOST_IMPORTS = 64 };
static const char *const extensions[] = {"VK_ANDROID_external_memory_android_hardware_buffer",
                                         "VK_EXT_queue_family_foreign"};

typedef struct AHardwareBuffer {
  AHardwareBuffer_Desc description;
  uint8_t *bytes;
  int references;  // of memory that imports it
} buffer_t;

typedef struct import_t {
  buffer_t *source;
  VkDeviceMemory memory;
  uint8_t *mapped;
} import_t;

static import_t imports[MOST_IMPORTS];
static int is_hidden;     // no device has the extensions
static int taken, given;  // buffers handed over, from others and back
static uint32_t type_bits = UINT32_MAX;
static uint32_t memory_type;  // that the host sees
static PFN_vkGetInstanceProcAddr find_instance;
static PFN_vkGetDeviceProcAddr find_device;
static PFN_vkEnumerateDeviceExtensionProperties real_extensions;
static PFN_vkCreateDevice real_create_device;
static PFN_vkCreateBuffer real_create_buffer;
static PFN_vkAllocateMemory real_allocate;
static PFN_vkFreeMemory real_free;
static PFN_vkMapMemory real_map;
static PFN_vkCmdPipelineBarrier real_barrier;
static PFN_vkQueueSubmit real_submit;
static PFN_vkWaitForFences real_wait;
static PFN_vkGetPhysicalDeviceMemoryProperties real_memory;

// ---- buffers ----

EXPORT buffer_t *mock_buffer(uint32_t width, uint32_t format, uint64_t usage) {
  buffer_t *buffer = calloc(1, sizeof *buffer);
  if (buffer == NULL) abort();
  buffer->description = (AHardwareBuffer_Desc){
      .width = width, .height = 1, .layers = 1, .format = format, .usage = usage};
  buffer->bytes = calloc(width, 1);
  return buffer;
}

EXPORT uint8_t *mock_bytes(buffer_t *buffer) {
  return buffer->bytes;
}

EXPORT int mock_references(const buffer_t *buffer) {
  return buffer->references;
}

EXPORT void mock_release(buffer_t *buffer) {
  if (buffer->references != 0) abort();
  free(buffer->bytes);
  free(buffer);
}

EXPORT void mock_hide(int is_wanted) {
  is_hidden = is_wanted;
}

EXPORT void mock_types(uint32_t bits) {
  type_bits = bits;
}

// How often buffers were taken from others, if `is_taken`, or given back.
EXPORT int mock_handed(int is_taken) {
  return is_taken ? taken : given;
}

EXPORT void AHardwareBuffer_describe(const buffer_t *buffer, AHardwareBuffer_Desc *out) {
  *out = buffer->description;
}

// ---- devices ----

static VkResult list_extensions(VkPhysicalDevice physical, const char *layer, uint32_t *count,
                                VkExtensionProperties *found) {
  const uint32_t own = is_hidden ? 0 : 2;
  uint32_t rest = found == NULL ? 0 : *count - own;
  const VkResult result =
      real_extensions(physical, layer, &rest, found == NULL ? NULL : found + own);
  for (uint32_t i = 0; found != NULL && i < own; ++i)
    (void)snprintf(found[i].extensionName, sizeof found[i].extensionName, "%s", extensions[i]);
  *count = rest + own;
  return result;
}

// The device below knows nothing of the extensions.
static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *out_device) {
  const char *kept[16];
  VkDeviceCreateInfo own = *info;
  own.enabledExtensionCount = 0;
  for (uint32_t i = 0; i < info->enabledExtensionCount; ++i) {
    const char *name = info->ppEnabledExtensionNames[i];
    if (strcmp(name, extensions[0]) == 0 || strcmp(name, extensions[1]) == 0) continue;
    kept[own.enabledExtensionCount++] = name;
  }
  own.ppEnabledExtensionNames = kept;
  VkPhysicalDeviceMemoryProperties memory;
  real_memory(physical, &memory);
  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  for (memory_type = 0; memory_type < memory.memoryTypeCount; ++memory_type) {
    if ((memory.memoryTypes[memory_type].propertyFlags & wanted) == wanted) break;
  }
  return real_create_device(physical, &own, allocator, out_device);
}

static VkResult create_buffer(VkDevice device, const VkBufferCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkBuffer *out_buffer) {
  VkBufferCreateInfo own = *info;
  own.pNext = NULL;
  return real_create_buffer(device, &own, allocator, out_buffer);
}

static VkResult get_properties(VkDevice device, const struct AHardwareBuffer *source,
                               VkAndroidHardwareBufferPropertiesANDROID *out) {
  (void)device;
  out->allocationSize = (source->description.width + 65535u) / 65536u * 65536u;
  out->memoryTypeBits = type_bits & 1u << memory_type;
  return VK_SUCCESS;
}

static VkResult allocate(VkDevice device, const VkMemoryAllocateInfo *info,
                         const VkAllocationCallbacks *allocator, VkDeviceMemory *out_memory) {
  const VkImportAndroidHardwareBufferInfoANDROID *from = info->pNext;
  const int is_import =
      from != NULL && from->sType == VK_STRUCTURE_TYPE_IMPORT_ANDROID_HARDWARE_BUFFER_INFO_ANDROID;
  VkMemoryAllocateInfo own = *info;
  if (is_import) own.pNext = NULL;
  const VkResult result = real_allocate(device, &own, allocator, out_memory);
  if (result != VK_SUCCESS || !is_import) return result;
  int i = 0;
  while (i < MOST_IMPORTS && imports[i].source != NULL)
    ++i;
  if (i == MOST_IMPORTS) abort();
  void *mapped = NULL;
  if (real_map(device, *out_memory, 0, VK_WHOLE_SIZE, 0, &mapped) != VK_SUCCESS) abort();
  imports[i] = (import_t){from->buffer, *out_memory, mapped};
  ++from->buffer->references;
  return VK_SUCCESS;
}

static void free_memory(VkDevice device, VkDeviceMemory memory,
                        const VkAllocationCallbacks *allocator) {
  for (int i = 0; i < MOST_IMPORTS; ++i) {
    if (imports[i].source == NULL || imports[i].memory != memory) continue;
    --imports[i].source->references;
    memset(&imports[i], 0, sizeof imports[i]);
  }
  real_free(device, memory, allocator);
}

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                    VkDependencyFlags flags, uint32_t count, const VkMemoryBarrier *memory,
                    uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
                    uint32_t image_count, const VkImageMemoryBarrier *images) {
  for (uint32_t i = 0; i < buffer_count; ++i) {
    if (buffers[i].srcQueueFamilyIndex == VK_QUEUE_FAMILY_FOREIGN_EXT) ++taken;
    if (buffers[i].dstQueueFamilyIndex == VK_QUEUE_FAMILY_FOREIGN_EXT) ++given;
  }
  if (count + image_count == 0) return;
  real_barrier(commands, from, to, flags, count, memory, 0, NULL, image_count, images);
}

static VkResult submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
  for (int i = 0; i < MOST_IMPORTS; ++i) {
    const buffer_t *source = imports[i].source;
    if (source != NULL) memcpy(imports[i].mapped, source->bytes, source->description.width);
  }
  return real_submit(queue, count, infos, fence);
}

static VkResult wait_for(VkDevice device, uint32_t count, const VkFence *fences, VkBool32 all,
                         uint64_t timeout) {
  const VkResult result = real_wait(device, count, fences, all, timeout);
  for (int i = 0; i < MOST_IMPORTS && result == VK_SUCCESS; ++i) {
    buffer_t *source = imports[i].source;
    if (source != NULL) memcpy(source->bytes, imports[i].mapped, source->description.width);
  }
  return result;
}

// ---- the loader ----

#define REPLACE(function, real, own)                   \
  if (strcmp(name, #function) == 0 && found != NULL) { \
    real = (PFN_##function)found;                      \
    return (PFN_vkVoidFunction)own;                    \
  }

static PFN_vkVoidFunction device_function(VkDevice device, const char *name) {
  if (strcmp(name, "vkGetAndroidHardwareBufferPropertiesANDROID") == 0) {
    return is_hidden ? NULL : (PFN_vkVoidFunction)get_properties;
  }
  const PFN_vkVoidFunction found = find_device(device, name);
  REPLACE(vkCreateBuffer, real_create_buffer, create_buffer)
  REPLACE(vkAllocateMemory, real_allocate, allocate)
  REPLACE(vkFreeMemory, real_free, free_memory)
  REPLACE(vkCmdPipelineBarrier, real_barrier, barrier)
  REPLACE(vkQueueSubmit, real_submit, submit)
  REPLACE(vkWaitForFences, real_wait, wait_for)
  if (strcmp(name, "vkMapMemory") == 0) real_map = (PFN_vkMapMemory)found;
  return found;
}

EXPORT PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name) {
  if (find_instance == NULL) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return NULL;
    void *address = dlsym(library, "vkGetInstanceProcAddr");
    memcpy(&find_instance, &address, sizeof address);
  }
  const PFN_vkVoidFunction found = find_instance(instance, name);
  REPLACE(vkEnumerateDeviceExtensionProperties, real_extensions, list_extensions)
  REPLACE(vkCreateDevice, real_create_device, create_device)
  REPLACE(vkGetDeviceProcAddr, find_device, device_function)
  if (strcmp(name, "vkGetPhysicalDeviceMemoryProperties") == 0) {
    real_memory = (PFN_vkGetPhysicalDeviceMemoryProperties)found;
  }
  return found;
}
