// What a program keeps between runs, as a file, and shorter than it is.  An option of the build
// (AOT_STATE): the loader itself is complete without it.
//
//     aot_program_save_state(program, "prompt.state", &error);   // once
//     aot_program_load_state(program, "prompt.state", &error);   // instead of the same runs again
//     aot_program_rewind(program, length, &error);               // forgets what came after
#ifndef AOT_STATE_H_
#define AOT_STATE_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

// How many rows the states have that grow, the longest of them; 0 where none does.
AOT_API uint64_t aot_program_length(const aot_program_t *program);

// How many rows they can have, the shortest of them; 0 where none grows.
AOT_API uint64_t aot_program_capacity(const aot_program_t *program);

// Makes each state that grows as long as it was when it had `length` rows.  Fails, and changes
// nothing, where one is shorter, where one keeps only its last rows and not those that it needs, or
// where the program keeps something that has no earlier value.
AOT_API aot_status_t aot_program_rewind(aot_program_t *program, uint64_t length,
                                        aot_error_t *error);

// Writes the state to a file, which its owner alone may read: all of it or, after a failure,
// nothing. It is written to PATH.aot-save, and renamed; what a save leaves there that is killed,
// the next one removes.  Of two saves to one path at a time, the first fails where the second
// begins before its end.  A state that grows takes what it has of rows.  Programs on a CPU only.
AOT_API aot_status_t aot_program_save_state(aot_program_t *program, const char *path,
                                            aot_error_t *error);

// Reads a file of aot_program_save_state, of the same module, variant and entry point.  Any other
// file, or a damaged one, leaves the state as it was.
AOT_API aot_status_t aot_program_load_state(aot_program_t *program, const char *path,
                                            aot_error_t *error);

#ifdef __cplusplus
}
#endif

#endif  // AOT_STATE_H_
