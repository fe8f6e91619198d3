// A Vulkan loader for tests: the system's, with calls that can be made to fail, counted and
// watched; and with memory that is not coherent, if it is asked for: what is mapped is a copy,
// which nothing but flushing and invalidating keeps up with the device's.  A buffer that is
// destroyed before its view ends the process.
//
// Every function it stands in for returns a VkResult and takes at most eight integers or pointers,
// which 64-bit calling conventions pass the same way whatever their types.
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan_reversed.h"

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
  X(vkCreateBufferView)             \
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
enum { RESULT_TIMEOUT = 2 };
static int is_fault_repeated;
static char hidden_name[64];
static void (*watcher)(const char *name, uint32_t call);

// ---- memory that is not coherent ----

enum { MOST_MAPPINGS = 1024, MOST_TYPES = 32, HOST_COHERENT = 4, POISON = 0xcd };

// As in Vulkan's headers, as far as they are read.
typedef struct allocate_info_t {
  uint32_t type;
  const void *next;
  uint64_t bytes;
} allocate_info_t;

typedef struct range_t {
  uint32_t type;
  const void *next;
  uint64_t memory;
  uint64_t offset;
  uint64_t bytes;
} range_t;

typedef struct memory_properties_t {
  uint32_t type_count;
  struct {
    uint32_t flags;
    uint32_t heap;
  } types[MOST_TYPES];
} memory_properties_t;

typedef struct mapping_t {
  uint64_t memory;
  uint64_t bytes;
  uint8_t *device;  // where it is mapped
  uint8_t *host;    // what the driver under test sees
} mapping_t;

static int is_incoherent;
static mapping_t mappings[MOST_MAPPINGS];
static void (*real_memory_properties)(void *, memory_properties_t *);
static void (*real_free)(void *, uint64_t, const void *);

static mapping_t *mapping_of(uint64_t memory) {
  for (int i = 0; i < MOST_MAPPINGS; ++i) {
    if (mappings[i].memory == memory) return &mappings[i];
  }
  abort();  // more than there is room for, or memory that was never allocated
}

static void get_memory_properties(void *physical, memory_properties_t *properties) {
  real_memory_properties(physical, properties);
  for (uint32_t i = 0; is_incoherent && i < properties->type_count; ++i) {
    properties->types[i].flags &= ~(uint32_t)HOST_COHERENT;
  }
}

// VkPhysicalDeviceProperties, as far as it is read.
typedef struct properties_t {
  uint32_t facts[5];
  char name[256];
  uint8_t cache[16];
  uint32_t padding;  // the limits have numbers of 64 bits
  uint32_t limits[8];
} properties_t;

enum { STORAGE_RANGE = 7 };

static uint32_t storage_range;  // 0: the device's own
static void (*real_properties)(void *, properties_t *);

static void get_properties(void *physical, properties_t *properties) {
  real_properties(physical, properties);
  if (storage_range != 0) properties->limits[STORAGE_RANGE] = storage_range;
}

// VkCooperativeMatrixPropertiesKHR
typedef struct shape_t {
  int32_t type;
  void *next;
  uint32_t rows, columns, terms;
  int32_t left, right, sums, result;
  uint32_t is_saturating;
  int32_t scope;
} shape_t;

// What a device lists where it has matrices: two that are there, one of a type that the driver does
// not know, one whose sums saturate, and one that is held by a workgroup.
enum { F16 = 0, F32 = 1, F64 = 2, I8 = 3, I32 = 5, U8 = 7, U32 = 9, WORKGROUP = 2, SUBGROUP = 3 };
static const shape_t shapes[] = {
    {0, NULL, 8, 16, 32, F16, F16, F32, F32, 0, SUBGROUP},
    {0, NULL, 8, 8, 16, U8, I8, U32, U32, 0, SUBGROUP},
    {0, NULL, 8, 8, 4, F64, F64, F64, F64, 0, SUBGROUP},
    {0, NULL, 8, 8, 8, I8, I8, I32, I32, 1, SUBGROUP},
    {0, NULL, 8, 8, 8, F16, F16, F32, F32, 0, WORKGROUP},
};
static int has_shapes;

static int32_t list_shapes(void *physical, uint32_t *count, shape_t *found) {
  (void)physical;
  *count = sizeof shapes / sizeof shapes[0];
  if (found != NULL) memcpy(found, shapes, sizeof shapes);
  return 0;
}

// VkExtensionProperties
typedef struct extension_t {
  char name[256];
  uint32_t version;
} extension_t;

// How many extensions that nobody knows a device lists before its own; where it has matrices the
// first of them is theirs.
#define MATRICES "VK_KHR_cooperative_matrix"
static uint32_t unknown_extensions;
static int32_t (*real_extensions)(void *, const char *, uint32_t *, extension_t *);

static int32_t list_extensions(void *physical, const char *layer, uint32_t *count,
                               extension_t *found) {
  uint32_t own = 0;
  const int32_t result = real_extensions(physical, layer, &own, NULL);
  if (result != 0 || found == NULL) {
    *count = own + unknown_extensions;
    return result;
  }
  uint32_t unknown = *count < unknown_extensions ? *count : unknown_extensions;
  for (uint32_t i = 0; i < unknown; ++i)
    (void)snprintf(found[i].name, sizeof found[i].name, "VK_unknown_%u", (unsigned)i);
  if (unknown > 0 && has_shapes) memcpy(found[0].name, MATRICES, sizeof MATRICES);
  own = *count - unknown;
  const int32_t listed = real_extensions(physical, layer, &own, found + unknown);
  *count = unknown + own;
  return listed;
}

static void free_memory(void *device, uint64_t memory, const void *allocator) {
  if (is_incoherent && memory != 0) {
    mapping_t *mapping = mapping_of(memory);
    free(mapping->host);
    memset(mapping, 0, sizeof *mapping);
  }
  real_free(device, memory, allocator);
}

static void note_allocation(const allocate_info_t *info, const uint64_t *memory) {
  mapping_t *mapping = mapping_of(0);
  mapping->memory = *memory;
  mapping->bytes = info->bytes;
}

static void note_mapping(uint64_t memory, void **out_mapped) {
  mapping_t *mapping = mapping_of(memory);
  mapping->device = *out_mapped;
  mapping->host = aligned_alloc(64, (mapping->bytes + 63) / 64 * 64);
  if (mapping->host == NULL) abort();
  memset(mapping->host, POISON, mapping->bytes);
  *out_mapped = mapping->host;
}

// Ranges are whole allocations here.
static void move_ranges(const range_t *ranges, uint32_t count, int to_device) {
  for (uint32_t i = 0; i < count; ++i) {
    mapping_t *mapping = mapping_of(ranges[i].memory);
    uint8_t *to = to_device ? mapping->device : mapping->host;
    memcpy(to, to_device ? mapping->host : mapping->device, mapping->bytes);
  }
}

// ---- views ----

enum { MOST_VIEWS = 1024 };

// As in Vulkan's headers, as far as it is read.
typedef struct view_info_t {
  uint32_t type;
  const void *next;
  uint32_t flags;
  uint64_t buffer;
} view_info_t;

typedef struct view_t {
  uint64_t view;
  uint64_t buffer;
} view_t;

static view_t views[MOST_VIEWS];  // that are there
static void (*real_destroy_view)(void *, uint64_t, const void *);
static void (*real_destroy_buffer)(void *, uint64_t, const void *);

static void note_view(const view_info_t *info, const uint64_t *view) {
  int i = 0;
  while (i < MOST_VIEWS && views[i].view != 0)
    ++i;
  if (i == MOST_VIEWS) abort();  // more than there is room for
  views[i] = (view_t){*view, info->buffer};
}

static void destroy_view(void *device, uint64_t view, const void *allocator) {
  for (int i = 0; i < MOST_VIEWS; ++i) {
    if (view != 0 && views[i].view == view) memset(&views[i], 0, sizeof views[i]);
  }
  real_destroy_view(device, view, allocator);
}

static void destroy_buffer(void *device, uint64_t buffer, const void *allocator) {
  for (int i = 0; i < MOST_VIEWS; ++i) {
    if (views[i].view == 0 || views[i].buffer != buffer) continue;
    (void)fprintf(stderr, "vulkan_faults.c: a buffer is destroyed before its view\n");
    abort();
  }
  real_destroy_buffer(device, buffer, allocator);
}

// ---- what is recorded ----

enum { MOST_RECORDED = 1 << 16 };

// A letter for a dispatch (D) or a transfer (T); of a barrier who waits for whom, as in "C>T".
static char recorded[MOST_RECORDED];
static size_t recorded_length;
static void (*real_barrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, const void *, uint32_t,
                            const void *, uint32_t, const void *);
static void (*real_dispatch)(void *, uint32_t, uint32_t, uint32_t);
static void (*real_copy)(void *, uint64_t, uint64_t, uint32_t, const void *);
static void (*real_fill)(void *, uint64_t, uint64_t, uint64_t, uint32_t);

static void note(char letter) {
  if (recorded_length + 1 < MOST_RECORDED) recorded[recorded_length++] = letter;
  recorded[recorded_length] = '\0';
}

static void note_stages(uint32_t stages) {
  if ((stages & 0x0800) != 0) note('C');
  if ((stages & 0x1000) != 0) note('T');
  if ((stages & 0x4000) != 0) note('H');
  if ((stages & ~(uint32_t)0x5800) != 0) note('?');
}

static void barrier(void *commands, uint32_t from, uint32_t to, uint32_t flags, uint32_t count,
                    const void *memory, uint32_t buffer_count, const void *buffers,
                    uint32_t image_count, const void *images) {
  note(' ');
  note_stages(from);
  note('>');
  note_stages(to);
  note(' ');
  real_barrier(commands, from, to, flags, count, memory, buffer_count, buffers, image_count,
               images);
}

static void dispatch(void *commands, uint32_t x, uint32_t y, uint32_t z) {
  note('D');
  real_dispatch(commands, x, y, z);
}

static void copy(void *commands, uint64_t from, uint64_t to, uint32_t count, const void *regions) {
  note('T');
  real_copy(commands, from, to, count, regions);
}

static void fill(void *commands, uint64_t to, uint64_t offset, uint64_t bytes, uint32_t pattern) {
  note('T');
  real_fill(commands, to, offset, bytes, pattern);
}

static int32_t call(int number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,
                    uintptr_t f, uintptr_t g, uintptr_t h) {
  const uint32_t at = calls[number]++;
  if (watcher != NULL) watcher(names[number], at);
  const int is_fault = strcmp(fault_name, names[number]) == 0 &&
                       (at == fault_call || (is_fault_repeated && at > fault_call));
  // A command buffer must not stay open: its end is called, and fails after that.  So is a wait
  // whose deadline passes, so that the device is done whatever is said of it.
  const int is_called = number == NUMBER_vkEndCommandBuffer ||
                        (number == NUMBER_vkWaitForFences && fault_result == RESULT_TIMEOUT);
  if (is_fault && !is_called) return fault_result;
  if (is_incoherent && number == NUMBER_vkFlushMappedMemoryRanges) {
    move_ranges((const range_t *)c, (uint32_t)b, 1);
  }
  const int32_t result = ((call_t)real[number])(a, b, c, d, e, f, g, h);
  if (is_incoherent && result == 0) {
    if (number == NUMBER_vkInvalidateMappedMemoryRanges) {
      move_ranges((const range_t *)c, (uint32_t)b, 0);
    } else if (number == NUMBER_vkAllocateMemory) {
      note_allocation((const allocate_info_t *)b, (const uint64_t *)d);
    } else if (number == NUMBER_vkMapMemory) {
      note_mapping(b, (void **)f);
    }
  }
  if (number == NUMBER_vkCreateBufferView && result == 0) {
    note_view((const view_info_t *)b, (const uint64_t *)d);
  }
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

#define REPLACE(function, real_one, own)       \
  if (strcmp(name, function) == 0) {           \
    memcpy(&(real_one), &found, sizeof found); \
    return (function_t)(own);                  \
  }

static function_t wrapped(const char *name, function_t found) {
  if (strcmp(name, hidden_name) == 0) return NULL;
  found = (function_t)reversed_find(name, (reversed_function_t)found);
#define CHOOSE(function)                \
  if (strcmp(name, #function) == 0) {   \
    real[NUMBER_##function] = found;    \
    return (function_t)wrap_##function; \
  }
  FUNCTIONS(CHOOSE)
  REPLACE("vkGetPhysicalDeviceMemoryProperties", real_memory_properties, get_memory_properties)
  REPLACE("vkGetPhysicalDeviceProperties", real_properties, get_properties)
  REPLACE("vkEnumerateDeviceExtensionProperties", real_extensions, list_extensions)
  REPLACE("vkFreeMemory", real_free, free_memory)
  REPLACE("vkDestroyBufferView", real_destroy_view, destroy_view)
  REPLACE("vkDestroyBuffer", real_destroy_buffer, destroy_buffer)
  REPLACE("vkCmdPipelineBarrier", real_barrier, barrier)
  REPLACE("vkCmdDispatch", real_dispatch, dispatch)
  REPLACE("vkCmdCopyBuffer", real_copy, copy)
  REPLACE("vkCmdFillBuffer", real_fill, fill)
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
  if (strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") == 0) {
    return has_shapes ? (function_t)list_shapes : NULL;
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
  recorded_length = 0;
  recorded[0] = '\0';
}

// How many extensions that nobody knows devices list before their own.
__attribute__((visibility("default"))) void faults_extensions(uint32_t count) {
  unknown_extensions = count;
}

// The most bytes of a storage buffer that devices bind; 0: as many as they say.
__attribute__((visibility("default"))) void faults_range(uint32_t bytes) {
  storage_range = bytes;
}

// Whether devices list shapes of matrices.
__attribute__((visibility("default"))) void faults_shapes(int is_wanted) {
  has_shapes = is_wanted;
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

// What was put into command buffers since faults_set.
__attribute__((visibility("default"))) const char *faults_recorded(void) {
  return recorded;
}

__attribute__((visibility("default"))) const char *faults_name(uint32_t index) {
  return index < COUNT ? names[index] : NULL;
}

// Whether calls behind the one that fails do so too.
__attribute__((visibility("default"))) void faults_repeat(int is_wanted) {
  is_fault_repeated = is_wanted;
}

// For devices that are made from now on.
__attribute__((visibility("default"))) void faults_incoherent(int is_wanted) {
  is_incoherent = is_wanted;
}
