#include "cache.h"

#include <stdio.h>
#include <string.h>

#include "status.h"
#include "system.h"
#include "tell.h"
#include "xxh64.h"

#define CACHE_MAGIC 0x43544f41u  // "AOTC"
#define CACHE_VERSION 1u

// What stands before the driver's data.  Drivers check their own part of that badly, if at all.
typedef struct cache_header_t {
  uint32_t magic;
  uint32_t version;
  uint32_t vendor;
  uint32_t device;
  uint32_t driver_version;
  uint32_t pointer_bytes;
  uint8_t uuid[VK_UUID_SIZE];
  uint64_t data_bytes;
  uint64_t data_checksum;    // XXH64, seed 0
  uint64_t header_checksum;  // of the bytes before
} cache_header_t;

_Static_assert(sizeof(cache_header_t) == 64, "cache header");

static cache_header_t make_header(const aot_vk_gpu_t *gpu, const void *data, size_t bytes) {
  cache_header_t header = {.magic = CACHE_MAGIC,
                           .version = CACHE_VERSION,
                           .vendor = gpu->properties.vendorID,
                           .device = gpu->properties.deviceID,
                           .driver_version = gpu->properties.driverVersion,
                           .pointer_bytes = sizeof(void *),
                           .data_bytes = bytes,
                           .data_checksum = aot_xxh64(data, bytes, 0)};
  memcpy(header.uuid, gpu->properties.pipelineCacheUUID, VK_UUID_SIZE);
  header.header_checksum = aot_xxh64(&header, offsetof(cache_header_t, header_checksum), 0);
  return header;
}

// A folder that a variable names; the specification of $XDG_CACHE_HOME has relative ones ignored.
static const char *absolute_folder(const char *name) {
  const char *folder = aot_vk_environment(name);
  return folder != NULL && folder[0] == '/' ? folder : NULL;
}

// Sets path to FOLDER/pipelines/vulkan-IDENTITY.cache, or to "" where there is no place for it.
static void set_path(const aot_vk_gpu_t *gpu, const aot_vulkan_options_t *options,
                     aot_vk_cache_t *cache) {
  const char *middle = "";
  const char *folder = options->cache_dir;
  if (folder == NULL) folder = aot_vk_environment("AOT_CACHE_DIR");
  if (folder == NULL) {
    middle = "/aotc";
    folder = absolute_folder("XDG_CACHE_HOME");
  }
  if (folder == NULL) {
    middle = "/.cache/aotc";
    folder = absolute_folder("HOME");
  }
  if (folder == NULL) return;
  const cache_header_t identity = make_header(gpu, "", 0);
  const uint64_t key = aot_xxh64(
      &identity.vendor, offsetof(cache_header_t, data_bytes) - offsetof(cache_header_t, vendor), 0);
  const int length =
      snprintf(cache->path, sizeof cache->path, "%s%s/pipelines/vulkan-%016llx.cache", folder,
               middle, (unsigned long long)key);
  if (length < 0 || (size_t)length >= sizeof cache->path) cache->path[0] = '\0';
}

static bool is_off(const aot_vulkan_options_t *options) {
  const char *setting = aot_vk_environment("AOT_PIPELINE_CACHE");
  return options->no_cache || (setting != NULL && strcmp(setting, "0") == 0);
}

// The whole file, whose header and data are right.  *Returns owned*.
static aot_vulkan_cache_state_t read_file(const aot_vk_gpu_t *gpu, const char *path,
                                          const aot_allocator_t *allocator, void **out_file,
                                          size_t *out_bytes) {
  // Any length: that there is a file tells apart "none" and "ignored".
  if (!aot_vk_read_file(path, 0, sizeof(cache_header_t) + AOT_VK_CACHE_MOST_BYTES, allocator,
                        out_file, out_bytes)) {
    return aot_vk_file_exists(path) ? AOT_VULKAN_CACHE_IGNORED : AOT_VULKAN_CACHE_NONE;
  }
  cache_header_t found;
  if (*out_bytes > sizeof found) {
    const uint8_t *data = (const uint8_t *)*out_file + sizeof found;
    memcpy(&found, *out_file, sizeof found);
    const cache_header_t expected = make_header(gpu, data, *out_bytes - sizeof found);
    if (memcmp(&found, &expected, sizeof found) == 0) return AOT_VULKAN_CACHE_USED;
  }
  aot_release(allocator, *out_file, *out_bytes);
  *out_file = NULL;
  *out_bytes = 0;
  return AOT_VULKAN_CACHE_IGNORED;
}

// Null where the driver can't.
static VkPipelineCache create(const aot_vk_gpu_t *gpu, const void *data, size_t bytes) {
  const VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                          .initialDataSize = bytes,
                                          .pInitialData = bytes > 0 ? data : NULL};
  VkPipelineCache handle = VK_NULL_HANDLE;
  const VkResult result = gpu->vk.vkCreatePipelineCache(gpu->device, &info, NULL, &handle);
  return result == VK_SUCCESS ? handle : VK_NULL_HANDLE;
}

static const uint8_t *data_of(const void *file) {
  return file != NULL ? (const uint8_t *)file + sizeof(cache_header_t) : NULL;
}

void aot_vk_cache_find(const aot_vk_gpu_t *gpu, const aot_vulkan_options_t *options,
                       aot_vk_cache_t *cache) {
  memset(cache, 0, sizeof *cache);
  if (!is_off(options)) set_path(gpu, options, cache);
}

void aot_vk_cache_open(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                       bool is_distrusted, aot_vk_cache_t *cache) {
  void *file = NULL;
  size_t bytes = 0;
  if (is_distrusted) {
    cache->state = AOT_VULKAN_CACHE_IGNORED;
    aot_vk_remove_file(cache->path);
  } else if (cache->path[0] != '\0') {
    cache->state = read_file(gpu, cache->path, allocator, &file, &bytes);
  }
  const size_t data_bytes = file != NULL ? bytes - sizeof(cache_header_t) : 0;
  cache->handle = create(gpu, data_of(file), data_bytes);
  if (cache->handle != VK_NULL_HANDLE && file != NULL) {
    cache->file_checksum = aot_xxh64(data_of(file), data_bytes, 0);
  } else if (file != NULL) {
    // A driver may refuse what an earlier build of it, with the same version, has written.
    cache->state = AOT_VULKAN_CACHE_IGNORED;
    cache->handle = create(gpu, NULL, 0);
  }
  aot_release(allocator, file, bytes);
  if (cache->handle != VK_NULL_HANDLE &&
      gpu->vk.vkGetPipelineCacheData(gpu->device, cache->handle, &cache->loaded_bytes, NULL) !=
          VK_SUCCESS) {
    cache->loaded_bytes = 0;
  }
}

// Adds what the file holds by now, if that is not what was loaded.
static void merge_file(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                       const aot_vk_cache_t *cache) {
  void *file = NULL;
  size_t bytes = 0;
  if (read_file(gpu, cache->path, allocator, &file, &bytes) != AOT_VULKAN_CACHE_USED) return;
  const size_t data_bytes = bytes - sizeof(cache_header_t);
  if (aot_xxh64(data_of(file), data_bytes, 0) != cache->file_checksum) {
    const VkPipelineCache other = create(gpu, data_of(file), data_bytes);
    if (other != VK_NULL_HANDLE) {
      (void)gpu->vk.vkMergePipelineCaches(gpu->device, cache->handle, 1, &other);
    }
    gpu->vk.vkDestroyPipelineCache(gpu->device, other, NULL);
  }
  aot_release(allocator, file, bytes);
}

// The driver's data, if it is within the limit.  *Returns owned*; release with *out_room.
static bool get_data(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                     const aot_vk_cache_t *cache, void **out_data, size_t *out_bytes,
                     size_t *out_room) {
  size_t room = 0;
  if (gpu->vk.vkGetPipelineCacheData(gpu->device, cache->handle, &room, NULL) != VK_SUCCESS ||
      room == 0 || room > AOT_VK_CACHE_MOST_BYTES ||
      aot_allocate(allocator, room, "the cache", NULL, out_data) != AOT_OK) {
    return false;
  }
  *out_room = *out_bytes = room;
  if (gpu->vk.vkGetPipelineCacheData(gpu->device, cache->handle, out_bytes, *out_data) ==
          VK_SUCCESS &&
      *out_bytes <= room) {
    return true;
  }
  aot_release(allocator, *out_data, room);
  return false;
}

void aot_vk_cache_save(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                       aot_vk_cache_t *cache) {
  if (cache->path[0] == '\0' || cache->handle == VK_NULL_HANDLE) return;
  void *data = NULL;
  size_t bytes = 0;
  size_t room = 0;
  if (!get_data(gpu, allocator, cache, &data, &bytes, &room)) return;
  // By size: drivers order what they know as they like, and may add to it by being given it.
  if (cache->state != AOT_VULKAN_CACHE_USED || bytes != cache->loaded_bytes) {
    // What was learned fits; together with the others' it may not, and is written alone then.
    void *merged = NULL;
    size_t merged_bytes = 0;
    size_t merged_room = 0;
    merge_file(gpu, allocator, cache);
    if (get_data(gpu, allocator, cache, &merged, &merged_bytes, &merged_room)) {
      aot_release(allocator, data, room);
      data = merged;
      bytes = merged_bytes;
      room = merged_room;
    }
    const cache_header_t header = make_header(gpu, data, bytes);
    cache->was_written = aot_vk_replace_file(cache->path, &header, sizeof header, data, bytes);
    if (cache->was_written) cache->file_checksum = header.data_checksum;
  }
  aot_release(allocator, data, room);
}

void aot_vk_cache_tell(const aot_vk_cache_t *cache, const aot_vulkan_options_t *options,
                       bool is_distrusted) {
  if (cache->state == AOT_VULKAN_CACHE_USED) {
    aot_vk_tell(options, AOT_VULKAN_INFO, "vulkan: pipelines come from %s", cache->path);
  } else if (is_distrusted) {
    aot_vk_tell(options, AOT_VULKAN_WARNING,
                "vulkan: %s is removed: the driver has not come to the end of its last start",
                cache->path);
  } else if (cache->state == AOT_VULKAN_CACHE_IGNORED) {
    aot_vk_tell(options, AOT_VULKAN_WARNING,
                "vulkan: %s is ignored: it is damaged, too large, another device's, or others may "
                "write it",
                cache->path);
  }
  if (cache->was_written) {
    aot_vk_tell(options, AOT_VULKAN_INFO, "vulkan: pipelines are written to %s", cache->path);
  }
}

void aot_vk_cache_close(const aot_vk_gpu_t *gpu, aot_vk_cache_t *cache) {
  if (gpu->device != NULL && gpu->vk.vkDestroyPipelineCache != NULL) {
    gpu->vk.vkDestroyPipelineCache(gpu->device, cache->handle, NULL);
  }
  cache->handle = VK_NULL_HANDLE;
}
