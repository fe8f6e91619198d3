#include "gpu.h"

#include <string.h>

#include "sizes.h"
#include "status.h"
#include "system.h"

#define MOST_DEVICES 16u
#define MOST_FAMILIES 32u

static aot_status_t create_instance(aot_vk_gpu_t *gpu, aot_error_t *error) {
  aot_vk_functions_t *vk = &gpu->vk;
  uint32_t version = VK_MAKE_API_VERSION(1, 0);
  if (vk->vkEnumerateInstanceVersion != NULL) {
    AOT_VK_TRY(error, vk, vkEnumerateInstanceVersion, &version);
  }
  if (version < VK_MAKE_API_VERSION(1, 1)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: the system has version 1.0, not 1.1");
  }
  const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                         .pEngineName = "aotc",
                                         .apiVersion = VK_MAKE_API_VERSION(1, 1)};
  const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &application};
  VkInstance instance = NULL;
  AOT_VK_TRY(error, vk, vkCreateInstance, &info, NULL, &instance);
  gpu->instance = instance;
  return aot_vk_load_instance(vk, gpu->instance, error);
}

static char lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool contains(const char *text, const char *part) {
  for (; *text != '\0'; ++text) {
    size_t i = 0;
    while (part[i] != '\0' && lower(text[i]) == lower(part[i]))
      ++i;
    if (part[i] == '\0') return true;
  }
  return false;
}

// Greater is better.
static int rank(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return 4;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return 3;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return 2;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return 0;
    default:
      return 1;
  }
}

// A queue family for compute, one without graphics by preference: it is for such work.
static bool find_family(const aot_vk_gpu_t *gpu, VkPhysicalDevice physical, uint32_t *out_family,
                        uint32_t *out_timestamp_bits) {
  VkQueueFamilyProperties families[MOST_FAMILIES];
  uint32_t count = MOST_FAMILIES;
  gpu->vk.vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
  bool is_found = false;
  for (uint32_t i = 0; i < count; ++i) {
    const bool is_compute = (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0;
    const bool has_graphics = (families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0;
    if (!is_compute || families[i].queueCount == 0 || (is_found && has_graphics)) continue;
    *out_family = i;
    *out_timestamp_bits = families[i].timestampValidBits;
    is_found = true;
    if (!has_graphics) break;
  }
  return is_found;
}

// Why a device won't do, or AOT_OK.
static aot_status_t check_device(const aot_vk_gpu_t *gpu, VkPhysicalDevice physical,
                                 const VkPhysicalDeviceProperties *properties,
                                 const aot_variant_t *variant, const char *wanted, bool any,
                                 bool hardware_buffers, aot_error_t *error) {
  static const char *const extensions[] = AOT_VK_HARDWARE_BUFFER_EXTENSIONS;
  uint32_t family = 0;
  uint32_t bits = 0;
  if (wanted != NULL && !contains(properties->deviceName, wanted)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: not the device \"%s\" that is wanted",
                    properties->deviceName, wanted);
  }
  if (wanted == NULL && any && properties->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "%s: a driver in software, used only where vulkan is asked for",
                    properties->deviceName);
  }
  if (properties->apiVersion < VK_MAKE_API_VERSION(1, 1)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: vulkan %u.%u, not 1.1",
                    properties->deviceName, (unsigned)VK_API_VERSION_MAJOR(properties->apiVersion),
                    (unsigned)VK_API_VERSION_MINOR(properties->apiVersion));
  }
  if (!find_family(gpu, physical, &family, &bits)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: no queue for compute",
                    properties->deviceName);
  }
  for (uint32_t i = 0; hardware_buffers && i < 2; ++i)
    AOT_TRY(aot_vk_check_extension(&gpu->vk, physical, properties, extensions[i], error));
  return aot_vk_check_variant(&gpu->vk, physical, properties, variant, error);
}

static aot_status_t choose_device(aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                                  const char *wanted, bool any, bool hardware_buffers,
                                  aot_error_t *error) {
  VkPhysicalDevice found[MOST_DEVICES];
  uint32_t count = MOST_DEVICES;
  const VkResult result = gpu->vk.vkEnumeratePhysicalDevices(gpu->instance, &count, found);
  if (result != VK_SUCCESS && result != VK_INCOMPLETE) {
    return aot_vk_fail(result, "vkEnumeratePhysicalDevices", error);
  }
  aot_text_t why = {.length = 0};
  int best = -1;
  for (uint32_t i = 0; i < count; ++i) {
    VkPhysicalDeviceProperties properties;
    gpu->vk.vkGetPhysicalDeviceProperties(found[i], &properties);
    aot_error_t reason = {AOT_OK, ""};
    if (check_device(gpu, found[i], &properties, variant, wanted, any, hardware_buffers, &reason) !=
        AOT_OK) {
      aot_text_append(&why, "%s%s", why.length > 0 ? "; " : "", reason.message);
    } else if (rank(properties.deviceType) > best) {
      best = rank(properties.deviceType);
      gpu->physical = found[i];
      gpu->properties = properties;
    }
  }
  if (best < 0) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: %s",
                    why.length > 0 ? why.bytes : "there is no device");
  }
  (void)find_family(gpu, gpu->physical, &gpu->queue_family, &gpu->timestamp_bits);
  gpu->vk.vkGetPhysicalDeviceMemoryProperties(gpu->physical, &gpu->memory);
  return AOT_OK;
}

// What begins a shader: five words of header, then its capabilities, an instruction of two words
// each.
#define SPIRV_HEADER_WORDS 5u
#define SPIRV_CAPABILITY (2u << 16 | 17u)
#define SPIRV_SHUFFLE 65u  // GroupNonUniformShuffle

static bool needs_peers(const aot_module_t *module, const aot_segment_t *spirv) {
  const uint32_t *words = (const uint32_t *)(const void *)(module->data + spirv->offset);
  const size_t count = (size_t)spirv->length / sizeof *words;
  if ((uintptr_t)words % sizeof *words != 0) return false;
  for (size_t i = SPIRV_HEADER_WORDS; i + 1 < count && words[i] == SPIRV_CAPABILITY; i += 2) {
    if (words[i + 1] == SPIRV_SHUFFLE) return true;
  }
  return false;
}

const aot_segment_t *aot_vk_shader_of(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                                      const aot_executable_t *executable) {
  const aot_segment_t *texel = &executable->texel_spirv;
  const bool is_texel =
      gpu->reads_texels && texel->length > 0 && (gpu->has_peers || !needs_peers(module, texel));
  return is_texel ? texel : &executable->spirv;
}

static bool has_texels(const aot_variant_t *variant) {
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    if (variant->executables[i].texel_spirv.length > 0) return true;
  }
  return false;
}

aot_vulkan_texels_t aot_vk_texels_setting(const aot_vulkan_options_t *options) {
  if (options->texels != AOT_VULKAN_TEXELS_DEFAULT) return options->texels;
  const char *setting = aot_vk_environment("AOT_VULKAN_TEXELS");
  if (setting != NULL && strcmp(setting, "on") == 0) return AOT_VULKAN_TEXELS_ON;
  if (setting != NULL && strcmp(setting, "off") == 0) return AOT_VULKAN_TEXELS_OFF;
  return AOT_VULKAN_TEXELS_DEFAULT;
}

// Whether shaders that read texels are taken. Unless told, where a texel buffer reaches as far as a
// storage buffer, and where loads from it were measured to be quicker: lavapipe does a load from a
// storage buffer in a loop over its lanes.
static bool wants_texels(const VkPhysicalDeviceProperties *properties,
                         const aot_vulkan_options_t *options) {
  const aot_vulkan_texels_t setting = aot_vk_texels_setting(options);
  if (setting != AOT_VULKAN_TEXELS_DEFAULT) return setting == AOT_VULKAN_TEXELS_ON;
  const VkPhysicalDeviceLimits *limits = &properties->limits;
  const uint32_t most_words = limits->maxStorageBufferRange / 4;
  return strncmp(properties->deviceName, "llvmpipe", 8) == 0 &&
         limits->maxTexelBufferElements >= most_words;
}

static bool has_peers(const aot_vk_gpu_t *gpu) {
  VkPhysicalDeviceSubgroupProperties subgroup = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceProperties2 more = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                      .pNext = &subgroup};
  gpu->vk.vkGetPhysicalDeviceProperties2(gpu->physical, &more);
  return (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
         (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) != 0 &&
         subgroup.subgroupSize != 0 && subgroup.subgroupSize % AOT_VK_PEERS == 0;
}

static aot_status_t create_device(aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                                  bool hardware_buffers, aot_error_t *error) {
  static const char *const extensions[] = AOT_VK_HARDWARE_BUFFER_EXTENSIONS;
  aot_vk_features_t features;
  aot_vk_enable_features(variant, &features);
  for (uint32_t i = 0; hardware_buffers && i < 2; ++i)
    features.extensions[features.extension_count++] = extensions[i];
  const float priority = 1.0f;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = gpu->queue_family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .pNext = &features.core,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue,
                                   .enabledExtensionCount = features.extension_count,
                                   .ppEnabledExtensionNames = features.extensions};
  VkDevice device = NULL;
  AOT_VK_TRY(error, &gpu->vk, vkCreateDevice, gpu->physical, &info, NULL, &device);
  gpu->device = device;
  AOT_TRY(aot_vk_load_device(&gpu->vk, gpu->device, error));
  gpu->vk.vkGetDeviceQueue(gpu->device, gpu->queue_family, 0, &gpu->queue);
  return AOT_OK;
}

// ---- the caller's own ----

static aot_status_t take_own(const aot_vulkan_device_t *device, aot_error_t *error,
                             aot_vulkan_device_t *own) {
  AOT_TRY(aot_struct_take(device, "aot_vulkan_device_t", own, sizeof *own, error));
  const char *missing = own->instance == NULL                 ? "instance"
                        : own->physical_device == NULL        ? "physical_device"
                        : own->device == NULL                 ? "device"
                        : own->queue == NULL                  ? "queue"
                        : own->get_instance_proc_addr == NULL ? "get_instance_proc_addr"
                                                              : NULL;
  if (missing != NULL) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the %s of the aot_vulkan_device_t is NULL",
                    missing);
  }
  if ((own->lock == NULL) == (own->unlock == NULL)) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT,
                  "an aot_vulkan_device_t needs both functions, lock and unlock");
}

static aot_status_t find_own_family(aot_vk_gpu_t *gpu, uint32_t family, aot_error_t *error) {
  VkQueueFamilyProperties families[MOST_FAMILIES];
  uint32_t count = MOST_FAMILIES;
  gpu->vk.vkGetPhysicalDeviceQueueFamilyProperties(gpu->physical, &count, families);
  if (family < count && (families[family].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) {
    gpu->queue_family = family;
    gpu->timestamp_bits = families[family].timestampValidBits;
    return AOT_OK;
  }
  return aot_fail(error, AOT_ERROR_ARGUMENT, "queue family %u of %s can't compute",
                  (unsigned)family, gpu->properties.deviceName);
}

static aot_status_t open_own(aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                             const aot_vulkan_options_t *options, aot_error_t *error) {
  aot_vulkan_device_t own;
  AOT_TRY(take_own(options->own_device, error, &own));
  gpu->is_callers = true;
  gpu->vk.vkGetInstanceProcAddr = (PFN_vkGetInstanceProcAddr)own.get_instance_proc_addr;
  gpu->instance = own.instance;
  AOT_TRY(aot_vk_load_instance(&gpu->vk, gpu->instance, error));
  gpu->physical = own.physical_device;
  gpu->vk.vkGetPhysicalDeviceProperties(gpu->physical, &gpu->properties);
  AOT_TRY(check_device(gpu, gpu->physical, &gpu->properties, variant, NULL, false,
                       options->hardware_buffers, error));
  AOT_TRY(find_own_family(gpu, own.queue_family, error));
  gpu->vk.vkGetPhysicalDeviceMemoryProperties(gpu->physical, &gpu->memory);
  gpu->has_peers = has_peers(gpu);
  gpu->reads_texels = has_texels(variant) && wants_texels(&gpu->properties, options);
  gpu->device = own.device;
  gpu->queue = own.queue;
  return aot_vk_load_device(&gpu->vk, gpu->device, error);
}

aot_status_t aot_vk_gpu_open(aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                             const aot_vulkan_options_t *options, bool any, aot_error_t *error) {
  memset(gpu, 0, sizeof *gpu);
  if (options->own_device != NULL) return open_own(gpu, variant, options, error);
  const char *library = options->library;
  if (library == NULL) library = aot_vk_environment("AOT_VULKAN_LIBRARY");
  AOT_TRY(aot_vk_load_library(&gpu->vk, library, error));
  AOT_TRY(create_instance(gpu, error));
  const char *wanted = options->device;
  if (wanted == NULL) wanted = aot_vk_environment("AOT_VULKAN_DEVICE");
  AOT_TRY(choose_device(gpu, variant, wanted, any, options->hardware_buffers, error));
  gpu->has_peers = has_peers(gpu);
  gpu->reads_texels = has_texels(variant) && wants_texels(&gpu->properties, options);
  return create_device(gpu, variant, options->hardware_buffers, error);
}

void aot_vk_gpu_close(aot_vk_gpu_t *gpu) {
  if (gpu->is_callers) return;
  // A driver without the one or the other keeps what can't be destroyed, and its library.
  if ((gpu->device != NULL && gpu->vk.vkDestroyDevice == NULL) ||
      (gpu->instance != NULL && gpu->vk.vkDestroyInstance == NULL)) {
    return;
  }
  if (gpu->device != NULL) gpu->vk.vkDestroyDevice(gpu->device, NULL);
  if (gpu->instance != NULL) gpu->vk.vkDestroyInstance(gpu->instance, NULL);
  aot_vk_unload(&gpu->vk);
  gpu->device = NULL;
  gpu->instance = NULL;
}
