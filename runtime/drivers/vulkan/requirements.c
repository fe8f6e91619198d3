// What a variant asks of a device: limits by their names in VkPhysicalDeviceLimits, and features.
#include <stdio.h>
#include <string.h>

#include "gpu.h"
#include "os.h"
#include "status.h"

#define MOST_SHAPES 64u

typedef struct limit_t {
  const char *name;
  uint16_t offset;
} limit_t;

#define LIMIT(name) {#name, (uint16_t)offsetof(VkPhysicalDeviceLimits, name)}
#define LIMIT_AT(name, index) \
  {#name "[" #index "]",      \
   (uint16_t)(offsetof(VkPhysicalDeviceLimits, name) + (index) * sizeof(uint32_t))}

// All of them are 32 bits wide, and the more the better.
static const limit_t limits[] = {
    LIMIT(maxComputeSharedMemorySize),
    LIMIT_AT(maxComputeWorkGroupCount, 0),
    LIMIT_AT(maxComputeWorkGroupCount, 1),
    LIMIT_AT(maxComputeWorkGroupCount, 2),
    LIMIT(maxComputeWorkGroupInvocations),
    LIMIT_AT(maxComputeWorkGroupSize, 0),
    LIMIT_AT(maxComputeWorkGroupSize, 1),
    LIMIT_AT(maxComputeWorkGroupSize, 2),
    LIMIT(maxPerStageDescriptorStorageBuffers),
    LIMIT(maxPushConstantsSize),
    LIMIT(maxStorageBufferRange),
    LIMIT(maxTexelBufferElements),
    LIMIT(maxUniformBufferRange),
};

typedef enum group_t {
  GROUP_CORE,        // VkPhysicalDeviceFeatures
  GROUP_STORAGE16,   // VkPhysicalDevice16BitStorageFeatures, of Vulkan 1.1
  GROUP_STORAGE8,    // VkPhysicalDevice8BitStorageFeatures
  GROUP_ARITHMETIC,  // VkPhysicalDeviceShaderFloat16Int8Features
  GROUP_DOT,         // VkPhysicalDeviceShaderIntegerDotProductFeatures
  GROUP_MODEL,       // VkPhysicalDeviceVulkanMemoryModelFeatures
  GROUP_MATRIX,      // VkPhysicalDeviceCooperativeMatrixFeaturesKHR
  GROUP_FULL,        // VkPhysicalDeviceSubgroupSizeControlFeatures
  GROUP_SUBGROUP,    // bits of VkPhysicalDeviceSubgroupProperties.supportedOperations
  GROUP_SIZE,        // subgroupSize[lanes]
  GROUP_SHAPE,       // cooperativeMatrix[rows x columns x terms, and types]
  GROUP_COUNT
} group_t;

typedef struct feature_t {
  const char *name;
  group_t group;
  uint32_t place;  // offset in the group's structure, or bits
} feature_t;

static const feature_t features[] = {
    {"shaderInt16", GROUP_CORE, offsetof(VkPhysicalDeviceFeatures, shaderInt16)},
    {"shaderInt64", GROUP_CORE, offsetof(VkPhysicalDeviceFeatures, shaderInt64)},
    {"shaderFloat64", GROUP_CORE, offsetof(VkPhysicalDeviceFeatures, shaderFloat64)},
    {"storageBuffer16BitAccess", GROUP_STORAGE16,
     offsetof(VkPhysicalDevice16BitStorageFeatures, storageBuffer16BitAccess)},
    {"storageBuffer8BitAccess", GROUP_STORAGE8,
     offsetof(VkPhysicalDevice8BitStorageFeatures, storageBuffer8BitAccess)},
    {"shaderFloat16", GROUP_ARITHMETIC,
     offsetof(VkPhysicalDeviceShaderFloat16Int8Features, shaderFloat16)},
    {"shaderInt8", GROUP_ARITHMETIC,
     offsetof(VkPhysicalDeviceShaderFloat16Int8Features, shaderInt8)},
    {"shaderIntegerDotProduct", GROUP_DOT,
     offsetof(VkPhysicalDeviceShaderIntegerDotProductFeatures, shaderIntegerDotProduct)},
    {"vulkanMemoryModel", GROUP_MODEL,
     offsetof(VkPhysicalDeviceVulkanMemoryModelFeatures, vulkanMemoryModel)},
    {"cooperativeMatrix", GROUP_MATRIX,
     offsetof(VkPhysicalDeviceCooperativeMatrixFeaturesKHR, cooperativeMatrix)},
    {"computeFullSubgroups", GROUP_FULL,
     offsetof(VkPhysicalDeviceSubgroupSizeControlFeatures, computeFullSubgroups)},
    {"subgroupBasic", GROUP_SUBGROUP, VK_SUBGROUP_FEATURE_BASIC_BIT},
    {"subgroupArithmetic", GROUP_SUBGROUP, VK_SUBGROUP_FEATURE_ARITHMETIC_BIT},
    {"subgroupShuffle", GROUP_SUBGROUP, VK_SUBGROUP_FEATURE_SHUFFLE_BIT},
};

// Those whose names say in brackets what it is that must be there.
static const feature_t numbered[] = {
    {"subgroupSize[", GROUP_SIZE, 0},
    {"cooperativeMatrix[", GROUP_SHAPE, 0},
};

static const feature_t *find_feature(const char *name) {
  for (size_t i = 0; i < sizeof features / sizeof features[0]; ++i) {
    if (strcmp(features[i].name, name) == 0) return &features[i];
  }
  for (size_t i = 0; i < sizeof numbered / sizeof numbered[0]; ++i) {
    if (strncmp(numbered[i].name, name, strlen(numbered[i].name)) == 0) return &numbered[i];
  }
  return NULL;
}

static void *structure_of(aot_vk_features_t *found, group_t group) {
  switch (group) {
    case GROUP_CORE:
      return &found->core.features;
    case GROUP_STORAGE16:
      return &found->storage16;
    case GROUP_STORAGE8:
      return &found->storage8;
    case GROUP_DOT:
      return &found->dot;
    case GROUP_MODEL:
      return &found->memory_model;
    case GROUP_MATRIX:
      return &found->matrix;
    case GROUP_FULL:
      return &found->subgroups;
    default:
      return &found->arithmetic;
  }
}

// The extension that has a group: the instance is one of Vulkan 1.1, whatever the device's version.
static const char *extension_of(group_t group) {
  return group == GROUP_STORAGE8     ? "VK_KHR_8bit_storage"
         : group == GROUP_ARITHMETIC ? "VK_KHR_shader_float16_int8"
         : group == GROUP_DOT        ? "VK_KHR_shader_integer_dot_product"
         : group == GROUP_MODEL      ? "VK_KHR_vulkan_memory_model"
         : group == GROUP_MATRIX     ? "VK_KHR_cooperative_matrix"
         : group == GROUP_FULL       ? "VK_EXT_subgroup_size_control"
                                     : NULL;
}

// Chains the structures of the groups that are wanted.
static void chain(aot_vk_features_t *found, const bool *wanted) {
  memset(found, 0, sizeof *found);
  found->core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  found->storage16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
  found->storage8.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES;
  found->arithmetic.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES;
  found->dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
  found->memory_model.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
  found->matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
  found->subgroups.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES;
  void **next = &found->core.pNext;
  if (wanted[GROUP_STORAGE16]) {
    *next = &found->storage16;
    next = &found->storage16.pNext;
  }
  if (wanted[GROUP_STORAGE8]) {
    *next = &found->storage8;
    next = &found->storage8.pNext;
  }
  if (wanted[GROUP_ARITHMETIC]) {
    *next = &found->arithmetic;
    next = &found->arithmetic.pNext;
  }
  if (wanted[GROUP_DOT]) {
    *next = &found->dot;
    next = &found->dot.pNext;
  }
  if (wanted[GROUP_MODEL]) {
    *next = &found->memory_model;
    next = &found->memory_model.pNext;
  }
  if (wanted[GROUP_MATRIX]) {
    *next = &found->matrix;
    next = &found->matrix.pNext;
  }
  if (wanted[GROUP_FULL]) *next = &found->subgroups;
}

static aot_status_t check_limits(const VkPhysicalDeviceProperties *properties,
                                 const aot_variant_t *variant, aot_error_t *error) {
  for (uint32_t i = 0; i < variant->limit_count; ++i) {
    const aot_limit_t *needed = &variant->limits[i];
    const limit_t *limit = NULL;
    for (size_t k = 0; k < sizeof limits / sizeof limits[0] && limit == NULL; ++k) {
      if (strcmp(limits[k].name, needed->name) == 0) limit = &limits[k];
    }
    if (limit == NULL) {
      return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                      "needs the limit %s, which this runtime doesn't know", needed->name);
    }
    uint32_t has = 0;
    memcpy(&has, (const char *)&properties->limits + limit->offset, sizeof has);
    if (has < needed->value) {
      return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: %s is %u, the variant needs %llu",
                      properties->deviceName, needed->name, (unsigned)has,
                      (unsigned long long)needed->value);
    }
  }
  return AOT_OK;
}

typedef struct extensions_t {
  VkExtensionProperties *list;  // owned; NULL: none was asked for
  uint32_t count;
  size_t bytes;
} extensions_t;

// Memory is the system's: devices are looked for where there is no program yet.
static aot_status_t list_extensions(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                    aot_error_t *error, extensions_t *out_extensions) {
  uint32_t count = 0;
  VkResult result = vk->vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL);
  if (result != VK_SUCCESS) count = 0;
  const size_t bytes = sizeof(VkExtensionProperties) * ((size_t)count + 1);
  VkExtensionProperties *list = aot_os_allocate(NULL, bytes, _Alignof(VkExtensionProperties));
  if (list == NULL) {
    return aot_fail(error, AOT_ERROR_MEMORY, "out of memory: %zu bytes for a device's extensions",
                    bytes);
  }
  if (count > 0) {
    result = vk->vkEnumerateDeviceExtensionProperties(physical, NULL, &count, list);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) count = 0;
  }
  *out_extensions = (extensions_t){list, count, bytes};
  return AOT_OK;
}

static aot_status_t has_extension(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                  const char *name, aot_error_t *error, extensions_t *extensions,
                                  bool *out_has) {
  *out_has = false;
  if (extensions->list == NULL) AOT_TRY(list_extensions(vk, physical, error, extensions));
  for (uint32_t i = 0; i < extensions->count && !*out_has; ++i)
    *out_has = strcmp(extensions->list[i].extensionName, name) == 0;
  return AOT_OK;
}

static void free_extensions(extensions_t *extensions) {
  if (extensions->list == NULL) return;
  aot_os_release(NULL, extensions->list, extensions->bytes, _Alignof(VkExtensionProperties));
}

aot_status_t aot_vk_check_extension(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                    const VkPhysicalDeviceProperties *properties, const char *name,
                                    aot_error_t *error) {
  extensions_t extensions = {NULL, 0, 0};
  bool is_there = false;
  const aot_status_t status = has_extension(vk, physical, name, error, &extensions, &is_there);
  free_extensions(&extensions);
  if (status != AOT_OK || is_there) return status;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: there is no %s", properties->deviceName, name);
}

static const char *component_of(VkComponentTypeKHR type) {
  switch (type) {
    case VK_COMPONENT_TYPE_FLOAT16_KHR:
      return "f16";
    case VK_COMPONENT_TYPE_FLOAT32_KHR:
      return "f32";
    case VK_COMPONENT_TYPE_SINT8_KHR:
      return "i8";
    case VK_COMPONENT_TYPE_UINT8_KHR:
      return "u8";
    case VK_COMPONENT_TYPE_SINT32_KHR:
      return "i32";
    case VK_COMPONENT_TYPE_UINT32_KHR:
      return "u32";
    default:
      return "?";
  }
}

// Whether subgroups multiply matrices of the shape and the types that a feature's name says.
static bool has_shape(const aot_vk_functions_t *vk, VkPhysicalDevice physical, const char *name) {
  if (vk->vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR == NULL) return false;
  VkCooperativeMatrixPropertiesKHR shapes[MOST_SHAPES];
  memset(shapes, 0, sizeof shapes);
  for (size_t i = 0; i < MOST_SHAPES; ++i)
    shapes[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
  uint32_t count = MOST_SHAPES;
  const VkResult result =
      vk->vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(physical, &count, shapes);
  if (result != VK_SUCCESS && result != VK_INCOMPLETE) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const VkCooperativeMatrixPropertiesKHR *shape = &shapes[i];
    if (shape->scope != VK_SCOPE_SUBGROUP_KHR || shape->saturatingAccumulation) continue;
    if (shape->CType != shape->ResultType) continue;
    char text[96];
    (void)snprintf(text, sizeof text, "cooperativeMatrix[%ux%ux%u %s*%s+%s]",
                   (unsigned)shape->MSize, (unsigned)shape->NSize, (unsigned)shape->KSize,
                   component_of(shape->AType), component_of(shape->BType),
                   component_of(shape->CType));
    if (strcmp(text, name) == 0) return true;
  }
  return false;
}

// Whether the features are known, and their extensions there; sets the groups that they are in.
static aot_status_t check_extensions(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                     const VkPhysicalDeviceProperties *properties,
                                     const aot_variant_t *variant, aot_error_t *error,
                                     bool groups[GROUP_COUNT]) {
  extensions_t extensions = {NULL, 0, 0};
  aot_status_t status = AOT_OK;
  for (uint32_t i = 0; i < variant->feature_count && status == AOT_OK; ++i) {
    const feature_t *feature = find_feature(variant->features[i]);
    if (feature == NULL) {
      status =
          aot_fail(error, AOT_ERROR_UNSUPPORTED,
                   "needs the feature %s, which this runtime doesn't know", variant->features[i]);
      break;
    }
    const char *extension = extension_of(feature->group);
    bool is_there = true;
    if (extension != NULL) {
      status = has_extension(vk, physical, extension, error, &extensions, &is_there);
    }
    if (status == AOT_OK && !is_there) {
      status = aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: there is no %s, which the variant needs",
                        properties->deviceName, feature->name);
    }
    groups[feature->group] = true;
  }
  free_extensions(&extensions);
  return status;
}

static aot_status_t check_features(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                   const VkPhysicalDeviceProperties *properties,
                                   const aot_variant_t *variant, aot_error_t *error) {
  bool groups[GROUP_COUNT] = {false};
  AOT_TRY(check_extensions(vk, physical, properties, variant, error, groups));
  aot_vk_features_t found;
  chain(&found, groups);
  VkPhysicalDeviceSubgroupProperties subgroup = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceProperties2 more = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                      .pNext = &subgroup};
  vk->vkGetPhysicalDeviceFeatures2(physical, &found.core);
  vk->vkGetPhysicalDeviceProperties2(physical, &more);
  for (uint32_t i = 0; i < variant->feature_count; ++i) {
    const feature_t *feature = find_feature(variant->features[i]);
    VkBool32 is_there = 0;
    if (feature->group == GROUP_SHAPE) {
      is_there = has_shape(vk, physical, variant->features[i]);
    } else if (feature->group == GROUP_SIZE) {
      char text[32];
      (void)snprintf(text, sizeof text, "subgroupSize[%u]", (unsigned)subgroup.subgroupSize);
      is_there = strcmp(text, variant->features[i]) == 0;
    } else if (feature->group == GROUP_SUBGROUP) {
      const bool is_staged = (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
      is_there = is_staged && (subgroup.supportedOperations & feature->place) != 0;
    } else {
      const char *structure = structure_of(&found, feature->group);
      memcpy(&is_there, structure + feature->place, sizeof is_there);
    }
    if (!is_there) {
      return aot_fail(error, AOT_ERROR_UNSUPPORTED, "%s: there is no %s, which the variant needs",
                      properties->deviceName, variant->features[i]);
    }
  }
  return AOT_OK;
}

aot_status_t aot_vk_check_variant(const aot_vk_functions_t *vk, VkPhysicalDevice physical,
                                  const VkPhysicalDeviceProperties *properties,
                                  const aot_variant_t *variant, aot_error_t *error) {
  AOT_TRY(check_limits(properties, variant, error));
  return check_features(vk, physical, properties, variant, error);
}

void aot_vk_enable_features(const aot_variant_t *variant, aot_vk_features_t *out_features) {
  bool groups[GROUP_COUNT] = {false};
  for (uint32_t i = 0; i < variant->feature_count; ++i) {
    groups[find_feature(variant->features[i])->group] = true;
  }
  chain(out_features, groups);
  for (uint32_t i = 0; i < variant->feature_count; ++i) {
    const feature_t *feature = find_feature(variant->features[i]);
    if (feature->group >= GROUP_SUBGROUP) continue;  // nothing that is enabled
    const VkBool32 yes = 1;
    char *structure = structure_of(out_features, feature->group);
    memcpy(structure + feature->place, &yes, sizeof yes);
  }
  for (group_t group = GROUP_CORE; group < GROUP_COUNT; ++group) {
    const char *extension = extension_of(group);
    if (groups[group] && extension != NULL) {
      out_features->extensions[out_features->extension_count++] = extension;
    }
  }
}
