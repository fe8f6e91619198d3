// States as files.  A file is a header, the scalars, what is before the growths, and the rows in
// use of each growth's blocks, in order; all little endian, as the machines are that run modules.
#define _POSIX_C_SOURCE 200809L  // fsync, O_NOFOLLOW
#define _DARWIN_C_SOURCE         // O_NOFOLLOW

#include "aot/state.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "aot/abi.h"
#include "os.h"
#include "pieces.h"
#include "program.h"
#include "status.h"
#include "xxh64.h"

#if defined(__unix__) || defined(__APPLE__)
#define HAS_POSIX 1
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define SYNC(file) fsync(fileno(file))
#else
#define HAS_POSIX 0
#define SYNC(file) 0
#endif

#define STATE_VERSION 1u
#define MOST_PATH_BYTES 4096u
#define BESIDE ".aot-save"  // behind the path, while the file is written

typedef struct state_header_t {
  char magic[4];
  uint32_t version;
  uint64_t module;    // checksum of the module's structure, which has those of its segments
  uint64_t entry;     // checksum of the entry point's name, seeded with the variant's index
  uint64_t bytes;     // behind the header
  uint64_t checksum;  // of these, each piece's seeded with the one's before
  uint64_t header_checksum;
} state_header_t;

_Static_assert(sizeof(state_header_t) == 48, "state files have this header");

static const char magic[4] = {'A', 'O', 'T', 'S'};

static void write_bytes(aot_walk_t *walk, const void *data, uint64_t bytes) {
  walk->done += bytes;
  walk->checksum = aot_xxh64(data, (size_t)bytes, walk->checksum);
  if (!walk->failed) walk->failed = fwrite(data, 1, (size_t)bytes, walk->file) != bytes;
}

static void write_piece(aot_walk_t *walk, uint64_t offset, uint64_t bytes) {
  write_bytes(walk, walk->arena + offset, bytes);
}

static void check_piece(aot_walk_t *walk, uint64_t offset, uint64_t bytes) {
  (void)offset;
  walk->checksum = aot_xxh64(walk->bytes + walk->done, (size_t)bytes, walk->checksum);
  walk->done += bytes;
}

static state_header_t header_of(const aot_program_t *program) {
  state_header_t header = {.version = STATE_VERSION};
  memcpy(header.magic, magic, sizeof magic);
  memcpy(&header.module, program->module->data + offsetof(aot_file_header_t, structure_checksum),
         sizeof header.module);
  const char *name = program->entry->name;
  const uint64_t variant = (uint64_t)(program->variant - program->module->variants);
  header.entry = aot_xxh64(name, strlen(name), variant);
  return header;
}

// Says why the file system did not take a file; `path` is what the caller named.
static aot_status_t fail_to_write(const char *path, aot_error_t *error) {
  const int code = errno;
  return aot_fail(error, AOT_ERROR_IO, "cannot write %s: %s (errno %d)", path, aot_os_reason(code),
                  code);
}

// Whether `path` is a device or a pipe, in whose place no file must be put.
static bool is_special(const char *path) {
#if HAS_POSIX
  struct stat info;
  return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
#else
  (void)path;
  return false;
#endif
}

// Creates the file beside, for its owner alone, in the place of what a save left there that was
// killed.  A link that stands there is removed, not followed, and what appears meanwhile is an
// error.
static FILE *create_file(const char *beside) {
#if HAS_POSIX
  (void)unlink(beside);
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const int fd = open(beside, flags, S_IRUSR | S_IWUSR);
  FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
  if (fd >= 0 && file == NULL) (void)close(fd);
  return file;
#else
  (void)remove(beside);
  return fopen(beside, "wbx");
#endif
}

// Whether the file is the one that has the name: another save at the same time has not replaced it.
static bool has_name(FILE *file, const char *beside) {
#if HAS_POSIX
  struct stat own;
  struct stat named;
  return fstat(fileno(file), &own) == 0 && lstat(beside, &named) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino;
#else
  (void)file;
  (void)beside;
  return true;
#endif
}

// Writes the state to a file that is open.  False where errno says why not.
static bool write_state(aot_program_t *program, uint8_t *arena, FILE *file) {
  const aot_code_t *code = &program->entry->code;
  state_header_t header = header_of(program);
  aot_walk_t walk = {.arena = arena, .file = file};
  walk.failed = fwrite(&header, sizeof header, 1, file) != 1;
  write_bytes(&walk, program->states, code->state_count * sizeof *program->states);
  aot_state_visit(&walk, code, program->states, write_piece);
  header.bytes = walk.done;
  header.checksum = walk.checksum;
  header.header_checksum = aot_xxh64(&header, sizeof header - sizeof header.header_checksum, 0);
  walk.failed = walk.failed || fseek(file, 0, SEEK_SET) != 0 ||
                fwrite(&header, sizeof header, 1, file) != 1 || fflush(file) != 0 ||
                SYNC(file) != 0;
  return !walk.failed;
}

// Writes the file `beside`, which becomes `path`.
static aot_status_t write_file(aot_program_t *program, uint8_t *arena, const char *path,
                               const char *beside, aot_error_t *error) {
  FILE *file = create_file(beside);
  if (file == NULL) return fail_to_write(path, error);
  const bool is_written = write_state(program, arena, file);
  const int code = errno;
  const bool is_own = has_name(file, beside);
  const bool is_closed = fclose(file) == 0;
  if (!is_written) errno = code;
  if (is_own && is_written && is_closed && rename(beside, path) == 0) return AOT_OK;
  const aot_status_t status =
      is_own ? fail_to_write(path, error)
             : aot_fail(error, AOT_ERROR_IO, "cannot write %s: another save of it began", path);
  if (is_own) (void)remove(beside);
  return status;
}

aot_status_t aot_program_save_state(aot_program_t *program, const char *path, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  if (path == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "path is NULL");
  char beside[MOST_PATH_BYTES];
  const int length = snprintf(beside, sizeof beside, "%s" BESIDE, path);
  if (length < 0 || (size_t)length >= sizeof beside) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "path is longer than %u bytes",
                    MOST_PATH_BYTES - (unsigned)sizeof BESIDE);
  }
  if (is_special(path)) {
    return aot_fail(error, AOT_ERROR_IO, "cannot write %s: not a regular file", path);
  }
  uint8_t *arena = NULL;
  AOT_TRY(aot_state_open_arena(program, error, &arena));
  // What the next run would make zero is zero.
  if (program->is_reset) memset(arena, 0, (size_t)aot_code_reset_bytes(&program->entry->code));
  return write_file(program, arena, path, beside, error);
}

// Says what is wrong with a file's header.
static aot_status_t check_header(const aot_program_t *program, const state_header_t *found,
                                 const char *path, aot_error_t *error) {
  const state_header_t own = header_of(program);
  if (memcmp(found->magic, magic, sizeof magic) != 0) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "%s is not a state file", path);
  }
  if (found->version != STATE_VERSION) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "%s: a state file of version %u, this runtime reads version %u", path,
                    (unsigned)found->version, STATE_VERSION);
  }
  if (aot_xxh64(found, sizeof *found - sizeof found->header_checksum, 0) !=
      found->header_checksum) {
    return aot_fail(error, AOT_ERROR_CHECKSUM, "%s: the header's checksum is wrong", path);
  }
  if (found->module != own.module) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%s: the state of another module", path);
  }
  if (found->entry == own.entry) return AOT_OK;
  return aot_fail(error, AOT_ERROR_ARGUMENT,
                  "%s: the state of another entry point or variant of the module", path);
}

// Makes what is behind a file's header the program's state, once it is known to be one.
static aot_status_t take(aot_program_t *program, const state_header_t *header, const uint8_t *bytes,
                         const char *path, aot_error_t *error) {
  if (!aot_state_read_scalars(program, bytes, header->bytes)) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "%s: no run leaves such a state", path);
  }
  const aot_code_t *code = &program->entry->code;
  aot_walk_t walk = {.bytes = bytes};
  check_piece(&walk, 0, code->state_count * sizeof *program->states);
  aot_state_visit(&walk, code, program->next_states, check_piece);
  if (walk.checksum != header->checksum) {
    return aot_fail(error, AOT_ERROR_CHECKSUM, "%s: the state's checksum is wrong", path);
  }
  uint8_t *arena = NULL;
  AOT_TRY(aot_state_open_arena(program, error, &arena));
  aot_state_adopt(program, arena, bytes);
  return AOT_OK;
}

static aot_status_t read_file(aot_program_t *program, int fd, const char *path,
                              aot_error_t *error) {
  uint64_t file_bytes = 0;
  state_header_t header;
  memset(&header, 0, sizeof header);
  AOT_TRY(aot_os_file_bytes(fd, error, &file_bytes));
  if (file_bytes >= sizeof header) {
    AOT_TRY(aot_os_read(fd, 0, &header, sizeof header, error));
  }
  AOT_TRY(check_header(program, &header, path, error));
  if (header.bytes != file_bytes - sizeof header) {
    return aot_fail(error, AOT_ERROR_TRUNCATED, "%s: %llu bytes, its header says %llu", path,
                    (unsigned long long)file_bytes,
                    (unsigned long long)(header.bytes + sizeof header));
  }
  void *bytes = NULL;
  AOT_TRY(aot_allocate(&program->allocator, header.bytes, "a state file", error, &bytes));
  aot_status_t status = aot_os_read(fd, sizeof header, bytes, (size_t)header.bytes, error);
  if (status == AOT_OK) status = take(program, &header, bytes, path, error);
  aot_release(&program->allocator, bytes, (size_t)header.bytes);
  return status;
}

aot_status_t aot_program_load_state(aot_program_t *program, const char *path, aot_error_t *error) {
  AOT_TRY(aot_program_enter(program, error));
  if (path == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "path is NULL");
  int fd = -1;
  AOT_TRY(aot_os_open(path, error, &fd));
  const aot_status_t status = read_file(program, fd, path, error);
  aot_os_close(fd);
  return status;
}
