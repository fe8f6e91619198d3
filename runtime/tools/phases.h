// The phases of a cold start, in order.
#ifndef AOT_TOOLS_PHASES_H_
#define AOT_TOOLS_PHASES_H_

// PHASE_EXEC is known only to a process that was told when it was started.
typedef enum phase_t {
  PHASE_EXEC,       // until main: the system starts the process
  PHASE_OPEN,       // the file is opened
  PHASE_VERIFY,     // mapped; header, structure and programs are verified
  PHASE_MAP,        // the code is verified and made executable; threads start
  PHASE_INPUTS,     // files are read, or random numbers made
  PHASE_PREPARE,    // the shape part runs; memory is allocated
  PHASE_FIRST_RUN,  // the first inference
  PHASE_COUNT
} phase_t;

extern const char *const phase_names[PHASE_COUNT];

#endif  // AOT_TOOLS_PHASES_H_
