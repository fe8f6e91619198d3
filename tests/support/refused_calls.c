// Opens a module, runs its program on three threads, saves its state and loads it, while the system
// refuses one of its calls: prints, for each stage, "ok" or its error.  The filter stays until the
// process ends, so that each call has a process of its own.
//
//   refused_calls MODULE STATE OUTPUT CALL ERRNO
//
// OUTPUT: a file, which is written through a mapping: no call is needed.
// CALL: a name of `calls` below; "exec" refuses pages that are executable, "none" nothing, and with
// "clock" the clock jumps by hours, to and fro.  Link with -Wl,--wrap=clock_gettime.
// ERRNO: a number; 0 kills the process at the first such call, as kill -9 would.
#define _GNU_SOURCE 1

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "aot/aot.h"
#include "aot/state.h"

#define MOST_CALLS 3
#define SAID_BYTES 4096u

static const struct {
  const char *name;
  long numbers[MOST_CALLS];  // of all that do the same; -1: no more
} calls[] = {
    {"none", {-1, -1, -1}},
    {"open", {SYS_openat, -1, -1}},
    {"stat", {SYS_fstat, SYS_newfstatat, SYS_statx}},
    {"pread", {SYS_pread64, -1, -1}},
    {"mmap", {SYS_mmap, -1, -1}},
    {"mprotect", {SYS_mprotect, -1, -1}},
    {"munmap", {SYS_munmap, -1, -1}},
    {"madvise", {SYS_madvise, -1, -1}},
    {"clone", {SYS_clone, SYS_clone3, -1}},
    {"sigmask", {SYS_rt_sigprocmask, -1, -1}},
    {"affinity", {SYS_sched_getaffinity, -1, -1}},
    {"getpid", {SYS_getpid, -1, -1}},
    {"write", {SYS_write, SYS_writev, -1}},
    {"lseek", {SYS_lseek, -1, -1}},
    {"fsync", {SYS_fsync, -1, -1}},
    {"close", {SYS_close, -1, -1}},
    {"rename",
     {SYS_renameat, SYS_renameat2,
#ifdef SYS_rename
      SYS_rename}},
#else
      -1}},
#endif
    {"unlink",
     {SYS_unlinkat,
#ifdef SYS_unlink
      SYS_unlink, -1}},
#else
      -1, -1}},
#endif
};

static void filter(const struct sock_filter *code, size_t count) {
  const struct sock_fprog program = {(unsigned short)count, (struct sock_filter *)(uintptr_t)code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    (void)puts("no filter");
    exit(77);
  }
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)

static void refuse_call(long number, unsigned what) {
  const struct sock_filter code[] = {LOAD(nr),
                                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
                                     RETURN(what), RETURN(SECCOMP_RET_ALLOW)};
  filter(code, sizeof code / sizeof code[0]);
}

static void refuse_executable_pages(long number, unsigned what) {
  const struct sock_filter code[] = {
      LOAD(nr),      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 3),
      LOAD(args[2]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
      RETURN(what),  RETURN(SECCOMP_RET_ALLOW)};
  filter(code, sizeof code / sizeof code[0]);
}

static int is_jumping;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  static _Atomic unsigned calls_so_far;
  const int result = __real_clock_gettime(clock, now);
  if (is_jumping) now->tv_sec += (time_t)(calls_so_far++ * 2654435761u % 7) * 3600;
  return result;
}

static void refuse(const char *name, int code) {
  if (strcmp(name, "clock") == 0) {
    is_jumping = 1;
    return;
  }
  const unsigned what = code == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | (unsigned)code;
  if (strcmp(name, "exec") == 0) {
    refuse_executable_pages(SYS_mmap, what);
    refuse_executable_pages(SYS_mprotect, what);
    return;
  }
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
    if (strcmp(calls[i].name, name) != 0) continue;
    for (int k = 0; k < MOST_CALLS; ++k)
      if (calls[i].numbers[k] >= 0) refuse_call(calls[i].numbers[k], what);
    return;
  }
  exit(2);
}

static char *said;  // of SAID_BYTES, mapped

static void map_output(const char *path) {
  const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, SAID_BYTES) != 0) exit(2);
  said = mmap(NULL, SAID_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (said == MAP_FAILED) exit(2);
}

static int say(const char *stage, aot_status_t status, const aot_error_t *error) {
  const size_t length = strlen(said);
  (void)snprintf(said + length, SAID_BYTES - length, "%s: %s\n", stage,
                 status == AOT_OK ? "ok" : error->message);
  return status == AOT_OK;
}

static aot_status_t set_inputs(aot_program_t *program, aot_error_t *error) {
  static float zeros[4096];
  for (size_t i = 0; i < aot_program_input_count(program); ++i) {
    const aot_tensor_info_t *info = aot_program_input_info(program, i);
    int64_t dims[8];
    size_t bytes = aot_dtype_bytes(info->dtype);
    for (uint32_t axis = 0; axis < info->rank; ++axis) {
      dims[axis] = info->dims[axis].extent >= 0 ? info->dims[axis].extent : 2;
      bytes *= (size_t)dims[axis];
    }
    const aot_tensor_t tensor = {sizeof tensor, info->dtype, info->rank, dims, zeros, bytes};
    const aot_status_t status = aot_program_set_input(program, i, &tensor, error);
    if (status != AOT_OK) return status;
  }
  return AOT_OK;
}

static void go_through(const char *path, const char *state) {
  aot_error_t error = {AOT_OK, ""};
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  const aot_program_options_t options = {.size = sizeof options, .threads = 3};
  if (say("open", aot_module_open_path(path, NULL, &error, &module), &error) &&
      say("create", aot_program_create(module, &options, &error, &program), &error)) {
    aot_status_t status = set_inputs(program, &error);
    if (status == AOT_OK) status = aot_program_run(program, &error);
    (void)say("run", status, &error);
    (void)say("save", aot_program_save_state(program, state, &error), &error);
    (void)say("load", aot_program_load_state(program, state, &error), &error);
  }
  aot_program_destroy(program);
  aot_module_close(module);
}

int main(int count, char **words) {
  if (count != 6) return 2;
  map_output(words[3]);
  refuse(words[4], (int)strtol(words[5], NULL, 10));
  go_through(words[1], words[2]);
  _exit(0);
}
