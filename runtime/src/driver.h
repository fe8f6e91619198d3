// What a device must do for a program: one table of functions a driver.
#ifndef AOT_DRIVER_H_
#define AOT_DRIVER_H_

#include "module.h"

// Memory of an input or output for one run.  `offset` is what kernels add to the class's base.
typedef struct aot_binding_t {
  uintptr_t address;
  size_t bytes;
  uintptr_t offset;  // set by begin
} aot_binding_t;

typedef struct aot_bindings_t {
  aot_binding_t *inputs;
  aot_binding_t *outputs;
  uint32_t input_count;
  uint32_t output_count;
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
  uint8_t device;  // Device of module.fbs

  // AOT_OK when this machine runs the variant; else says what is missing.
  aot_status_t (*check)(const aot_variant_t *variant, aot_error_t *error);

  // Verifies the variant's code and makes it ready to run.  *Borrows* module, variant and
  // allocator. *Returns owned*.
  aot_status_t (*open)(const aot_module_t *module, const aot_variant_t *variant,
                       const aot_allocator_t *allocator, aot_error_t *error,
                       aot_device_t **out_device);
  void (*close)(aot_device_t *device);
  void (*get_info)(const aot_device_t *device, aot_program_info_t *info);

  // Makes the arena at least this large; what it held is lost when it grows.  After a failure there
  // may be none, until the next call that succeeds.
  aot_status_t (*reserve)(aot_device_t *device, uint64_t arena_bytes, aot_error_t *error);

  // A run: begin sets the bindings' offsets; then the rest in program order; end waits for results.
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
  aot_status_t (*end)(aot_device_t *device, aot_error_t *error);
} aot_driver_t;

extern const aot_driver_t aot_cpu_driver;  // drivers/cpu/driver.c

// The driver of a Device, or NULL where this build has none.
const aot_driver_t *aot_driver_find(uint8_t device);

aot_status_t aot_variant_check(const aot_variant_t *variant, aot_error_t *error);

// The first variant that the options allow and this machine runs, with its driver; else an error
// that says for each variant why not.
aot_status_t aot_variant_choose(const aot_module_t *module, const aot_program_options_t *options,
                                aot_error_t *error, const aot_variant_t **out_variant,
                                const aot_driver_t **out_driver);

#endif  // AOT_DRIVER_H_
