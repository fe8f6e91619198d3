// The public interface from plain C: misuse and bad files give a status and a message.
// What needs modules is tested from Python (tests/test_runtime*.py).
#include <stdio.h>
#include <string.h>

#include "aot/abi.h"
#include "aot/aot.h"

static int failures;

static void expect(int line, bool is_true, const char *what) {
  if (is_true) return;
  (void)fprintf(stderr, "test_api.c:%d: not so: %s\n", line, what);
  ++failures;
}

#define EXPECT(condition) expect(__LINE__, (condition), #condition)

static void test_names(void) {
  EXPECT(strcmp(aot_status_name(AOT_OK), "ok") == 0);
  EXPECT(strcmp(aot_status_name(AOT_ERROR_BUDGET), "budget") == 0);
  EXPECT(strcmp(aot_status_name((aot_status_t)99), "unknown") == 0);
  EXPECT(strcmp(aot_dtype_name(AOT_DTYPE_BOOL), "bool") == 0);
  EXPECT(aot_dtype_name(AOT_DTYPE_COUNT) == NULL);
  EXPECT(aot_dtype_bytes(AOT_DTYPE_F16) == 2);
  EXPECT(aot_dtype_bytes(AOT_DTYPE_COUNT) == 0);
  EXPECT(strlen(aot_runtime_version()) > 0);
  EXPECT(aot_runtime_interface() == AOT_INTERFACE);
}

static void test_bad_arguments(void) {
  aot_error_t error;
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  EXPECT(aot_module_open_path(NULL, NULL, &error, &module) == AOT_ERROR_ARGUMENT);
  EXPECT(strcmp(error.message, "path is NULL") == 0);
  EXPECT(aot_module_open_path("x", NULL, &error, NULL) == AOT_ERROR_ARGUMENT);
  EXPECT(aot_module_open_memory(NULL, 0, NULL, &error, &module) == AOT_ERROR_ARGUMENT);
  EXPECT(aot_module_open_fd(-1, 0, 0, NULL, &error, &module) == AOT_ERROR_IO);
  EXPECT(aot_program_create(NULL, NULL, &error, &program) == AOT_ERROR_ARGUMENT);
  EXPECT(aot_module_verify_rodata(NULL, NULL) == AOT_ERROR_ARGUMENT);
  aot_module_close(NULL);
  aot_program_destroy(NULL);
}

static void test_bad_files(void) {
  static _Alignas(64) const char text[256] = "this is a text and not a module";
  static _Alignas(64) const char magic[64] = "AOTM";
  aot_error_t error = {AOT_OK, ""};
  aot_module_t *module = (aot_module_t *)&failures;
  EXPECT(aot_module_open_path("/nonexistent.aotm", NULL, &error, &module) == AOT_ERROR_IO);
  EXPECT(module == NULL);  // cleared on entry
  EXPECT(error.status == AOT_ERROR_IO);
  EXPECT(strstr(error.message, "/nonexistent.aotm: no such file") != NULL);
  EXPECT(aot_module_open_path("/", NULL, &error, &module) == AOT_ERROR_IO);
  EXPECT(strstr(error.message, "is a directory") != NULL);
  EXPECT(aot_module_open_memory(text, sizeof text, NULL, &error, &module) ==
         AOT_ERROR_NOT_A_MODULE);
  EXPECT(aot_module_open_memory(text + 1, 10, NULL, &error, &module) == AOT_ERROR_ARGUMENT);
  EXPECT(aot_module_open_memory(text, 3, NULL, &error, &module) == AOT_ERROR_TRUNCATED);
  EXPECT(aot_module_open_memory(magic, 63, NULL, &error, &module) == AOT_ERROR_TRUNCATED);
  EXPECT(aot_module_open_memory(magic, 64, NULL, &error, &module) == AOT_ERROR_CHECKSUM);
  EXPECT(strcmp(error.message, "the file header's checksum is wrong") == 0);
  EXPECT(aot_module_open_memory(magic, 64, NULL, NULL, &module) == AOT_ERROR_CHECKSUM);
}

int main(void) {
  test_names();
  test_bad_arguments();
  test_bad_files();
  if (failures == 0) (void)printf("all is well\n");
  return failures == 0 ? 0 : 1;
}
