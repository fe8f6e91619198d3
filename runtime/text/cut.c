// Where text is cut before its parts become tokens: by tables of patterns, which
// aot/link/cut_layout.py describes.  A pattern's automaton is deterministic, so that a part takes
// time in its length; what is looked for ahead was found by another, which has read the text
// backward.  Tables may be damaged: a number that is none of a state or class ends a match.
#include "cut.h"

#include <string.h>

#include "alloc.h"
#include "status.h"
#include "unicode.h"

#define HEADER_BYTES 12u
#define BLOCK 128u
#define HAS_START 1u
#define DROPS_REST 2u
#define MOST_LOOKS 3u
#define MOST_BITS 8u
#define STEPS_OF_BYTE 64u  // of each stage; few patterns take more than three

static uint32_t word_at(const uint8_t *data, size_t number) {
  uint16_t word = 0;
  memcpy(&word, data + 2 * number, sizeof word);
  return word;
}

// ---- the tables ----

// Reads the tables that have so many bytes; false where they are none.
static bool read_tables(const uint8_t *data, size_t bytes, aot_cutter_t *cutter) {
  if (bytes < HEADER_BYTES) return false;
  cutter->stage_count = word_at(data, 0);
  cutter->class_count = word_at(data, 1);
  cutter->block_count = word_at(data, 2);
  cutter->different_count = word_at(data, 3);
  cutter->rest_class = word_at(data, 4);
  const uint32_t classes = cutter->class_count;
  if (cutter->stage_count == 0 || cutter->stage_count > AOT_MOST_CUTS) return false;
  if (classes == 0 || classes > 255 || cutter->rest_class >= classes) return false;
  if (cutter->block_count == 0 || cutter->different_count == 0) return false;
  const size_t block_bytes = 2 * (size_t)cutter->block_count;
  size_t at = HEADER_BYTES + block_bytes + BLOCK * (size_t)cutter->different_count;
  cutter->blocks = data + HEADER_BYTES;
  cutter->classes = cutter->blocks + block_bytes;
  for (uint32_t i = 0; i < cutter->stage_count; ++i) {
    if (at > bytes || bytes - at < HEADER_BYTES) return false;
    const uint8_t *own = data + at;
    aot_cut_stage_t *stage = &cutter->stages[i];
    const uint32_t flags = word_at(own, 3);
    *stage = (aot_cut_stage_t){.states = word_at(own, 0),
                               .looks = word_at(own, 1),
                               .backward_states = word_at(own, 2),
                               .has_start = (flags & HAS_START) != 0,
                               .drops_rest = (flags & DROPS_REST) != 0,
                               .place = word_at(own, 4)};
    if (stage->states < 2 || stage->looks > MOST_LOOKS || flags > 3) return false;
    const uint32_t bits = stage->looks + (flags & HAS_START);
    if (stage->place + bits > MOST_BITS) return false;
    if ((bits > 0) != (stage->backward_states > 0)) return false;
    stage->forward = own + HEADER_BYTES;
    const size_t symbols = ((size_t)classes + 1) << stage->looks;
    const size_t forward_bytes = 2 * (size_t)stage->states * symbols;
    if (bits > 0) stage->backward = stage->forward + forward_bytes;
    at += HEADER_BYTES + forward_bytes + 2 * (size_t)stage->backward_states * (classes + 1);
  }
  return at == bytes;
}

bool aot_are_cuts(const aot_vocabulary_t *vocabulary) {
  aot_cutter_t cutter;
  return vocabulary->cut_bytes == 0 ||
         read_tables(vocabulary->cuts, vocabulary->cut_bytes, &cutter);
}

// ---- characters ----

// The class of the character at `at`, and where the next one is; at the end that of no character.
static uint32_t class_at(const aot_cutter_t *cutter, size_t at, size_t end, size_t *out_next) {
  *out_next = at;
  if (at >= end) return cutter->class_count;
  uint32_t character = cutter->text[at];
  size_t count = 1;
  if (character >= 0x80) {
    count = aot_utf8_read(cutter->text + at, end - at, &character);
    if (count == 0) count = 1;
  }
  *out_next = at + count;
  const uint32_t block = character / BLOCK;
  if (block >= cutter->block_count) return cutter->rest_class;
  const uint32_t own = word_at(cutter->blocks, block);
  if (own >= cutter->different_count) return cutter->rest_class;
  const uint32_t found = cutter->classes[own * BLOCK + character % BLOCK];
  return found < cutter->class_count ? found : cutter->rest_class;
}

// Where the character before `at` begins.
static size_t before(const aot_cutter_t *cutter, size_t begin, size_t at) {
  --at;
  while (at > begin && (cutter->text[at] & 0xC0) == 0x80)
    --at;
  return at;
}

// ---- matches ----

// Leaves the bits of a stage at each character of a text that it is about to cut, and at its end.
static void look_ahead(aot_cutter_t *cutter, const aot_cut_stage_t *stage, size_t begin) {
  const size_t columns = (size_t)cutter->class_count + 1;
  const uint32_t mask = (1u << (stage->looks + stage->has_start)) - 1;
  uint32_t state = 0;
  for (size_t at = stage->end;;) {
    const uint32_t bits = word_at(stage->backward, state * columns + cutter->class_count) & mask;
    const uint32_t kept = cutter->bits[at] & ~(mask << stage->place);
    cutter->bits[at] = (uint8_t)(kept | bits << stage->place);
    if (at == begin) return;
    size_t next = 0;
    at = before(cutter, begin, at);
    const uint32_t class = class_at(cutter, at, stage->end, &next);
    state = word_at(stage->backward, state * columns + class);
    if (state >= stage->backward_states) state = 0;
  }
}

// The end of the match that begins at `at`, SIZE_MAX where none does.
static size_t match(aot_cutter_t *cutter, const aot_cut_stage_t *stage, size_t at) {
  const uint32_t looks = stage->looks;
  const uint32_t mask = (1u << looks) - 1;
  const size_t symbols = ((size_t)cutter->class_count + 1) << looks;
  if (stage->has_start && (cutter->bits[at] >> stage->place >> looks & 1) == 0) return SIZE_MAX;
  size_t found = SIZE_MAX;
  uint32_t state = 1;
  while (cutter->steps > 0) {
    size_t next = 0;
    --cutter->steps;
    const uint32_t class = class_at(cutter, at, stage->end, &next);
    const uint32_t bits = looks == 0 ? 0 : (uint32_t)cutter->bits[at] >> stage->place & mask;
    const uint32_t entry = word_at(stage->forward, state * symbols + (class << looks | bits));
    if ((entry & 1) != 0) found = at;
    state = entry >> 1;
    if (state == 0 || state >= stage->states || next == at) break;
    at = next;
  }
  return found;
}

// The end of the part of a stage that begins at `at`.
static size_t part_end(aot_cutter_t *cutter, const aot_cut_stage_t *stage, size_t at,
                       bool *out_is_rest) {
  const size_t end = match(cutter, stage, at);
  *out_is_rest = end == SIZE_MAX || end == at;
  if (!*out_is_rest) return end;
  size_t next = at;
  do {
    (void)class_at(cutter, next, stage->end, &next);
  } while (next < stage->end && match(cutter, stage, next) == SIZE_MAX);
  return next;
}

aot_status_t aot_cut_begin(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                           aot_error_t *error, aot_cutter_t *out_cutter) {
  memset(out_cutter, 0, sizeof *out_cutter);
  out_cutter->text = text;
  if (!read_tables(vocabulary->cuts, vocabulary->cut_bytes, out_cutter)) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "the vocabulary's patterns are damaged");
  }
  bool has_bits = false;
  for (uint32_t i = 0; i < out_cutter->stage_count; ++i)
    has_bits = has_bits || out_cutter->stages[i].backward != NULL;
  out_cutter->stages[0].end = bytes;
  out_cutter->steps = STEPS_OF_BYTE * ((uint64_t)bytes + 64) * out_cutter->stage_count;
  if (has_bits) {
    void *memory = NULL;
    AOT_TRY(aot_allocate(&vocabulary->allocator, bytes + 1, "cutting the text", error, &memory));
    memset(memory, 0, bytes + 1);
    out_cutter->bits = memory;
    if (out_cutter->stages[0].backward != NULL) look_ahead(out_cutter, out_cutter->stages, 0);
  }
  return AOT_OK;
}

size_t aot_cut_next(aot_cutter_t *cutter, bool *out_is_dropped) {
  const size_t begin = cutter->at;
  uint32_t number = cutter->stage_count - 1;
  while (number > 0 && cutter->stages[number].end <= begin)
    --number;
  // Each stage behind cuts what this one finds.
  for (;; ++number) {
    bool is_rest = false;
    const aot_cut_stage_t *stage = &cutter->stages[number];
    const size_t end = part_end(cutter, stage, begin, &is_rest);
    *out_is_dropped = is_rest && stage->drops_rest;
    if (*out_is_dropped || number + 1 == cutter->stage_count) {
      cutter->at = end;
      return end;
    }
    cutter->stages[number + 1].end = end;
    if (stage[1].backward != NULL) look_ahead(cutter, &stage[1], begin);
  }
}

aot_status_t aot_cut_end(const aot_vocabulary_t *vocabulary, aot_cutter_t *cutter, size_t bytes,
                         aot_error_t *error) {
  if (cutter->bits != NULL) aot_release(&vocabulary->allocator, cutter->bits, bytes + 1);
  cutter->bits = NULL;
  if (cutter->steps > 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_TEXT,
                  "the vocabulary's patterns take too many steps to cut this text");
}
