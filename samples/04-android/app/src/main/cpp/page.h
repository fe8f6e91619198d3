// What stands between the three models of PP-OCR: grey pictures, boxes, letters.  Plain C11, with
// nothing of Android and nothing of the models' runtime; the steps are those of sample 02.
#ifndef PAGE_H_
#define PAGE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A grey picture, 0 is black and 255 white, row by row.
typedef struct page_t {
  int32_t width, height;
  float *pixels;
} page_t;

// A part of a page, in pixels; bottom and right lie outside.
typedef struct page_box_t {
  int32_t top, left, bottom, right;
} page_box_t;

// Each false means that memory is short; what is made is then empty.  Pages made are *owned*.

// White all over.
bool page_create(int32_t width, int32_t height, page_t *out_page);
void page_destroy(page_t *page);  // of an empty one too

// Grey of 0xAARRGGBB, as Android has colours; what is transparent shows white.
bool page_from_argb(const uint32_t *argb, int32_t width, int32_t height, page_t *out_page);

// The box of a page in another size, each pixel from the four nearest.
bool page_resize(const page_t *page, page_box_t box, int32_t width, int32_t height,
                 page_t *out_page);

// On its head.
void page_turn(page_t *page);

// f32[3, height, width] in -1..1, which the models read: the page in the upper left corner, white
// where it doesn't reach, cut off where it reaches further.
void page_to_input(const page_t *page, int32_t width, int32_t height, float *input);

// The boxes of each connected area of a map of text, f32[height, width] of probabilities, grown to
// hold their letters; from top to bottom.  Memory is the caller's to free().
bool page_find_boxes(const float *map, int32_t width, int32_t height, page_box_t **out_boxes,
                     size_t *out_count);

#endif  // PAGE_H_
