// What the driver asks of the operating system beside os.h: libraries, files that are replaced as a
// whole, threads, the clock.  One implementation a system: system_posix.c.
#ifndef AOT_DRIVERS_VULKAN_SYSTEM_H_
#define AOT_DRIVERS_VULKAN_SYSTEM_H_

#include "alloc.h"
#include "vulkan_api.h"

// Room for a file's path and its end.
#define AOT_VK_PATH_BYTES 1024u

void *aot_vk_open_library(const char *path);  // NULL: it can't be loaded
PFN_vkVoidFunction aot_vk_find_function(void *library, const char *name);
void aot_vk_close_library(void *library);

// NULL where it is unset or empty.
const char *aot_vk_environment(const char *name);

// The whole file, if it has `least` to `most` bytes, and nobody but the user or the system may have
// written it.  *Returns owned*, of the allocator.
bool aot_vk_read_file(const char *path, size_t least, size_t most, const aot_allocator_t *allocator,
                      void **out_data, size_t *out_bytes);

bool aot_vk_file_exists(const char *path);

// Makes the file's folder where it is missing, and puts the parts, one after the other, in place of
// what was there: readers see the old file or the whole new one.
bool aot_vk_replace_file(const char *path, const void *head, size_t head_bytes, const void *body,
                         size_t body_bytes);

void aot_vk_remove_file(const char *path);

// The number of this process, and whether there is one of a number; this one counts.
int64_t aot_vk_process(void);
bool aot_vk_is_running(int64_t process);

// Runs work(user, worker) for each worker from 0 to count - 1 at once, one of them on the caller's
// thread, and waits.  Where a thread can't be had the others do without it.
void aot_vk_run_parallel(uint32_t count, void (*work)(void *user, uint32_t worker), void *user);

uint32_t aot_vk_core_count(void);

#endif  // AOT_DRIVERS_VULKAN_SYSTEM_H_
