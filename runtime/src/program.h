// A program in memory: bindings, plans, registers.  interpreter.c runs its two parts.
#ifndef AOT_PROGRAM_H_
#define AOT_PROGRAM_H_

#include "arena.h"
#include "driver.h"
#include "poison.h"
#if defined(AOT_VULKAN)
#include "aot/vulkan.h"
#endif

#define AOT_MOST_PLANS 16u
#define AOT_DEFAULT_PLANS 4u

// What prepare finds out for one set of input shapes.  The arrays are one block of memory, made the
// first time that the slot is used and kept.
typedef struct aot_plan_t {
  bool is_valid;
  uint64_t last_use;
  uint64_t arena_bytes;
  void *memory;
  int64_t *registers;    // as prepare leaves them
  int64_t *output_dims;  // behind them; -1: not declared yet, the largest where data decide
  int64_t *input_dims;   // of all inputs, one after the other; then the state scalars that are keys
  uint64_t *output_bytes;
} aot_plan_t;

typedef struct aot_input_t {
  uint32_t first_dim;  // in input_dims
  bool has_shape;
  bool has_data;
  bool is_strided;  // its data are gathered before each run
} aot_input_t;

typedef struct aot_output_t {
  uint32_t first_dim;  // in the plan's output_dims
  bool is_callers;
  bool is_strided;  // the program's own memory, scattered to the caller's after each run
  void *data;       // the caller's, or owned
  size_t capacity;
#if defined(AOT_VULKAN)
  aot_outside_t outside;  // the caller's, where it is a buffer of the device: `data` is its place
#endif
  void *owned;
  size_t owned_bytes;
} aot_output_t;

// What is done around runs, by parts beside the loader.
typedef struct aot_run_hooks_t {
  aot_status_t (*before)(aot_program_t *program, aot_error_t *error);  // behind prepare
  void (*after)(aot_program_t *program);                               // a run that has ended well
  void (*close)(aot_program_t *program);
} aot_run_hooks_t;

#if defined(AOT_VULKAN)
// How a program is made, prepared and released: program.c's own, which nothing else may call.
typedef struct aot_making_t {
  // Opens a variant, the first from `first` on that runs here, and makes the arrays.
  aot_status_t (*set_up)(aot_program_t *program, const aot_program_options_t *options,
                         uint32_t first, aot_error_t *error);
  // What aot_program_prepare does on the program's device.
  aot_status_t (*plan)(aot_program_t *program, aot_error_t *error);
  // Releases all that is for the variant and its device.
  void (*tear_down)(aot_program_t *program);
} aot_making_t;

// What a program needs to go on elsewhere when its GPU fails: drivers/vulkan/fallback.c.
typedef struct aot_fallback_t {
  const aot_making_t *making;
  aot_program_options_t options;  // as it was made with, without a target
  aot_vulkan_options_t vulkan;
  aot_vulkan_device_t own_device;
  void *memory;  // of the strings; owned
  size_t bytes;
  bool may_leave;          // for another variant than the first that it ran on
  uint32_t runs_to_sound;  // of a device that was made anew: as many until the next one may be
  // What the program was on devices that failed: the caller may know dims that are in its plans,
  // until it sets an input or output.
  struct aot_program_t *former;
  uint32_t former_count;
} aot_fallback_t;
#endif

struct aot_program_t {
  aot_allocator_t allocator;
  const aot_module_t *module;
  aot_meter_t meter;     // of the module's allocator; what `allocator` takes from
  uint64_t deadline_ns;  // 0: none
  bool is_cancelled;     // atomic: set by any thread
  bool is_busy;          // in a prepare or run, or whatever else calls the caller back
  uint64_t work_budget;  // UINT64_MAX: none
  bool caller_outputs;
  uint32_t plan_count;
  const aot_run_hooks_t *hooks;  // NULL: none
  void *hooks_state;
#if defined(AOT_VULKAN)
  aot_fallback_t fallback;
#endif
  // All that follows is for the variant and its device.
  const aot_variant_t *variant;
  const aot_entry_t *entry;
  const aot_driver_t *driver;
  aot_device_t *device;
  aot_text_t skipped;  // why variants before this one were not taken
  // One block of memory holds the arrays below.
  void *memory;
  size_t memory_bytes;
  aot_input_t *inputs;
  aot_output_t *outputs;
  aot_bindings_t bindings;
  int64_t *input_dims;   // then the state scalars, so that a plan's key is one piece of memory
  int64_t *states;       // these
  int64_t *next_states;  // what they are if the run ends well
  int64_t *registers;    // of a run, then the outputs' dims
  uint64_t *params;
  aot_placement_t *placements;
  bool is_reset;         // the state's memory is to be zero before the next run
  bool is_stale;         // `current` is for other state scalars
  uint64_t arena_bytes;  // asked for so far
  uint64_t use_count;    // of plans
  uint64_t prepare_count;
  aot_plan_t plans[AOT_MOST_PLANS];
  aot_plan_t *current;         // the plan of the shapes that are set, or NULL
  const int64_t *output_dims;  // of that plan; of the last run if it ended well
#ifdef AOT_POISON
  aot_poison_plan_t poison;
#endif
};

#if defined(AOT_VULKAN)
// fallback.c: keeps what a program on a GPU was made with, and how others are made.
aot_status_t aot_fallback_keep(aot_program_t *program, const aot_program_options_t *options,
                               const aot_making_t *making, aot_error_t *error);
// fallback.c: releases what was kept.
void aot_fallback_free(aot_program_t *program);
// fallback.c: releases what the program was on devices that failed.
void aot_fallback_forget(aot_program_t *program);
// fallback.c: after a run that has ended well.
void aot_fallback_note_run(aot_program_t *program);
// fallback.c: after a prepare or run that has failed, which `error` says: whether the program was
// moved to another device, and is prepared there.  A run can begin again then.
bool aot_fallback_take(aot_program_t *program, aot_status_t status, aot_error_t *error);
#endif

// interpreter.c: runs the prepare part, which fills the plan's registers, output dims and buffer
// sizes (in placements). Takes what it does from *work, unless that is UINT64_MAX.
aot_status_t aot_interpret_prepare(aot_program_t *program, aot_plan_t *plan, uint64_t *work,
                                   aot_error_t *error);

// interpreter.c: runs the execute part of the plan; bindings are set and the driver has begun.
aot_status_t aot_interpret_execute(aot_program_t *program, aot_plan_t *plan, aot_error_t *error);

// program.c: the status of a call where there is no program, or where it is in a call already.
aot_status_t aot_program_enter(const aot_program_t *program, aot_error_t *error);

// program_io.c: refuses memory that is the program's own: it may be released when shapes grow, and
// is written by runs.
aot_status_t aot_program_check_own(const aot_program_t *program, const char *kind, const char *name,
                                   const void *data, size_t bytes, aot_error_t *error);

// program.c: whether two pieces of memory share a byte.
bool aot_overlaps(const aot_binding_t *a, const aot_binding_t *b);

// plan.c: what a tensor of these dims takes; above PTRDIFF_MAX where it does not fit memory.
uint64_t aot_tensor_bytes(const aot_tensor_info_t *info, const int64_t *dims);

// plan.c: finds or makes the plan for the shapes that are set, and makes it current.
aot_status_t aot_plan_make(aot_program_t *program, aot_error_t *error);
// plan.c: makes the arena at least this large; what the program keeps stays.
aot_status_t aot_program_reserve(aot_program_t *program, uint64_t needed, aot_error_t *error);
void aot_plan_free(aot_program_t *program, aot_plan_t *plan);

#endif  // AOT_PROGRAM_H_
