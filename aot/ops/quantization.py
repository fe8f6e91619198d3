"""Quantise and dequantise: an integer q stands for (q - zero_point) * scale.

Parameters broadcast as operands of elementwise ops do: one for all of x, or one a channel as
[C, 1, 1]. Both ops compute in f32 whatever the floats are, so that f16 rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.arrays import cast_array
from aot.ir.record import (
    INTEGERS,
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import DType, TensorType
from aot.ops import layout_rules
from aot.ops.elementwise import broadcast_dims, elementwise_compute

F16, F32, I32 = DType.F16, DType.F32, DType.I32
_FLOATS = frozenset({F16, F32})
STORED = frozenset(d for d in INTEGERS if d.bits <= 32 and d is not DType.INDEX)


def _dims(call: Call) -> tuple[Any, ...]:
    return broadcast_dims(call, [t.dims for t in call.operands if t is not None])


def _quantize_dtype(call: Call) -> DType:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    return to


def _quantize_type(call: Call) -> Sequence[TensorType]:
    return [TensorType(_quantize_dtype(call), _dims(call))]


def _quantize_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, scale, zero_point = (*inputs, None, None)[:3]
    with np.errstate(all="ignore"):
        quotient = x.astype(np.float32)
        if scale is not None:
            quotient = quotient / scale.astype(np.float32)
        rounded = np.rint(quotient)
        if zero_point is not None:
            rounded = rounded + zero_point.astype(np.float32)
        return [cast_array(np.asarray(rounded, np.float32), _quantize_dtype(call))]


def _quantize_compute(call: Call) -> Sequence[Compute]:
    def body(x: e.Expr, scale: e.Expr | None = None, zero: e.Expr | None = None) -> e.Expr:
        quotient = e.cast(x, F32)
        if scale is not None:
            quotient = e.binary("div", quotient, e.cast(scale, F32))
        rounded: e.Expr = e.unary("round", quotient)
        if zero is not None:
            rounded = e.add(rounded, e.cast(zero, F32))
        return e.cast(rounded, _quantize_dtype(call))  # casts saturate

    return elementwise_compute(call, body)


def _f32(*dims: int) -> TensorType:
    return TensorType(F32, dims)


QUANTIZE = register(
    OpRecord(
        name="quantize",
        summary="round(x / scale) + zero_point, halves to even, as `to`, which saturates.",
        operands=(
            Operand("x", _FLOATS),
            Operand("scale", _FLOATS, "optional"),
            Operand("zero_point", STORED, "optional"),
        ),
        attributes=(Attribute("to", "dtype", doc="an integer of 8 or 16 bits"),),
        constraints=(
            Constraint(
                "to is an integer of 8 or 16 bits",
                lambda call: _quantize_dtype(call) in INTEGERS and _quantize_dtype(call).bits <= 16,
            ),
        ),
        infer=_quantize_type,
        reference=_quantize_reference,
        compute=_quantize_compute,
        kind=Kind.ELEMENTWISE,
        propagate=layout_rules.elementwise,
        is_cheap=True,
        samples=(
            Sample(
                (_f32(2, 3, 5), _f32(), TensorType(DType.U8, ())),
                {"to": DType.U8},
                low=0.25,
                high=300.0,
            ),
            Sample(
                (_f32(2, 3, 5), _f32(3, 1), TensorType(DType.I8, (3, 1))),
                {"to": DType.I8},
                low=0.25,
                high=300.0,
            ),
            Sample((_f32(40),), {"to": DType.I8}, low=-200.0, high=200.0),
            Sample(
                (_f32(7), None, TensorType(DType.U16, ())),
                {"to": DType.U16},
                low=-300.0,
                high=300.0,
            ),
            Sample(
                (TensorType(F16, (9,)), TensorType(F16, ())),
                {"to": DType.I16},
                low=0.25,
                high=9.0,
            ),
        ),
    )
)


def _dequantize_type(call: Call) -> Sequence[TensorType]:
    return [TensorType(call.operand(1).dtype, _dims(call))]


def _dequantize_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, scale, zero_point = (*inputs, None)[:3]
    with np.errstate(all="ignore"):
        centred = x.astype(np.int32)
        if zero_point is not None:
            centred = centred - zero_point.astype(np.int32)
        product = centred.astype(np.float32) * scale.astype(np.float32)
        return [np.asarray(product).astype(scale.dtype)]


def _dequantize_compute(call: Call) -> Sequence[Compute]:
    def body(x: e.Expr, scale: e.Expr, zero: e.Expr | None = None) -> e.Expr:
        centred = e.cast(x, I32)
        if zero is not None:
            centred = e.sub(centred, e.cast(zero, I32))
        product = e.mul(e.cast(centred, F32), e.cast(scale, F32))
        return e.cast(product, scale.dtype)

    return elementwise_compute(call, body)


DEQUANTIZE = register(
    OpRecord(
        name="dequantize",
        summary="(x - zero_point) * scale; the difference in i32.",
        operands=(
            Operand("x", STORED),
            Operand("scale", _FLOATS),
            Operand("zero_point", STORED, "optional"),
        ),
        infer=_dequantize_type,
        reference=_dequantize_reference,
        compute=_dequantize_compute,
        kind=Kind.ELEMENTWISE,
        propagate=layout_rules.elementwise,
        is_cheap=True,
        samples=(
            Sample((TensorType(DType.U8, (2, 3, 5)), _f32(), TensorType(DType.U8, ()))),
            Sample((TensorType(DType.I8, (2, 3, 5)), _f32(3, 1), TensorType(DType.I8, (3, 1)))),
            Sample((TensorType(DType.U16, (7,)), _f32())),
            Sample((TensorType(I32, (7,)), TensorType(F16, (7,)))),
        ),
    )
)
