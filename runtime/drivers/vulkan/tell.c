#include "tell.h"

#include <stdarg.h>
#include <stdio.h>

void aot_vk_tell(const aot_vulkan_options_t *options, aot_vulkan_severity_t severity,
                 const char *format, ...) {
  aot_error_t room;
  if (options->log == NULL) return;
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(room.message, sizeof room.message, format, arguments);
  va_end(arguments);
  options->log(options->log_user, severity, room.message);
}
