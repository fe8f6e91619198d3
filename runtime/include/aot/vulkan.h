// What a program on the Vulkan driver can be told, and what it can tell.  Only in builds that have
// the driver (AOT_VULKAN).  Programs of one variant of a module, made with the same device,
// library, memory and texels, have one VkDevice with one queue together, and one copy of the
// constants.  Options that are 0 or NULL are taken from the environment variable named with them;
// where that isn't set either, the default holds.
#ifndef AOT_VULKAN_H_
#define AOT_VULKAN_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

// How the pipelines of a program are created.
typedef enum aot_vulkan_creation_t {
  AOT_VULKAN_CREATION_DEFAULT = 0,   // batch
  AOT_VULKAN_CREATION_SERIAL = 1,    // a call each; only so each has a time of its own
  AOT_VULKAN_CREATION_BATCH = 2,     // one call for all
  AOT_VULKAN_CREATION_PARALLEL = 3,  // a call each, on several threads
} aot_vulkan_creation_t;

typedef enum aot_vulkan_memory_t {
  AOT_VULKAN_MEMORY_DEFAULT = 0,  // unified where the device's own memory is the host's too
  AOT_VULKAN_MEMORY_STAGED = 1,   // buffers in device memory, filled and read through others
} aot_vulkan_memory_t;

// How shaders load what they don't write.
typedef enum aot_vulkan_texels_t {
  AOT_VULKAN_TEXELS_DEFAULT = 0,  // as was measured to be quicker on the device
  AOT_VULKAN_TEXELS_OFF = 1,      // from storage buffers
  AOT_VULKAN_TEXELS_ON = 2,       // from uniform texel buffers, a texture's way
} aot_vulkan_texels_t;

typedef enum aot_vulkan_severity_t {
  AOT_VULKAN_INFO = 0,     // what was chosen: the device, a cache that is used or was written
  AOT_VULKAN_WARNING = 1,  // what is done otherwise than asked: a cache that is ignored, a device
                           // that was lost or is passed over, another variant that goes on
} aot_vulkan_severity_t;

// A device of the application's, for programs that read and write its buffers
// (aot/vulkan_buffers.h).  The handles are *borrowed* until the last program on it is destroyed.
typedef struct aot_vulkan_device_t {
  size_t size;
  void *instance;         // VkInstance, of Vulkan 1.1 or later
  void *physical_device;  // VkPhysicalDevice
  void *device;           // VkDevice, made with the features of the variant (aot/contents.h)
  void *queue;            // VkQueue of the device
  uint32_t queue_family;  // of the queue: it can compute
  // vkGetInstanceProcAddr.
  void (*(*get_instance_proc_addr)(void *instance, const char *name))(void);
  // Called around each use of the queue, with `user`, on the thread that uses it.  Both NULL:
  // nobody else uses the queue while a program is made, runs or ends, a program of another module
  // neither.
  void (*lock)(void *user);
  void (*unlock)(void *user);
  void *user;
} aot_vulkan_device_t;

// Strings and structures are *borrowed* for the length of aot_program_create.
typedef struct aot_vulkan_options_t {
  size_t size;
  // Part of the name of the device to use, in any case of letters.  AOT_VULKAN_DEVICE.  Default:
  // a discrete GPU, else an integrated one, else any.
  const char *device;
  // File name of the Vulkan loader.  AOT_VULKAN_LIBRARY.  Default: the system's.
  const char *library;
  // Folder of the pipeline cache's files, made where it is missing.  AOT_CACHE_DIR.  Default: aotc
  // in $XDG_CACHE_HOME, else in ~/.cache.
  const char *cache_dir;
  // Neither reads nor writes a pipeline cache.  AOT_PIPELINE_CACHE=0.
  bool no_cache;
  aot_vulkan_creation_t creation;  // AOT_VULKAN_PIPELINES=serial|batch|parallel
  aot_vulkan_memory_t memory;      // AOT_VULKAN_MEMORY=staged
  // Takes the host's clock for options.profile, around a submission for each launch, even where the
  // device has timestamps.  AOT_VULKAN_TIMESTAMPS=0.
  bool no_timestamps;
  // A barrier between any two dispatches, also where the program says that neither needs the other.
  // AOT_VULKAN_OVERLAP=0.
  bool no_overlap;
  aot_vulkan_texels_t texels;  // AOT_VULKAN_TEXELS=on|off
  // The most milliseconds that the device may take for what is submitted at once.  A run that waits
  // longer fails with AOT_ERROR_DEVICE, and so does each after it: the device hangs, or the driver
  // has lost the work.  AOT_VULKAN_TIMEOUT_MS.  Default: 60,000; no limit of a driver in software.
  uint32_t timeout_ms;
  // The device to use in place of one that is found by the options above.  A program on it that
  // fails is not made anew on another one.  NULL: none.
  const aot_vulkan_device_t *own_device;
  // Only devices that take AHardwareBuffers (aot/vulkan_buffers.h); an own device has the
  // extensions VK_ANDROID_external_memory_android_hardware_buffer and VK_EXT_queue_family_foreign
  // then.
  bool hardware_buffers;
  // Told, with `log_user`, what the driver decides on its own, in one line; *borrowed* for the
  // call. On the thread that makes, prepares or runs the program, whose calls return AOT_ERROR_BUSY
  // meanwhile.  NULL: nobody is told.
  void (*log)(void *user, aot_vulkan_severity_t severity, const char *message);
  void *log_user;
} aot_vulkan_options_t;

typedef enum aot_vulkan_cache_state_t {
  AOT_VULKAN_CACHE_OFF = 0,      // switched off, or no folder for it
  AOT_VULKAN_CACHE_NONE = 1,     // there was no file
  AOT_VULKAN_CACHE_IGNORED = 2,  // the file was damaged, too large, or another device's
  AOT_VULKAN_CACHE_USED = 3,
} aot_vulkan_cache_state_t;

typedef struct aot_vulkan_info_t {
  size_t size;
  const char *device_name;
  const char *cache_path;  // "": none
  uint32_t api_version;    // as Vulkan packs it
  uint32_t driver_version;
  uint32_t vendor;
  uint32_t device_type;            // VkPhysicalDeviceType; 4 is a driver in software
  aot_vulkan_cache_state_t cache;  // as it was found
  bool cache_was_written;
  bool is_unified;
  bool has_timestamps;
  bool reads_texels;
  uint32_t pipeline_count;   // unique ones
  uint32_t recording_count;  // command buffers made so far
  uint32_t submit_count;
  uint64_t instance_ns;    // loader, instance, device
  uint64_t pipelines_ns;   // all shader modules and pipelines
  uint64_t upload_ns;      // of the constants; 0: another program of the module had done it
  uint64_t device_bytes;   // memory allocated from the driver now, the shared constants too
  uint32_t sharing_count;  // programs on the device, which share the constants; this one counts
} aot_vulkan_info_t;

typedef struct aot_vulkan_pipeline_t {
  size_t size;
  const char *executable;  // the first that it is for
  uint32_t words;          // of SPIR-V
  uint64_t create_ns;      // 0 unless creation was serial or parallel
} aot_vulkan_pipeline_t;

// False, with *out_info zeroed, when the program is not on this driver, or the size is no size.
AOT_API bool aot_vulkan_get_info(const aot_program_t *program, aot_vulkan_info_t *out_info);

// The unique pipelines, in the order of the executables.  False when there is no such pipeline.
AOT_API bool aot_vulkan_get_pipeline(const aot_program_t *program, size_t index,
                                     aot_vulkan_pipeline_t *out_pipeline);

#ifdef __cplusplus
}
#endif

#endif  // AOT_VULKAN_H_
