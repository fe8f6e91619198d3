// Replies of language models.
#ifndef AOT_TOOLS_GENERATE_H_
#define AOT_TOOLS_GENERATE_H_

#include "runner.h"

// Writes a language model's reply to the prompt of the options, as it comes.
bool generate(runner_t *runner);

#endif  // AOT_TOOLS_GENERATE_H_
