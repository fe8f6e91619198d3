// The loader of a model that is part of a program: no files, no memory of its own, no C library.
// What an application calls is in the model's own header, which has typed functions.
#ifndef AOT_STATIC_H_
#define AOT_STATIC_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AOT_STATIC_VERSION 1u
#define AOT_STATIC_ALIGNMENT 64u  // of an arena

typedef enum aot_static_status_t {
  AOT_STATIC_OK = 0,
  AOT_STATIC_ERROR_VERSION = 1,     // the model was packaged for another loader
  AOT_STATIC_ERROR_ARENA = 2,       // NULL, or not aligned to AOT_STATIC_ALIGNMENT
  AOT_STATIC_ERROR_SHAPE = 3,       // an extent is not what the model takes, or gives
  AOT_STATIC_ERROR_CHECK = 4,       // the model's own check of shapes or values failed
  AOT_STATIC_ERROR_ARITHMETIC = 5,  // an extent divides by zero or overflows
  AOT_STATIC_ERROR_BOUNDS = 6,      // a copy whose place the inputs decide leads outside its buffer
} aot_static_status_t;

// A tensor's memory, row-major and dense, and its extents.  Inputs are never written.
typedef struct aot_static_tensor_t {
  void *data;
  int64_t *dims;
} aot_static_tensor_t;

// An entry point of a model.  Constant; everything it refers to lies in the model's object.
typedef struct aot_static_entry_t {
  const uint8_t *code;
  const uint8_t *weights;
  const uint32_t *program;  // as aotc package writes it: aot_static.c
} aot_static_entry_t;

// Runs.  Needs nothing but `arena`, as many bytes as the model's header says; what is kept between
// runs lies in it.  One arena must not be used by two runs at a time; a model may, with two arenas.
// Inputs, outputs and arena must not overlap.
aot_static_status_t aot_static_run(const aot_static_entry_t *entry,
                                   const aot_static_tensor_t *inputs,
                                   const aot_static_tensor_t *outputs, void *arena);

// Makes what a model keeps between runs zero: before its first run, and to start anew.
aot_static_status_t aot_static_reset(const aot_static_entry_t *entry, void *arena);

#ifdef __cplusplus
}
#endif

#endif  // AOT_STATIC_H_
