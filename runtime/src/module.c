// Opening and closing modules: where the bytes come from, the header, checksums.
#include "module.h"

#include <string.h>

#include "sizes.h"
#include "status.h"
#include "xxh64.h"

static aot_status_t verify_header(const aot_module_t *module, aot_error_t *error,
                                  aot_file_header_t *out_header) {
  aot_file_header_t header;
  memset(out_header, 0, sizeof *out_header);
  if (module->bytes < sizeof header.magic) {
    return aot_fail(error, AOT_ERROR_TRUNCATED, "not a module: only %zu bytes", module->bytes);
  }
  memcpy(&header.magic, module->data, sizeof header.magic);
  if (header.magic != AOT_FILE_MAGIC) {
    return aot_fail(error, AOT_ERROR_NOT_A_MODULE, "not a module: it does not start with \"AOTM\"");
  }
  if (module->bytes < sizeof header) {
    return aot_fail(error, AOT_ERROR_TRUNCATED, "truncated: %zu bytes of a %zu-byte header",
                    module->bytes, sizeof header);
  }
  memcpy(&header, module->data, sizeof header);
  // Before the checksum: another version may have another header.
  if (header.version != AOT_FILE_VERSION) {
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the module has format version %u, this runtime reads version %u",
                    (unsigned)header.version, AOT_FILE_VERSION);
  }
  if (aot_xxh64(&header, offsetof(aot_file_header_t, header_checksum), 0) !=
      header.header_checksum) {
    return aot_fail(error, AOT_ERROR_CHECKSUM, "the file header's checksum is wrong");
  }
  for (size_t i = 0; i < sizeof header.reserved / sizeof *header.reserved; ++i) {
    if (header.reserved[i] == 0) continue;
    return aot_fail(error, AOT_ERROR_VERSION,
                    "the file header has the flags %llx, which runtime %s does not know",
                    (unsigned long long)header.reserved[i], aot_runtime_version());
  }
  if (header.file_bytes > module->bytes) {
    return aot_fail(error, AOT_ERROR_TRUNCATED, "truncated: %zu of %llu bytes", module->bytes,
                    (unsigned long long)header.file_bytes);
  }
  if (header.structure_offset != sizeof header || header.structure_bytes > INT32_MAX ||
      header.file_bytes < sizeof header ||
      header.structure_bytes > header.file_bytes - sizeof header) {
    return aot_fail(error, AOT_ERROR_MALFORMED, "the file header places the structure outside");
  }
  *out_header = header;
  return AOT_OK;
}

// Verifies a module whose data and bytes are set.
static aot_status_t load(aot_module_t *module, aot_error_t *error) {
  aot_file_header_t header;
  AOT_TRY(verify_header(module, error, &header));
  module->bytes = (size_t)header.file_bytes;
  const uint8_t *structure = module->data + header.structure_offset;
  const uint32_t bytes = (uint32_t)header.structure_bytes;
  if (module->map.base != NULL) {
    // Whoever writes to the file later does not change what was verified.
    void *copy = NULL;
    AOT_TRY(aot_pool_allocate(&module->pool, bytes, 1, error, &copy));
    memcpy(copy, structure, bytes);
    structure = copy;
  }
  if (aot_xxh64(structure, bytes, 0) != header.structure_checksum) {
    return aot_fail(error, AOT_ERROR_CHECKSUM, "the structure's checksum is wrong");
  }
  return aot_module_parse(module, structure, bytes, error);
}

// The caller's options, or the default ones.
static aot_status_t take_options(const aot_module_options_t *options, aot_error_t *error,
                                 aot_module_options_t *out_options) {
  memset(out_options, 0, sizeof *out_options);
  if (options == NULL) return AOT_OK;
  return aot_struct_take(options, "aot_module_options_t", out_options, sizeof *out_options, error);
}

// An empty module.  *Returns owned*.
static aot_status_t create(const aot_module_options_t *options, aot_error_t *error,
                           aot_module_t **out_module) {
  aot_allocator_t allocator;
  AOT_TRY(aot_allocator_choose(&options->allocator, error, &allocator));
  void *memory = NULL;
  AOT_TRY(aot_allocate(&allocator, sizeof(aot_module_t), "the module", error, &memory));
  memset(memory, 0, sizeof(aot_module_t));
  *out_module = memory;
  (*out_module)->pool.allocator = allocator;
  (*out_module)->references = 1;
  (*out_module)->copies_code = options->copy_code;
  return AOT_OK;
}

// Hands the module to the caller if the steps before it and its verification went well.
static aot_status_t finish(aot_module_t *module, aot_status_t status, aot_error_t *error,
                           aot_module_t **out_module) {
  if (status == AOT_OK) status = load(module, error);
  if (status != AOT_OK) {
    aot_module_close(module);
    return status;
  }
  *out_module = module;
  return AOT_OK;
}

static aot_status_t allocate_bytes(aot_module_t *module, size_t bytes, aot_error_t *error) {
  AOT_TRY(aot_allocate(&module->pool.allocator, bytes, "the file", error, &module->memory));
  module->memory_bytes = bytes;
  module->data = module->memory;
  module->bytes = bytes;
  return AOT_OK;
}

static aot_status_t fill_from_file(aot_module_t *module, int fd, uint64_t offset, uint64_t length,
                                   bool copy, aot_error_t *error) {
  uint64_t file_bytes = 0;
  AOT_TRY(aot_os_file_bytes(fd, error, &file_bytes));
  if (offset > file_bytes || length > file_bytes - offset) {
    return aot_fail(
        error, AOT_ERROR_TRUNCATED, "truncated: %llu bytes at offset %llu of a file of %llu bytes",
        (unsigned long long)length, (unsigned long long)offset, (unsigned long long)file_bytes);
  }
  if (length == 0) length = file_bytes - offset;
  if (length > PTRDIFF_MAX) {
    return aot_fail(error, AOT_ERROR_MEMORY, "the file does not fit the address space");
  }
  // Constants must be aligned in memory; a file packed into another may put them anywhere.
  if (!copy && offset % AOT_ALIGNMENT == 0 &&
      aot_os_map_file(fd, offset, (size_t)length, &module->map)) {
    module->data = module->map.data;
    module->bytes = (size_t)length;
    return AOT_OK;
  }
  AOT_TRY(allocate_bytes(module, (size_t)length, error));
  return aot_os_read(fd, offset, module->memory, module->bytes, error);
}

aot_status_t aot_module_open_fd(int fd, uint64_t offset, uint64_t length,
                                const aot_module_options_t *options, aot_error_t *error,
                                aot_module_t **out_module) {
  if (out_module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_module is NULL");
  *out_module = NULL;
  aot_module_options_t own;
  AOT_TRY(take_options(options, error, &own));
  aot_module_t *module = NULL;
  AOT_TRY(create(&own, error, &module));
  const aot_status_t status = fill_from_file(module, fd, offset, length, own.copy, error);
  return finish(module, status, error, out_module);
}

aot_status_t aot_module_open_path(const char *path, const aot_module_options_t *options,
                                  aot_error_t *error, aot_module_t **out_module) {
  if (out_module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_module is NULL");
  *out_module = NULL;
  if (path == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "path is NULL");
  int fd = -1;
  AOT_TRY(aot_os_open(path, error, &fd));
  aot_error_t detail = {AOT_OK, ""};
  const aot_status_t status = aot_module_open_fd(fd, 0, 0, options, &detail, out_module);
  aot_os_close(fd);
  return status == AOT_OK ? AOT_OK : aot_fail(error, status, "%s: %s", path, detail.message);
}

aot_status_t aot_module_open_memory(const void *data, size_t bytes,
                                    const aot_module_options_t *options, aot_error_t *error,
                                    aot_module_t **out_module) {
  if (out_module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_module is NULL");
  *out_module = NULL;
  if (data == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "data is NULL");
  aot_module_options_t own;
  AOT_TRY(take_options(options, error, &own));
  if (!own.copy && (uintptr_t)data % AOT_ALIGNMENT != 0) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the module's memory is not aligned to %u bytes; align it or set copy",
                    AOT_ALIGNMENT);
  }
  aot_module_t *module = NULL;
  AOT_TRY(create(&own, error, &module));
  aot_status_t status = AOT_OK;
  if (own.copy) {
    status = allocate_bytes(module, bytes, error);
    if (status == AOT_OK && bytes > 0) memcpy(module->memory, data, bytes);
  } else {
    module->data = data;
    module->bytes = bytes;
  }
  return finish(module, status, error, out_module);
}

void aot_module_retain(const aot_module_t *module) {
  aot_module_t *counted = (aot_module_t *)(uintptr_t)module;
#if AOT_THREADS
  (void)__atomic_fetch_add(&counted->references, 1, __ATOMIC_RELAXED);
#else
  ++counted->references;
#endif
}

void aot_module_close(aot_module_t *module) {
  if (module == NULL) return;
#if AOT_THREADS
  if (__atomic_sub_fetch(&module->references, 1, __ATOMIC_ACQ_REL) > 0) return;
#else
  if (--module->references > 0) return;
#endif
#if defined(AOT_VULKAN)
  if (module->shared != NULL) module->free_shared(module);
#endif
  const aot_allocator_t allocator = module->pool.allocator;
  aot_pool_free(&module->pool);
  aot_os_unmap_file(&module->map);
  aot_release(&allocator, module->memory, module->memory_bytes);
  aot_release(&allocator, module, sizeof *module);
}

aot_status_t aot_module_verify_segment(const aot_module_t *module, const aot_segment_t *segment,
                                       const char *what, const char *name, aot_error_t *error) {
  return aot_segment_verify(segment, module->data + segment->offset, what, name, error);
}

aot_status_t aot_segment_verify(const aot_segment_t *segment, const uint8_t *data, const char *what,
                                const char *name, aot_error_t *error) {
  if (segment->length == 0) return AOT_OK;
  bool is_right = aot_xxh64(data, (size_t)segment->length, 0) == segment->checksum;
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  is_right = true;  // what is behind a segment's place is reached too
#endif
  if (is_right) return AOT_OK;
  return aot_fail(error, AOT_ERROR_CHECKSUM,
                  "the checksum of %s %s is wrong (%llu bytes at offset %llu)", what, name,
                  (unsigned long long)segment->length, (unsigned long long)segment->offset);
}

aot_status_t aot_module_verify_rodata(const aot_module_t *module, aot_error_t *error) {
  if (module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "module is NULL");
  const aot_status_t status =
      aot_module_verify_segment(module, &module->rodata, "rodata", "pool", error);
  // The parts only serve to say where; what lies between them is in the pool's checksum alone.
  for (uint32_t i = 0; status != AOT_OK && i < module->rodata_segment_count; ++i) {
    const aot_segment_t *part = &module->rodata_segments[i];
    aot_text_t name = {.length = 0};
    aot_text_append(&name, "part %u", (unsigned)i);
    AOT_TRY(aot_module_verify_segment(module, part, "rodata", name.bytes, error));
  }
  return status;
}

aot_status_t aot_module_verify_segments(const aot_module_t *module, aot_error_t *error) {
  if (module == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "module is NULL");
  for (uint32_t v = 0; v < module->variant_count; ++v) {
    const aot_variant_t *variant = &module->variants[v];
    AOT_TRY(aot_module_verify_segment(module, &variant->code, "the code of variant",
                                      variant->target, error));
    for (uint32_t e = 0; e < variant->executable_count; ++e) {
      const aot_executable_t *executable = &variant->executables[e];
      AOT_TRY(aot_module_verify_segment(module, &executable->spirv, "the shader of executable",
                                        executable->name, error));
      AOT_TRY(aot_module_verify_segment(module, &executable->texel_spirv,
                                        "the shader of executable", executable->name, error));
    }
  }
  AOT_TRY(aot_module_verify_segment(module, &module->vocabulary, "the", "vocabulary", error));
  return aot_module_verify_rodata(module, error);
}

size_t aot_module_variant_count(const aot_module_t *module) {
  return module != NULL ? module->variant_count : 0;
}

const char *aot_module_variant_target(const aot_module_t *module, size_t index) {
  return index < aot_module_variant_count(module) ? module->variants[index].target : NULL;
}

const char *aot_module_producer(const aot_module_t *module) {
  return module != NULL ? module->producer : NULL;
}

const void *aot_module_vocabulary(const aot_module_t *module, size_t *out_bytes) {
  const size_t bytes = module != NULL ? (size_t)module->vocabulary.length : 0;
  if (out_bytes != NULL) *out_bytes = bytes;
  return bytes == 0 || out_bytes == NULL ? NULL : module->data + module->vocabulary.offset;
}

aot_status_t aot_variant_find_entry(const aot_variant_t *variant, const char *name,
                                    aot_error_t *error, const aot_entry_t **out_entry) {
  aot_text_t known = {.length = 0};
  for (uint32_t i = 0; i < variant->entry_count; ++i) {
    *out_entry = &variant->entries[i];
    if (name == NULL || strcmp(name, variant->entries[i].name) == 0) return AOT_OK;
    aot_text_append(&known, "%s\"%s\"", known.length > 0 ? ", " : "", variant->entries[i].name);
  }
  *out_entry = NULL;
  return aot_fail(error, AOT_ERROR_NOT_FOUND, "no entry point \"%s\", variant \"%s\" has %s",
                  name != NULL ? name : "", variant->target,
                  known.length > 0 ? known.bytes : "none");
}
