// What programs of one module have together on a GPU: the device with its queue, and the constants,
// which are uploaded once.  The first program that needs them makes them, the last one releases
// them.
#ifndef AOT_DRIVERS_VULKAN_SHARED_H_
#define AOT_DRIVERS_VULKAN_SHARED_H_

#include "memory.h"

typedef struct aot_vk_shared_t {
  struct aot_vk_shared_t *next;
  uint32_t references;  // programs; by the module's gate
  bool is_given_up;     // atomic: the device is lost or hangs, no other program takes it
  // As it was opened.
  const aot_variant_t *variant;
  const char *library;  // "": the system's
  const char *device;   // "": any
  aot_vulkan_texels_t texels;
  bool is_any;
  bool is_staged;
  int64_t process;  // that opened it: the child of a fork has no part in it
  bool hardware_buffers;
  aot_vulkan_device_t own;  // the caller's; all zero: none
  size_t bytes;             // of this structure with its strings
  aot_vk_gpu_t gpu;
  bool is_unified;
  aot_os_gate_t queue;        // held while something is submitted, or waits for all that was
  aot_os_gate_t loading;      // held by the program that uploads
  aot_vk_buffer_t constants;  // empty until one has
} aot_vk_shared_t;

// A device for a program: one that another program of the module opened for the same variant with
// the same options, else a new one.  `any` is as for aot_vk_gpu_open.
aot_status_t aot_vk_shared_open(const aot_module_t *module, const aot_variant_t *variant,
                                const aot_vulkan_options_t *options, bool any, aot_error_t *error,
                                aot_vk_shared_t **out_shared);

// NULL is fine.
void aot_vk_shared_close(const aot_module_t *module, aot_vk_shared_t *shared);

// How many programs have it now.
uint32_t aot_vk_shared_count(const aot_module_t *module, const aot_vk_shared_t *shared);

// Before and after each use of the queue.
void aot_vk_shared_lock(aot_vk_shared_t *shared);
void aot_vk_shared_unlock(aot_vk_shared_t *shared);

// The device is lost or hangs: who opens one from now on gets another.
static inline void aot_vk_shared_give_up(aot_vk_shared_t *shared) {
  __atomic_store_n(&shared->is_given_up, true, __ATOMIC_RELAXED);
}

#endif  // AOT_DRIVERS_VULKAN_SHARED_H_
