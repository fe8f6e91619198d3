// A Vulkan device for one program: instance, the choice of the physical device by what the variant
// needs, logical device and queue.
#ifndef AOT_DRIVERS_VULKAN_GPU_H_
#define AOT_DRIVERS_VULKAN_GPU_H_

#include "aot/vulkan.h"
#include "loader.h"
#include "module.h"

// Shaders that read texels may share what they load in groups of so many lanes: a subgroup must
// have that many, or a multiple.
#define AOT_VK_PEERS 8u

typedef struct aot_vk_gpu_t {
  aot_vk_functions_t vk;
  VkInstance instance;
  VkPhysicalDevice physical;
  VkDevice device;
  VkQueue queue;
  uint32_t queue_family;
  uint32_t timestamp_bits;  // 0: the queue has none
  bool reads_texels;        // shaders read the buffers of classes as texels too
  bool has_peers;           // lanes can give each other values, in groups of AOT_VK_PEERS
  bool is_callers;          // instance and device are the caller's, and stay
  VkPhysicalDeviceProperties properties;
  VkPhysicalDeviceMemoryProperties memory;
} aot_vk_gpu_t;

// Takes the best device that runs the variant, or the caller's own.  `any` tells that the caller
// would take another driver too: then devices that are software are not worth it, unless one is
// named.
aot_status_t aot_vk_gpu_open(aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                             const aot_vulkan_options_t *options, bool any, aot_error_t *error);
// How the options, or the environment where they don't say, want constants to be read.
aot_vulkan_texels_t aot_vk_texels_setting(const aot_vulkan_options_t *options);

// Fine after a failure of open.
void aot_vk_gpu_close(aot_vk_gpu_t *gpu);

// requirements.c: AOT_OK when the device has all limits and features of the variant; else the
// message names the first that it lacks.
aot_status_t aot_vk_check_variant(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                  const VkPhysicalDeviceProperties *properties,
                                  const aot_variant_t *variant, aot_error_t *error);

// The shader of an executable that the device runs: one that reads texels where that is wanted, and
// the lanes of the device can share what it loads if it does so.
const aot_segment_t *aot_vk_shader_of(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                                      const aot_executable_t *executable);

// What a device is made with so that the variant's features are there.
typedef struct aot_vk_features_t {
  VkPhysicalDeviceFeatures2 core;
  VkPhysicalDevice16BitStorageFeatures storage16;
  VkPhysicalDevice8BitStorageFeatures storage8;
  VkPhysicalDeviceShaderFloat16Int8Features arithmetic;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot;
  VkPhysicalDeviceVulkanMemoryModelFeatures memory_model;
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix;
  VkPhysicalDeviceSubgroupSizeControlFeatures subgroups;
  const char *extensions[10];
  uint32_t extension_count;
} aot_vk_features_t;

// AOT_OK when the device has an extension; else the message names it.
aot_status_t aot_vk_check_extension(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                    const VkPhysicalDeviceProperties *properties, const char *name,
                                    aot_error_t *error);

// What importing AHardwareBuffers takes.
#define AOT_VK_HARDWARE_BUFFER_EXTENSIONS \
  {"VK_ANDROID_external_memory_android_hardware_buffer", "VK_EXT_queue_family_foreign"}

// Fills in the structures, chained up; they point into each other and must not be moved.
void aot_vk_enable_features(const aot_variant_t *variant, aot_vk_features_t *out_features);

#endif  // AOT_DRIVERS_VULKAN_GPU_H_
