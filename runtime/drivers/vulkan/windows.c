#include "windows.h"

#include <string.h>

#include "status.h"

static aot_status_t check(const aot_executable_t *executable, aot_error_t *error) {
  const bool has_room = executable->param_buffer_bytes != 0 ||
                        executable->param_words <= AOT_VK_MOST_WINDOW_PUSH_WORDS;
  if (executable->window_count > AOT_VK_MOST_WINDOWS || !has_room) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED,
                    "vulkan: executable \"%s\" has %u operands with buffers of their own and %u "
                    "parameters, at most %u and %u expected",
                    executable->name, (unsigned)executable->window_count,
                    (unsigned)executable->param_words, AOT_VK_MOST_WINDOWS,
                    AOT_VK_MOST_WINDOW_PUSH_WORDS);
  }
  for (uint32_t i = 0; i < executable->window_count; ++i) {
    if (aot_vk_window_class(executable, i) < AOT_FBS_BUFFER_CLASS_COUNT &&
        aot_vk_window_word(executable, i) < executable->param_words) {
      continue;
    }
    return aot_fail(error, AOT_ERROR_MALFORMED,
                    "executable \"%s\": operand %u with a buffer of its own is of no class or "
                    "parameter",
                    executable->name, (unsigned)i);
  }
  return AOT_OK;
}

aot_status_t aot_vk_windows_find(const aot_variant_t *variant, aot_error_t *error,
                                 aot_vk_windows_t *out_windows) {
  memset(out_windows, 0, sizeof *out_windows);
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const aot_executable_t *executable = &variant->executables[i];
    if (executable->window_count == 0) continue;
    AOT_TRY(check(executable, error));
    if (executable->window_count > out_windows->most) out_windows->most = executable->window_count;
    for (uint32_t k = 0; k < executable->window_count; ++k)
      out_windows->has_class[aot_vk_window_class(executable, k)] = true;
  }
  return AOT_OK;
}
