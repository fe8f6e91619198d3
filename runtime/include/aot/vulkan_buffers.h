// Inputs and outputs in the memory of a GPU: buffers of the application's own VkDevice, and
// AHardwareBuffers of Android.  A run copies between them and the program's own buffers on the
// device; nothing passes through the host's memory.  Only in builds that have the Vulkan driver
// (AOT_VULKAN); beside the loader.
//
// The calls fail with AOT_ERROR_UNSUPPORTED where the program is not on the Vulkan driver: ask for
// AOT_DEVICE_VULKAN; and with AOT_ERROR_DEVICE where its device is lost, or of before a fork. While
// one of these is set, a program whose device fails goes over to no other device.  On failure the
// input or output stays as it was.  aot_program_set_input and aot_program_set_output give an input
// or output the host's memory again.
#ifndef AOT_VULKAN_BUFFERS_H_
#define AOT_VULKAN_BUFFERS_H_

#include "aot/vulkan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct AHardwareBuffer;

// A place in a buffer of the device in aot_vulkan_options_t.own_device, which is owned by its queue
// family.
typedef struct aot_vulkan_buffer_t {
  size_t size;
  uint64_t buffer;  // VkBuffer, of usage VK_BUFFER_USAGE_TRANSFER_SRC_BIT (inputs) or _DST_BIT
  uint64_t bytes;   // of the whole buffer
  uint64_t offset;  // of the tensor's first element: any byte
} aot_vulkan_buffer_t;

// As aot_program_set_input, of elements in a buffer, dense and row-major; tensor->data is NULL.
// *Borrows* the buffer until the input is set again.  What the device wrote there before is done,
// which a fence or a wait for the queue has said, when a run begins.  Fails with AOT_ERROR_ARGUMENT
// where the program has no own_device, where tensor->data is set, and for an input that the program
// writes (aot_program_get_update), and with AOT_ERROR_CAPACITY where an element is behind the
// buffer's end.
AOT_API aot_status_t aot_vulkan_set_input_buffer(aot_program_t *program, size_t index,
                                                 const aot_tensor_t *tensor,
                                                 const aot_vulkan_buffer_t *buffer,
                                                 aot_error_t *error);

// As aot_program_set_output: from the offset on, all that is left of the buffer is for the output.
// It is written when a run ends, whatever it ends with; aot_program_get_output gives no data.  A
// run fails with AOT_ERROR_CAPACITY where the output is larger, and with AOT_ERROR_ARGUMENT where
// it overlaps an input or another output in the buffer.  Fails with AOT_ERROR_ARGUMENT where the
// program has no own_device, where the offset is behind the buffer's end, and for an output that is
// written to an input (aot_program_get_update).
AOT_API aot_status_t aot_vulkan_set_output_buffer(aot_program_t *program, size_t index,
                                                  const aot_vulkan_buffer_t *buffer,
                                                  aot_error_t *error);

// The same of an AHardwareBuffer of format AHARDWAREBUFFER_FORMAT_BLOB and usage
// AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER, from byte `offset` on.  The program keeps it until the
// input or output gets another buffer of a GPU, or the program is destroyed.  Who else uses it is
// done when a run begins, and waits for its end.  Fails as above, with AOT_ERROR_ARGUMENT for
// another format or usage, and with AOT_ERROR_UNSUPPORTED where the program was made without
// options.hardware_buffers or the system has no such buffers.  That places overlap is not noticed
// here: bytes that two outputs share are those of either.
AOT_API aot_status_t aot_vulkan_set_input_hardware_buffer(aot_program_t *program, size_t index,
                                                          const aot_tensor_t *tensor,
                                                          struct AHardwareBuffer *buffer,
                                                          uint64_t offset, aot_error_t *error);
AOT_API aot_status_t aot_vulkan_set_output_hardware_buffer(aot_program_t *program, size_t index,
                                                           struct AHardwareBuffer *buffer,
                                                           uint64_t offset, aot_error_t *error);

#ifdef __cplusplus
}
#endif

#endif  // AOT_VULKAN_BUFFERS_H_
