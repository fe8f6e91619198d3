// What a program asks of the device between two submissions, as words that can be compared: a run
// that leaves the same log as one before can take its command buffer.
#ifndef AOT_DRIVERS_VULKAN_LOG_H_
#define AOT_DRIVERS_VULKAN_LOG_H_

#include "alloc.h"
#include "driver.h"

typedef enum aot_vk_op_t {
  AOT_VK_OP_DISPATCH,   // executable is_beside x y z params...
  AOT_VK_OP_COPY,       // class offset class offset bytes: 64-bit numbers take two words
  AOT_VK_OP_FILL,       // class offset bytes pattern
  AOT_VK_OP_STORE,      // class offset bytes; the value is no part of the log
  AOT_VK_OP_LOAD,       // class offset bytes, to the readback buffer
  AOT_VK_OP_UPLOAD,     // the first bytes of the upload buffer to the inputs
  AOT_VK_OP_DOWNLOAD,   // the first bytes of the outputs to the readback buffer
  AOT_VK_OP_TO_HOST,    // class offset bytes, to where the host sees them
  AOT_VK_OP_TO_DEVICE,  // class offset bytes, from there
  AOT_VK_OP_IMPORT,     // place offset bytes buffer place-in-it number is_foreign: from the buffer
                        // outside; place 0: the inputs, 1: the upload buffer
  AOT_VK_OP_EXPORT,     // likewise, of the outputs, to the buffer outside
} aot_vk_op_t;

#define AOT_VK_OUTSIDE_OPERANDS 11u  // of an import or export

// An entry of a log, its operands not yet read.
typedef struct aot_vk_entry_t {
  aot_vk_op_t op;
  uint32_t count;  // of operands
  const uint32_t *operands;
} aot_vk_entry_t;

typedef struct aot_vk_log_t {
  double priced_ns;  // of its dispatches
  uint32_t *words;   // an entry: op | (length in words, itself included) << 8, operands
  size_t count;
  size_t room;
  uint64_t *values;  // of the stores, in order
  size_t value_count;
  size_t value_room;
  uint32_t *launches;  // the instruction's word in the program, of each dispatch, copy and fill
  size_t launch_count;
  size_t launch_room;
} aot_vk_log_t;

// Room for an entry of `operands` words; they are to be written to *out_operands.
aot_status_t aot_vk_log_add(aot_vk_log_t *log, const aot_allocator_t *allocator, aot_vk_op_t op,
                            size_t operands, aot_error_t *error, uint32_t **out_operands);
aot_status_t aot_vk_log_add_value(aot_vk_log_t *log, const aot_allocator_t *allocator,
                                  uint64_t value, aot_error_t *error);
aot_status_t aot_vk_log_add_launch(aot_vk_log_t *log, const aot_allocator_t *allocator,
                                   uint32_t word, aot_error_t *error);
void aot_vk_log_clear(aot_vk_log_t *log);
void aot_vk_log_free(aot_vk_log_t *log, const aot_allocator_t *allocator);

// Reads the entry at *at and moves on.  False at the end.
bool aot_vk_log_next(const uint32_t *words, size_t count, size_t *at, aot_vk_entry_t *out_entry);

static inline void aot_vk_put_u64(uint32_t *words, uint64_t value) {
  words[0] = (uint32_t)value;
  words[1] = (uint32_t)(value >> 32);
}
static inline uint64_t aot_vk_get_u64(const uint32_t *words) {
  return words[0] | (uint64_t)words[1] << 32;
}

#endif  // AOT_DRIVERS_VULKAN_LOG_H_
