"""Expands 64-bit integer division, and casts between 64-bit integers and floats, for targets
without such instructions.

Owns the formulas, as expressions of what is left: sums, products, shifts, comparisons and choices
of 64-bit integers, and arithmetic of 32 bits. None branches, so that they fit any target.
"""

from __future__ import annotations

from aot.ir.expr import Binary, Bitcast, Cast, Const, Expr, rebuild, unary
from aot.ir.types import DType
from aot.kernels.ir.scalar import schedule
from aot.kernels.transcendentals.values import V

U64, I64, U32, F32, F64 = DType.U64, DType.I64, DType.U32, DType.F32, DType.F64
_WIDE = (I64, U64)
_DIVISIONS = ("div", "floordiv", "floormod")


def expand(e: Expr, memo: dict[Expr, Expr]) -> Expr:
    """`e` with 64-bit integer divisions, and casts between 64-bit integers and floats, expanded.

    Args:
        memo: what earlier calls made of shared nodes.
    """
    for node in schedule([e]):
        if node not in memo:
            memo[node] = _expand_node(rebuild(node, memo.__getitem__))
    return memo[e]


def _expand_node(node: Expr) -> Expr:
    match node:
        case Binary() if node.op in _DIVISIONS and node.dtype in _WIDE:
            return _division(node.op, V(node.a), V(node.b)).e
        case Cast() if node.a.dtype in _WIDE and node.dtype.is_float:
            return _to_float(V(node.a), node.dtype).e
        case Cast() if node.dtype in _WIDE and node.a.dtype.is_float:
            return _from_float(V(node.a), node.dtype).e
    return node


def _as(x: V, dtype: DType) -> V:
    return x if x.e.dtype is dtype else V(Cast(x.e, dtype))


def _number(value: float, dtype: DType) -> V:
    return V(Const(dtype, value))


def _size(x: V) -> tuple[V, V | None]:
    """(|x| as U64, whether x is negative); the most negative integer is included."""
    if x.e.dtype is U64:
        return x, None
    is_negative = x < 0
    return _as(is_negative.choose(V(unary("neg", x.e)), x), U64), is_negative


def _division(op: str, x: V, y: V) -> V:
    """Integer division, by long division bit by bit; x / 0 is 0, and the most negative integer
    divided by -1 wraps."""
    dtype = x.e.dtype
    size, is_below = _size(x)
    divisor, is_divisor_below = _size(y)
    rest, quotient = _number(0, U64), _number(0, U64)
    for bit in reversed(range(64)):
        if dtype is U64:  # what the shift carries out counts as well
            carry = rest >= 1 << 63
        rest = (rest << 1) | ((size >> bit) & 1)
        fits = rest >= divisor
        if dtype is U64:
            fits = fits | carry
        rest = fits.choose(rest - divisor, rest)
        quotient = fits.choose(quotient | (1 << bit), quotient)
    if is_below is None or is_divisor_below is None:
        found = rest if op == "floormod" else quotient
        return y.equals(0).choose(0, found)
    signed, signed_rest = _as(quotient, I64), _as(rest, I64)
    is_unlike = is_below.differs(is_divisor_below)
    found = is_unlike.choose(V(unary("neg", signed.e)), signed)
    if op != "div":
        is_low = is_unlike & signed_rest.differs(0)
        found = is_low.choose(found - 1, found)
    if op == "floormod":
        found = x - found * y
    return y.equals(0).choose(0, found)


def _to_float(x: V, to: DType) -> V:
    """Converts a 64-bit integer to a float, rounded once to nearest even; f16 overflows to
    infinity."""
    size, is_negative = _size(x)
    high, low = _as(size >> 32, U32), _as(size, U32)
    if to is F64:
        made = _as(high, F64) * 2.0**32 + _as(low, F64)
    else:
        made = _single(size, high, low)
    if is_negative is not None:
        made = is_negative.choose(V(unary("neg", made.e)), made)
    return _as(made, to)


def _single(size: V, high: V, low: V) -> V:
    """A U64 as f32: rounds its 31 or 32 leading bits, with the last one set if any lower bit is."""
    is_narrow = high.equals(0)
    # of rounded bits: one more, at times
    exponent = (_as(is_narrow.choose(1, high), F32).bits(U32) >> 23) - 126
    kept = size >> _as(exponent, U64)
    is_exact = (kept << _as(exponent, U64)).equals(size)
    word = _as(kept, U32) | _as(is_exact.choose(_number(0, U64), 1), U32)
    scaled = _as(word, F32) * V(Bitcast(((exponent + 127) << 23).e, F32))
    return is_narrow.choose(_as(low, F32), scaled)


def _from_float(given: V, to: DType) -> V:
    """Converts a float to a 64-bit integer: truncated, saturated, and 0 for NaN."""
    x = given if given.e.dtype is F64 else _as(given, F32)
    dtype = x.e.dtype
    size = x.abs()
    limit = 2.0**63 if to is I64 else 2.0**64
    inside = (size < limit).choose(size, 0.0)
    high = _as(inside * 2.0**-32, U32)
    low = _as(inside - _as(high, dtype) * 2.0**32, U32)
    whole = _as((_as(high, U64) << 32) | _as(low, U64), to)
    if to is U64:
        found = (x < 0.0).choose(0, whole)
        return (x >= limit).choose(_number((1 << 64) - 1, U64), found)
    found = (x < 0.0).choose(V(unary("neg", whole.e)), whole)
    found = (x >= limit).choose(_number((1 << 63) - 1, I64), found)
    return (V(unary("neg", x.e)) >= limit).choose(_number(-(1 << 63), I64), found)
