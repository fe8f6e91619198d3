"""Storage-only element types, which nothing computes with: floats of 8 bits or less, and integers
of less than a byte.

A tensor of such a type is one of bytes, an element a byte: integers by value, floats by their bits.
Owns the table of these types and the conversions; which values are of which type is in
`Node.kinds`.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I32, U32, U8 = DType.F32, DType.I32, DType.U32, DType.U8


@dataclass(frozen=True)
class Narrow:
    """A narrow element type of ONNX files: how its bits encode a number.

    Attributes:
        dtype: what holds an element.
        bits: of an element in a file.
        mantissa: bits of a float's fraction; None of integers.
        bias: of its exponent.
        largest: the code of its largest finite number.
        infinity: the code of infinity; None where it has none.
        nan: the code of NaN; None where it has none.
        is_unsigned: it has no sign bit.
        has_zero_sign: zero has a sign; else its code is 0.
    """

    dtype: DType
    bits: int
    mantissa: int | None = None
    bias: int = 0
    largest: int = 0
    infinity: int | None = None
    nan: int | None = None
    is_unsigned: bool = False
    has_zero_sign: bool = True

    @property
    def is_float(self) -> bool:
        return self.mantissa is not None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest integer of the type."""
        if self.dtype.is_signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1


_ROWS = {
    "UINT4": Narrow(U8, 4),
    "INT4": Narrow(DType.I8, 4),
    "UINT2": Narrow(U8, 2),
    "INT2": Narrow(DType.I8, 2),
    "FLOAT4E2M1": Narrow(U8, 4, 1, 1, 7),
    "FLOAT8E4M3FN": Narrow(U8, 8, 3, 7, 0x7E, nan=0x7F),
    "FLOAT8E4M3FNUZ": Narrow(U8, 8, 3, 8, 0x7F, nan=0x80, has_zero_sign=False),
    "FLOAT8E5M2": Narrow(U8, 8, 2, 15, 0x7B, infinity=0x7C, nan=0x7E),
    "FLOAT8E5M2FNUZ": Narrow(U8, 8, 2, 16, 0x7F, nan=0x80, has_zero_sign=False),
    "FLOAT8E8M0": Narrow(U8, 8, 0, 127, 0xFE, nan=0xFF, is_unsigned=True),
}
NARROW: dict[int, Narrow] = {
    getattr(TensorProto, name): row for name, row in _ROWS.items() if hasattr(TensorProto, name)
}
# Ops that only move elements: their results are of their first operand's type.
MOVING = frozenset(
    {
        "Compress",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
# Ops that look at nothing but shapes, and those whose entries know these types.
KNOWING = frozenset(
    {
        "BitCast",
        "Cast",
        "CastLike",
        "DequantizeLinear",
        "GatherBlockQuantized",
        "QuantizeLinear",
        "Shape",
        "Size",
    }
)


def name_of(elem_type: int) -> str:
    """ONNX's name of an element type, for messages."""
    return str(TensorProto.DataType.Name(elem_type)).lower()


def _values(elem_type: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The number that each code of an element type represents, indexed by code."""
    row = NARROW[elem_type]
    codes = np.arange(1 << row.bits, dtype=np.uint8)
    numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    return codes.view(numpy_type).astype(np.float32)


def decoded(b: GraphBuilder, x: Value, elem_type: int) -> Value:
    """The numbers that codes represent: in f32, or for integers in a dtype that holds them."""
    row = NARROW[elem_type]
    if not row.is_float:
        return b.emit("cast", x, to=row.dtype)  # not `x` itself, which is of the narrow type
    return b.emit("gather", b.constant(_values(elem_type)), b.cast(x, I32), axis=0)


def encoded(
    b: GraphBuilder, x: Value, elem_type: int, *, saturates: bool = True, rounding: str = "up"
) -> Value:
    """Numbers encoded as codes; integers out of range wrap.

    Args:
        saturates: what is beyond the largest number becomes that; else infinity, or NaN.
        rounding: of `float8e8m0`, which has powers of two only: "up", "down" or "nearest".
    """
    row = NARROW[elem_type]
    if row.mantissa is None:
        return _wrapped(b, x, row)
    if row.mantissa == 0:
        return _power_of_two(b, x, row, saturates, rounding)
    return _rounded(b, x, row, saturates)


def saturated(b: GraphBuilder, x: Value, elem_type: int) -> Value:
    """Integers clamped to the range of a stored element type narrower than a byte."""
    row = NARROW[elem_type]
    low, high = row.range
    x = b.emit("maximum", x, b.scalar(low, x.type.dtype))
    return b.emit("minimum", x, b.scalar(high, x.type.dtype))


def _wrapped(b: GraphBuilder, x: Value, row: Narrow) -> Value:
    wide = b.cast(x, I32)
    shift = b.scalar(32 - row.bits, I32)
    if not row.dtype.is_signed:
        mask = b.scalar((1 << row.bits) - 1, I32)
        return b.cast(b.emit("bit_and", wide, mask), row.dtype)
    top = b.emit("shift_left", wide, shift)
    return b.cast(b.emit("shift_right", top, shift), row.dtype)


def _exponent(b: GraphBuilder, magnitude: Value) -> Value:
    """floor(log2) of positive normal numbers, as i32."""
    bits = b.cast(
        b.emit("shift_right", b.emit("bitcast", magnitude, to=U32), b.scalar(23, U32)), I32
    )
    return b.emit("sub", bits, b.scalar(127, I32))


def _power(b: GraphBuilder, exponent: Value) -> Value:
    """2^exponent in f32, for normal exponents."""
    biased = b.cast(b.emit("add", exponent, b.scalar(127, I32)), U32)
    return b.emit("bitcast", b.emit("shift_left", biased, b.scalar(23, U32)), to=F32)


def _rounded(b: GraphBuilder, x: Value, row: Narrow, saturates: bool) -> Value:
    """The code of the nearest number, ties to even: codes of positive numbers are consecutive."""
    assert row.mantissa is not None
    least = 1 - row.bias
    x = b.cast(x, F32)
    sign = b.emit("less", b.emit("bitcast", x, to=I32), b.scalar(0, I32))
    size = b.emit("abs", x)
    beyond = b.scalar(2.0**40, F32)  # more than any of these types has
    is_number = b.emit("equal", x, x)
    finite = b.emit("where", is_number, b.emit("minimum", size, beyond), b.scalar(0.0, F32))
    exponent = b.emit("maximum", _exponent(b, finite), b.scalar(least, I32))
    step = b.emit("sub", exponent, b.scalar(row.mantissa, I32))
    count = b.emit("round", b.emit("div", finite, _power(b, step)))
    above = b.emit("sub", exponent, b.scalar(least, I32))
    code = b.emit("shift_left", above, b.scalar(row.mantissa, I32))
    code = b.emit("add", code, b.cast(count, I32))
    nan = row.largest if row.nan is None else row.nan
    top = row.largest if saturates else row.infinity if row.infinity is not None else nan
    is_over = b.emit("less", b.scalar(row.largest, I32), code)
    code = b.emit("where", is_over, b.scalar(top, I32), code)
    if row.nan is not None:
        code = b.emit("where", is_number, code, b.scalar(row.nan, I32))
    signed = b.emit("bit_or", code, b.scalar(1 << (row.bits - 1), I32))
    is_signed = sign
    if not row.has_zero_sign:
        is_signed = b.emit("and", sign, b.emit("less", b.scalar(0, I32), code))
    return b.cast(b.emit("where", is_signed, signed, code), row.dtype)


def _power_of_two(b: GraphBuilder, x: Value, row: Narrow, saturates: bool, rounding: str) -> Value:
    """The code of a type with only an exponent: numbers below the least become the least, infinity
    and NaN become NaN, and signs are dropped."""
    if rounding not in ("up", "down", "nearest"):
        raise UnsupportedNodeError(
            f"attribute 'round_mode' is {rounding!r}, expected 'up', 'down' or 'nearest'"
        )
    x = b.cast(x, F32)
    size = b.emit("abs", x)
    bits = b.emit("bitcast", size, to=I32)
    exponent = b.emit("shift_right", bits, b.scalar(23, I32))
    fraction = b.emit("bit_and", bits, b.scalar((1 << 23) - 1, I32))
    limit = {"up": 0, "down": (1 << 23) - 1, "nearest": (1 << 22) - 1}[rounding]
    is_more = b.emit("less", b.scalar(limit, I32), fraction)
    code = b.emit("add", exponent, b.cast(is_more, I32))
    assert row.nan is not None
    is_over = b.emit("less", b.scalar(row.largest, I32), code)
    top = row.largest if saturates else row.nan
    code = b.emit("where", is_over, b.scalar(top, I32), code)
    is_finite = b.emit("less", size, b.scalar(math.inf, F32))
    return b.cast(b.emit("where", is_finite, code, b.scalar(row.nan, I32)), row.dtype)
