// What a device must do for a program: one table of functions a driver.
#ifndef AOT_DRIVER_H_
#define AOT_DRIVER_H_

#include "module.h"
#include "status.h"

// A buffer of the application's on the program's device.
typedef struct aot_outside_t {
  uint64_t buffer;  // Vulkan's handle; 0: none, the memory is the host's
  uint32_t number;  // of the call that set it: handles come again
  bool is_foreign;  // other than Vulkan's own devices use it too
} aot_outside_t;

// Memory of an input or output for one run.  `offset` is what kernels add to the class's base.
typedef struct aot_binding_t {
  uintptr_t address;  // in the host's memory, or in the buffer outside
  size_t bytes;
  uintptr_t offset;  // set by begin
#if defined(AOT_VULKAN)
  aot_outside_t outside;
#endif
} aot_binding_t;

typedef struct aot_bindings_t {
  aot_binding_t *inputs;
  aot_binding_t *outputs;
  uint32_t input_count;
  uint32_t output_count;
  int64_t scratch_offset;  // in the arena, of the calling thread's; -1: the driver's own
  uint32_t word;   // of the launch's instruction in the code, set before each; identifies it
  bool is_beside;  // set before each dispatch: it need not wait for the one before it, nor for any
                   // that that one need not wait for.  Vulkan
  uint8_t *arena;  // where the caller has it; NULL: the driver's own.  CPU
} aot_bindings_t;

// A place in one of the four buffers; the interpreter has checked that it is inside.
typedef struct aot_place_t {
  uint32_t buffer_class;  // BufferClass of module.fbs
  uint64_t offset;        // modulo the pointer's width
} aot_place_t;

typedef struct aot_grid_t {
  uint32_t x, y, z;
} aot_grid_t;

typedef struct aot_device_t aot_device_t;

typedef struct aot_driver_t {
  const char *name;
  uint8_t device;        // Device of module.fbs
  bool splits_overlaps;  // a copy that overlaps itself is a command for each distance that it moves

  // AOT_OK when this machine runs the variant; else says what is missing.
  aot_status_t (*check)(const aot_variant_t *variant, aot_error_t *error);

  // As check; then verifies the variant's code and makes it ready to run as `options` say (threads,
  // profile).  *Borrows* module, variant and allocator, options for the call.  *Returns owned*.
  aot_status_t (*open)(const aot_module_t *module, const aot_variant_t *variant,
                       const aot_program_options_t *options, const aot_allocator_t *allocator,
                       aot_error_t *error, aot_device_t **out_device);
  void (*close)(aot_device_t *device);
  void (*get_info)(const aot_device_t *device, aot_program_info_t *info);

  // Makes the arena at least this large.  When it grows, its first `kept_bytes` stay as they are
  // and the rest is lost.  After a failure nothing has changed where bytes are to be kept; else
  // there may be no arena, until the next call that succeeds.
  aot_status_t (*reserve)(aot_device_t *device, uint64_t arena_bytes, uint64_t kept_bytes,
                          aot_error_t *error);

  // Where the arena is in the host's memory, until it grows; NULL in drivers of which it is not.
  uint8_t *(*arena)(aot_device_t *device);

  // A run: begin sets the bindings' offsets, and *borrows* them until end; then the rest in program
  // order; end waits for results.
  aot_status_t (*begin)(aot_device_t *device, aot_bindings_t *bindings, aot_error_t *error);
  aot_status_t (*dispatch)(aot_device_t *device, uint32_t executable, const void *params,
                           aot_grid_t grid, aot_error_t *error);
  aot_status_t (*copy)(aot_device_t *device, aot_place_t to, aot_place_t from, size_t bytes,
                       aot_error_t *error);
  aot_status_t (*fill)(aot_device_t *device, aot_place_t to, size_t bytes, uint32_t pattern,
                       aot_error_t *error);
  // Reads up to 8 bytes, after everything before is done.
  aot_status_t (*load)(aot_device_t *device, aot_place_t from, size_t bytes, void *memory,
                       aot_error_t *error);
  // Writes the low `bytes` (1, 2, 4 or 8) of `value`, little endian, in the order of the program:
  // what was launched before does not see it, what is launched after does.
  aot_status_t (*store)(aot_device_t *device, aot_place_t to, size_t bytes, uint64_t value,
                        aot_error_t *error);
  // Where a variant may have a host, else NULL.  What the one wrote to these bytes is what the
  // other finds there: the host where dispatches of its own read it, the device in whatever comes
  // next.
  aot_status_t (*hand_over)(aot_device_t *device, aot_place_t place, size_t bytes, bool to_host,
                            aot_error_t *error);
  aot_status_t (*end)(aot_device_t *device, aot_error_t *error);
} aot_driver_t;

extern const aot_driver_t aot_cpu_driver;     // drivers/cpu/driver.c
extern const aot_driver_t aot_vulkan_driver;  // drivers/vulkan/driver.c, in builds with AOT_VULKAN

// A variant that runs here, opened.
typedef struct aot_choice_t {
  const aot_variant_t *variant;
  const aot_driver_t *driver;
  aot_device_t *device;  // owned by who has the choice
  aot_text_t skipped;    // why those before it were not taken
} aot_choice_t;

// Opens the first variant from `first` on that the options allow and this machine runs.  Where a
// device is missing, lacks something or fails, the next one is tried; else an error that says for
// each why not.
aot_status_t aot_variant_open(const aot_module_t *module, const aot_program_options_t *options,
                              uint32_t first, const aot_allocator_t *allocator, aot_error_t *error,
                              aot_choice_t *out_choice);

#endif  // AOT_DRIVER_H_
