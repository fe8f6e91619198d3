"""Narrows integer arithmetic to the number of bits that its result is stored with.

What is widened, shifted by a zero point and stored in a byte again is such: vectors of bytes have
four times the lanes. Owns which arithmetic wraps alike; no loops.
"""

from __future__ import annotations

from aot.ir import expr
from aot.ir.expr import Binary, Cast, Const, Expr, Load
from aot.ir.types import DType

_WRAPS = ("add", "sub", "and", "or", "xor")


def in_kept_bits(e: Expr) -> Expr:
    """The expression with integers computed in the width that they are narrowed to."""
    return expr.transform(e, _kept)


def _kept(e: Expr) -> Expr | None:
    if not isinstance(e, Cast) or not isinstance(e.a, Binary) or not _is_plain(e.dtype):
        return None
    if not _is_plain(e.a.dtype) or e.dtype.bits >= e.a.dtype.bits:
        return None
    return _narrowed(e.a, e.dtype)


def _is_plain(dtype: DType) -> bool:
    return dtype.is_integer and dtype is not DType.INDEX and dtype.bits >= 8


def _narrowed(e: Expr, dtype: DType) -> Expr | None:
    """`e` computed in the narrower integer `dtype`; None where low bits depend on higher ones."""
    match e:
        case Const():
            bits = int(e.value) & ((1 << dtype.bits) - 1)
            is_negative = dtype.is_signed and bits >> (dtype.bits - 1)
            return expr.const(bits - (1 << dtype.bits) if is_negative else bits, dtype)
        case Cast() if e.a.dtype is DType.BOOL or _is_plain(e.a.dtype):
            return expr.cast(in_kept_bits(e.a), dtype)
        case Load() if not expr.free_vars(e):
            return expr.cast(e, dtype)
        case Binary() if e.op in _WRAPS:
            a, b = _narrowed(e.a, dtype), _narrowed(e.b, dtype)
            return None if a is None or b is None else expr.binary(e.op, a, b)
        case _:
            return None
