// Inputs and outputs that are not dense: a part of a larger tensor, another order of the axes, rows
// with room behind them.  Beside the loader: what is strided is copied to or from a dense copy that
// the program keeps.
#ifndef AOT_STRIDES_H_
#define AOT_STRIDES_H_

#include "aot/aot.h"

#ifdef __cplusplus
extern "C" {
#endif

// As aot_program_set_input, of elements that are `strides[axis]` bytes apart along each axis: 0 or
// more, multiples of the element.  Copies the strides, and the elements at the start of each run.
// Fails with AOT_ERROR_CAPACITY where an element is behind tensor->bytes, and with
// AOT_ERROR_ARGUMENT for an input that the program writes (aot_program_get_update).
AOT_API aot_status_t aot_program_set_input_strided(aot_program_t *program, size_t index,
                                                   const aot_tensor_t *tensor,
                                                   const int64_t *strides, aot_error_t *error);

// Elements of an output, `strides[axis]` bytes apart along each axis, are written to tensor->data
// when a run has ended well, and no other bytes.  The tensor's dims are what there is room for: a
// run of more fails with AOT_ERROR_CAPACITY before it begins.  No two elements may have the same
// place: along each axis, the stride is at least what the axes with smaller ones take together.
// *Borrows* the data until the output is set again; aot_program_get_output gives the dense copy.
AOT_API aot_status_t aot_program_set_output_strided(aot_program_t *program, size_t index,
                                                    const aot_tensor_t *tensor,
                                                    const int64_t *strides, aot_error_t *error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // AOT_STRIDES_H_
