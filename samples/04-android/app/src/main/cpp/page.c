#include "page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of the detector's map; the numbers that the models were trained with.
static const float ink = 0.3f;         // what may be text
static const double confidence = 0.5;  // the least mean of a box that is text
static const size_t min_pixels = 20;   // of an area
static const double growth = 1.6;      // by area over perimeter: only lines' middles are found
static const float black_to_range = 127.5f;  // 0..255 to -1..1
enum { CHANNELS = 3, FIRST_BOXES = 16 };

static int32_t min_of(int32_t a, int32_t b) {
  return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b) {
  return a > b ? a : b;
}

bool page_create(int32_t width, int32_t height, page_t *out_page) {
  *out_page = (page_t){0, 0, NULL};
  const size_t count = (size_t)width * (size_t)height;
  float *pixels = malloc(count > 0 ? count * sizeof *pixels : 1);
  if (pixels == NULL) return false;
  for (size_t i = 0; i < count; ++i)
    pixels[i] = 255;
  *out_page = (page_t){width, height, pixels};
  return true;
}

void page_destroy(page_t *page) {
  free(page->pixels);
  *page = (page_t){0, 0, NULL};
}

bool page_from_argb(const uint32_t *argb, int32_t width, int32_t height, page_t *out_page) {
  if (!page_create(width, height, out_page)) return false;
  const size_t count = (size_t)width * (size_t)height;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t alpha = argb[i] >> 24, red = argb[i] >> 16 & 255, green = argb[i] >> 8 & 255;
    const uint32_t blue = argb[i] & 255;
    const float grey = 0.299f * (float)red + 0.587f * (float)green + 0.114f * (float)blue;
    out_page->pixels[i] = 255 - (255 - grey) * (float)alpha / 255;
  }
  return true;
}

// Where a new pixel lies among `count` old ones: the two beside it, and how far it is to the
// second.
typedef struct place_t {
  int32_t before, after;
  float part;
} place_t;

static place_t place_of(int32_t index, int32_t count, int32_t new_count) {
  const double at = ((double)index + 0.5) * (double)count / (double)new_count - 0.5;
  const double inside = fmin(fmax(at, 0), (double)(count - 1));
  const int32_t before = (int32_t)inside;
  return (place_t){before, min_of(before + 1, count - 1), (float)(inside - (double)before)};
}

bool page_resize(const page_t *page, page_box_t box, int32_t width, int32_t height,
                 page_t *out_page) {
  if (!page_create(width, height, out_page)) return false;
  place_t *columns = malloc((size_t)width * sizeof *columns);
  if (columns == NULL) {
    page_destroy(out_page);
    return false;
  }
  for (int32_t x = 0; x < width; ++x)
    columns[x] = place_of(x, box.right - box.left, width);
  for (int32_t y = 0; y < height; ++y) {
    const place_t row = place_of(y, box.bottom - box.top, height);
    const float *above = page->pixels + (size_t)(box.top + row.before) * (size_t)page->width;
    const float *below = page->pixels + (size_t)(box.top + row.after) * (size_t)page->width;
    float *target = out_page->pixels + (size_t)y * (size_t)width;
    for (int32_t x = 0; x < width; ++x) {
      const int32_t left = box.left + columns[x].before, right = box.left + columns[x].after;
      const float part = columns[x].part;
      const float first = above[left] * (1 - part) + above[right] * part;
      const float second = below[left] * (1 - part) + below[right] * part;
      target[x] = first * (1 - row.part) + second * row.part;
    }
  }
  free(columns);
  return true;
}

void page_turn(page_t *page) {
  const size_t count = (size_t)page->width * (size_t)page->height;
  for (size_t i = 0; i < count / 2; ++i) {
    const float pixel = page->pixels[i];
    page->pixels[i] = page->pixels[count - 1 - i];
    page->pixels[count - 1 - i] = pixel;
  }
}

void page_to_input(const page_t *page, int32_t width, int32_t height, float *input) {
  const size_t count = (size_t)width * (size_t)height;
  for (size_t i = 0; i < count; ++i)
    input[i] = 1;
  for (int32_t y = 0; y < min_of(height, page->height); ++y) {
    for (int32_t x = 0; x < min_of(width, page->width); ++x) {
      const float pixel = page->pixels[(size_t)y * (size_t)page->width + (size_t)x];
      input[(size_t)y * (size_t)width + (size_t)x] = pixel / black_to_range - 1;
    }
  }
  for (size_t channel = 1; channel < CHANNELS; ++channel)
    memcpy(input + channel * count, input, count * sizeof *input);
}

// ---- boxes ----

// An area of the map as far as it is walked.
typedef struct area_t {
  page_box_t box;
  size_t pixels;
  double sum;
} area_t;

typedef struct walk_t {
  const float *map;
  int32_t width, height;
  uint8_t *is_left;  // of each pixel: in some area and not walked yet
  size_t *waiting;   // room for each pixel once
  size_t count;
} walk_t;

static void wait_for(walk_t *walk, int32_t x, int32_t y) {
  if (x < 0 || y < 0 || x >= walk->width || y >= walk->height) return;
  const size_t pixel = (size_t)y * (size_t)walk->width + (size_t)x;
  if (!walk->is_left[pixel]) return;
  walk->is_left[pixel] = 0;
  walk->waiting[walk->count++] = pixel;
}

// Pixels that touch along their sides are of one area.
static area_t walk_area(walk_t *walk, int32_t x, int32_t y) {
  area_t area = {{y, x, y + 1, x + 1}, 0, 0};
  wait_for(walk, x, y);
  while (walk->count > 0) {
    const size_t pixel = walk->waiting[--walk->count];
    const int32_t column = (int32_t)(pixel % (size_t)walk->width);
    const int32_t row = (int32_t)(pixel / (size_t)walk->width);
    area.box.top = min_of(area.box.top, row);
    area.box.left = min_of(area.box.left, column);
    area.box.bottom = max_of(area.box.bottom, row + 1);
    area.box.right = max_of(area.box.right, column + 1);
    area.sum += (double)walk->map[pixel];
    ++area.pixels;
    wait_for(walk, column, row - 1);
    wait_for(walk, column, row + 1);
    wait_for(walk, column - 1, row);
    wait_for(walk, column + 1, row);
  }
  return area;
}

static page_box_t grown(page_box_t box, int32_t width, int32_t height) {
  const double tall = box.bottom - box.top, wide = box.right - box.left;
  const int32_t more = (int32_t)lrint(tall * wide * growth / (2 * (tall + wide)));
  return (page_box_t){max_of(box.top - more, 0), max_of(box.left - more, 0),
                      min_of(box.bottom + more, height), min_of(box.right + more, width)};
}

// Room for one more; false where memory is short.
static bool make_room(page_box_t **boxes, size_t count) {
  const bool is_full = count == 0 || (count >= FIRST_BOXES && (count & (count - 1)) == 0);
  if (!is_full) return true;
  const size_t room = count == 0 ? FIRST_BOXES : 2 * count;
  page_box_t *more = realloc(*boxes, room * sizeof *more);
  if (more == NULL) return false;
  *boxes = more;
  return true;
}

static int compare_boxes(const void *a, const void *b) {
  const page_box_t *first = a, *second = b;
  if (first->top != second->top) return first->top < second->top ? -1 : 1;
  return (first->left > second->left) - (first->left < second->left);
}

static bool collect(walk_t *walk, page_box_t **boxes, size_t *count) {
  for (int32_t y = 0; y < walk->height; ++y) {
    for (int32_t x = 0; x < walk->width; ++x) {
      if (!walk->is_left[(size_t)y * (size_t)walk->width + (size_t)x]) continue;
      const area_t area = walk_area(walk, x, y);
      if (area.pixels < min_pixels || area.sum / (double)area.pixels < confidence) continue;
      if (!make_room(boxes, *count)) return false;
      (*boxes)[(*count)++] = grown(area.box, walk->width, walk->height);
    }
  }
  return true;
}

bool page_find_boxes(const float *map, int32_t width, int32_t height, page_box_t **out_boxes,
                     size_t *out_count) {
  *out_boxes = NULL;
  *out_count = 0;
  const size_t pixels = (size_t)width * (size_t)height;
  walk_t walk = {map, width, height, calloc(pixels, 1), malloc(pixels * sizeof(size_t)), 0};
  page_box_t *boxes = NULL;
  size_t count = 0;
  bool is_done = walk.is_left != NULL && walk.waiting != NULL;
  if (is_done) {
    for (size_t i = 0; i < pixels; ++i)
      walk.is_left[i] = map[i] > ink;
    is_done = collect(&walk, &boxes, &count);
  }
  free(walk.is_left);
  free(walk.waiting);
  if (!is_done) {
    free(boxes);
    return false;
  }
  if (count > 0) qsort(boxes, count, sizeof *boxes, compare_boxes);
  *out_boxes = boxes;
  *out_count = count;
  return true;
}
