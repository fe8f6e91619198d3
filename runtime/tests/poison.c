// What builds with AOT_POISON fill and check: src/poison.h.  Part of no library that is shipped.
#include "poison.h"

#include "program.h"

#ifdef AOT_POISON
#ifdef NDEBUG
#error "AOT_POISON is for tests: a build for release has none"
#endif

uint8_t aot_poison_byte(void) {
  const char *text = getenv("AOT_POISON_BYTE");
  return text != NULL ? (uint8_t)strtoul(text, NULL, 0) : 0xA5;
}

static uint8_t zone_byte(size_t i) {
  return (uint8_t)(0x5B ^ (i * 37));
}

void aot_poison_set_zone(uint8_t *zone) {
  for (size_t i = 0; i < AOT_POISON_ZONE; ++i)
    zone[i] = zone_byte(i);
}

size_t aot_poison_written(const uint8_t *zone) {
  size_t end = AOT_POISON_ZONE;
  while (end > 0 && zone[end - 1] == zone_byte(end - 1))
    --end;
  return end;
}

void aot_poison_set_plan(aot_program_t *program, const aot_poison_plan_t *plan) {
  program->poison = *plan;
  program->plan_count = 1;  // sizes of buffers are those of the last plan that was made
}

static uint8_t *arena_of(const aot_program_t *program) {
  return program->driver->arena(program->device);
}

// Rows behind those in use are never read, and a reset leaves them alone.
static void fill_growths(const aot_program_t *program, uint8_t *arena, uint8_t byte) {
  const aot_code_t *code = &program->entry->code;
  for (uint32_t i = 0; i < code->growth_count; ++i) {
    const aot_growth_t *growth = &code->growths[i];
    const uint64_t used = (uint64_t)program->states[growth->scalar] * growth->row_bytes;
    for (uint32_t block = 0; used < growth->stride_bytes && block < growth->blocks; ++block) {
      memset(arena + growth->offset + (uint64_t)block * growth->stride_bytes + used, byte,
             growth->stride_bytes - used);
    }
  }
}

void aot_poison_begin(aot_program_t *program) {
  const aot_code_t *code = &program->entry->code;
  const uint8_t byte = aot_poison_byte();
  uint8_t *arena = arena_of(program);
  if (arena != NULL) {
    fill_growths(program, arena, byte);
    memset(arena + code->state_bytes, byte, program->arena_bytes - code->state_bytes);
  }
  for (uint32_t i = 0; i < program->bindings.output_count; ++i) {
    const aot_binding_t *output = &program->bindings.outputs[i];
    if (output->bytes > 0) memset((void *)output->address, byte, output->bytes);
  }
}

// The buffer of a number, if it is live at a position.
static bool find_live(const aot_program_t *program, uint32_t number, uint32_t position,
                      uint64_t *out_begin, uint64_t *out_end) {
  const aot_code_t *code = &program->entry->code;
  uint64_t bytes = 0;
  bool is_live = false;
  if (code->buffer_count > 0) {
    const aot_arena_buffer_t *buffer = &code->buffers[number];
    is_live = buffer->first <= position && position <= buffer->last;
    *out_begin = program->placements[number].offset;
    bytes = program->placements[number].bytes;
  } else {
    const aot_poison_buffer_t *buffer = &program->poison.buffers[number];
    is_live = buffer->first <= position && position <= buffer->last;
    *out_begin = buffer->offset;
    bytes = buffer->bytes;
  }
  *out_end = *out_begin + bytes;
  return is_live && bytes > 0;
}

// The first part of the arena from *begin on that no buffer has which is live at a position; false
// where there is none.
static bool find_gap(const aot_program_t *program, uint32_t position, uint64_t *begin,
                     uint64_t *out_end) {
  const aot_code_t *code = &program->entry->code;
  const uint32_t count = code->buffer_count > 0 ? code->buffer_count : program->poison.buffer_count;
  bool is_moved = true;
  while (is_moved) {
    is_moved = false;
    *out_end = program->arena_bytes;
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t first = 0;
      uint64_t last = 0;
      if (!find_live(program, i, position, &first, &last) || last <= *begin) continue;
      if (first <= *begin) {
        *begin = last;
        is_moved = true;
      } else if (first < *out_end) {
        *out_end = first;
      }
    }
  }
  return *begin < *out_end;
}

static const aot_poison_site_t *find_site(const aot_program_t *program, uint32_t word) {
  for (uint32_t i = 0; i < program->poison.site_count; ++i) {
    if (program->poison.sites[i].word == word) return &program->poison.sites[i];
  }
  return NULL;
}

void aot_poison_before(aot_program_t *program, uint32_t word) {
  uint8_t *arena = arena_of(program);
  const aot_poison_site_t *site = find_site(program, word);
  if (arena == NULL || site == NULL) return;
  uint64_t end = 0;
  for (uint64_t begin = program->entry->code.state_bytes;
       find_gap(program, site->position, &begin, &end); begin = end) {
    memset(arena + begin, aot_poison_byte(), end - begin);
  }
}

aot_status_t aot_poison_after(aot_program_t *program, uint32_t word, uint32_t executable,
                              aot_error_t *error) {
  const uint8_t *arena = arena_of(program);
  const aot_poison_site_t *site = find_site(program, word);
  if (arena == NULL || site == NULL) return AOT_OK;
  const uint8_t byte = aot_poison_byte();
  uint64_t end = 0;
  for (uint64_t begin = program->entry->code.state_bytes;
       find_gap(program, site->position, &begin, &end); begin = end) {
    for (uint64_t i = begin; i < end; ++i) {
      if (arena[i] == byte) continue;
      return aot_fail(error, AOT_ERROR_BOUNDS,
                      "executable \"%s\" wrote to byte %llu of the arena, which no buffer has, "
                      "word %u",
                      program->variant->executables[executable].name, (unsigned long long)i,
                      (unsigned)word);
    }
  }
  return AOT_OK;
}

#endif  // AOT_POISON
