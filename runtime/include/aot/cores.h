// How many threads are worth having here: the fast cores of the machine that this process may use.
// Beside the loader, which asks nothing of this.
#ifndef AOT_CORES_H_
#define AOT_CORES_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AOT_CORES_MOST_CPUS 1024u

typedef struct aot_cores_t {
  size_t size;
  uint32_t threads;  // one for each core that was chosen: 1 to AOT_MOST_THREADS
  // Whether the process may use slower cores as well, which were left out.
  bool leaves_slower;
  // The chosen ones, a bit for each CPU as the system numbers them.  All 0 where it tells of none.
  uint64_t cpus[AOT_CORES_MOST_CPUS / 64];
  char reason[200];  // for people, such as "4 of 8 cores: the others have at most 31 % of ..."
} aot_cores_t;

// Chooses among the CPUs that the process may use: one CPU of each core, the cores that have at
// least half of the fastest one's capacity (`cpu_capacity` of Linux; three quarters of the highest
// clock where only that is told; the performance cores of Apple and Intel), and no more than the
// control group's quota allows.  Where the system tells nothing, it is one thread.
// `root` stands before the paths of files that are read; NULL: "", this system.
AOT_API aot_status_t aot_cores_find(const char *root, aot_error_t *error, aot_cores_t *out_cores);

// aot_program_create with as many threads as there are chosen cores, whatever options->threads
// says.  Where slower cores were left out, the program's own threads are kept to the chosen ones;
// the caller's stays as it is.
AOT_API aot_status_t aot_cores_create_program(const aot_cores_t *cores, const aot_module_t *module,
                                              const aot_program_options_t *options,
                                              aot_error_t *error, aot_program_t **out_program);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // AOT_CORES_H_
