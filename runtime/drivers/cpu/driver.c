// The CPU driver: kernels are functions in a code image, run by the caller's thread and those that
// share its dispatches.
#include "driver.h"

#include <string.h>

#include "cpu_features.h"
#include "host_threads.h"
#include "module_fbs.h"
#include "os.h"
#include "poison.h"
#include "sharing.h"
#include "status.h"
#include "workers.h"

#ifdef AOT_EMBED
#include "aot/embedded.h"
#endif
#ifdef __wasm__
#include "aot_wasm.h"
#endif

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
// tests/fuzz/fuzz_module.c: what runs in the place of an executable's code.
aot_kernel_t aot_fuzz_kernel(const aot_executable_t *executable);
#endif

struct aot_device_t {
  const aot_variant_t *variant;
  aot_allocator_t allocator;
  const uint8_t *code;  // executable
  aot_code_mapping_t mapping;
#ifdef __wasm__
  aot_wasm_table_t table;  // functions have no addresses
#endif
  uint32_t threads;
  uint8_t *scratch;       // of the threads that have it from here
  size_t scratch_stride;  // of a thread
  size_t scratch_bytes;   // of all
  bool has_callers;       // the caller's is among them, and not in the arena
  uint8_t *arena;         // owned
  size_t arena_bytes;
  aot_dispatch_t dispatch;
  const aot_bindings_t *bindings;  // of the run
  aot_workers_t *workers;          // NULL: one thread, or the host's
  aot_host_threads_t host;
  aot_sharing_t sharing;
  bool is_sharing;  // in this run
  void (*profile)(void *user, const aot_launch_t *launch);
  void *profile_user;
};

static aot_status_t cpu_check(const aot_variant_t *variant, aot_error_t *error) {
  if (!aot_cpu_has_arch(variant->arch)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "made for %s", aot_cpu_arch_name(variant->arch));
  }
  if (variant->word_bytes != sizeof(void *)) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "parameter words of %u bytes, not %zu",
                    (unsigned)variant->word_bytes, sizeof(void *));
  }
#ifndef AOT_NO_OS  // a board's CPU is known when the module is made, and nobody could be asked
  aot_cpu_t cpu;
  aot_cpu_describe(&cpu);
  aot_text_t missing = {.length = 0};
  uint32_t count = 0;
  for (uint32_t i = 0; i < variant->feature_count; ++i) {
    if (aot_cpu_has_feature(&cpu, variant->features[i])) continue;
    aot_text_append(&missing, "%s%s", count > 0 ? ", " : "", variant->features[i]);
    ++count;
  }
  if (count > 0) {
    return aot_fail(error, AOT_ERROR_UNSUPPORTED, "needs the CPU feature%s %s",
                    count > 1 ? "s" : "", missing.bytes);
  }
#endif
  return AOT_OK;
}

// Executable pages of the file's mapping if the system lets us, else a copy.
static aot_status_t map_code(aot_device_t *device, const aot_module_t *module, aot_error_t *error) {
  const aot_segment_t *segment = &device->variant->code;
  static const char what[] = "the code of variant";
  const char *target = device->variant->target;
  if (segment->length == 0) return AOT_OK;
#ifdef __wasm__
  AOT_TRY(aot_module_verify_segment(module, segment, what, target, error));
  device->mapping = AOT_CODE_MAPPED;
  return aot_wasm_table_create(module, device->variant, &device->allocator, error, &device->table);
#else
  const uint8_t *code = module->data + segment->offset;
  const size_t bytes = (size_t)segment->length;
#ifdef AOT_EMBED
  if (aot_embedded_contains(code)) {  // in the program's own text, executable as it is
    AOT_TRY(aot_segment_verify(segment, code, what, target, error));
    device->code = code;
    device->mapping = AOT_CODE_MAPPED;
    return AOT_OK;
  }
#endif
  const bool is_mapped = module->map.base != NULL;
  if (is_mapped && !module->copies_code && (uintptr_t)code % aot_os_page_bytes() == 0 &&
      aot_os_make_executable(code, bytes)) {
    AOT_TRY(aot_segment_verify(segment, code, what, target, error));
    aot_os_flush_code(code, bytes);
    device->code = code;
    device->mapping = AOT_CODE_MAPPED;
    return AOT_OK;
  }
  AOT_TRY(aot_os_copy_code(code, bytes, error, &device->code));
  device->mapping = AOT_CODE_COPIED;
  return aot_segment_verify(segment, device->code, what, target, error);
#endif
}

static void release_arena(aot_device_t *device) {
  const size_t bytes = device->arena_bytes + 2 * AOT_POISON_ZONE;
  aot_release(&device->allocator, aot_poison_block(device->arena), bytes);
  device->arena = NULL;
  device->arena_bytes = 0;
}

static void cpu_close(aot_device_t *device) {
  const aot_allocator_t allocator = device->allocator;
  aot_workers_destroy(device->workers);
  aot_sharing_destroy(&allocator, &device->sharing);
  if (device->mapping == AOT_CODE_COPIED) {
    aot_os_free_code(device->code, (size_t)device->variant->code.length);
  }
#ifdef __wasm__
  aot_wasm_table_destroy(&allocator, &device->table);
#endif
  release_arena(device);
  aot_release(&allocator, aot_poison_block(device->scratch), device->scratch_bytes);
  aot_release(&allocator, device, sizeof *device);
}

// Scratch of each thread, 64-byte aligned; but for the caller's, where programs place it in the
// arena.
static aot_status_t allocate_scratch(aot_device_t *device, aot_error_t *error) {
  const aot_variant_t *variant = device->variant;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const aot_executable_t *executable = &variant->executables[i];
    const uint32_t needed = aot_executable_is_code(executable) ? executable->scratch_bytes : 0;
    if (needed > bytes) bytes = needed;
  }
  for (uint32_t i = 0; i < variant->entry_count; ++i) {
    const bool is_in_arena = variant->entries[i].code.scratch_offset >= 0;
    if (!is_in_arena || AOT_POISON_ZONE > 0) device->has_callers = true;
  }
  const uint32_t count = device->threads - (device->has_callers ? 0 : 1);
  bytes += 2 * AOT_POISON_ZONE;
  if (count > 1) bytes = (bytes + AOT_ALIGNMENT - 1) / AOT_ALIGNMENT * AOT_ALIGNMENT;
  void *scratch = NULL;
  AOT_TRY(aot_allocate(&device->allocator, bytes * count, "scratch", error, &scratch));
  device->scratch = aot_poison_inside(scratch);
  device->scratch_stride = (size_t)bytes;
  device->scratch_bytes = (size_t)bytes * count;
  return AOT_OK;
}

static aot_status_t start_threads(aot_device_t *device, aot_error_t *error) {
  uint32_t words = 0;
  for (uint32_t i = 0; i < device->variant->entry_count; ++i) {
    const uint32_t count = device->variant->entries[i].code.word_count;
    if (count > words) words = count;
  }
  AOT_TRY(aot_sharing_create(&device->allocator, device->threads, words, error, &device->sharing));
  if (device->host.parallel_for != NULL) return AOT_OK;
  return aot_workers_create(&device->allocator, device->threads, error, &device->workers);
}

static aot_status_t set_up(aot_device_t *device, const aot_module_t *module,
                           const aot_program_options_t *options, aot_error_t *error) {
  if (options->threads > AOT_MOST_THREADS) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "%u threads, at most %u expected",
                    (unsigned)options->threads, AOT_MOST_THREADS);
  }
  device->threads = options->threads > 0 ? options->threads : 1;
  device->host =
      (aot_host_threads_t){options->parallel_for, options->parallel_for_user, device->threads};
  device->profile = options->profile;
  device->profile_user = options->profile_user;
  device->dispatch.constants = module->data + module->rodata.offset;
  AOT_TRY(allocate_scratch(device, error));
  AOT_TRY(map_code(device, module, error));
  return device->threads > 1 ? start_threads(device, error) : AOT_OK;
}

static aot_status_t cpu_open(const aot_module_t *module, const aot_variant_t *variant,
                             const aot_program_options_t *options, const aot_allocator_t *allocator,
                             aot_error_t *error, aot_device_t **out_device) {
  *out_device = NULL;
  AOT_TRY(cpu_check(variant, error));
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, sizeof(aot_device_t), "the device", error, &memory));
  memset(memory, 0, sizeof(aot_device_t));
  aot_device_t *device = memory;
  device->variant = variant;
  device->allocator = *allocator;
  const aot_status_t status = set_up(device, module, options, error);
  if (status != AOT_OK) {
    cpu_close(device);
    return status;
  }
  *out_device = device;
  return AOT_OK;
}

static void cpu_get_info(const aot_device_t *device, aot_program_info_t *info) {
  info->code_mapping = device->mapping;
  info->arena_bytes = device->arena_bytes;
  info->scratch_bytes = device->scratch_bytes;
  info->threads = device->threads;
}

// Rows of states that grow lie far apart: a large page for each would be memory for all of them.
static void spare_growths(const aot_device_t *device) {
  for (uint32_t i = 0; i < device->variant->entry_count; ++i) {
    const aot_code_t *code = &device->variant->entries[i].code;
    if (code->growth_count == 0 || code->state_bytes > device->arena_bytes) continue;
    const uint64_t begin = aot_code_reset_bytes(code);
    aot_os_use_small_pages(device->arena + begin, (size_t)(code->state_bytes - begin));
  }
}

static aot_status_t cpu_reserve(aot_device_t *device, uint64_t arena_bytes, uint64_t kept_bytes,
                                aot_error_t *error) {
  if (device->arena != NULL && arena_bytes <= device->arena_bytes) return AOT_OK;
  // The old one first where nothing of it is kept: both at once may not fit.
  if (kept_bytes == 0) release_arena(device);
  void *block = NULL;
  const uint64_t bytes = arena_bytes + 2 * AOT_POISON_ZONE;
  AOT_TRY(aot_allocate(&device->allocator, bytes, "the arena", error, &block));
  uint8_t *arena = aot_poison_inside(block);
  if (kept_bytes > 0) memcpy(arena, device->arena, (size_t)kept_bytes);
  release_arena(device);
  device->arena = arena;
  device->arena_bytes = (size_t)arena_bytes;
  spare_growths(device);
  return AOT_OK;
}

static uint8_t *cpu_arena(aot_device_t *device) {
  return device->arena;
}

// The class's base is the first tensor's memory; the others' offsets wrap around from there.
static uintptr_t bind(aot_binding_t *bindings, uint32_t count) {
  const uintptr_t base = count > 0 ? bindings[0].address : 0;
  for (uint32_t i = 0; i < count; ++i)
    bindings[i].offset = bindings[i].address - base;
  return base;
}

static aot_status_t cpu_begin(aot_device_t *device, aot_bindings_t *bindings, aot_error_t *error) {
  (void)error;
  device->dispatch.inputs = (const uint8_t *)bind(bindings->inputs, bindings->input_count);
  device->dispatch.outputs = (uint8_t *)bind(bindings->outputs, bindings->output_count);
  device->dispatch.arena = bindings->arena != NULL ? bindings->arena : device->arena;
  device->bindings = bindings;
  device->dispatch.scratch = bindings->scratch_offset >= 0 && AOT_POISON_ZONE == 0
                                 ? device->dispatch.arena + bindings->scratch_offset
                                 : device->scratch;
  const bool are_hosts = device->threads > 1 && device->host.parallel_for != NULL;
  device->is_sharing =
      are_hosts || (device->workers != NULL && aot_workers_are_alive(device->workers));
  if (device->is_sharing && aot_sharing_begin_run(&device->sharing) && !are_hosts) {
    aot_workers_wake(device->workers);
  }
  return AOT_OK;
}

static aot_kernel_t find_kernel(const aot_device_t *device, uint32_t executable) {
  const uint64_t offset = device->variant->executables[executable].code_offset;
#ifdef __wasm__
  const uintptr_t address = aot_wasm_table_find(&device->table, offset);
#else
  uintptr_t address = (uintptr_t)device->code + (uintptr_t)offset;
  if (device->variant->arch == AOT_FBS_ARCH_THUMB) address |= 1;
#endif
  aot_kernel_t kernel;
  memcpy(&kernel, &address, sizeof kernel);
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  kernel = aot_fuzz_kernel(&device->variant->executables[executable]);
#endif
  return kernel;
}

// A dispatch as workers get it.
typedef struct aot_cpu_job_t {
  const aot_device_t *device;
  aot_kernel_t kernel;
  aot_grid_t grid;
  size_t scratch_bytes;
} aot_cpu_job_t;

#ifdef AOT_POISON
static void set_zones(const aot_device_t *device, size_t scratch_bytes) {
  aot_poison_set_zone(device->arena - AOT_POISON_ZONE);
  aot_poison_set_zone(device->arena + device->arena_bytes);
  for (size_t begin = 0; begin < device->scratch_bytes; begin += device->scratch_stride) {
    aot_poison_set_zone(device->scratch + begin - AOT_POISON_ZONE);
    aot_poison_set_zone(device->scratch + begin + scratch_bytes);
  }
}

static aot_status_t check_zone(const uint8_t *zone, const char *where, size_t bytes,
                               const char *executable, aot_error_t *error) {
  const size_t written = aot_poison_written(zone);
  if (written == 0) return AOT_OK;
  return aot_fail(error, AOT_ERROR_BOUNDS,
                  "executable \"%s\" wrote %s of %zu bytes, up to byte %zu of the zone there",
                  executable, where, bytes, written);
}

static aot_status_t check_zones(const aot_device_t *device, size_t scratch_bytes, const char *name,
                                aot_error_t *error) {
  const size_t arena = device->arena_bytes;
  AOT_TRY(check_zone(device->arena - AOT_POISON_ZONE, "before the arena", arena, name, error));
  AOT_TRY(check_zone(device->arena + arena, "behind the arena", arena, name, error));
  for (size_t begin = 0; begin < device->scratch_bytes; begin += device->scratch_stride) {
    const uint8_t *scratch = device->scratch + begin;
    AOT_TRY(
        check_zone(scratch - AOT_POISON_ZONE, "before its scratch", scratch_bytes, name, error));
    AOT_TRY(check_zone(scratch + scratch_bytes, "behind its scratch", scratch_bytes, name, error));
  }
  return AOT_OK;
}
#endif

// Workgroups begin..end-1, x fastest.
static void run_groups(void *context, uint32_t worker, uint64_t begin, uint64_t end) {
  const aot_cpu_job_t *job = context;
  aot_dispatch_t dispatch = job->device->dispatch;
  if (worker > 0) {
    const uint32_t number = worker - (job->device->has_callers ? 0 : 1);
    dispatch.scratch = job->device->scratch + number * job->device->scratch_stride;
  }
  uint32_t x = (uint32_t)(begin % job->grid.x);
  const uint64_t row = begin / job->grid.x;
  uint32_t y = (uint32_t)(row % job->grid.y);
  uint32_t z = (uint32_t)(row / job->grid.y);
  for (uint64_t i = begin; i < end; ++i) {
#ifdef AOT_POISON
    memset(dispatch.scratch, aot_poison_byte(), job->scratch_bytes);
#endif
    job->kernel(&dispatch, x, y, z);
    if (++x < job->grid.x) continue;
    x = 0;
    if (++y < job->grid.y) continue;
    y = 0;
    ++z;
  }
}

// Runs the workgroups on as many threads as they are worth; *out_threads might take part.
static aot_status_t run_grid(aot_device_t *device, aot_cpu_job_t *job, aot_error_t *error,
                             uint32_t *out_threads) {
  *out_threads = 1;
  const uint64_t groups = (uint64_t)job->grid.x * job->grid.y * job->grid.z;
  if (!device->is_sharing) {
    run_groups(job, 0, 0, groups);
    return AOT_OK;
  }
  const uint32_t word = device->bindings->word;
  const aot_share_t share = aot_sharing_ask(&device->sharing, word, groups);
  const uint64_t start = share.is_measured ? aot_os_now_ns() : 0;
  aot_own_part_t own = {1, 0};
  if (share.chunk == 0) {
    run_groups(job, 0, 0, groups);
  } else if (device->host.parallel_for != NULL) {
    AOT_TRY(
        aot_host_threads_share(&device->host, run_groups, job, groups, share.chunk, error, &own));
  } else {
    own = aot_workers_share(device->workers, run_groups, job, groups, share.chunk, share.wakes);
  }
  if (share.is_measured) {
    const uint64_t end = aot_os_now_ns();
    const uint64_t chunk = share.chunk > 0 ? share.chunk : groups;
    const uint64_t done = own.chunks * chunk < groups ? own.chunks * chunk : groups;
    aot_sharing_measure(&device->sharing, word, groups, done,
                        (share.chunk > 0 ? own.end_ns : end) - start, end - start);
  }
  if (share.chunk > 0) *out_threads = device->threads;
  return AOT_OK;
}

static uint64_t profile_start(const aot_device_t *device) {
  return device->profile != NULL ? aot_os_now_ns() : 0;
}

static void profile_end(const aot_device_t *device, aot_launch_t launch) {
  if (device->profile == NULL) return;
  launch.duration_ns = aot_os_now_ns() - launch.start_ns;
  launch.word = device->bindings->word;
  device->profile(device->profile_user, &launch);
}

static aot_status_t cpu_dispatch(aot_device_t *device, uint32_t executable, const void *params,
                                 aot_grid_t grid, aot_error_t *error) {
  const aot_executable_t *code = &device->variant->executables[executable];
  aot_cpu_job_t job = {device, find_kernel(device, executable), grid, code->scratch_bytes};
  device->dispatch.params = params;
#ifdef AOT_POISON
  set_zones(device, job.scratch_bytes);
#endif
  const uint64_t start = profile_start(device);
  uint32_t threads = 1;
  AOT_TRY(run_grid(device, &job, error, &threads));
  profile_end(device, (aot_launch_t){.kind = AOT_LAUNCH_DISPATCH,
                                     .executable = executable,
                                     .grid = {grid.x, grid.y, grid.z},
                                     .start_ns = start,
                                     .threads = threads,
                                     .name = code->name});
#ifdef AOT_POISON
  return check_zones(device, job.scratch_bytes, code->name, error);
#else
  return AOT_OK;
#endif
}

// Only arena and outputs are ever written: programs are verified for that.
static uint8_t *resolve(const aot_device_t *device, aot_place_t place) {
  const aot_dispatch_t *d = &device->dispatch;
  const uintptr_t bases[AOT_FBS_BUFFER_CLASS_COUNT] = {(uintptr_t)d->constants, (uintptr_t)d->arena,
                                                       (uintptr_t)d->inputs, (uintptr_t)d->outputs};
  return (uint8_t *)(bases[place.buffer_class] + (uintptr_t)place.offset);
}

static aot_status_t cpu_copy(aot_device_t *device, aot_place_t to, aot_place_t from, size_t bytes,
                             aot_error_t *error) {
  (void)error;
  const uint64_t start = profile_start(device);
  memmove(resolve(device, to), resolve(device, from), bytes);
  profile_end(device, (aot_launch_t){.kind = AOT_LAUNCH_COPY,
                                     .bytes = bytes,
                                     .start_ns = start,
                                     .threads = 1,
                                     .name = "copy"});
  return AOT_OK;
}

static void fill(uint8_t *target, size_t bytes, uint32_t pattern) {
  const uint32_t low = pattern & 0xff;
  if (pattern == low * 0x01010101u) {
    memset(target, (int)low, bytes);
    return;
  }
  for (; bytes >= sizeof pattern; bytes -= sizeof pattern, target += sizeof pattern) {
    memcpy(target, &pattern, sizeof pattern);
  }
  memcpy(target, &pattern, bytes);
}

static aot_status_t cpu_fill(aot_device_t *device, aot_place_t to, size_t bytes, uint32_t pattern,
                             aot_error_t *error) {
  (void)error;
  const uint64_t start = profile_start(device);
  fill(resolve(device, to), bytes, pattern);
  profile_end(device, (aot_launch_t){.kind = AOT_LAUNCH_FILL,
                                     .bytes = bytes,
                                     .start_ns = start,
                                     .threads = 1,
                                     .name = "fill"});
  return AOT_OK;
}

static aot_status_t cpu_load(aot_device_t *device, aot_place_t from, size_t bytes, void *memory,
                             aot_error_t *error) {
  (void)error;
  memcpy(memory, resolve(device, from), bytes);
  return AOT_OK;
}

static aot_status_t cpu_store(aot_device_t *device, aot_place_t to, size_t bytes, uint64_t value,
                              aot_error_t *error) {
  (void)error;
  memcpy(resolve(device, to), &value, bytes);
  return AOT_OK;
}

static aot_status_t cpu_end(aot_device_t *device, aot_error_t *error) {
  (void)device;
  (void)error;
  return AOT_OK;
}

const aot_driver_t aot_cpu_driver = {
    .name = "cpu",
    .device = AOT_FBS_DEVICE_CPU,
    .check = cpu_check,
    .open = cpu_open,
    .close = cpu_close,
    .get_info = cpu_get_info,
    .reserve = cpu_reserve,
    .arena = cpu_arena,
    .begin = cpu_begin,
    .dispatch = cpu_dispatch,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .load = cpu_load,
    .store = cpu_store,
    .end = cpu_end,
};
