#include "loader.h"

#include <string.h>

#include "status.h"
#include "system.h"

// Android has no version in the name.
static const char *const library_names[] = {"libvulkan.so.1", "libvulkan.so"};

aot_status_t aot_vk_fail(VkResult result, const char *what, aot_error_t *error) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return aot_fail(error, AOT_ERROR_MEMORY, "vulkan: %s: out of host memory", what);
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_OUT_OF_POOL_MEMORY:
    case VK_ERROR_FRAGMENTED_POOL:
      return aot_fail(error, AOT_ERROR_MEMORY, "vulkan: %s: out of device memory", what);
    case VK_ERROR_DEVICE_LOST:
      return aot_fail(error, AOT_ERROR_DEVICE, "vulkan: %s: the device is lost", what);
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                      "vulkan: no driver starts (VK_LOADER_DEBUG=error says why)");
    default:
      return aot_fail(error, AOT_ERROR_DEVICE, "vulkan: %s gave %d", what, (int)result);
  }
}

static aot_status_t fail_missing(const char *name, aot_error_t *error) {
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: the driver has no %s", name);
}

// Functions of any type lie in one field after the other; NULL where there is none.
static void set_function(void *field, PFN_vkVoidFunction function) {
  memcpy(field, &function, sizeof function);
}

aot_status_t aot_vk_load_library(aot_vk_functions_t *vk, const char *path, aot_error_t *error) {
  const size_t count = path != NULL ? 1 : sizeof library_names / sizeof library_names[0];
  for (size_t i = 0; i < count && vk->library == NULL; ++i) {
    vk->library = aot_vk_open_library(path != NULL ? path : library_names[i]);
  }
  if (vk->library == NULL) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: cannot load %s",
                    path != NULL ? path : library_names[0]);
  }
  set_function(&vk->vkGetInstanceProcAddr,
               aot_vk_find_function(vk->library, "vkGetInstanceProcAddr"));
  if (vk->vkGetInstanceProcAddr == NULL) return fail_missing("vkGetInstanceProcAddr", error);
#define AOT_VK_FIND(name) set_function(&vk->name, vk->vkGetInstanceProcAddr(NULL, #name));
  AOT_VK_GLOBAL_FUNCTIONS(AOT_VK_FIND)
#undef AOT_VK_FIND
  // Loaders of 1.0 have no vkEnumerateInstanceVersion.
  return vk->vkCreateInstance != NULL ? AOT_OK : fail_missing("vkCreateInstance", error);
}

aot_status_t aot_vk_load_instance(aot_vk_functions_t *vk, VkInstance instance, aot_error_t *error) {
#define AOT_VK_FIND(name)                                              \
  set_function(&vk->name, vk->vkGetInstanceProcAddr(instance, #name)); \
  if (vk->name == NULL) return fail_missing(#name, error);
  AOT_VK_INSTANCE_FUNCTIONS(AOT_VK_FIND)
#undef AOT_VK_FIND
#define AOT_VK_FIND(name) set_function(&vk->name, vk->vkGetInstanceProcAddr(instance, #name));
  AOT_VK_OPTIONAL_FUNCTIONS(AOT_VK_FIND)
#undef AOT_VK_FIND
  return AOT_OK;
}

aot_status_t aot_vk_load_device(aot_vk_functions_t *vk, VkDevice device, aot_error_t *error) {
#define AOT_VK_FIND(name)                                          \
  set_function(&vk->name, vk->vkGetDeviceProcAddr(device, #name)); \
  if (vk->name == NULL) return fail_missing(#name, error);
  AOT_VK_DEVICE_FUNCTIONS(AOT_VK_FIND)
#undef AOT_VK_FIND
#define AOT_VK_FIND(name) set_function(&vk->name, vk->vkGetDeviceProcAddr(device, #name));
  AOT_VK_OPTIONAL_DEVICE_FUNCTIONS(AOT_VK_FIND)
#undef AOT_VK_FIND
  return AOT_OK;
}

void aot_vk_unload(aot_vk_functions_t *vk) {
  if (vk->library != NULL) aot_vk_close_library(vk->library);
  vk->library = NULL;
}
