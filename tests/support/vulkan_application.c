// An application that uses Vulkan itself: a device with a queue, and buffers in memory that the
// host sees.  For tests of programs on its device.
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "aot/vulkan_buffers.h"
#include "vulkan_api.h"

typedef struct application_t {
  aot_vulkan_device_t device;  // first: what the runtime is given
  PFN_vkGetDeviceProcAddr find;
  uint32_t memory_type;
  int depth;  // of locks, which are counted
  int locks;
} application_t;

typedef struct buffer_t {
  VkBuffer handle;
  VkDeviceMemory memory;
  void *mapped;
} buffer_t;

#define EXPORT __attribute__((visibility("default")))
#define INSTANCE(name) \
  PFN_##name name = (PFN_##name)app->device.get_instance_proc_addr(app->device.instance, #name)
#define DEVICE(name) PFN_##name name = (PFN_##name)app->find(app->device.device, #name)

static void lock(void *user) {
  application_t *app = user;
  if (++app->depth != 1) abort();
  ++app->locks;
}

static void unlock(void *user) {
  application_t *app = user;
  if (--app->depth != 0) abort();
}

static bool open_device(application_t *app) {
  INSTANCE(vkEnumeratePhysicalDevices);
  INSTANCE(vkGetPhysicalDeviceMemoryProperties);
  INSTANCE(vkCreateDevice);
  VkPhysicalDevice physical = NULL;
  uint32_t count = 1;
  const VkResult result = vkEnumeratePhysicalDevices(app->device.instance, &count, &physical);
  if ((result != VK_SUCCESS && result != VK_INCOMPLETE) || count == 0) return false;
  VkPhysicalDeviceMemoryProperties memory;
  vkGetPhysicalDeviceMemoryProperties(physical, &memory);
  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  while (app->memory_type < memory.memoryTypeCount &&
         (memory.memoryTypes[app->memory_type].propertyFlags & wanted) != wanted)
    ++app->memory_type;
  const float priority = 1.0f;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue};
  VkDevice device = NULL;
  if (vkCreateDevice(physical, &info, NULL, &device) != VK_SUCCESS) return false;
  INSTANCE(vkGetDeviceProcAddr);
  app->find = vkGetDeviceProcAddr;
  app->device.physical_device = physical;
  app->device.device = device;
  DEVICE(vkGetDeviceQueue);
  VkQueue made = NULL;
  vkGetDeviceQueue(device, 0, 0, &made);
  app->device.queue = made;
  return true;
}

// On the first device; queue family 0.  NULL where there is none.
EXPORT application_t *application_open(void) {
  application_t *app = calloc(1, sizeof *app);
  void *handle = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (app == NULL || handle == NULL) return NULL;
  void *address = dlsym(handle, "vkGetInstanceProcAddr");
  memcpy(&app->device.get_instance_proc_addr, &address, sizeof address);
  app->device.size = sizeof app->device;
  INSTANCE(vkCreateInstance);
  const VkApplicationInfo version = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .apiVersion = VK_MAKE_API_VERSION(1, 1)};
  const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &version};
  VkInstance instance = NULL;
  if (vkCreateInstance(&info, NULL, &instance) != VK_SUCCESS) return NULL;
  app->device.instance = instance;
  app->device.lock = lock;
  app->device.unlock = unlock;
  app->device.user = app;
  return open_device(app) ? app : NULL;
}

EXPORT int application_locks(const application_t *app) {
  return app->locks;
}

EXPORT void application_close(application_t *app) {
  DEVICE(vkDestroyDevice);
  INSTANCE(vkDestroyInstance);
  vkDestroyDevice(app->device.device, NULL);
  vkDestroyInstance(app->device.instance, NULL);
  free(app);
}

// For transfers; NULL where that fails.
EXPORT buffer_t *application_buffer(application_t *app, uint64_t bytes) {
  DEVICE(vkCreateBuffer);
  DEVICE(vkGetBufferMemoryRequirements);
  DEVICE(vkAllocateMemory);
  DEVICE(vkBindBufferMemory);
  DEVICE(vkMapMemory);
  buffer_t *buffer = calloc(1, sizeof *buffer);
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = bytes,
      .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
  if (buffer == NULL ||
      vkCreateBuffer(app->device.device, &info, NULL, &buffer->handle) != VK_SUCCESS)
    return NULL;
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(app->device.device, buffer->handle, &needs);
  const VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .allocationSize = needs.size,
                                       .memoryTypeIndex = app->memory_type};
  if (vkAllocateMemory(app->device.device, &memory, NULL, &buffer->memory) != VK_SUCCESS ||
      vkBindBufferMemory(app->device.device, buffer->handle, buffer->memory, 0) != VK_SUCCESS ||
      vkMapMemory(app->device.device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped) !=
          VK_SUCCESS)
    return NULL;
  return buffer;
}

EXPORT uint64_t application_handle(const buffer_t *buffer) {
  uint64_t handle = 0;
  memcpy(&handle, &buffer->handle, sizeof buffer->handle);
  return handle;
}

EXPORT void *application_memory(const buffer_t *buffer) {
  return buffer->mapped;
}

EXPORT void application_release(application_t *app, buffer_t *buffer) {
  DEVICE(vkDestroyBuffer);
  DEVICE(vkFreeMemory);
  vkDestroyBuffer(app->device.device, buffer->handle, NULL);
  vkFreeMemory(app->device.device, buffer->memory, NULL);
  free(buffer);
}
