// Fuzzes the Vulkan driver's files: the pipeline cache and the mark of a start beside it.  An input
// is a byte that says how much of the cache's header is made right, one of the mark's length, the
// mark, and the cache's file.  The driver here keeps what it is given; it must be given nothing but
// what a file with right checksums holds, and what is saved must be found again.
#define _POSIX_C_SOURCE 200809L  // mkdtemp

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../memory.h"
#include "cache.h"
#include "start.h"
#include "system.h"

#define MOST_DATA 4096u
#define LEARNED "learned"

// As runtime/drivers/vulkan/cache.c has it.
typedef struct header_t {
  uint32_t magic;
  uint32_t version;
  uint32_t vendor;
  uint32_t device;
  uint32_t driver_version;
  uint32_t pointer_bytes;
  uint8_t uuid[VK_UUID_SIZE];
  uint64_t data_bytes;
  uint64_t data_checksum;
  uint64_t header_checksum;
} header_t;

typedef struct kept_t {
  uint8_t data[MOST_DATA];
  size_t bytes;
} kept_t;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];
static const uint8_t *right_data;  // of the file, where its header is right; else NULL
static size_t right_bytes;
static bool is_refusing;  // data of an earlier build of the driver

static void fail(const char *what) {
  (void)fprintf(stderr, "fuzz_cache.c: %s\n", what);
  abort();
}

static VkResult create_cache(VkDevice device, const VkPipelineCacheCreateInfo *info,
                             const VkAllocationCallbacks *callbacks, VkPipelineCache *out) {
  (void)device;
  (void)callbacks;
  const size_t bytes = info->initialDataSize;
  if (bytes > 0 && (right_data == NULL || bytes != right_bytes ||
                    memcmp(info->pInitialData, right_data, bytes) != 0)) {
    fail("a driver is given what no checksum is right of");
  }
  if ((bytes > 0 && is_refusing) || bytes > MOST_DATA - 256) return VK_ERROR_OUT_OF_HOST_MEMORY;
  kept_t *kept = calloc(1, sizeof *kept);
  if (kept == NULL) return VK_ERROR_OUT_OF_HOST_MEMORY;
  if (bytes > 0) memcpy(kept->data, info->pInitialData, bytes);
  kept->bytes = bytes;
  *out = (VkPipelineCache)(void *)kept;
  return VK_SUCCESS;
}

static void destroy_cache(VkDevice device, VkPipelineCache cache,
                          const VkAllocationCallbacks *callbacks) {
  (void)device;
  (void)callbacks;
  free((void *)cache);
}

static VkResult get_data(VkDevice device, VkPipelineCache cache, size_t *bytes, void *data) {
  (void)device;
  const kept_t *kept = (const kept_t *)(const void *)cache;
  if (data != NULL) memcpy(data, kept->data, kept->bytes < *bytes ? kept->bytes : *bytes);
  *bytes = kept->bytes;
  return VK_SUCCESS;
}

static VkResult merge(VkDevice device, VkPipelineCache to, uint32_t count,
                      const VkPipelineCache *from) {
  (void)device;
  (void)to;
  (void)count;
  (void)from;
  return VK_SUCCESS;
}

static aot_vk_gpu_t gpu;

static void remove_folder(void) {
  char path[128];
  (void)snprintf(path, sizeof path, "%s/pipelines", folder);
  (void)rmdir(path);
  (void)rmdir(folder);
}

// In memory, where there is such a folder.
static void set_up(void) {
  memcpy(folder, "/dev/shm/aot-fuzz-XXXXXX", 25);
  if (mkdtemp(folder) == NULL) {
    memcpy(folder, "/tmp/aot-fuzz-XXXXXX", 21);
    if (mkdtemp(folder) == NULL) fail("no folder");
  }
  char path[128];
  (void)snprintf(path, sizeof path, "%s/pipelines", folder);
  if (mkdir(path, 0700) != 0 || atexit(remove_folder) != 0) fail("no folder");
  gpu.device = (VkDevice)(void *)folder;
  gpu.vk.vkCreatePipelineCache = create_cache;
  gpu.vk.vkDestroyPipelineCache = destroy_cache;
  gpu.vk.vkGetPipelineCacheData = get_data;
  gpu.vk.vkMergePipelineCaches = merge;
  gpu.properties.vendorID = 0x8086;
  gpu.properties.deviceID = 3;
  memcpy(gpu.properties.deviceName, "a fake", 7);
  memset(gpu.properties.pipelineCacheUUID, 0x5a, VK_UUID_SIZE);
}

static header_t right_header(const uint8_t *data, size_t bytes) {
  header_t header = {.magic = 0x43544f41,
                     .version = 1,
                     .vendor = gpu.properties.vendorID,
                     .device = gpu.properties.deviceID,
                     .driver_version = gpu.properties.driverVersion,
                     .pointer_bytes = sizeof(void *),
                     .data_bytes = bytes,
                     .data_checksum = aot_xxh64(data, bytes, 0)};
  memcpy(header.uuid, gpu.properties.pipelineCacheUUID, VK_UUID_SIZE);
  header.header_checksum = aot_xxh64(&header, offsetof(header_t, header_checksum), 0);
  return header;
}

static void write_file(const char *path, const uint8_t *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (file == NULL || (bytes > 0 && fwrite(data, bytes, 1, file) != 1) || fclose(file) != 0) {
    fail("a file can't be written");
  }
}

// Makes of a file's header what the bits of `how` say, and notes what a driver may be given of it.
static void stamp(uint8_t *file, size_t bytes, uint8_t how) {
  right_data = NULL;
  if (bytes < sizeof(header_t)) return;
  const uint8_t *data = file + sizeof(header_t);
  const size_t data_bytes = bytes - sizeof(header_t);
  const header_t right = right_header(data, data_bytes);
  header_t own;
  memcpy(&own, file, sizeof own);
  if (how & 1) memcpy(&own, &right, offsetof(header_t, data_bytes));
  if (how & 2) own.data_bytes = right.data_bytes;
  if (how & 4) own.data_checksum = right.data_checksum;
  if (how & 8) own.header_checksum = aot_xxh64(&own, offsetof(header_t, header_checksum), 0);
  memcpy(file, &own, sizeof own);
  if (data_bytes == 0 || memcmp(&own, &right, sizeof own) != 0) return;
  right_data = data;
  right_bytes = data_bytes;
}

static void use_cache(aot_vk_cache_t *cache, bool is_distrusted) {
  aot_vk_cache_open(&gpu, &fuzz_allocator, is_distrusted, cache);
  const bool is_used = cache->state == AOT_VULKAN_CACHE_USED;
  if (is_used && (right_data == NULL || is_distrusted)) fail("a wrong file is used");
  kept_t *kept = (kept_t *)(void *)cache->handle;
  if (kept != NULL) {
    memcpy(kept->data + kept->bytes, LEARNED, sizeof LEARNED);
    kept->bytes += sizeof LEARNED;
  }
  aot_vk_cache_save(&gpu, &fuzz_allocator, cache);
  if (cache->was_written && kept != NULL && fuzz_memory.fails_at == UINT64_MAX) {
    static kept_t saved;
    saved = *kept;
    right_data = saved.data;
    right_bytes = saved.bytes;
    aot_vk_cache_t again = *cache;
    is_refusing = false;
    aot_vk_cache_open(&gpu, &fuzz_allocator, false, &again);
    if (again.state != AOT_VULKAN_CACHE_USED) fail("what was saved is not found");
    aot_vk_cache_close(&gpu, &again);
  }
  aot_vk_cache_close(&gpu, cache);
}

static void run(const uint8_t *data, size_t size) {
  const uint8_t how = data[0];
  size_t mark_bytes = data[1];
  data += 2;
  size -= 2;
  if (mark_bytes > size) mark_bytes = size;
  const aot_vulkan_options_t options = {.size = sizeof options, .cache_dir = folder};
  aot_vk_cache_t cache;
  aot_vk_cache_find(&gpu, &options, &cache);
  if (cache.path[0] == '\0') fail("there is no path");
  char mark[1100];
  (void)snprintf(mark, sizeof mark, "%s.starting", cache.path);
  if (mark_bytes > 0) write_file(mark, data, mark_bytes);
  const size_t bytes = size - mark_bytes;
  uint8_t *file = malloc(bytes > 0 ? bytes : 1);
  if (file == NULL) return;
  memcpy(file, data + mark_bytes, bytes);
  stamp(file, bytes, how);
  is_refusing = (how & 16) != 0;
  write_file(cache.path, file, bytes);
  aot_error_t error = {AOT_OK, ""};
  aot_vk_start_t start;
  if (aot_vk_start_begin(&gpu, cache.path, &fuzz_allocator, &error, &start) == AOT_OK) {
    use_cache(&cache, start.without_cache);
    aot_vk_start_end(&start);
    if (start.is_marked && aot_vk_file_exists(mark)) fail("the mark is left");
  } else if (error.message[0] == '\0') {
    fail("a status without a message");
  }
  aot_vk_remove_file(mark);
  aot_vk_remove_file(cache.path);
  free(file);
  if (fuzz_memory.in_use != 0) fail("memory is left");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (folder[0] == '\0') set_up();
  return size < 2 ? 0 : fuzz_run(run, data, size);
}
