// The buffers in which the host reads and writes what the device does.
#include "host_buffers.h"

#include "status.h"

const aot_vk_buffer_t *aot_vk_host_buffer(const aot_device_t *device, uint32_t buffer_class) {
  if (device->is_unified) return &device->buffers[buffer_class];
  return buffer_class == AOT_FBS_BUFFER_CLASS_ARENA    ? &device->mirror
         : buffer_class == AOT_FBS_BUFFER_CLASS_INPUTS ? &device->upload
                                                       : &device->readback;
}

static const uint32_t written[] = {AOT_FBS_BUFFER_CLASS_ARENA, AOT_FBS_BUFFER_CLASS_OUTPUTS};

// Nothing is in flight and the device's own writes were invalidated before: whole buffers will do.
aot_status_t aot_vk_host_buffers_flush(aot_device_t *device, aot_error_t *error) {
  if (!device->has_host_written) return AOT_OK;
  for (uint32_t i = 0; i < 2; ++i)
    AOT_TRY(aot_vk_buffer_flush(&device->gpu, aot_vk_host_buffer(device, written[i]), error));
  device->has_host_written = false;
  return AOT_OK;
}

aot_status_t aot_vk_host_buffers_invalidate(const aot_device_t *device, aot_error_t *error) {
  if (device->host == NULL) return AOT_OK;
  for (uint32_t i = 0; i < 2; ++i)
    AOT_TRY(aot_vk_buffer_invalidate(&device->gpu, aot_vk_host_buffer(device, written[i]), error));
  return AOT_OK;
}
