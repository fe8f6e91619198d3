"""Evaluates scalar expression nodes in numpy: exact dtypes, wrapping, and rules of NaN and zero.

Owns the element-by-element semantics of `aot.ir.expr` nodes over arrays, and the order in which a
DAG is evaluated. Knows nothing of memory: loads, variables and parameters are the caller's leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from aot.errors import InternalError
from aot.ir import wide_functions
from aot.ir.arrays import to_bf16
from aot.ir.expr import (
    COMPARE_OPS,
    Binary,
    Bitcast,
    Cast,
    Const,
    Dot,
    Expr,
    Fma,
    Select,
    Unary,
    Unpack,
    children,
)
from aot.ir.types import Array, DType

Rule = Callable[[Array], Array]
Rule2 = Callable[[Array, Array], Array]
Operation = Callable[..., Array]


def schedule(roots: list[Expr]) -> list[Expr]:
    """Every node that `roots` need, once each, operands before their users."""
    done: dict[Expr, None] = {}
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded:
            done[node] = None
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))
    return list(done)


def evaluate(e: Expr, leaf: Callable[[Expr], Array], *, fused: bool = True) -> Array:
    """The value of `e`; `leaf` gives the values of leaves such as Var and Load."""
    values: dict[Expr, Array] = {}
    for node in schedule([e]):
        args = [values[c] for c in children(node)]
        computed = apply(node, args, fused=fused)
        values[node] = leaf(node) if computed is None else computed
    return values[e]


def apply(node: Expr, args: list[Array], *, fused: bool = True) -> Array | None:
    """The value of one node, computed from its operands' values; None for leaves that only the
    caller can evaluate.

    Args:
        fused: whether Fma rounds once, as targets with the instruction do, or twice.
    """
    made = operation(node, fused=fused)
    if made is None:
        return None
    with np.errstate(all="ignore"):
        return made(*args)


def operation(node: Expr, *, fused: bool = True) -> Operation | None:
    """A function that computes a node's value from its operands' values; None as in `apply`.

    It is to be called where numpy's floating-point errors are ignored.
    """
    match node:
        case Const():
            value = literal(node)
            return lambda: value
        case Unary():
            return unary_rule(node.op, node.a.dtype)
        case Binary():
            return binary_rule(node.op, node.a.dtype)
        case Fma():
            return fma if fused else partial(_multiply_add, dtype=node.dtype)
        case Dot():
            if node.dtype is DType.F32:
                return _dot_of_bf16
            if node.dtype is not DType.I32:
                return partial(_dot_of_pairs, a_dtype=node.a.dtype, b_dtype=node.b.dtype)
            return partial(
                _dot, a_dtype=node.a.dtype, b_dtype=node.b.dtype, is_narrow=node.is_narrow
            )
        case Unpack():
            return partial(_unpack, chosen=node.parts, dtype=node.a.dtype)
        case Select():
            return np.where
        case Cast():
            return partial(convert, source=node.a.dtype, target=node.dtype)
        case Bitcast():
            return partial(_reinterpret, dtype=node.dtype)
    return None


def word_of(parts: Sequence[Array], dtype: DType) -> Array:
    """The packed word of `dtype` whose elements are `parts`, lowest bits first."""
    bits = dtype.part.bits
    word = np.asarray(0, np.uint32)
    for number, part in enumerate(parts):
        field = part.astype(np.int64).astype(np.uint32) & np.uint32((1 << bits) - 1)
        word = word | (field << np.uint32(number * bits))
    return np.asarray(word, np.uint32)


def _parts(word: Array, dtype: DType) -> list[Array]:
    """The elements of packed words, as i64."""
    bits = dtype.part.bits
    found = []
    for number in range(dtype.parts):
        field = (np.asarray(word, np.int64) >> (number * bits)) & ((1 << bits) - 1)
        if dtype.part.is_signed:
            field = np.where(field >> (bits - 1), field - (1 << bits), field)
        found.append(np.asarray(field))
    return found


def _dot(a: Array, b: Array, c: Array, a_dtype: DType, b_dtype: DType, *, is_narrow: bool) -> Array:
    products = [x * y for x, y in zip(_parts(a, a_dtype), _parts(b, b_dtype), strict=True)]
    if is_narrow:
        bounds = np.iinfo(np.int16)
        for one, other in combinations(products, 2):
            both = one + other
            if np.any((both < bounds.min) | (both > bounds.max)):
                raise InternalError("the products of a narrow dot do not fit 16 bits in pairs")
    total = np.asarray(c, np.int64) + sum(products)
    return np.asarray(total).astype(np.int32)


def _dot_of_bf16(a: Array, b: Array, c: Array) -> Array:
    products = [
        _reinterpret(np.asarray(x << 16, np.uint32), DType.F32).astype(np.float64)
        * _reinterpret(np.asarray(y << 16, np.uint32), DType.F32)
        for x, y in zip(_parts(a, DType.BF16X2), _parts(b, DType.BF16X2), strict=True)
    ]
    return np.asarray((c + (products[0] + products[1])).astype(np.float32))


def _dot_of_pairs(a: Array, b: Array, c: Array, a_dtype: DType, b_dtype: DType) -> Array:
    pairs = zip(_parts(a, a_dtype), _parts(b, b_dtype), strict=True)
    products = [x * y for x, y in pairs]
    sums = products[0] + products[1], products[2] + products[3]
    return word_of(
        [old + new for old, new in zip(_parts(c, DType.I16X2), sums, strict=True)], DType.I16X2
    )


def _unpack(a: Array, chosen: tuple[int, int], dtype: DType) -> Array:
    parts = _parts(a, dtype)
    return word_of([parts[number] for number in chosen], DType.I16X2)


def _multiply_add(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    return np.asarray(a * b + c, dtype.numpy)


def _reinterpret(a: Array, dtype: DType) -> Array:
    return np.asarray(a).view(dtype.numpy)


def literal(c: Const) -> Array:
    """The value of a Const, rounded to its dtype."""
    with np.errstate(over="ignore"):
        return np.array(c.value, c.dtype.numpy)


def unary_rule(op: str, dtype: DType) -> Rule:
    """The numpy function of the unary operation `op` on `dtype`. Transcendentals are computed in a
    wider type and rounded once."""
    wanted = np.dtype(np.bool_) if op in ("isnan", "not") else dtype.numpy
    if op not in _TRANSCENDENTAL:
        return _to_dtype(_UNARY[op], wanted)
    wide = np.longdouble if dtype is DType.F64 else np.float64
    rule = _TRANSCENDENTAL[op]
    return lambda a: np.asarray(rule(np.asarray(a, wide)), wanted)


def binary_rule(op: str, dtype: DType) -> Rule2:
    """The numpy function of the binary operation `op` on two operands of `dtype`."""
    if op == "pow":
        wide = np.longdouble if dtype is DType.F64 else np.float64
        return lambda a, b: np.asarray(
            np.power(np.asarray(a, wide), np.asarray(b, wide)), dtype.numpy
        )
    if op in ("shl", "shr"):
        return _shift(op, dtype)
    if op == "div" and not dtype.is_float:
        return _to_dtype(_truncating_divide, dtype.numpy)
    wanted = np.dtype(np.bool_) if op in COMPARE_OPS else dtype.numpy
    return _to_dtype(_BINARY[op], wanted)


def apply_binary(op: str, a: Array, b: Array, dtype: DType) -> Array:
    """Computes `a op b` on operands of `dtype`."""
    return binary_rule(op, dtype)(a, b)


def _to_dtype(rule: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Array]:
    """Wraps `rule` to return `dtype`. Converts only if needed, as a conversion costs more than the
    arithmetic."""

    def run(*args: Array) -> Array:
        result = rule(*args)
        return result if result.dtype == dtype else np.asarray(result).astype(dtype)

    return run


def _shift(op: str, dtype: DType) -> Rule2:
    width = dtype.bits
    rule = _to_dtype(_BINARY[op], dtype.numpy)

    def run(a: Array, b: Array) -> Array:
        amount = np.asarray(b)
        if amount.size and (int(amount.min()) < 0 or int(amount.max()) >= width):
            raise InternalError(f"{op} of {dtype} by an amount outside 0..{width - 1}")
        return rule(a, amount)

    return run


def convert(a: Array, source: DType, target: DType) -> Array:
    """A Cast: by value, saturating from floats, wrapping between integers."""
    value = np.asarray(a)
    if target is DType.BOOL:
        return np.asarray(value != 0)
    if source.is_float and target.is_integer:
        return _float_to_integer(value, target)
    if source.is_integer and target is DType.F16:
        # By way of f64 there is one rounding: integers that f64 rounds are beyond f16's range.
        return value.astype(np.float64).astype(np.float16)
    if target is DType.BF16:
        return to_bf16(value)
    return value.astype(target.numpy)


def _float_to_integer(value: Array, target: DType) -> Array:
    info = np.iinfo(target.numpy)
    wide = np.trunc(value.astype(np.float64))
    # float(info.max) may round up to a power of two, so the comparison that saturates is >=.
    top = wide >= float(info.max)
    bottom = wide <= float(info.min)
    inside = np.where(top | bottom | np.isnan(wide), 0.0, wide).astype(target.numpy)
    result = np.where(top, info.max, np.where(bottom, info.min, inside))
    return np.asarray(result.astype(target.numpy))


def _truncating_divide(a: Array, b: Array) -> Array:
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind == "u":
        return quotient
    is_rounded_down = ((a < 0) != (b < 0)) & (quotient * b != a) & (b != 0)
    return np.asarray(quotient + is_rounded_down)


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` rounded once.

    f16 and f32 go through f64: the product is exact there, and the sum is rounded to odd, after
    which the second rounding is the right one (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", IEEE Trans. Computers 57, 2008).
    """
    dtype = np.asarray(a).dtype
    if dtype == np.float64:
        return _fma64(np.asarray(a), np.asarray(b), np.asarray(c))
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        return _sum_to_odd(product, np.asarray(c, np.float64)).astype(dtype)


def _sum_to_odd(x: Array, y: Array) -> Array:
    x, y = np.broadcast_arrays(x, y)
    total = np.asarray(x + y)
    error = _error_of_sum(x, y, total)
    bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
    is_inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & ((bits & 1) == 0)
    # One step in the direction of the error: away from zero where the signs agree.
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(is_inexact, bits + step, bits)
    return np.asarray(np.atleast_1d(odd).view(np.float64).reshape(total.shape))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add in double precision: the product and its error exactly (Dekker), their
    sum with `c` rounded to odd, as above; in rationals where that may overflow or underflow."""
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    a, b, c = np.broadcast_arrays(*np.atleast_1d(a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        plain = np.asarray(product + c)
        low, high = _SAFE
        is_safe = (np.abs(product) > low) & (np.abs(product) < high) & (np.abs(c) < high)
        is_safe &= (np.abs(a) < high) & (np.abs(b) < high)
        error = _error_of_product(a, b, product)
        # c + error + product: two sums whose errors are exact, of which the least rounds to odd
        near = c + error
        rest = _error_of_sum(c, error, near)
        total = product + near
        rounded = total + _sum_to_odd(_error_of_sum(product, near, total), rest)
    result = np.where(is_safe, rounded, plain)
    open_ = ~is_safe & (product != 0) & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    open_ |= (product == 0) & (a != 0) & (b != 0) & np.isfinite(c)
    for at in zip(*np.nonzero(open_), strict=True):
        result[at] = _fma_of_rationals(float(a[at]), float(b[at]), float(c[at]), float(plain[at]))
    return result.reshape(shape)


# magnitudes of products whose errors doubles hold, and of sums that stay below infinity
_SAFE = (2.0**-900, 2.0**900)


def _error_of_product(a: Array, b: Array, product: Array) -> Array:
    """`a * b - product` exactly, by Dekker's method: operands are split into halves of 26 bits."""
    halves = []
    for x in (a, b):
        shifted = x * 134217729.0
        high = shifted - (shifted - x)
        halves.append((high, x - high))
    (ah, al), (bh, bl) = halves
    return np.asarray(al * bl - (((product - ah * bh) - al * bh) - ah * bl))


def _error_of_sum(x: Array, y: Array, total: Array) -> Array:
    """`x + y - total`, exactly."""
    part = total - x
    return np.asarray((x - (total - part)) + (y - part))


def _fma_of_rationals(a: float, b: float, c: float, plain: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return plain
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_TRANSCENDENTAL: dict[str, Rule] = {
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": wide_functions.erf,
    "erfc": wide_functions.erfc,
    "sigmoid": wide_functions.sigmoid,
    "silu": wide_functions.silu,
    "mish": wide_functions.mish,
    "gelu": wide_functions.gelu,
    "gelu_tanh": wide_functions.gelu_tanh,
    "sin": np.sin,
    "cos": np.cos,
}
_UNARY: dict[str, Rule] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "bitnot": np.invert,
    "not": np.logical_not,
    "isnan": np.isnan,
}
_BINARY: dict[str, Rule2] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "fmod": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
