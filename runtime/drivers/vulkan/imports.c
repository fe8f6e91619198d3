// AHardwareBuffers: Vulkan imports their memory.  The function that describes them is looked for at
// run time, as Vulkan's are, so that nothing of Android's is linked.
#include "imports.h"

#include <string.h>

#include "status.h"
#include "system.h"

#if defined(__ANDROID__)
#include <android/hardware_buffer.h>
#else
// As in the NDK.
typedef struct AHardwareBuffer AHardwareBuffer;
typedef struct AHardwareBuffer_Desc {
  uint32_t width;
  uint32_t height;
  uint32_t layers;
  uint32_t format;
  uint64_t usage;
  uint32_t stride;
  uint32_t rfu0;
  uint64_t rfu1;
} AHardwareBuffer_Desc;
enum { AHARDWAREBUFFER_FORMAT_BLOB = 0x21 };
#define AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER (1ull << 24)
#endif

_Static_assert(sizeof(AHardwareBuffer_Desc) == 40, "AHardwareBuffer_Desc");

#define LIBRARY "libnativewindow.so"

typedef void (*describe_t)(const AHardwareBuffer *buffer, AHardwareBuffer_Desc *out_description);

static aot_status_t describe(const AHardwareBuffer *buffer, aot_error_t *error,
                             AHardwareBuffer_Desc *out_description) {
  void *library = aot_vk_open_library(LIBRARY);
  if (library == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "this system has no AHardwareBuffers");
  }
  const PFN_vkVoidFunction found = aot_vk_find_function(library, "AHardwareBuffer_describe");
  describe_t function = NULL;
  memcpy(&function, &found, sizeof function);
  if (function != NULL) function(buffer, out_description);
  aot_vk_close_library(library);
  if (function != NULL) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s has no AHardwareBuffer_describe", LIBRARY);
}

static aot_status_t check(const aot_device_t *device, const AHardwareBuffer *source,
                          aot_error_t *error, uint64_t *out_bytes) {
  AHardwareBuffer_Desc description;
  memset(&description, 0, sizeof description);
  if (!device->shared->hardware_buffers ||
      device->gpu.vk.vkGetAndroidHardwareBufferPropertiesANDROID == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "the program was not made for AHardwareBuffers (hardware_buffers of "
                    "aot_vulkan_options_t)");
  }
  AOT_TRY(describe(source, error, &description));
  if (description.format != AHARDWAREBUFFER_FORMAT_BLOB) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the AHardwareBuffer has format 0x%x, AHARDWAREBUFFER_FORMAT_BLOB expected",
                    (unsigned)description.format);
  }
  if ((description.usage & AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER) == 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the AHardwareBuffer is without AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER");
  }
  *out_bytes = description.width;
  return AOT_OK;
}

static int lowest(uint32_t bits) {
  int number = 0;
  while (number < 32 && (bits >> number & 1) == 0)
    ++number;
  return number < 32 ? number : -1;
}

static aot_status_t import_memory(const aot_device_t *device, AHardwareBuffer *source,
                                  uint64_t bytes, aot_error_t *error, aot_vk_import_t *import) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  const VkExternalMemoryBufferCreateInfo external = {
      .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
      .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_ANDROID_HARDWARE_BUFFER_BIT_ANDROID};
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .pNext = &external,
      .size = bytes,
      .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
      .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
  AOT_VK_TRY(error, &gpu->vk, vkCreateBuffer, gpu->device, &info, NULL, &import->buffer);
  VkAndroidHardwareBufferPropertiesANDROID properties = {
      .sType = VK_STRUCTURE_TYPE_ANDROID_HARDWARE_BUFFER_PROPERTIES_ANDROID};
  AOT_VK_TRY(error, &gpu->vk, vkGetAndroidHardwareBufferPropertiesANDROID, gpu->device, source,
             &properties);
  VkMemoryRequirements needs;
  gpu->vk.vkGetBufferMemoryRequirements(gpu->device, import->buffer, &needs);
  const int type = lowest(properties.memoryTypeBits & needs.memoryTypeBits);
  if (type < 0) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "vulkan: %s can't use this AHardwareBuffer as a buffer",
                    gpu->properties.deviceName);
  }
  const VkImportAndroidHardwareBufferInfoANDROID from = {
      .sType = VK_STRUCTURE_TYPE_IMPORT_ANDROID_HARDWARE_BUFFER_INFO_ANDROID, .buffer = source};
  const VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .pNext = &from,
                                           .allocationSize = properties.allocationSize,
                                           .memoryTypeIndex = (uint32_t)type};
  AOT_VK_TRY(error, &gpu->vk, vkAllocateMemory, gpu->device, &allocation, NULL, &import->memory);
  AOT_VK_TRY(error, &gpu->vk, vkBindBufferMemory, gpu->device, import->buffer, import->memory, 0);
  return AOT_OK;
}

aot_status_t aot_vk_import(aot_device_t *device, AHardwareBuffer *source, aot_error_t *error,
                           aot_vk_import_t **out_import, uint64_t *out_bytes) {
  *out_import = NULL;
  void *memory = NULL;
  AOT_TRY(check(device, source, error, out_bytes));
  AOT_TRY(aot_allocate(&device->allocator, sizeof(aot_vk_import_t), "an import", error, &memory));
  aot_vk_import_t *import = memory;
  memset(import, 0, sizeof *import);
  const aot_status_t status = import_memory(device, source, *out_bytes, error, import);
  if (status != AOT_OK) {
    aot_vk_import_release(device, import);
    return status;
  }
  *out_import = import;
  return AOT_OK;
}

void aot_vk_import_release(aot_device_t *device, aot_vk_import_t *import) {
  const aot_vk_gpu_t *gpu = &device->gpu;
  gpu->vk.vkDestroyBuffer(gpu->device, import->buffer, NULL);  // null is fine
  gpu->vk.vkFreeMemory(gpu->device, import->memory, NULL);     // likewise
  aot_release(&device->allocator, import, sizeof *import);
}

void aot_vk_import_keep(aot_device_t *device, bool is_input, size_t index,
                        aot_vk_import_t *import) {
  for (aot_vk_import_t **place = &device->imports; *place != NULL; place = &(*place)->next) {
    aot_vk_import_t *old = *place;
    if (old->is_input != is_input || old->index != index) continue;
    *place = old->next;
    aot_vk_import_release(device, old);
    break;
  }
  if (import == NULL) return;
  import->is_input = is_input;
  import->index = index;
  import->next = device->imports;
  device->imports = import;
}

void aot_vk_imports_free(aot_device_t *device) {
  while (device->imports != NULL) {
    aot_vk_import_t *next = device->imports->next;
    aot_vk_import_release(device, device->imports);
    device->imports = next;
  }
}
