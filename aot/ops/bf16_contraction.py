"""Contractions of bf16, summed in f32, for targets with instructions for pairs of bf16.

No importer makes them: a pass writes them where a target has the instruction. Shares all rules with
the contractions of one dtype.
"""

from __future__ import annotations

from aot.ir.graph import Attr
from aot.ir.record import Kind, Operand, OpRecord, Sample, register
from aot.ir.types import DType, TensorType
from aot.ops import layout_rules
from aot.ops.contraction import (
    CONV_CONSTRAINTS,
    MATMUL_CONSTRAINTS,
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

BF16, F32 = DType.BF16, DType.F32
_PAIRS = frozenset({BF16})


def _conv_sample(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, pad: int, group: int = 1
) -> Sample:
    spatial = len(x) - 2
    types = TensorType(BF16, x), TensorType(BF16, w), TensorType(F32, w[:1])
    attrs: dict[str, Attr] = {
        "strides": (stride,) * spatial,
        "dilations": (1,) * spatial,
        "pads": (pad,) * (2 * spatial),
        "group": group,
    }
    return Sample(types, attrs, constant_operands=(1, 2))


CONV_BF16 = register(
    OpRecord(
        name="conv_bf16",
        summary="Convolution of bf16, summed in f32; subnormal numbers may count as 0.",
        operands=(
            Operand("x", _PAIRS),
            Operand("w", _PAIRS),
            Operand("bias", frozenset({F32}), "optional"),
        ),
        attributes=WINDOW_ATTRIBUTES,
        constraints=CONV_CONSTRAINTS,
        infer=conv_type,
        reference=conv_reference,
        compute=conv_compute,
        contraction=conv_dims,
        sums_in=F32,
        kind=Kind.CONTRACTION,
        samples=(
            _conv_sample((1, 5, 9, 7), (19, 5, 3, 3), 1, 1),
            _conv_sample((2, 33, 5, 6), (20, 33, 1, 1), 2, 0),
            _conv_sample((1, 12, 8), (18, 6, 3), 1, 1, 2),
        ),
    )
)

MATMUL_BF16 = register(
    OpRecord(
        name="matmul_bf16",
        summary="Matrix product of bf16, summed in f32; subnormal numbers may count as 0.",
        operands=(Operand("a", _PAIRS), Operand("b", _PAIRS)),
        constraints=MATMUL_CONSTRAINTS,
        infer=matmul_type,
        reference=matmul_reference,
        compute=matmul_compute,
        contraction=matmul_dims,
        sums_in=F32,
        kind=Kind.CONTRACTION,
        propagate=layout_rules.matmul,
        samples=tuple(
            Sample((TensorType(BF16, a), TensorType(BF16, b)), {}, constant_operands=(1,))
            for a, b in (((5, 35), (35, 19)), ((2, 7, 64), (64, 48)), ((1, 33), (33, 17)))
        ),
    )
)
