#include "log.h"

#include <string.h>

#include "status.h"

#define LEAST_ROOM 256u

// Doubles an array until it has room for `count` elements.
static aot_status_t grow(const aot_allocator_t *allocator, size_t count, size_t each, size_t used,
                         size_t *room, void **array, aot_error_t *error) {
  if (count <= *room) return AOT_OK;
  size_t wanted = *room > 0 ? 2 * *room : LEAST_ROOM;
  while (wanted < count)
    wanted *= 2;
  void *grown = NULL;
  AOT_TRY(aot_allocate(allocator, (uint64_t)wanted * each, "recorded commands", error, &grown));
  if (used > 0) memcpy(grown, *array, used * each);
  aot_release(allocator, *array, *room * each);
  *array = grown;
  *room = wanted;
  return AOT_OK;
}

aot_status_t aot_vk_log_add(aot_vk_log_t *log, const aot_allocator_t *allocator, aot_vk_op_t op,
                            size_t operands, aot_error_t *error, uint32_t **out_operands) {
  const size_t length = operands + 1;
  void *words = log->words;
  AOT_TRY(grow(allocator, log->count + length, sizeof *log->words, log->count, &log->room, &words,
               error));
  log->words = words;
  log->words[log->count] = (uint32_t)op | (uint32_t)length << 8;
  *out_operands = log->words + log->count + 1;
  log->count += length;
  return AOT_OK;
}

aot_status_t aot_vk_log_add_value(aot_vk_log_t *log, const aot_allocator_t *allocator,
                                  uint64_t value, aot_error_t *error) {
  void *values = log->values;
  AOT_TRY(grow(allocator, log->value_count + 1, sizeof value, log->value_count, &log->value_room,
               &values, error));
  log->values = values;
  log->values[log->value_count++] = value;
  return AOT_OK;
}

aot_status_t aot_vk_log_add_launch(aot_vk_log_t *log, const aot_allocator_t *allocator,
                                   uint32_t word, aot_error_t *error) {
  void *launches = log->launches;
  AOT_TRY(grow(allocator, log->launch_count + 1, sizeof word, log->launch_count, &log->launch_room,
               &launches, error));
  log->launches = launches;
  log->launches[log->launch_count++] = word;
  return AOT_OK;
}

void aot_vk_log_clear(aot_vk_log_t *log) {
  log->count = 0;
  log->value_count = 0;
  log->launch_count = 0;
  log->priced_ns = 0;
}

void aot_vk_log_free(aot_vk_log_t *log, const aot_allocator_t *allocator) {
  aot_release(allocator, log->words, log->room * sizeof *log->words);
  aot_release(allocator, log->values, log->value_room * sizeof *log->values);
  aot_release(allocator, log->launches, log->launch_room * sizeof *log->launches);
  memset(log, 0, sizeof *log);
}

bool aot_vk_log_next(const uint32_t *words, size_t count, size_t *at, aot_vk_entry_t *out_entry) {
  if (*at >= count) return false;
  const uint32_t head = words[*at];
  out_entry->op = (aot_vk_op_t)(head & 0xff);
  out_entry->count = (head >> 8) - 1;
  out_entry->operands = words + *at + 1;
  *at += head >> 8;
  return true;
}
