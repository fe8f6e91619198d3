// What the NDK's header of this name has, as far as the runtime reads it: for builds of its part
// for Android without an NDK.
#ifndef ANDROID_HARDWARE_BUFFER_H
#define ANDROID_HARDWARE_BUFFER_H

#include <stdint.h>

enum AHardwareBuffer_Format {
  AHARDWAREBUFFER_FORMAT_R8G8B8A8_UNORM = 1,
  AHARDWAREBUFFER_FORMAT_BLOB = 0x21,
};

enum AHardwareBuffer_UsageFlags {
  AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER = 1 << 24,
};

typedef struct AHardwareBuffer_Desc {
  uint32_t width;
  uint32_t height;
  uint32_t layers;
  uint32_t format;
  uint64_t usage;
  uint32_t stride;
  uint32_t rfu0;
  uint64_t rfu1;
} AHardwareBuffer_Desc;

typedef struct AHardwareBuffer AHardwareBuffer;

void AHardwareBuffer_describe(const AHardwareBuffer *buffer, AHardwareBuffer_Desc *out_desc);

#endif  // ANDROID_HARDWARE_BUFFER_H
