#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE 1  // _SC_NPROCESSORS_ONLN

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif
#include <unistd.h>

#include "system.h"

#define MOST_THREADS 16u

void *aot_vk_open_library(const char *path) {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

PFN_vkVoidFunction aot_vk_find_function(void *library, const char *name) {
  void *address = dlsym(library, name);
  PFN_vkVoidFunction function;
  memcpy(&function, &address, sizeof function);
  return function;
}

void aot_vk_close_library(void *library) {
  (void)dlclose(library);
}

// Whether the process has rights that who started it, and set its environment, may not have.
static bool is_privileged(void) {
#ifdef __linux__
  return getauxval(AT_SECURE) != 0;
#else
  return issetugid() != 0;
#endif
}

const char *aot_vk_environment(const char *name) {
  const char *value = is_privileged() ? NULL : getenv(name);
  return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool read_all(int fd, uint8_t *data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = read(fd, data, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    bytes -= (size_t)count;
  }
  return true;
}

static bool write_all(int fd, const uint8_t *data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = write(fd, data, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    bytes -= (size_t)count;
  }
  return true;
}

// Whether a driver may be given a file: it is the user's or the system's own, who alone write to
// it.
static bool is_own(const struct stat *status) {
  return (status->st_uid == geteuid() || status->st_uid == 0) &&
         (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool aot_vk_read_file(const char *path, size_t least, size_t most, const aot_allocator_t *allocator,
                      void **out_data, size_t *out_bytes) {
  *out_data = NULL;
  *out_bytes = 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return false;
  struct stat status;
  void *data = NULL;
  bool is_read = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_own(&status) &&
                 status.st_size >= 0 && (uint64_t)status.st_size >= least &&
                 (uint64_t)status.st_size <= most;
  const size_t bytes = is_read ? (size_t)status.st_size : 0;
  is_read = is_read && aot_allocate(allocator, bytes, "the cache", NULL, &data) == AOT_OK;
  if (is_read && !read_all(fd, data, bytes)) {
    aot_release(allocator, data, bytes);
    is_read = false;
  }
  (void)close(fd);
  if (!is_read) return false;
  *out_data = data;
  *out_bytes = bytes;
  return true;
}

bool aot_vk_file_exists(const char *path) {
  struct stat status;
  return stat(path, &status) == 0;
}

// Makes every folder on the way to the file.
static bool make_folders(const char *path) {
  char part[4096];
  const size_t length = strlen(path);
  if (length >= sizeof part) return false;
  memcpy(part, path, length + 1);
  for (size_t i = 1; i < length; ++i) {
    if (part[i] != '/') continue;
    part[i] = '\0';
    if (mkdir(part, 0700) != 0 && errno != EEXIST) return false;
    part[i] = '/';
  }
  return true;
}

// Whether the file is the one that has the name: nobody who writes at the same time has taken it.
static bool has_name(int fd, const char *path) {
  struct stat own;
  struct stat named;
  return fstat(fd, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

// The file beside has one name, so that what a process left there that was killed is replaced by
// the next.
bool aot_vk_replace_file(const char *path, const void *head, size_t head_bytes, const void *body,
                         size_t body_bytes) {
  char beside[4096];
  const int length = snprintf(beside, sizeof beside, "%s.new", path);
  if (length < 0 || (size_t)length >= sizeof beside || !make_folders(path)) return false;
  (void)unlink(beside);
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const int fd = open(beside, flags, S_IRUSR | S_IWUSR);
  if (fd < 0) return false;
  bool is_written = write_all(fd, head, head_bytes) && write_all(fd, body, body_bytes);
  const bool is_own = has_name(fd, beside);
  is_written = close(fd) == 0 && is_written && is_own && rename(beside, path) == 0;
  if (!is_written && is_own) (void)unlink(beside);
  return is_written;
}

void aot_vk_remove_file(const char *path) {
  (void)unlink(path);
}

int64_t aot_vk_process(void) {
  return getpid();
}

bool aot_vk_is_running(int64_t process) {
  return process > 0 && (kill((pid_t)process, 0) == 0 || errno == EPERM);
}

typedef struct worker_t {
  void (*work)(void *user, uint32_t worker);
  void *user;
  uint32_t number;
  pthread_t thread;
  bool is_running;
} worker_t;

static void *run_worker(void *argument) {
  const worker_t *worker = argument;
  worker->work(worker->user, worker->number);
  return NULL;
}

void aot_vk_run_parallel(uint32_t count, void (*work)(void *user, uint32_t worker), void *user) {
  worker_t workers[MOST_THREADS];
  if (count > MOST_THREADS) count = MOST_THREADS;
  for (uint32_t i = 1; i < count; ++i) {
    workers[i] = (worker_t){.work = work, .user = user, .number = i};
    workers[i].is_running = pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0;
  }
  work(user, 0);
  for (uint32_t i = 1; i < count; ++i) {
    if (workers[i].is_running) (void)pthread_join(workers[i].thread, NULL);
  }
}

uint32_t aot_vk_core_count(void) {
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}
