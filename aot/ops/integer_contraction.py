"""Contractions of integers of 8 and 16 bits, summed in i32: what quantised models compute.

Their operands may be of unlike dtypes, and what a padded tap reads is a number of the caller's, so
that zero points need not be taken off before. Shares all rules with the contractions of one dtype.
"""

from __future__ import annotations

import numpy as np

from aot.ir.record import Attribute, Constraint, Kind, Operand, OpRecord, Sample, register
from aot.ir.types import DType, TensorType
from aot.ops import layout_rules
from aot.ops.contraction import (
    CONV_CONSTRAINTS,
    MATMUL,
    WINDOW_ATTRIBUTES,
    conv_compute,
    conv_dims,
    conv_reference,
    conv_type,
    matmul_compute,
    matmul_dims,
    matmul_reference,
    matmul_type,
)

_BYTES = frozenset({DType.U8, DType.I8, DType.U16, DType.I16})
_RANGE_OF_BYTES = (-128, 127)
U8, I8, I16 = DType.U8, DType.I8, DType.I16


# the attribute that says what is known of constant weights, and what is known of any
MAX_WEIGHT = Attribute(
    "max_weight", "int", 128, "no weight of 8 bits is further from 0: kernels may rely on it"
)


def _holds(dtype: DType, number: int) -> bool:
    info = np.iinfo(dtype.numpy)
    return bool(info.min <= number <= info.max)


def _integer_conv_sample(
    x: TensorType,
    w: TensorType,
    pads: tuple[int, ...],
    *,
    stride: int = 1,
    group: int = 1,
    pad_value: int = 0,
    bias: bool = False,
) -> Sample:
    spatial = x.rank - 2
    types = [x, w, *([TensorType(DType.I32, w.dims[:1])] if bias else [])]
    return Sample(
        tuple(types),
        {
            "strides": (stride,) * spatial,
            "dilations": (1,) * spatial,
            "pads": pads,
            "group": group,
            "pad_value": pad_value,
        },
        *_RANGE_OF_BYTES,
        constant_operands=(1, 2)[: len(types) - 1],
    )


CONV_INTEGER = register(
    OpRecord(
        name="conv_integer",
        summary="Convolution of integers of 8 or 16 bits, summed in i32; sums beyond it wrap.",
        operands=(
            Operand("x", _BYTES),
            Operand("w", _BYTES),
            Operand("bias", frozenset({DType.I32}), "optional"),
        ),
        attributes=(
            *WINDOW_ATTRIBUTES,
            Attribute("pad_value", "int", 0, "what a tap in the padding reads: x's zero point"),
            MAX_WEIGHT,
        ),
        constraints=(
            *CONV_CONSTRAINTS,
            Constraint(
                "pad_value is a number of x's dtype",
                lambda call: _holds(call.operand(0).dtype, call.int("pad_value")),
            ),
        ),
        infer=conv_type,
        reference=conv_reference,
        compute=conv_compute,
        contraction=conv_dims,
        sums_in=DType.I32,
        kind=Kind.CONTRACTION,
        samples=(
            _integer_conv_sample(
                TensorType(U8, (1, 5, 9, 7)),
                TensorType(I8, (19, 5, 3, 3)),
                (1, 1, 1, 1),
                pad_value=113,
                bias=True,
            ),
            _integer_conv_sample(
                TensorType(I8, (2, 67, 3, 5)), TensorType(I8, (33, 67, 1, 1)), (0, 0, 0, 0)
            ),
            _integer_conv_sample(
                TensorType(U8, (1, 16, 9, 7)),
                TensorType(I8, (16, 1, 3, 3)),
                (1, 1, 0, 1),
                stride=2,
                group=16,
                pad_value=255,
                bias=True,
            ),
            _integer_conv_sample(
                TensorType(I16, (1, 8, 13)),
                TensorType(U8, (6, 4, 5)),
                (2, 1),
                group=2,
                pad_value=-9,
            ),
        ),
    )
)

MATMUL_INTEGER = register(
    OpRecord(
        name="matmul_integer",
        summary="Matrix product of integers of 8 or 16 bits in i32; sums beyond it wrap.",
        operands=(Operand("a", _BYTES), Operand("b", _BYTES)),
        attributes=(MAX_WEIGHT,),
        constraints=MATMUL.constraints,
        infer=matmul_type,
        reference=matmul_reference,
        compute=matmul_compute,
        contraction=matmul_dims,
        sums_in=DType.I32,
        kind=Kind.CONTRACTION,
        propagate=layout_rules.matmul,
        samples=tuple(
            Sample(
                (TensorType(left, a), TensorType(right, b)),
                {},
                *_RANGE_OF_BYTES,
                constant_operands=(1,) if is_constant else (),
            )
            for left, right, a, b, is_constant in (
                (U8, I8, (5, 35), (35, 19), True),
                (I8, I8, (2, 7, 64), (64, 48), True),
                (U8, U8, (2, 3, 4, 5), (2, 3, 5, 6), False),
                (I16, I8, (1, 33), (33, 17), True),
            )
        ),
    )
)
