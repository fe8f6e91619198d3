// Inputs of a program: .npy files or random numbers.
#ifndef AOT_TOOLS_INPUTS_H_
#define AOT_TOOLS_INPUTS_H_

#include "runner.h"

// Makes or reads every input and gives it to `runner->program`.
bool set_inputs(runner_t *runner);

// Gives the inputs that are there to another program.
bool give_inputs(const runner_t *runner, aot_program_t *program);
void free_inputs(runner_t *runner);

#endif  // AOT_TOOLS_INPUTS_H_
