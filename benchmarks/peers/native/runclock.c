// runclock OUT COMMAND...: run COMMAND once and write to OUT
//   spawn_ns end_ns max_rss_kb user_us system_us status
// with CLOCK_MONOTONIC read just before the spawn and just after the exit. It is this small because
// Linux starts a child's peak RSS at its parent's: spawned from Python, every program would show 30
// MB.
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long microseconds(struct timeval t) {
  return t.tv_sec * 1000000LL + t.tv_usec;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const long long spawn_ns = now_ns();
  const pid_t child = vfork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a timeout kills us, and so the command
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  int status = 0;
  struct rusage usage;
  if (child < 0 || wait4(child, &status, 0, &usage) < 0) return 3;
  const long long end_ns = now_ns();
  FILE *out = fopen(argv[1], "w");
  if (!out) return 4;
  fprintf(out, "%lld %lld %ld %lld %lld %d\n", spawn_ns, end_ns, usage.ru_maxrss,
          microseconds(usage.ru_utime), microseconds(usage.ru_stime),
          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  return fclose(out) ? 5 : 0;
}
