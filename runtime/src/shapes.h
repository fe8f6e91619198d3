// Shapes of inputs beside those that a module declares.
#ifndef AOT_SHAPES_H_
#define AOT_SHAPES_H_

#include "status.h"

// Whether a tensor has a shape that an input may have; the bytes of it when dense.
aot_status_t aot_program_check_shape(const aot_tensor_info_t *info, const aot_tensor_t *tensor,
                                     aot_error_t *error, uint64_t *out_bytes);

#endif  // AOT_SHAPES_H_
