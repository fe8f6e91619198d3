// Devices that programs of a module share, in a list of the module's.
#include "shared.h"

#include <string.h>

#include "sizes.h"
#include "status.h"
#include "system.h"

// ---- the module's list ----

typedef struct list_t {
  aot_os_gate_t gate;  // held while a device is opened or closed
  aot_vk_shared_t *first;
} list_t;

// With the module's last reference: no program is left, but devices that were left alone may be.
static void free_list(aot_module_t *module) {
  list_t *list = module->shared;
  aot_os_gate_destroy(&list->gate);
  aot_release(&module->pool.allocator, list, sizeof *list);
}

// The list of the module, made by the first who asks.  Several threads may ask at once.
static aot_status_t find_list(const aot_module_t *constant, aot_error_t *error, list_t **out_list) {
  aot_module_t *module = (aot_module_t *)(uintptr_t)constant;
  *out_list = __atomic_load_n(&module->shared, __ATOMIC_ACQUIRE);
  if (*out_list != NULL) return AOT_OK;
  void *memory = NULL;
  AOT_TRY(aot_allocate(&module->pool.allocator, sizeof(list_t), "the devices", error, &memory));
  list_t *list = memory;
  list->first = NULL;
  const aot_status_t status = aot_os_gate_create(&list->gate, error);
  if (status != AOT_OK) {
    aot_release(&module->pool.allocator, memory, sizeof *list);
    return status;
  }
  __atomic_store_n(&module->free_shared, free_list, __ATOMIC_RELAXED);
  void *other = NULL;
  if (!__atomic_compare_exchange_n(&module->shared, &other, memory, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    aot_os_gate_destroy(&list->gate);
    aot_release(&module->pool.allocator, memory, sizeof *list);
    list = other;
  }
  *out_list = list;
  return AOT_OK;
}

// ---- devices ----

static bool is_staged(const aot_vulkan_options_t *options) {
  const char *setting = aot_vk_environment("AOT_VULKAN_MEMORY");
  return options->memory == AOT_VULKAN_MEMORY_STAGED ||
         (setting != NULL && strcmp(setting, "staged") == 0);
}

// The first that is there.
static const char *choose(const char *option, const char *setting) {
  return option != NULL ? option : setting != NULL ? setting : "";
}

static bool is_same(const aot_vk_shared_t *a, const aot_vk_shared_t *b) {
  return a->variant == b->variant && a->texels == b->texels && a->is_any == b->is_any &&
         a->process == b->process && a->is_staged == b->is_staged &&
         a->hardware_buffers == b->hardware_buffers && a->own.device == b->own.device &&
         a->own.queue == b->own.queue && a->own.lock == b->own.lock &&
         a->own.unlock == b->own.unlock && a->own.user == b->own.user &&
         strcmp(a->library, b->library) == 0 && strcmp(a->device, b->device) == 0;
}

static aot_vk_shared_t *find(const list_t *list, const aot_vk_shared_t *wanted) {
  for (aot_vk_shared_t *each = list->first; each != NULL; each = each->next) {
    if (!__atomic_load_n(&each->is_given_up, __ATOMIC_RELAXED) && is_same(each, wanted)) {
      return each;
    }
  }
  return NULL;
}

static aot_status_t create_gates(aot_vk_shared_t *shared, aot_error_t *error) {
  AOT_TRY(aot_os_gate_create(&shared->queue, error));
  const aot_status_t status = aot_os_gate_create(&shared->loading, error);
  if (status != AOT_OK) aot_os_gate_destroy(&shared->queue);
  return status;
}

static void destroy(const aot_module_t *module, aot_vk_shared_t *shared) {
  aot_vk_buffer_destroy(&shared->gpu, &shared->constants);
  aot_vk_gpu_close(&shared->gpu);
  aot_os_gate_destroy(&shared->loading);
  aot_os_gate_destroy(&shared->queue);
  aot_release(&module->pool.allocator, shared, shared->bytes);
}

// One as `wanted` says, whose strings it copies.
static aot_status_t create(const aot_module_t *module, const aot_vk_shared_t *wanted,
                           const aot_vulkan_options_t *options, aot_error_t *error,
                           aot_vk_shared_t **out_shared) {
  const size_t library_bytes = strlen(wanted->library) + 1;
  const size_t device_bytes = strlen(wanted->device) + 1;
  const size_t bytes = sizeof(aot_vk_shared_t) + library_bytes + device_bytes;
  void *memory = NULL;
  AOT_TRY(aot_allocate(&module->pool.allocator, bytes, "the device", error, &memory));
  aot_vk_shared_t *shared = memory;
  *shared = *wanted;
  shared->bytes = bytes;
  char *text = (char *)(shared + 1);
  shared->library = memcpy(text, wanted->library, library_bytes);
  shared->device = memcpy(text + library_bytes, wanted->device, device_bytes);
  aot_status_t status = create_gates(shared, error);
  if (status != AOT_OK) {
    aot_release(&module->pool.allocator, memory, bytes);
    return status;
  }
  status = aot_vk_gpu_open(&shared->gpu, shared->variant, options, shared->is_any, error);
  if (status != AOT_OK) {
    destroy(module, shared);
    return status;
  }
  shared->is_unified = !shared->is_staged && aot_vk_is_unified(&shared->gpu);
  *out_shared = shared;
  return AOT_OK;
}

aot_status_t aot_vk_shared_open(const aot_module_t *module, const aot_variant_t *variant,
                                const aot_vulkan_options_t *options, bool any, aot_error_t *error,
                                aot_vk_shared_t **out_shared) {
  *out_shared = NULL;
  list_t *list = NULL;
  AOT_TRY(find_list(module, error, &list));
  aot_vk_shared_t wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.variant = variant;
  wanted.library = choose(options->library, aot_vk_environment("AOT_VULKAN_LIBRARY"));
  wanted.device = choose(options->device, aot_vk_environment("AOT_VULKAN_DEVICE"));
  wanted.texels = aot_vk_texels_setting(options);
  wanted.is_any = any;
  wanted.is_staged = is_staged(options);
  wanted.process = aot_vk_process();
  wanted.hardware_buffers = options->hardware_buffers;
  if (options->own_device != NULL) {
    AOT_TRY(aot_struct_take(options->own_device, "aot_vulkan_device_t", &wanted.own,
                            sizeof wanted.own, error));
  }
  aot_os_gate_lock(&list->gate);
  aot_status_t status = AOT_OK;
  aot_vk_shared_t *shared = find(list, &wanted);
  if (shared == NULL) {
    status = create(module, &wanted, options, error, &shared);
    if (status == AOT_OK) {
      shared->next = list->first;
      list->first = shared;
    }
  }
  if (status == AOT_OK) {
    ++shared->references;
    *out_shared = shared;
  }
  aot_os_gate_unlock(&list->gate);
  return status;
}

void aot_vk_shared_close(const aot_module_t *module, aot_vk_shared_t *shared) {
  if (shared == NULL) return;
  list_t *list = module->shared;
  aot_os_gate_lock(&list->gate);
  if (--shared->references == 0) {
    aot_vk_shared_t **place = &list->first;
    while (*place != shared)
      place = &(*place)->next;
    *place = shared->next;
    destroy(module, shared);
  }
  aot_os_gate_unlock(&list->gate);
}

void aot_vk_shared_lock(aot_vk_shared_t *shared) {
  aot_os_gate_lock(&shared->queue);
  if (shared->own.lock != NULL) shared->own.lock(shared->own.user);
}

void aot_vk_shared_unlock(aot_vk_shared_t *shared) {
  if (shared->own.unlock != NULL) shared->own.unlock(shared->own.user);
  aot_os_gate_unlock(&shared->queue);
}

uint32_t aot_vk_shared_count(const aot_module_t *module, const aot_vk_shared_t *shared) {
  list_t *list = module->shared;
  aot_os_gate_lock(&list->gate);
  const uint32_t count = shared->references;
  aot_os_gate_unlock(&list->gate);
  return count;
}
