// The runtime as a WebAssembly module: what it has beside aot.h, for the JavaScript that loads it.
//
// A code image is a module too.  It imports the runtime's memory and table; the loader instantiates
// it before a program is made, and its functions then are elements of the table, in the order of
// their places in the image.
#ifndef AOT_WASM_H_
#define AOT_WASM_H_

#include "aot/aot.h"
#include "module.h"

// Of what JavaScript relies on here; both sides change it together.
#define AOT_WASM_INTERFACE 2u

// Finds the functions of a variant's code image in the table.
typedef struct aot_wasm_table_t {
  uint32_t *offsets;  // of the image's functions, ascending; owned
  size_t bytes;
  uint32_t count;
  uint32_t base;  // the table's index of the first
} aot_wasm_table_t;

// *Returns owned*.  The loader must have instantiated the variant's image.
aot_status_t aot_wasm_table_create(const aot_module_t *module, const aot_variant_t *variant,
                                   const aot_allocator_t *allocator, aot_error_t *error,
                                   aot_wasm_table_t *out_table);
void aot_wasm_table_destroy(const aot_allocator_t *allocator, aot_wasm_table_t *table);

// The table's index of the function at an offset in the image, which is a function pointer's value.
uintptr_t aot_wasm_table_find(const aot_wasm_table_t *table, uint64_t offset);

// ---- for the loader ----

uint32_t aot_wasm_interface(void);

// Memory aligned to 64 bytes; NULL where there is none left.  *Returns owned*.
void *aot_wasm_allocate(size_t bytes);
void aot_wasm_release(void *memory);

// What the loader needs to instantiate a variant's code.  *Borrowed* from the module.
typedef struct aot_wasm_code_t {
  const uint8_t *data;
  size_t bytes;
  uint32_t function_count;
} aot_wasm_code_t;

// Verifies the code's checksum first.
aot_status_t aot_wasm_get_code(const aot_module_t *module, size_t variant, aot_error_t *error,
                               aot_wasm_code_t *out_code);

// Names of the entry points; NULL behind the last.  *Borrowed* from the module.
const char *aot_wasm_entry_name(const aot_module_t *module, size_t variant, size_t index);

#endif  // AOT_WASM_H_
