// The state that a program has behind the prefix of its module, in place of the runs that make it.
#include <string.h>

#include "../state/pieces.h"
#include "aot/chat.h"
#include "flatbuffer.h"
#include "module_fbs.h"
#include "status.h"
#include "vocabulary.h"

// The stored state of the program's variant; NULL where there is none.
static const uint8_t *find_state(const aot_program_t *program, const aot_vocabulary_t *vocabulary,
                                 uint32_t *out_count, aot_error_t *error) {
  aot_fb_t fb;
  aot_fb_init(&fb, vocabulary->data, vocabulary->data_bytes, error);
  const aot_fb_table_t root = aot_fb_root(&fb, "AOTV", "Vocabulary");
  const aot_fb_vector_t states =
      aot_fb_vector(&fb, &root, AOT_FBS_VOCABULARY_PREFIX_STATES, 4, false);
  for (uint32_t i = 0; i < states.count && fb.status == AOT_OK; ++i) {
    const aot_fb_table_t state = aot_fb_vector_table(&fb, &states, i, "PrefixState");
    const char *target = aot_fb_string(&fb, &state, AOT_FBS_PREFIX_STATE_TARGET, true);
    const aot_fb_vector_t bytes = aot_fb_vector(&fb, &state, AOT_FBS_PREFIX_STATE_BYTES, 1, true);
    if (fb.status != AOT_OK) break;
    if (strcmp(target, program->variant->target) != 0) continue;
    *out_count = bytes.count;
    return fb.data + bytes.position;
  }
  if (fb.status == AOT_OK) {
    (void)aot_fail(error, AOT_ERROR_NOT_FOUND,
                   "the module has no state of its prefix for target \"%s\"",
                   program->variant->target);
  }
  return NULL;
}

aot_status_t aot_program_load_prefix(aot_program_t *program, const aot_vocabulary_t *vocabulary,
                                     aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  if (vocabulary == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "the vocabulary is NULL");
  size_t size = 0;
  if (aot_module_vocabulary(program->module, &size) != vocabulary->data) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the prefix of another module: open the vocabulary of the program's own");
  }
  if (vocabulary->prefix_token_count == 0) {
    return aot_fail(error, AOT_ERROR_NOT_FOUND, "the module was compiled without a prefix");
  }
  uint32_t count = 0;
  aot_error_t why = {0};
  const uint8_t *bytes = find_state(program, vocabulary, &count, &why);
  if (bytes == NULL) return aot_fail(error, why.status, "%s", why.message);
  if (!aot_state_read_scalars(program, bytes, count) ||
      aot_state_length(&program->entry->code, program->next_states) !=
          vocabulary->prefix_token_count) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "the prefix: no run leaves such a state");
  }
  uint8_t *arena = NULL;
  AOT_TRY(aot_state_open_arena(program, error, &arena));
  aot_state_adopt(program, arena, bytes);
  return AOT_OK;
}
