// Messages to the caller: what the driver decides on its own.
#ifndef AOT_DRIVERS_VULKAN_TELL_H_
#define AOT_DRIVERS_VULKAN_TELL_H_

#include "aot/vulkan.h"

// A message as of printf, cut off where it doesn't fit an aot_error_t; nothing where the options
// have no `log`.
__attribute__((format(printf, 3, 4))) void aot_vk_tell(const aot_vulkan_options_t *options,
                                                       aot_vulkan_severity_t severity,
                                                       const char *format, ...);

#endif  // AOT_DRIVERS_VULKAN_TELL_H_
