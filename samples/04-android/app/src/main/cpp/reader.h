// Reads the text of a picture with one module that holds three models: where text is (entry point
// `det`), which way up (`cls`), what it says (`rec`).  Plain C11 on the module's runtime; nothing
// of Android, so that it runs and is tested anywhere.
#ifndef READER_H_
#define READER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aot/aot.h"
#include "page.h"

// A line of text: where it stands in the picture and what it says, in UTF-8.
typedef struct reader_line_t {
  page_box_t box;
  bool is_turned;  // it stands on its head
  char *text;      // *owned* by the reader
} reader_line_t;

typedef struct reader_options_t {
  aot_device_kind_t device;  // of all three models
  uint32_t threads;          // on a CPU; 0: 1
  const char *cache_dir;     // of compiled shaders, *borrowed* for the call; NULL: none is kept
} reader_options_t;

// What the detector got; the other two models are asked the same way.
typedef struct reader_info_t {
  const char *device;   // "cpu" or "vulkan"
  const char *target;   // the variant's
  const char *skipped;  // why no variant before it was taken; "" where it is the first
  const char *code;     // where its machine code lies: "none", "mapped" or "copied"
} reader_info_t;

// One thread at a time.
typedef struct reader_t reader_t;

// Opens the module at `offset` of a file, as assets lie in an app's file.  *Borrows* the descriptor
// for the length of the call.  `characters` says what the recogniser's classes mean, one a line,
// the first of them "nothing"; it is copied.  *Returns owned*.
aot_status_t reader_open(int fd, uint64_t offset, uint64_t length, const char *characters,
                         size_t characters_bytes, const reader_options_t *options,
                         aot_error_t *error, reader_t **out_reader);
void reader_close(reader_t *reader);  // NULL is fine

// The strings are *borrowed* until the reader is closed.
void reader_get_info(const reader_t *reader, reader_info_t *out_info);

// Finds and reads the lines of a picture, width * height colours 0xAARRGGBB.  They replace those of
// the picture before, on failure too.
aot_status_t reader_read(reader_t *reader, const uint32_t *argb, int32_t width, int32_t height,
                         aot_error_t *error);

// The lines from top to bottom.  *Borrowed* until the next picture.
size_t reader_line_count(const reader_t *reader);
const reader_line_t *reader_line(const reader_t *reader, size_t index);  // NULL: there is none

#endif  // READER_H_
