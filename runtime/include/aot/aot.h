// The runtime's public interface: open a module file, make a program of one of its entry points,
// bind inputs, run.
//
//   aot_module_t *module = NULL;
//   aot_program_t *program = NULL;
//   aot_error_t error;
//   if (aot_module_open_path("model.aotm", NULL, &error, &module) != AOT_OK) ...error.message
//   if (aot_program_create(module, NULL, &error, &program) != AOT_OK) ...
//   aot_program_set_input(program, 0, &tensor, &error);
//   aot_program_run(program, &error);
//   aot_tensor_t result = {.size = sizeof result};
//   aot_program_get_output(program, 0, &error, &result);
//   aot_program_destroy(program);
//   aot_module_close(module);
//
// Conventions.  Every fallible function returns aot_status_t and takes an aot_error_t, which may be
// NULL and is written only on failure.  out_ parameters come last, are cleared on entry and set
// only on success.  *borrows*: the caller keeps the memory alive and unchanged.  *returns owned*:
// the caller releases it.  There is no global state.
//
// A structure that the caller makes begins with `size`: its sizeof, also where it is to be filled.
// A later library adds fields at the end, and takes of a shorter structure what it has; all zero is
// the default of each field.  Fields that a library doesn't know must be zero, or it refuses them.
//
// NULL in place of a handle, of a structure without defaults or of an out_ parameter is
// AOT_ERROR_ARGUMENT; functions without a status return 0, false or NULL then.  Other pointers are
// valid, of objects that have not been destroyed: a function of a program or module after its end
// is undefined behaviour, which is not checked.
//
// Callbacks (allocator, profile, parallel_for) may call functions of other programs and modules.
// Those of the program that is running return AOT_ERROR_BUSY but for what only asks.
#ifndef AOT_AOT_H_
#define AOT_AOT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef AOT_API
#if defined(__GNUC__)
#define AOT_API __attribute__((visibility("default")))
#else
#define AOT_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum aot_status_t {
  AOT_OK = 0,
  AOT_ERROR_ARGUMENT = 1,  // misuse that is noticed, such as an index out of range or overlap
  AOT_ERROR_MEMORY = 2,    // the allocator returned NULL, or a size does not fit the address space
  AOT_ERROR_IO = 3,        // the file cannot be opened or read
  AOT_ERROR_NOT_A_MODULE = 4,  // no AOTM magic
  AOT_ERROR_VERSION = 5,       // another version of the file format, or a feature that isn't known
  AOT_ERROR_TRUNCATED = 6,     // the file is shorter than its header says
  AOT_ERROR_CHECKSUM = 7,      // header, structure or a segment
  AOT_ERROR_MALFORMED = 8,     // checksums hold, but the structure or a program is not valid
  AOT_ERROR_NOT_FOUND = 9,     // no such entry point, target, input or output
  AOT_ERROR_UNSUPPORTED = 10,  // no variant runs on this machine
  AOT_ERROR_DTYPE = 11,        // an input's dtype
  AOT_ERROR_SHAPE = 12,        // an input's or output's rank or extents
  AOT_ERROR_CAPACITY = 13,     // the caller's output memory is too small
  AOT_ERROR_NOT_READY = 14,    // an input is not set, or nothing has run yet
  AOT_ERROR_CHECK = 15,        // a CHECK of the program failed: its message is the error's
  AOT_ERROR_ARITHMETIC = 16,   // overflow or division by zero in the program
  AOT_ERROR_BOUNDS = 17,       // a load, copy or fill outside its buffer, or an impossible grid
  AOT_ERROR_BUDGET = 18,       // the program used up options.work_budget
  AOT_ERROR_DEVICE = 19,     // a GPU's driver failed, or the device is lost: make the program anew
  AOT_ERROR_TEXT = 20,       // text is no UTF-8
  AOT_ERROR_CANCELLED = 21,  // aot_program_set_cancelled
  AOT_ERROR_DEADLINE = 22,   // aot_program_set_deadline
  AOT_ERROR_BUSY = 23,       // the program is running: a call from inside one of its callbacks
  AOT_ERROR_COUNT            // not a status
} aot_status_t;

// What failed, in one line: lower case, no final period, cut off where it doesn't fit.  Never
// grows: it has no size.
typedef struct aot_error_t {
  aot_status_t status;
  char message[508];
} aot_error_t;

// Same values as DType in module.fbs.
typedef enum aot_dtype_t {
  AOT_DTYPE_F32 = 0,
  AOT_DTYPE_F16 = 1,
  AOT_DTYPE_F64 = 2,
  AOT_DTYPE_I8 = 3,
  AOT_DTYPE_I16 = 4,
  AOT_DTYPE_I32 = 5,
  AOT_DTYPE_I64 = 6,
  AOT_DTYPE_U8 = 7,
  AOT_DTYPE_U16 = 8,
  AOT_DTYPE_U32 = 9,
  AOT_DTYPE_U64 = 10,
  AOT_DTYPE_BOOL = 11,
  AOT_DTYPE_BF16 = 12,
  AOT_DTYPE_COUNT
} aot_dtype_t;

typedef enum aot_device_kind_t {
  AOT_DEVICE_ANY = 0,  // whatever the first variant that runs here is for; no GPU in software
  AOT_DEVICE_CPU = 1,
  AOT_DEVICE_VULKAN = 2,
} aot_device_kind_t;

// How the chosen variant's code became executable.
typedef enum aot_code_mapping_t {
  AOT_CODE_NONE = 0,    // the variant has no machine code
  AOT_CODE_MAPPED = 1,  // the pages of the file's mapping
  AOT_CODE_COPIED = 2,  // an anonymous mapping
} aot_code_mapping_t;

// Where memory comes from.  Called on the thread that calls the runtime, never during a run at
// planned shapes.  Never grows.
typedef struct aot_allocator_t {
  void *user;
  // Returns `bytes` > 0 bytes aligned to `alignment`, a power of two, or NULL.
  void *(*allocate)(void *user, size_t bytes, size_t alignment);
  // Releases what allocate returned, with the same size and alignment.
  void (*release)(void *user, void *pointer, size_t bytes, size_t alignment);
} aot_allocator_t;

// NULL in the place of options is the default of each field.
typedef struct aot_module_options_t {
  size_t size;
  // Copied.  Both functions NULL: malloc's aligned cousin and free.
  aot_allocator_t allocator;
  // Reads the module into memory of the allocator instead of mapping or borrowing it.  For memory
  // that is not 64-byte aligned or won't stay, and for files that may shrink while they are in use.
  bool copy;
  // Machine code runs from a copy in memory, which is what is verified.  For files that others may
  // write to: a change of mapped code after it was verified is what runs.
  bool copy_code;
} aot_module_options_t;

#define AOT_MOST_THREADS 256u

typedef enum aot_launch_kind_t {
  AOT_LAUNCH_DISPATCH = 0,
  AOT_LAUNCH_COPY = 1,
  AOT_LAUNCH_FILL = 2,
} aot_launch_kind_t;

// One dispatch, copy or fill of a run, as options.profile is told.
typedef struct aot_launch_t {
  aot_launch_kind_t kind;
  uint32_t word;         // of its instruction in the entry point's code
  uint32_t executable;   // number in the variant, of a dispatch
  uint32_t grid[3];      // workgroups of a dispatch
  uint64_t bytes;        // of a copy or fill
  uint64_t start_ns;     // by aot_runtime_now_ns
  uint64_t duration_ns;  // from then on
  uint32_t threads;      // that might take part
  const char *name;      // the executable's, "copy" or "fill"; *borrowed* from the module
} aot_launch_t;

// Runs task(context, 0) to task(context, count - 1), once each, on any threads, in any order, and
// returns when all have ended.  One thread after the other is fine too: tasks don't wait for each
// other.
typedef void aot_parallel_for_t(void *user, uint32_t count,
                                void (*task)(void *context, uint32_t index), void *context);

typedef struct aot_program_options_t {
  size_t size;
  // Name of the entry point.  NULL: the first.
  const char *entry;
  // Name of the target whose variant must be used.  NULL: the first variant that runs here.
  const char *target;
  aot_device_kind_t device;
  // Plans kept for shapes seen before, 1..16.  0: 4.
  uint32_t plan_count;
  // Most work of one prepare and of one run: instructions, plus workgroups, plus 64-byte units
  // copied or filled, plus the pieces in which a GPU copies what overlaps itself, plus what placing
  // buffers in the arena takes (in their number squared, at worst).  A guard for programs that are
  // not trusted to end; a loop of a model has a limit of its own (compile option --max).  0: no
  // limit.
  uint64_t work_budget;
  // Every output comes from aot_program_set_output; prepare then allocates none.
  bool caller_outputs;
  // Threads that run workgroups on a CPU, the caller's included: 1 to AOT_MOST_THREADS.  0: 1.  The
  // others are the program's own; they sleep between runs.  Results have the same bits whatever the
  // number.  In the child of a fork a program goes on with the caller's thread alone.
  uint32_t threads;
  // Called on the caller's thread after each launch, during the run.  NULL: launches are not timed.
  void (*profile)(void *user, const aot_launch_t *launch);
  void *profile_user;
  // Of the Vulkan driver, aot/vulkan.h.  *Borrowed* for the call.  NULL: its defaults.
  const struct aot_vulkan_options_t *vulkan;
  // The host's threads in place of the program's own: called with a count of at most `threads`, on
  // the thread that runs the program.  A dispatch that isn't worth sharing is not.  NULL: none.
  aot_parallel_for_t *parallel_for;
  void *parallel_for_user;
  // Most bytes that the program takes from the allocator, at any time.  What would take more ends
  // with AOT_ERROR_MEMORY, and the program can be used as before.  0: no limit.
  uint64_t memory_limit;
} aot_program_options_t;

// An extent of an input or output as the module declares it.  Never grows.
typedef struct aot_dim_info_t {
  int64_t extent;    // -1: symbolic
  int64_t min;       // inclusive bounds of a symbolic extent
  int64_t max;       // -1: unbounded
  const char *text;  // the symbolic expression; "" when there is none
} aot_dim_info_t;

typedef struct aot_tensor_info_t {
  const char *name;
  aot_dtype_t dtype;
  uint32_t rank;
  const aot_dim_info_t *dims;
  // Of a tensor of strings, whose elements are the numbers of these strings; NULL of any other.  A
  // string that is none of them is any negative number, another one for each; results have it as
  // it was given.
  const char *const *strings;
  uint32_t string_count;
} aot_tensor_info_t;

// Actual data: row-major and dense.
typedef struct aot_tensor_t {
  size_t size;
  aot_dtype_t dtype;
  uint32_t rank;
  const int64_t *dims;
  void *data;    // aligned to the element; inputs are never written
  size_t bytes;  // of what data points to
} aot_tensor_t;

typedef struct aot_program_info_t {
  size_t size;
  const char *entry;
  const char *target;
  const char *device;  // "cpu" or "vulkan"
  uint32_t variant;    // index in the module
  aot_code_mapping_t code_mapping;
  uint64_t code_bytes;
  uint64_t arena_bytes;  // held now, the largest plan's
  uint64_t scratch_bytes;
  uint64_t prepare_count;      // times that the program's shape part has run
  uint64_t arena_bound_bytes;  // the most that the arena takes at any shape; UINT64_MAX: not known
  uint32_t threads;            // that run workgroups
  const char *skipped;         // why no variant before this one was taken; "" where it is the first
  uint64_t memory_bytes;       // of the allocator, held now
  uint64_t most_memory_bytes;  // the most that were held at once
} aot_program_info_t;

// A module file, verified.  Immutable: may be used from any number of threads at once.
typedef struct aot_module_t aot_module_t;

// An entry point of one variant on a driver, with its memory and plans.  Thread-compatible: one
// thread at a time; programs of one module are independent.
typedef struct aot_program_t aot_program_t;

// ---- names ----

AOT_API const char *aot_runtime_version(void);

// What a library was compiled with; another number where structs or functions of this header are
// others.  Whoever loads the library at run time compares it with its own.
#define AOT_INTERFACE 3u
AOT_API uint32_t aot_runtime_interface(void);
// Nanoseconds of the system's monotonic clock.  0 always in builds without one.
AOT_API uint64_t aot_runtime_now_ns(void);
AOT_API const char *aot_status_name(aot_status_t status);
AOT_API const char *aot_dtype_name(aot_dtype_t dtype);  // "f32"; NULL when there is no such dtype
AOT_API size_t aot_dtype_bytes(aot_dtype_t dtype);      // 0 when there is no such dtype

// ---- modules ----

// Opens and verifies: header, structure checksum, every offset and program.  A variant's code is
// verified when a program is made of it, rodata on request.  Each *returns owned*.
//
// The header and the structure, with the programs, are copied, and the copy is what is verified and
// used.  Unless options.copy is set, constants and code stay in the file, which is mapped as long
// as the module lives, and nothing is verified twice: whoever writes to it meanwhile changes
// results, and the code that runs (but with options.copy_code); where it shrinks, a run ends in
// SIGBUS. Replace a module's file by renaming another one to its name.
AOT_API aot_status_t aot_module_open_path(const char *path, const aot_module_options_t *options,
                                          aot_error_t *error, aot_module_t **out_module);

// The module starts at byte `offset` of the file.  `length` 0: up to the file's end.  *Borrows* the
// descriptor for the length of the call.
AOT_API aot_status_t aot_module_open_fd(int fd, uint64_t offset, uint64_t length,
                                        const aot_module_options_t *options, aot_error_t *error,
                                        aot_module_t **out_module);

// *Borrows* the memory, 64-byte aligned, until the module is closed (unless options.copy).
AOT_API aot_status_t aot_module_open_memory(const void *data, size_t bytes,
                                            const aot_module_options_t *options, aot_error_t *error,
                                            aot_module_t **out_module);

// The module's memory, and whatever it borrows, goes with the last of its handle and its programs:
// these may outlive it.  Vocabularies may not.  NULL is fine.
AOT_API void aot_module_close(aot_module_t *module);

// Checks the rodata pool's checksum; the error names the part.
AOT_API aot_status_t aot_module_verify_rodata(const aot_module_t *module, aot_error_t *error);

// Checks every segment: each variant's code and shaders, and rodata.
AOT_API aot_status_t aot_module_verify_segments(const aot_module_t *module, aot_error_t *error);

AOT_API size_t aot_module_variant_count(const aot_module_t *module);
// NULL when there is no such variant.  *Borrowed* from the module.
AOT_API const char *aot_module_variant_target(const aot_module_t *module, size_t index);
AOT_API const char *aot_module_producer(const aot_module_t *module);

// The vocabulary of a language model, for aot/text.h.  *Borrowed* from the module.  NULL, with
// *out_bytes 0, where there is none.
AOT_API const void *aot_module_vocabulary(const aot_module_t *module, size_t *out_bytes);

// AOT_OK when variant `index` runs on this machine; else the error says what is missing.
AOT_API aot_status_t aot_module_check_variant(const aot_module_t *module, size_t index,
                                              aot_error_t *error);

// ---- programs ----

// Chooses a variant, verifies its code, makes it executable.  Keeps the module alive.  *Returns
// owned*.
AOT_API aot_status_t aot_program_create(const aot_module_t *module,
                                        const aot_program_options_t *options, aot_error_t *error,
                                        aot_program_t **out_program);
// NULL is fine.  AOT_ERROR_BUSY, and nothing done, from inside a callback of the program.
AOT_API aot_status_t aot_program_destroy(aot_program_t *program);

AOT_API aot_status_t aot_program_get_info(const aot_program_t *program, aot_error_t *error,
                                          aot_program_info_t *out_info);

AOT_API size_t aot_program_input_count(const aot_program_t *program);
AOT_API size_t aot_program_output_count(const aot_program_t *program);
// NULL when there is no such input or output.  *Borrowed* from the module.
AOT_API const aot_tensor_info_t *aot_program_input_info(const aot_program_t *program, size_t index);
AOT_API const aot_tensor_info_t *aot_program_output_info(const aot_program_t *program,
                                                         size_t index);
// Whether a run that ends well writes what output `output` is to the memory of an input: of a model
// that changes an input in place.  That memory must be writeable and overlap no other input.
AOT_API bool aot_program_get_update(const aot_program_t *program, size_t output, size_t *out_input);
// State variables: what the program keeps between runs.  A dim that grows is symbolic, its max the
// capacity.
AOT_API size_t aot_program_state_count(const aot_program_t *program);
AOT_API const aot_tensor_info_t *aot_program_state_info(const aot_program_t *program, size_t index);
// The error lists the names there are.
AOT_API aot_status_t aot_program_find_input(const aot_program_t *program, const char *name,
                                            aot_error_t *error, size_t *out_index);
AOT_API aot_status_t aot_program_find_output(const aot_program_t *program, const char *name,
                                             aot_error_t *error, size_t *out_index);

// Sets the shape and memory of an input; checks dtype, rank, extents and bounds.  Copies the dims,
// *borrows* the data until it is set again.  tensor->data NULL sets the shape alone, enough for
// prepare.  On failure the input stays as it was.  The memory is not one that
// aot_program_get_output gave of this program, unless it came from aot_program_set_output: where
// the output of a run is the input of the next, give the program two buffers in turn, or copy.
AOT_API aot_status_t aot_program_set_input(aot_program_t *program, size_t index,
                                           const aot_tensor_t *tensor, aot_error_t *error);

// *Borrows* memory for an output, `capacity` bytes, aligned to the element, until it is set again.
// NULL: the program's own memory.  It must not overlap an input or another output when the program
// runs, nor memory of the program's own.
AOT_API aot_status_t aot_program_set_output(aot_program_t *program, size_t index, void *data,
                                            size_t capacity, aot_error_t *error);

// Plans for the input shapes that are set: runs the program's shape part, checks bounds, places
// buffers, allocates.  Does nothing when the plan is there already.
AOT_API aot_status_t aot_program_prepare(aot_program_t *program, aot_error_t *error);

// Runs, after prepare where that is due.  Allocates nothing if the shapes were prepared before and
// need no more memory than any before them.
// What the program keeps between runs is changed by a run that ends well, and by no other.
AOT_API aot_status_t aot_program_run(aot_program_t *program, aot_error_t *error);

// From any thread, at any time between create and destroy.  While it is true, a prepare or run ends
// with AOT_ERROR_CANCELLED before its next launch, the one under way too; what a GPU was given
// before ends first.  Such a run leaves what the program keeps as it was, as any that fails.
AOT_API aot_status_t aot_program_set_cancelled(aot_program_t *program, bool is_cancelled,
                                               aot_error_t *error);

// The time by aot_runtime_now_ns from which on a prepare or run ends with AOT_ERROR_DEADLINE before
// its next launch.  0: none.  AOT_ERROR_UNSUPPORTED in builds without a clock.
AOT_API aot_status_t aot_program_set_deadline(aot_program_t *program, uint64_t time_ns,
                                              aot_error_t *error);

// Makes all that the program keeps between runs what it was at first: zero, and of length 0 where
// it grows.
AOT_API aot_status_t aot_program_reset(aot_program_t *program, aot_error_t *error);

// After prepare: dims and bytes; an extent that data decide is the largest one until a run has
// ended well, and the one of that run then.  data is the output's memory, NULL while there is none
// of so many bytes, meaningful after run.  *Borrowed* from the program, until shapes or outputs are
// set again or it is destroyed.
AOT_API aot_status_t aot_program_get_output(const aot_program_t *program, size_t index,
                                            aot_error_t *error, aot_tensor_t *out_tensor);

#ifdef __cplusplus
}
#endif

#endif  // AOT_AOT_H_
