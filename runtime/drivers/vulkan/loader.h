// The Vulkan loader library, opened at run time, and the functions that come from it.
#ifndef AOT_DRIVERS_VULKAN_LOADER_H_
#define AOT_DRIVERS_VULKAN_LOADER_H_

#include "aot/aot.h"
#include "vulkan_api.h"

#define AOT_VK_GLOBAL_FUNCTIONS(X) \
  X(vkCreateInstance)              \
  X(vkEnumerateInstanceVersion)

#define AOT_VK_INSTANCE_FUNCTIONS(X)          \
  X(vkDestroyInstance)                        \
  X(vkEnumeratePhysicalDevices)               \
  X(vkGetPhysicalDeviceProperties)            \
  X(vkGetPhysicalDeviceProperties2)           \
  X(vkGetPhysicalDeviceFeatures2)             \
  X(vkGetPhysicalDeviceMemoryProperties)      \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkEnumerateDeviceExtensionProperties)     \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)

// Of extensions that a device may lack: NULL where the loader has none.
#define AOT_VK_OPTIONAL_FUNCTIONS(X) X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)

// Likewise, of the device itself: NULL where the extension is not enabled.
#define AOT_VK_OPTIONAL_DEVICE_FUNCTIONS(X) X(vkGetAndroidHardwareBufferPropertiesANDROID)

#define AOT_VK_DEVICE_FUNCTIONS(X)  \
  X(vkDestroyDevice)                \
  X(vkDeviceWaitIdle)               \
  X(vkGetDeviceQueue)               \
  X(vkQueueSubmit)                  \
  X(vkQueueWaitIdle)                \
  X(vkAllocateMemory)               \
  X(vkFreeMemory)                   \
  X(vkMapMemory)                    \
  X(vkFlushMappedMemoryRanges)      \
  X(vkInvalidateMappedMemoryRanges) \
  X(vkCreateBuffer)                 \
  X(vkDestroyBuffer)                \
  X(vkCreateBufferView)             \
  X(vkDestroyBufferView)            \
  X(vkGetBufferMemoryRequirements)  \
  X(vkBindBufferMemory)             \
  X(vkCreateShaderModule)           \
  X(vkDestroyShaderModule)          \
  X(vkCreatePipelineCache)          \
  X(vkDestroyPipelineCache)         \
  X(vkGetPipelineCacheData)         \
  X(vkMergePipelineCaches)          \
  X(vkCreatePipelineLayout)         \
  X(vkDestroyPipelineLayout)        \
  X(vkCreateComputePipelines)       \
  X(vkDestroyPipeline)              \
  X(vkCreateDescriptorSetLayout)    \
  X(vkDestroyDescriptorSetLayout)   \
  X(vkCreateDescriptorPool)         \
  X(vkDestroyDescriptorPool)        \
  X(vkAllocateDescriptorSets)       \
  X(vkUpdateDescriptorSets)         \
  X(vkCreateCommandPool)            \
  X(vkDestroyCommandPool)           \
  X(vkAllocateCommandBuffers)       \
  X(vkFreeCommandBuffers)           \
  X(vkBeginCommandBuffer)           \
  X(vkEndCommandBuffer)             \
  X(vkCmdBindPipeline)              \
  X(vkCmdBindDescriptorSets)        \
  X(vkCmdPushConstants)             \
  X(vkCmdDispatch)                  \
  X(vkCmdPipelineBarrier)           \
  X(vkCmdCopyBuffer)                \
  X(vkCmdFillBuffer)                \
  X(vkCmdResetQueryPool)            \
  X(vkCmdWriteTimestamp)            \
  X(vkCreateQueryPool)              \
  X(vkDestroyQueryPool)             \
  X(vkGetQueryPoolResults)          \
  X(vkCreateFence)                  \
  X(vkDestroyFence)                 \
  X(vkResetFences)                  \
  X(vkWaitForFences)

// One table a program: its device functions are the driver's own, without the loader in between.
typedef struct aot_vk_functions_t {
  void *library;
  PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr;
#define AOT_VK_DECLARE(name) PFN_##name name;
  AOT_VK_GLOBAL_FUNCTIONS(AOT_VK_DECLARE)
  AOT_VK_INSTANCE_FUNCTIONS(AOT_VK_DECLARE)
  AOT_VK_OPTIONAL_FUNCTIONS(AOT_VK_DECLARE)
  AOT_VK_DEVICE_FUNCTIONS(AOT_VK_DECLARE)
  AOT_VK_OPTIONAL_DEVICE_FUNCTIONS(AOT_VK_DECLARE)
#undef AOT_VK_DECLARE
} aot_vk_functions_t;

// Opens the library `path`, or the system's where that is NULL, and finds the global functions.
aot_status_t aot_vk_load_library(aot_vk_functions_t *vk, const char *path, aot_error_t *error);
aot_status_t aot_vk_load_instance(aot_vk_functions_t *vk, VkInstance instance, aot_error_t *error);
aot_status_t aot_vk_load_device(aot_vk_functions_t *vk, VkDevice device, aot_error_t *error);
void aot_vk_unload(aot_vk_functions_t *vk);

// The status and message of a call that failed: `what` is its name.
aot_status_t aot_vk_fail(VkResult result, const char *what, aot_error_t *error);

#define AOT_VK_TRY(error, table, name, ...)                               \
  do {                                                                    \
    const VkResult result_ = (table)->name(__VA_ARGS__);                  \
    if (result_ != VK_SUCCESS) return aot_vk_fail(result_, #name, error); \
  } while (0)

#endif  // AOT_DRIVERS_VULKAN_LOADER_H_
