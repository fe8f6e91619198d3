// The module of a fuzzer that needs one: $AOT_FUZZ_MODULE, or the file FUZZER.aotm beside it.
#ifndef AOT_TESTS_FUZZ_MODULE_PATH_H_
#define AOT_TESTS_FUZZ_MODULE_PATH_H_

#include <stdio.h>
#include <stdlib.h>

static char fuzz_module_path[4096];

int LLVMFuzzerInitialize(int *count, char ***words);

int LLVMFuzzerInitialize(int *count, char ***words) {
  const char *name = getenv("AOT_FUZZ_MODULE");
  (void)count;
  (void)snprintf(fuzz_module_path, sizeof fuzz_module_path, "%s%s",
                 name != NULL ? name : (*words)[0], name != NULL ? "" : ".aotm");
  return 0;
}

#endif  // AOT_TESTS_FUZZ_MODULE_PATH_H_
