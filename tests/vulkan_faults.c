// A Vulkan loader for tests: the system's, with calls that can be made to fail, counted and
// watched.
//
// Every function it stands in for returns a VkResult and takes at most eight integers or pointers,
// which 64-bit calling conventions pass the same way whatever their types.
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef void (*function_t)(void);
typedef int32_t (*call_t)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                          uintptr_t, uintptr_t);
typedef function_t (*find_t)(void *, const char *);

#define FUNCTIONS(X)                \
  X(vkEnumerateInstanceVersion)     \
  X(vkCreateInstance)               \
  X(vkEnumeratePhysicalDevices)     \
  X(vkCreateDevice)                 \
  X(vkQueueSubmit)                  \
  X(vkAllocateMemory)               \
  X(vkMapMemory)                    \
  X(vkFlushMappedMemoryRanges)      \
  X(vkInvalidateMappedMemoryRanges) \
  X(vkCreateBuffer)                 \
  X(vkBindBufferMemory)             \
  X(vkCreateShaderModule)           \
  X(vkCreatePipelineCache)          \
  X(vkGetPipelineCacheData)         \
  X(vkMergePipelineCaches)          \
  X(vkCreatePipelineLayout)         \
  X(vkCreateComputePipelines)       \
  X(vkCreateDescriptorSetLayout)    \
  X(vkCreateDescriptorPool)         \
  X(vkAllocateDescriptorSets)       \
  X(vkCreateCommandPool)            \
  X(vkAllocateCommandBuffers)       \
  X(vkBeginCommandBuffer)           \
  X(vkEndCommandBuffer)             \
  X(vkCreateQueryPool)              \
  X(vkGetQueryPoolResults)          \
  X(vkCreateFence)                  \
  X(vkResetFences)                  \
  X(vkWaitForFences)                \
  X(vkDeviceWaitIdle)

enum {
#define NUMBER(name) NUMBER_##name,
  FUNCTIONS(NUMBER) COUNT
};

static const char *const names[COUNT] = {
#define NAME(name) #name,
    FUNCTIONS(NAME)};

static function_t real[COUNT];
static uint32_t calls[COUNT];
static char fault_name[64];
static uint32_t fault_call;
static int32_t fault_result;
static char hidden_name[64];
static void (*watcher)(const char *name, uint32_t call);

static int32_t call(int number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,
                    uintptr_t f, uintptr_t g, uintptr_t h) {
  const uint32_t at = calls[number]++;
  if (watcher != NULL) watcher(names[number], at);
  const int is_fault = strcmp(fault_name, names[number]) == 0 && at == fault_call;
  // A command buffer must not stay open: its end is called, and fails after that.
  if (is_fault && number != NUMBER_vkEndCommandBuffer) return fault_result;
  const int32_t result = ((call_t)real[number])(a, b, c, d, e, f, g, h);
  return is_fault ? fault_result : result;
}

#define WRAP(name)                                                                            \
  static int32_t wrap_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, \
                             uintptr_t f, uintptr_t g, uintptr_t h) {                         \
    return call(NUMBER_##name, a, b, c, d, e, f, g, h);                                       \
  }
FUNCTIONS(WRAP)

static find_t find_instance;
static find_t find_device;
static function_t device_function(void *device, const char *name);

static function_t wrapped(const char *name, function_t found) {
  if (strcmp(name, hidden_name) == 0) return NULL;
#define CHOOSE(function)                \
  if (strcmp(name, #function) == 0) {   \
    real[NUMBER_##function] = found;    \
    return (function_t)wrap_##function; \
  }
  FUNCTIONS(CHOOSE)
  return found;
}

static function_t device_function(void *device, const char *name) {
  return wrapped(name, find_device(device, name));
}

__attribute__((visibility("default"))) function_t vkGetInstanceProcAddr(void *instance,
                                                                        const char *name) {
  if (find_instance == NULL) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return NULL;
    void *address = dlsym(library, "vkGetInstanceProcAddr");
    memcpy(&find_instance, &address, sizeof address);
  }
  const function_t found = find_instance(instance, name);
  if (strcmp(name, "vkGetDeviceProcAddr") == 0 && strcmp(name, hidden_name) != 0) {
    find_device = (find_t)found;
    return (function_t)device_function;
  }
  return found != NULL ? wrapped(name, found) : NULL;
}

// The calls of this name from now on; `at` counts from 0, `result` is what that one gives.
__attribute__((visibility("default"))) void faults_set(const char *name, uint32_t at,
                                                       int32_t result) {
  strncpy(fault_name, name, sizeof fault_name - 1);
  fault_call = at;
  fault_result = result;
  memset(calls, 0, sizeof calls);
}

__attribute__((visibility("default"))) void faults_hide(const char *name) {
  strncpy(hidden_name, name, sizeof hidden_name - 1);
}

__attribute__((visibility("default"))) void faults_watch(void (*function)(const char *, uint32_t)) {
  watcher = function;
}

__attribute__((visibility("default"))) uint32_t faults_calls(const char *name) {
  for (int i = 0; i < COUNT; ++i) {
    if (strcmp(names[i], name) == 0) return calls[i];
  }
  return 0;
}

__attribute__((visibility("default"))) const char *faults_name(uint32_t index) {
  return index < COUNT ? names[index] : NULL;
}
