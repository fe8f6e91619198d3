// Runs the Android sample's reader where there is no Android: what Kotlin does, without Java.
//
//   android_reader FILE OFFSET LENGTH CHARACTERS PICTURE WIDTH HEIGHT DEVICE THREADS TIMES
//
// PICTURE holds colours, 32 bits each.  Prints what was picked and the lines, the last time's.  The
// environment variable CACHE names a folder for shaders.  DENY, of the words "map" and "anonymous",
// makes memory of that kind refuse to become executable, as a system's policy may.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "reader.h"

static const char *denied = "";

// In the place of the C library's: the runtime calls it by this name.  Which memory an address is
// of stands in the process's own list.
int mprotect(void *address, size_t bytes, int protection) {
  if ((protection & PROT_EXEC) != 0 && *denied != '\0') {
    bool is_file = false;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
      unsigned long begin = 0, end = 0, inode = 0;
      if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) != 3) continue;
      if ((unsigned long)address >= begin && (unsigned long)address < end) is_file = inode != 0;
    }
    if (maps != NULL) (void)fclose(maps);
    if (strstr(denied, is_file ? "map" : "anonymous") != NULL) {
      errno = EACCES;
      return -1;
    }
  }
  return (int)syscall(SYS_mprotect, address, bytes, protection);
}

static void *read_file(const char *path, size_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(3);
  (void)fseek(file, 0, SEEK_END);
  *out_bytes = (size_t)ftell(file);
  rewind(file);
  void *data = malloc(*out_bytes + 1);
  if (data == NULL || fread(data, 1, *out_bytes, file) != *out_bytes) exit(3);
  (void)fclose(file);
  return data;
}

static int fail(const char *what, const aot_error_t *error) {
  (void)fprintf(stderr, "%s: %s: %s\n", what, aot_status_name(error->status), error->message);
  return 1;
}

int main(int count, char **arguments) {
  if (count != 11) return 2;
  size_t character_bytes = 0, picture_bytes = 0;
  char *characters = read_file(arguments[4], &character_bytes);
  uint32_t *picture = read_file(arguments[5], &picture_bytes);
  const int32_t width = atoi(arguments[6]), height = atoi(arguments[7]);
  if (picture_bytes != (size_t)width * (size_t)height * 4) return 2;
  const reader_options_t options = {(aot_device_kind_t)atoi(arguments[8]),
                                    (uint32_t)atoi(arguments[9]), getenv("CACHE")};
  if (getenv("DENY") != NULL) denied = getenv("DENY");
  const int fd = open(arguments[1], O_RDONLY);
  reader_t *reader = NULL;
  aot_error_t error = {AOT_OK, ""};
  int result = 0;
  if (reader_open(fd, strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10),
                  characters, character_bytes, &options, &error, &reader) != AOT_OK) {
    result = fail("open", &error);
  }
  (void)close(fd);  // as an app does with an asset's
  for (int i = 0; result == 0 && i < atoi(arguments[10]); ++i) {
    if (reader_read(reader, picture, width, height, &error) != AOT_OK) {
      result = fail("read", &error);
    }
  }
  if (result == 0) {
    reader_info_t info;
    reader_get_info(reader, &info);
    (void)printf("%s|%s|%s|%s\n", info.device, info.target, info.code, info.skipped);
    for (size_t i = 0; i < reader_line_count(reader); ++i) {
      const reader_line_t *line = reader_line(reader, i);
      (void)printf("%d %d %d %d %d %s\n", line->box.top, line->box.left, line->box.bottom,
                   line->box.right, line->is_turned, line->text);
    }
  }
  reader_close(reader);
  free(characters);
  free(picture);
  return result;
}
