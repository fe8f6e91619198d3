// aot/vulkan.h from plain C: it stands alone, and says so where a program is not the driver's.
// What needs modules and a driver is tested from Python (tests/test_vulkan_*.py).
#include "aot/vulkan.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void expect(int line, bool is_true, const char *what) {
  if (is_true) return;
  (void)fprintf(stderr, "test_vulkan.c:%d: not so: %s\n", line, what);
  ++failures;
}

#define EXPECT(condition) expect(__LINE__, (condition), #condition)

int main(void) {
  const aot_vulkan_options_t defaults = {.size = sizeof defaults};
  const aot_program_options_t options = {
      .size = sizeof options, .device = AOT_DEVICE_VULKAN, .vulkan = &defaults};
  aot_vulkan_info_t info;
  aot_vulkan_pipeline_t pipeline;
  aot_error_t error;
  aot_program_t *program = NULL;
  memset(&info, 0xff, sizeof info);
  memset(&pipeline, 0xff, sizeof pipeline);
  EXPECT(!aot_vulkan_get_info(NULL, &info));  // no size
  EXPECT(!aot_vulkan_get_pipeline(NULL, 0, &pipeline));
  EXPECT(info.pipeline_count != 0 && pipeline.words != 0);
  info.size = sizeof info;
  pipeline.size = sizeof pipeline;
  EXPECT(!aot_vulkan_get_info(NULL, &info));
  EXPECT(info.device_name == NULL && info.pipeline_count == 0);
  EXPECT(!aot_vulkan_get_pipeline(NULL, 0, &pipeline));
  EXPECT(pipeline.executable == NULL && pipeline.words == 0);
  EXPECT(aot_program_create(NULL, &options, &error, &program) == AOT_ERROR_ARGUMENT);
  EXPECT(strcmp(aot_status_name(AOT_ERROR_DEVICE), "device") == 0);
  return failures == 0 ? 0 : 1;
}
