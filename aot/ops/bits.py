"""Bitwise ops on integers: and, or, xor, not, and shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.record import (
    INTEGERS,
    NUMBERS,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops import layout_rules
from aot.ops.elementwise import broadcast_dims, elementwise_compute

I32, U8 = DType.I32, DType.U8


def _type(call: Call) -> Sequence[TensorType]:
    shapes = [call.operand(i).dims for i in range(len(call.operands))]
    return [TensorType(call.operand(0).dtype, broadcast_dims(call, shapes))]


def _bitcast_type(call: Call) -> Sequence[TensorType]:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    return [TensorType(to, call.operand(0).dims)]


def _bitcast_fits(call: Call) -> bool:
    to = call.attrs["to"]
    return isinstance(to, DType) and to in NUMBERS and to.bits == call.operand(0).dtype.bits


BITCAST = register(
    OpRecord(
        name="bitcast",
        jumps=(0,),
        summary="The same bits as another element type of the same size.",
        operands=(Operand("x", NUMBERS),),
        attributes=(Attribute("to", "dtype"),),
        constraints=(Constraint("to is a number type as wide as x's", _bitcast_fits),),
        infer=_bitcast_type,
        reference=lambda call, inputs: [
            np.ascontiguousarray(inputs[0])
            .view(call.result_types[0].dtype.numpy)
            .reshape(inputs[0].shape)
        ],
        compute=lambda call: elementwise_compute(
            call, lambda x: e.Bitcast(x, call.result_types[0].dtype)
        ),
        kind=Kind.ELEMENTWISE,
        propagate=layout_rules.elementwise,
        is_cheap=True,
        samples=(
            Sample((TensorType(DType.F32, (3, 5)),), {"to": I32}),
            Sample((TensorType(I32, (7,)),), {"to": DType.U32}),
        ),
    )
)


def _bitwise(
    name: str,
    summary: str,
    numpy: Callable[..., Any],
    body: Callable[..., e.Expr],
    *,
    count: int = 2,
    commutes: bool = False,
    low: float = -9,
    high: float = 9,
) -> OpRecord:
    operands = (Operand("a", INTEGERS), Operand("b", INTEGERS, same_as="a"))[:count]
    shapes: tuple[tuple[int, ...], ...] = ((3, 7), (7,))
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=operands,
            infer=_type,
            reference=lambda call, inputs: [np.asarray(numpy(*inputs), inputs[0].dtype)],
            compute=lambda call: elementwise_compute(call, body),
            kind=Kind.ELEMENTWISE,
            propagate=layout_rules.elementwise,
            is_cheap=True,
            is_commutative=commutes,
            samples=tuple(
                Sample(
                    tuple(TensorType(dtype, s) for s in shapes[:count]),
                    low=max(low, 0) if dtype is U8 else low,
                    high=high,
                )
                for dtype in (I32, U8)
            ),
        )
    )


def _shift(op: str, a: e.Expr, b: e.Expr) -> e.Expr:
    """`a` shifted by `b`; an amount outside [0, width) gives 0, or -1 for a negative signed `a`
    shifted right."""
    width = a.dtype.bits
    amount = e.binary("and", b, e.const(width - 1, b.dtype))
    is_small = e.binary("eq", amount, b)
    if op == "shr" and a.dtype.is_signed:
        return e.binary(op, a, e.select(is_small, amount, e.const(width - 1, b.dtype)))
    return e.select(is_small, e.binary(op, a, amount), e.const(0, a.dtype))


def _shift_array(function: Callable[..., Any]) -> Callable[[Array, Array], Any]:
    def shifted(a: Array, b: Array) -> Any:
        width = a.dtype.itemsize * 8
        amount = b & np.asarray(width - 1, b.dtype)
        beyond = (a < 0) * -1 if function is np.right_shift and a.dtype.kind == "i" else 0
        return np.where(amount == b, function(a, amount), beyond)

    return shifted


BIT_AND = _bitwise(
    "bit_and", "Bitwise and.", np.bitwise_and, lambda a, b: e.binary("and", a, b), commutes=True
)
BIT_OR = _bitwise(
    "bit_or", "Bitwise or.", np.bitwise_or, lambda a, b: e.binary("or", a, b), commutes=True
)
BIT_XOR = _bitwise(
    "bit_xor",
    "Bitwise exclusive or.",
    np.bitwise_xor,
    lambda a, b: e.binary("xor", a, b),
    commutes=True,
)
BIT_NOT = _bitwise(
    "bit_not", "Every bit inverted.", np.invert, lambda a: e.unary("bitnot", a), count=1
)
SHIFT_LEFT = _bitwise(
    "shift_left",
    "a times 2 to the b; 0 where b is not in [0, width).",
    _shift_array(np.left_shift),
    lambda a, b: _shift("shl", a, b),
    low=0,
    high=9,
)
SHIFT_RIGHT = _bitwise(
    "shift_right",
    "a shifted down by b bits, filled with its sign; where b is "
    "not in [0, width) only that is left.",
    _shift_array(np.right_shift),
    lambda a, b: _shift("shr", a, b),
    low=-9,
    high=40,
)
