#include "reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot/vulkan.h"

enum {
  DETECT = 0,     // f32[1, 3, H, W] to a map of text, f32[1, 1, H, W]; H and W in steps of STEP
  ORIENT = 1,     // f32[1, 3, 48, 192] to f32[1, 2], upright and turned
  RECOGNISE = 2,  // f32[1, 3, 48, W] to f32[1, T, classes], a distribution over classes a step
  MODEL_COUNT = 3,
};

static const char *const entry_names[MODEL_COUNT] = {"det", "cls", "rec"};

enum {
  STEP = 32,
  MOST_SIDE = 960,        // larger pictures are shrunk to find text in them
  MOST_EXTENT = 1 << 14,  // of a picture: sizes in bytes stay far from overflow
  LINE_HEIGHT = 48,
  ORIENTATION_WIDTH = 192,
  MOST_LINE_WIDTH = 4096,
};

struct reader_t {
  aot_module_t *module;
  aot_program_t *programs[MODEL_COUNT];
  char *characters;      // each ends in '\0'
  const char **classes;  // *borrowed* from characters
  size_t class_count;
  float *input;  // of the model that runs
  size_t input_count;
  reader_line_t *lines;
  size_t line_count;
};

static aot_status_t fail(aot_error_t *error, aot_status_t status, const char *message) {
  if (error != NULL) {
    error->status = status;
    (void)snprintf(error->message, sizeof error->message, "%s", message);
  }
  return status;
}

static aot_status_t fail_memory(aot_error_t *error) {
  return fail(error, AOT_ERROR_MEMORY, "out of memory");
}

// ---- opening and closing ----

static aot_status_t set_characters(reader_t *reader, const char *text, size_t bytes,
                                   aot_error_t *error) {
  size_t count = 1;
  for (size_t i = 0; i < bytes; ++i)
    count += text[i] == '\n';
  reader->characters = malloc(bytes + 1);
  reader->classes = malloc(count * sizeof *reader->classes);
  if (reader->characters == NULL || reader->classes == NULL) return fail_memory(error);
  if (bytes > 0) memcpy(reader->characters, text, bytes);
  reader->characters[bytes] = '\0';
  char *line = reader->characters;
  for (size_t i = 0; i < count; ++i) {
    reader->classes[i] = line;
    char *end = strchr(line, '\n');
    if (end == NULL) end = line + strlen(line);
    *end = '\0';
    line = end + 1;
  }
  reader->class_count = count;
  return AOT_OK;
}

// Whether the characters are those of this recogniser, as far as their number tells.
static aot_status_t check_classes(const reader_t *reader, aot_error_t *error) {
  const aot_tensor_info_t *info = aot_program_output_info(reader->programs[RECOGNISE], 0);
  const int64_t extent = info != NULL && info->rank == 3 ? info->dims[2].extent : -1;
  if (extent == (int64_t)reader->class_count) return AOT_OK;
  char text[96];
  (void)snprintf(text, sizeof text, "%zu characters are given, the recogniser has %lld classes",
                 reader->class_count, (long long)extent);
  return fail(error, AOT_ERROR_ARGUMENT, text);
}

static aot_status_t create_programs(reader_t *reader, const reader_options_t *options,
                                    aot_error_t *error) {
  const aot_vulkan_options_t vulkan = {.size = sizeof vulkan,
                                       .cache_dir = options->cache_dir,
                                       .no_cache = options->cache_dir == NULL};
  for (size_t i = 0; i < MODEL_COUNT; ++i) {
    const aot_program_options_t each = {.size = sizeof each,
                                        .entry = entry_names[i],
                                        .device = options->device,
                                        .threads = options->threads,
                                        .vulkan = &vulkan};
    const aot_status_t status =
        aot_program_create(reader->module, &each, error, &reader->programs[i]);
    if (status != AOT_OK) return status;
  }
  return AOT_OK;
}

aot_status_t reader_open(int fd, uint64_t offset, uint64_t length, const char *characters,
                         size_t characters_bytes, const reader_options_t *options,
                         aot_error_t *error, reader_t **out_reader) {
  *out_reader = NULL;
  reader_t *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return fail_memory(error);
  aot_status_t status = set_characters(reader, characters, characters_bytes, error);
  if (status == AOT_OK) {
    status = aot_module_open_fd(fd, offset, length, NULL, error, &reader->module);
  }
  if (status == AOT_OK) status = create_programs(reader, options, error);
  if (status == AOT_OK) status = check_classes(reader, error);
  if (status != AOT_OK) {
    reader_close(reader);
    return status;
  }
  *out_reader = reader;
  return AOT_OK;
}

static void forget_lines(reader_t *reader) {
  for (size_t i = 0; i < reader->line_count; ++i)
    free(reader->lines[i].text);
  free(reader->lines);
  reader->lines = NULL;
  reader->line_count = 0;
}

void reader_close(reader_t *reader) {
  if (reader == NULL) return;
  forget_lines(reader);
  for (size_t i = 0; i < MODEL_COUNT; ++i)
    aot_program_destroy(reader->programs[i]);
  aot_module_close(reader->module);
  free(reader->input);
  free(reader->classes);
  free(reader->characters);
  free(reader);
}

void reader_get_info(const reader_t *reader, reader_info_t *out_info) {
  static const char *const mappings[] = {"none", "mapped", "copied"};
  aot_program_info_t info = {.size = sizeof info};
  (void)aot_program_get_info(reader->programs[DETECT], NULL, &info);
  *out_info = (reader_info_t){info.device, info.target, info.skipped, mappings[info.code_mapping]};
}

// ---- running ----

// The models' input with room for a picture of that size; NULL where memory is short.
static float *input_of(reader_t *reader, int32_t width, int32_t height) {
  const size_t count = 3 * (size_t)width * (size_t)height;
  if (count > reader->input_count) {
    free(reader->input);
    reader->input = malloc(count * sizeof *reader->input);
    reader->input_count = reader->input != NULL ? count : 0;
  }
  return reader->input;
}

// A module whose entry points have these names may be another one.
static aot_status_t check_output(int model, const aot_tensor_t *output, aot_error_t *error) {
  static const uint32_t ranks[MODEL_COUNT] = {4, 2, 3};
  if (output->dtype == AOT_DTYPE_F32 && output->rank == ranks[model] && output->data != NULL &&
      output->dims != NULL && (model != ORIENT || output->dims[1] == 2)) {
    return AOT_OK;
  }
  return fail(error, AOT_ERROR_ARGUMENT, "the module's models are others than PP-OCR's");
}

// Runs a model on the page.  The output is *borrowed* from its program until it runs again.
static aot_status_t run(reader_t *reader, int model, const page_t *page, int32_t width,
                        int32_t height, aot_error_t *error, aot_tensor_t *out_output) {
  *out_output = (aot_tensor_t){.size = sizeof *out_output};
  aot_program_t *program = reader->programs[model];
  float *input = input_of(reader, width, height);
  if (input == NULL) return fail_memory(error);
  page_to_input(page, width, height, input);
  const int64_t dims[4] = {1, 3, height, width};
  const size_t bytes = 3 * (size_t)width * (size_t)height * sizeof *input;
  const aot_tensor_t tensor = {sizeof tensor, AOT_DTYPE_F32, 4, dims, input, bytes};
  aot_status_t status = aot_program_set_input(program, 0, &tensor, error);
  if (status == AOT_OK) status = aot_program_run(program, error);
  if (status == AOT_OK) status = aot_program_get_output(program, 0, error, out_output);
  return status == AOT_OK ? check_output(model, out_output, error) : status;
}

static int32_t in_steps(int32_t extent) {
  return (extent + STEP - 1) / STEP * STEP;
}

// extent * to / from, rounded, within bounds.
static int32_t scaled(int32_t extent, int32_t to, int32_t from, int32_t least, int32_t most) {
  const long value = lrint((double)extent * (double)to / (double)from);
  return value < least ? least : value > most ? most : (int32_t)value;
}

// The boxes of all lines in the page's own pixels.  They are the caller's to free().
static aot_status_t detect(reader_t *reader, const page_t *page, aot_error_t *error,
                           page_box_t **out_boxes, size_t *out_count) {
  const int32_t longest = page->width > page->height ? page->width : page->height;
  const int32_t side = longest > MOST_SIDE ? MOST_SIDE : longest;
  const int32_t width = scaled(page->width, side, longest, 1, MOST_SIDE);
  const int32_t height = scaled(page->height, side, longest, 1, MOST_SIDE);
  page_t seen;
  if (!page_resize(page, (page_box_t){0, 0, page->height, page->width}, width, height, &seen)) {
    return fail_memory(error);
  }
  aot_tensor_t map;
  const aot_status_t status =
      run(reader, DETECT, &seen, in_steps(width), in_steps(height), error, &map);
  page_destroy(&seen);
  if (status != AOT_OK) return status;
  if (map.dims[2] != in_steps(height) || map.dims[3] != in_steps(width)) {
    return fail(error, AOT_ERROR_ARGUMENT, "the detector's map is not of its input's size");
  }
  if (!page_find_boxes(map.data, in_steps(width), in_steps(height), out_boxes, out_count)) {
    return fail_memory(error);
  }
  size_t kept = 0;
  for (size_t i = 0; i < *out_count; ++i) {
    const page_box_t box = (*out_boxes)[i];
    const page_box_t own = {scaled(box.top, longest, side, 0, page->height),
                            scaled(box.left, longest, side, 0, page->width),
                            scaled(box.bottom, longest, side, 0, page->height),
                            scaled(box.right, longest, side, 0, page->width)};
    // Nothing is left of what was found in the white beyond the page's edges.
    if (own.top < own.bottom && own.left < own.right) (*out_boxes)[kept++] = own;
  }
  *out_count = kept;
  return AOT_OK;
}

// Where the classes of the steps stand in a text: the likeliest, repeated ones once, class 0 left
// out.  Returns the bytes of the text without its end; writes it where `text` isn't NULL.
static size_t spell(const reader_t *reader, const aot_tensor_t *steps, char *text) {
  const size_t class_count = (size_t)steps->dims[2];
  const float *chances = steps->data;
  size_t bytes = 0, before = 0;
  for (int64_t step = 0; step < steps->dims[1]; ++step, chances += class_count) {
    size_t best = 0;
    for (size_t i = 1; i < class_count; ++i) {
      if (chances[i] > chances[best]) best = i;
    }
    if (best != before && best != 0) {
      const size_t length = strlen(reader->classes[best]);
      if (text != NULL) memcpy(text + bytes, reader->classes[best], length);
      bytes += length;
    }
    before = best;
  }
  if (text != NULL) text[bytes] = '\0';
  return bytes;
}

// The text of a line that is cut out and 48 pixels high; turned first where it stands on its head.
static aot_status_t read_strip(reader_t *reader, page_t *strip, aot_error_t *error,
                               reader_line_t *line) {
  aot_tensor_t output;
  aot_status_t status = run(reader, ORIENT, strip, ORIENTATION_WIDTH, LINE_HEIGHT, error, &output);
  if (status != AOT_OK) return status;
  const float *chances = output.data;
  line->is_turned = chances[1] > chances[0];
  if (line->is_turned) page_turn(strip);
  status = run(reader, RECOGNISE, strip, strip->width, LINE_HEIGHT, error, &output);
  if (status != AOT_OK) return status;
  line->text = malloc(spell(reader, &output, NULL) + 1);
  if (line->text == NULL) return fail_memory(error);
  (void)spell(reader, &output, line->text);
  return AOT_OK;
}

static aot_status_t read_line(reader_t *reader, const page_t *page, page_box_t box,
                              aot_error_t *error) {
  const int32_t width =
      scaled(box.right - box.left, LINE_HEIGHT, box.bottom - box.top, LINE_HEIGHT, MOST_LINE_WIDTH);
  page_t strip;
  if (!page_resize(page, box, width, LINE_HEIGHT, &strip)) return fail_memory(error);
  reader_line_t line = {box, false, NULL};
  const aot_status_t status = read_strip(reader, &strip, error, &line);
  page_destroy(&strip);
  if (status == AOT_OK) reader->lines[reader->line_count++] = line;
  return status;
}

static aot_status_t read_page(reader_t *reader, const page_t *page, aot_error_t *error) {
  page_box_t *boxes = NULL;
  size_t count = 0;
  aot_status_t status = detect(reader, page, error, &boxes, &count);
  if (status == AOT_OK && count > 0) {
    reader->lines = calloc(count, sizeof *reader->lines);
    if (reader->lines == NULL) status = fail_memory(error);
  }
  for (size_t i = 0; status == AOT_OK && i < count; ++i)
    status = read_line(reader, page, boxes[i], error);
  free(boxes);
  return status;
}

aot_status_t reader_read(reader_t *reader, const uint32_t *argb, int32_t width, int32_t height,
                         aot_error_t *error) {
  forget_lines(reader);
  if (width < 1 || height < 1 || width > MOST_EXTENT || height > MOST_EXTENT) {
    return fail(error, AOT_ERROR_ARGUMENT, "a picture has 1 to 16384 pixels a side");
  }
  page_t page;
  if (!page_from_argb(argb, width, height, &page)) return fail_memory(error);
  const aot_status_t status = read_page(reader, &page, error);
  page_destroy(&page);
  if (status != AOT_OK) forget_lines(reader);
  return status;
}

size_t reader_line_count(const reader_t *reader) {
  return reader->line_count;
}

const reader_line_t *reader_line(const reader_t *reader, size_t index) {
  return index < reader->line_count ? &reader->lines[index] : NULL;
}
