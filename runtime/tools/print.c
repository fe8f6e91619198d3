// What aot-run prints of names and texts, which come from modules of strangers: characters alone,
// and nothing that moves a terminal's cursor or changes its colours or its title.
#include "print.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "status.h"
#include "utf8.h"

#define MOST_LINE_BYTES 8192u

// What moves a terminal's cursor, or does anything else but stand there: ends of lines and
// paragraphs, and what embeds, overrides or isolates a direction of writing, too.
static bool is_control(uint32_t character) {
  return character < 0x20 || (character >= 0x7F && character < 0xA0) ||
         (character >= 0x2028 && character <= 0x202E) ||
         (character >= 0x2066 && character <= 0x2069);
}

void print_text(FILE *stream, const char *text, size_t bytes, const char *kept) {
  for (size_t at = 0; at < bytes;) {
    uint32_t character = 0;
    const size_t count = aot_utf8_read((const uint8_t *)text + at, bytes - at, &character);
    const bool is_kept = count == 1 && text[at] != '\0' && strchr(kept, text[at]) != NULL;
    if (count == 0) {
      (void)fputs("\\ufffd", stream);
    } else if (is_control(character) && !is_kept) {
      (void)fprintf(stream, "\\u%04x", (unsigned)character);
    } else {
      (void)fwrite(text + at, 1, count, stream);
    }
    at += count == 0 ? 1 : count;
  }
}

void print_name(const char *name) {
  print_text(stdout, name, strlen(name), "");
}

void print_json_text(const char *text) {
  (void)putchar('"');
  for (size_t part; *text != '\0'; text += part) {
    part = strcspn(text, "\"\\");
    print_text(stdout, text, part, "");
    if (part > 0) continue;
    (void)printf("\\%c", *text);
    part = 1;
  }
  (void)putchar('"');
}

bool fail(const char *format, ...) {
  char text[MOST_LINE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  (void)aot_text_format(text, sizeof text, format, arguments);
  va_end(arguments);
  (void)fputs("aot-run: ", stderr);
  print_text(stderr, text, strlen(text), "");
  (void)fputc('\n', stderr);
  return false;
}

bool flush_report(void) {
  const bool is_written = fflush(stdout) == 0 && ferror(stdout) == 0;
  return is_written || fail("cannot write the report: %s", strerror(errno));
}
