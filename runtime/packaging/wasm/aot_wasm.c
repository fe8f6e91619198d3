// What the runtime has beside aot.h where it is a WebAssembly module.
#include "aot_wasm.h"

#include <string.h>

#include "alloc.h"
#include "os.h"
#include "status.h"

// Where JavaScript finds what it reads and writes; aot_runtime.mjs has the same numbers.
_Static_assert(sizeof(aot_error_t) == 512 && offsetof(aot_error_t, message) == 4, "aot_error_t");
_Static_assert(offsetof(aot_program_options_t, size) == 0 &&
                   offsetof(aot_program_options_t, entry) == 4 &&
                   offsetof(aot_program_options_t, target) == 8 &&
                   sizeof(aot_program_options_t) >= 16,
               "aot_program_options_t");
_Static_assert(offsetof(aot_tensor_info_t, name) == 0 && offsetof(aot_tensor_info_t, dtype) == 4 &&
                   offsetof(aot_tensor_info_t, rank) == 8 &&
                   offsetof(aot_tensor_info_t, dims) == 12 &&
                   offsetof(aot_tensor_info_t, strings) == 16 &&
                   offsetof(aot_tensor_info_t, string_count) == 20,
               "aot_tensor_info_t");
_Static_assert(offsetof(aot_dim_info_t, extent) == 0 && offsetof(aot_dim_info_t, min) == 8 &&
                   offsetof(aot_dim_info_t, max) == 16 && offsetof(aot_dim_info_t, text) == 24 &&
                   sizeof(aot_dim_info_t) == 32,
               "aot_dim_info_t");
_Static_assert(offsetof(aot_tensor_t, size) == 0 && offsetof(aot_tensor_t, dtype) == 4 &&
                   offsetof(aot_tensor_t, rank) == 8 && offsetof(aot_tensor_t, dims) == 12 &&
                   offsetof(aot_tensor_t, data) == 16 && offsetof(aot_tensor_t, bytes) == 20 &&
                   sizeof(aot_tensor_t) == 24,
               "aot_tensor_t");
_Static_assert(offsetof(aot_wasm_code_t, data) == 0 && offsetof(aot_wasm_code_t, bytes) == 4 &&
                   offsetof(aot_wasm_code_t, function_count) == 8 && sizeof(aot_wasm_code_t) == 12,
               "aot_wasm_code_t");

// The loader's: the table's index of an image's first function; 0 where it instantiated none, for
// the table's first element is never a function.
__attribute__((import_module("aot"), import_name("table_base"))) uint32_t
aot_host_table_base(const uint8_t *code);

static const uint8_t *code_of(const aot_module_t *module, const aot_variant_t *variant) {
  return module->data + variant->code.offset;
}

// Puts a number into ascending ones unless it is among them.  Images have their functions nearly in
// the order of the executables: the search from the end is short.
static uint32_t insert(uint32_t *numbers, uint32_t count, uint32_t number) {
  uint32_t place = count;
  while (place > 0 && numbers[place - 1] > number)
    --place;
  if (place > 0 && numbers[place - 1] == number) return count;
  memmove(numbers + place + 1, numbers + place, (count - place) * sizeof *numbers);
  numbers[place] = number;
  return count + 1;
}

// Every function of an image is some executable's, so that these tell where all of them are.
static aot_status_t find_functions(const aot_variant_t *variant, const aot_allocator_t *allocator,
                                   aot_error_t *error, aot_wasm_table_t *out_table) {
  *out_table = (aot_wasm_table_t){NULL, 0, 0, 0};
  const size_t bytes = variant->executable_count * sizeof(uint32_t);
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "the table of functions", error, &memory));
  aot_wasm_table_t table = {memory, bytes, 0, 0};
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const uint64_t offset = variant->executables[i].code_offset;
    if (offset < variant->code.length) {
      table.count = insert(table.offsets, table.count, (uint32_t)offset);
    }
  }
  *out_table = table;
  return AOT_OK;
}

aot_status_t aot_wasm_table_create(const aot_module_t *module, const aot_variant_t *variant,
                                   const aot_allocator_t *allocator, aot_error_t *error,
                                   aot_wasm_table_t *out_table) {
  AOT_TRY(find_functions(variant, allocator, error, out_table));
  out_table->base = aot_host_table_base(code_of(module, variant));
  if (out_table->base != 0 || out_table->count == 0) return AOT_OK;
  aot_wasm_table_destroy(allocator, out_table);
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "the code of variant %s is not instantiated",
                  variant->target);
}

void aot_wasm_table_destroy(const aot_allocator_t *allocator, aot_wasm_table_t *table) {
  aot_release(allocator, table->offsets, table->bytes);
  *table = (aot_wasm_table_t){NULL, 0, 0, 0};
}

uintptr_t aot_wasm_table_find(const aot_wasm_table_t *table, uint64_t offset) {
  uint32_t low = 0;
  for (uint32_t high = table->count; high - low > 1;) {
    const uint32_t middle = low + (high - low) / 2;
    if (table->offsets[middle] <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return (uintptr_t)table->base + low;
}

uint32_t aot_wasm_interface(void) {
  return AOT_WASM_INTERFACE;
}

void *aot_wasm_allocate(size_t bytes) {
  return aot_os_allocate(NULL, bytes > 0 ? bytes : 1, AOT_ALIGNMENT);
}

void aot_wasm_release(void *memory) {
  aot_os_release(NULL, memory, 0, AOT_ALIGNMENT);
}

aot_status_t aot_wasm_get_code(const aot_module_t *module, size_t variant, aot_error_t *error,
                               aot_wasm_code_t *out_code) {
  *out_code = (aot_wasm_code_t){NULL, 0, 0};
  AOT_TRY(aot_module_check_variant(module, variant, error));
  const aot_variant_t *chosen = &module->variants[variant];
  AOT_TRY(aot_module_verify_segment(module, &chosen->code, "the code of variant", chosen->target,
                                    error));
  aot_allocator_t allocator;
  AOT_TRY(aot_allocator_choose(NULL, error, &allocator));
  aot_wasm_table_t table;
  AOT_TRY(find_functions(chosen, &allocator, error, &table));
  *out_code = (aot_wasm_code_t){code_of(module, chosen), (size_t)chosen->code.length, table.count};
  aot_wasm_table_destroy(&allocator, &table);
  return AOT_OK;
}

const char *aot_wasm_entry_name(const aot_module_t *module, size_t variant, size_t index) {
  if (variant >= module->variant_count) return NULL;
  const aot_variant_t *chosen = &module->variants[variant];
  return index < chosen->entry_count ? chosen->entries[index].name : NULL;
}
