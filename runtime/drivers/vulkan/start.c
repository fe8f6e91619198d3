#include "start.h"

#include <stdio.h>
#include <string.h>

#include "status.h"
#include "system.h"

#define MOST_STARTS 2u

// What a path has no part in.
#define LINE_BYTES 512u
#define MOST_BYTES (AOT_VK_PATH_BYTES + 2 * LINE_BYTES)

// Why the device is left out if a start that is marked does not end; false: it does not fit.
static bool describe(const aot_vk_start_t *start, const aot_vk_gpu_t *gpu, char *text,
                     size_t bytes) {
  const int length = snprintf(text, bytes,
                              "%s: its driver has ended the process %u times while it compiled "
                              "shaders; remove %s to try it again",
                              gpu->properties.deviceName, MOST_STARTS, start->path);
  return length > 0 && (size_t)length < bytes;
}

// The mark: a line of how many starts have not ended, who is at one, and the device's name; then,
// where another one won't be tried, a line that says why, which `aotc devices` prints.
static void read_mark(const char *path, const aot_allocator_t *allocator, unsigned *out_count,
                      unsigned long long *out_process) {
  void *data = NULL;
  size_t bytes = 0;
  char line[LINE_BYTES];
  *out_count = 0;
  *out_process = 0;
  if (!aot_vk_read_file(path, 1, MOST_BYTES, allocator, &data, &bytes)) return;
  const size_t length = bytes < sizeof line ? bytes : sizeof line - 1;
  memcpy(line, data, length);
  line[length] = '\0';
  aot_release(allocator, data, bytes);
  if (sscanf(line, "%u %llu", out_count, out_process) != 2) *out_count = 0;
}

static void mark(aot_vk_start_t *start, const aot_vk_gpu_t *gpu, unsigned count) {
  char text[MOST_BYTES];
  const int length = snprintf(text, sizeof text, "%u %llu %s\n", count,
                              (unsigned long long)aot_vk_process(), gpu->properties.deviceName);
  if (length <= 0 || (size_t)length >= LINE_BYTES) return;
  char *why = text + length;
  if (count < MOST_STARTS || !describe(start, gpu, why, sizeof text - (size_t)length)) *why = '\0';
  start->is_marked = aot_vk_replace_file(start->path, text, strlen(text), "", 0);
}

aot_status_t aot_vk_start_begin(const aot_vk_gpu_t *gpu, const char *cache_path,
                                const aot_allocator_t *allocator, aot_error_t *error,
                                aot_vk_start_t *start) {
  memset(start, 0, sizeof *start);
  if (cache_path[0] == '\0') return AOT_OK;
  const int length = snprintf(start->path, sizeof start->path, "%s.starting", cache_path);
  if (length < 0 || (size_t)length >= sizeof start->path) return AOT_OK;
  unsigned count = 0;
  unsigned long long process = 0;
  read_mark(start->path, allocator, &count, &process);
  if (count > 0 && aot_vk_is_running((int64_t)process)) return AOT_OK;
  if (count >= MOST_STARTS) {
    char why[MOST_BYTES];
    if (!describe(start, gpu, why, sizeof why)) why[0] = '\0';
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: %s", why);
  }
  start->without_cache = count > 0;
  mark(start, gpu, count + 1);
  return AOT_OK;
}

void aot_vk_start_end(const aot_vk_start_t *start) {
  if (start->is_marked) aot_vk_remove_file(start->path);
}
