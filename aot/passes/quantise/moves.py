"""Rules that move `quantize` towards producers and `dequantize` towards users, so that data
movement and comparisons run on bytes, and rules that give neighbouring tensors one scale.

`x` is what is stored, `s` a scale and `z` a zero point; a tensor has one of each, where nothing
else is said.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.ir.graph import Attr, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType, TensorType
from aot.ops import OpRecord
from aot.ops.elementwise import ADD, CAST, MAXIMUM, MINIMUM, MUL, RELU, SUB
from aot.ops.indexing import GATHER_ELEMENTS, GATHER_ND
from aot.ops.movement import BROADCAST_TO, PAD, RESHAPE, SLICE, TRANSPOSE
from aot.ops.pooling import MAX_POOL
from aot.ops.quantization import DEQUANTIZE, QUANTIZE
from aot.ops.selection import CONCAT, GATHER
from aot.passes.quantise.factors import (
    F32,
    I8,
    I16,
    I32,
    LIMIT,
    U8,
    add_number,
    cast,
    constant,
    is_one_number,
    known,
    known_number,
    same,
)
from aot.passes.quantise.integer_contractions import RECORDS, as_integers, bias_in
from aot.passes.simplify.algebra_terms import sole
from aot.passes.simplify.rewriting import Rule, definer, like, make

# scales whose products and quotients with 16 bits are normal numbers
_LOW, _HIGH = 2.0**-100, 2.0**100
_MAX_DEPTH = 8


def _parameters(op: Op) -> tuple[Value | None, Value | None]:
    """Scale and zero point of a `quantize` or `dequantize`."""
    _, scale, zero = [*op.operands, None, None][:3]
    return scale, zero


def _has_one_scale(op: Op) -> bool:
    return all(map(is_one_number, _parameters(op)))


def _is_plain(op: Op) -> bool:
    """Whether a `dequantize` has a single scale and keeps its operand's dims."""
    x = op.operands[0]
    return _has_one_scale(op) and x is not None and x.type.dims == op.result.type.dims


def _emit(
    op: Op, rewriter: Rewriter, record: OpRecord, *operands: Value | None, **attrs: Attr
) -> Value:
    return rewriter.create(record, operands, attrs, op.origin).result


def _flat(op: Op, rewriter: Rewriter, value: Value | None) -> Value | None:
    """A parameter with one element as a scalar, which broadcasts to every rank."""
    if value is None or value.type.rank == 0:
        return value
    return _emit(op, rewriter, RESHAPE, value, shape=())


def _like(op: Op, rewriter: Rewriter, found: Op, x: Value) -> Value:
    """`quantize` or `dequantize` of x with the parameters of `found`."""
    scale, zero = (_flat(op, rewriter, v) for v in _parameters(found))
    return rewriter.create(found.record, [x, scale, zero], found.attrs, op.origin).result


# down


def _sink(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites move(dequantize(x)) to dequantize(move(x))."""
    found = definer(op.operands[0], DEQUANTIZE)
    if found is None or not _is_plain(found):
        return None
    attrs = dict(op.attrs)
    if op.record is PAD:
        value = _padded_with(op, found)
        if value is None:
            return None
        attrs["value"] = value
    moved = rewriter.create(op.record, [found.operands[0], *op.operands[1:]], attrs, op.origin)
    return _like(op, rewriter, found, moved.result)


def _padded_with(op: Op, found: Op) -> float | None:
    """The stored integer for elements that a `pad` adds; None if it is not a whole number."""
    if op.attrs["mode"] != "constant":
        return 0.0
    scale, zero = (known_number(v) if v is not None else 0.0 for v in _parameters(found))
    value, x = op.attrs["value"], found.operands[0]
    if zero is None or x is None or not isinstance(value, (int, float)):
        return None
    if value == 0:
        return zero
    info = np.iinfo(x.type.dtype.numpy)
    number = value / scale + zero if scale else float("nan")
    is_stored = number == round(number) if np.isfinite(number) else False
    return number if is_stored and info.min <= number <= info.max else None


def _sink_columns(op: Op, rewriter: Rewriter) -> Value | None:
    """transpose(dequantize(x, s)) -> dequantize(transpose(x), transpose(s)), s of any shape"""
    found = definer(op.operands[0], DEQUANTIZE)
    if found is None or _has_one_scale(found) or found.operands[0] is None:
        return None
    rank = op.result.type.rank
    if found.operands[0].type.dims != found.result.type.dims:
        return None
    moved: list[Value | None] = []
    for value in (found.operands[0], *_parameters(found)):
        if value is not None:
            padded = (*(1,) * (rank - value.type.rank), *value.type.dims)
            wide = _emit(op, rewriter, RESHAPE, value, shape=padded)
            value = _emit(op, rewriter, TRANSPOSE, wide, perm=op.attrs["perm"])
        moved.append(value)
    return _emit(op, rewriter, DEQUANTIZE, *moved)


def _sink_known(op: Op, rewriter: Rewriter) -> Value | None:
    """move(dequantize(x, s)) -> dequantize(move(x), s') for constants: a transposed or reshaped
    weight keeps a scale per channel.
    """
    found = definer(op.operands[0], DEQUANTIZE)
    x = None if found is None else known(found.operands[0])
    if found is None or x is None or _has_one_scale(found) or x.shape != found.result.type.dims:
        return None
    scale, zero = (None if v is None else known(v) for v in _parameters(found))
    if scale is None or (zero is None and _parameters(found)[1] is not None):
        return None
    numbers = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
    if op.record is PAD and (op.attrs["mode"] != "constant" or op.attrs["value"] != 0):
        return None
    dtype = next(
        (d for d in (I8, U8, I16) if np.array_equal(numbers.astype(d.numpy), numbers)), None
    )
    reference = op.record.reference
    if dtype is None or reference is None:
        return None
    # where a pad adds zeros any scale will do: NaN stands for that
    full = np.broadcast_to(scale, x.shape).astype(np.float32)
    moved = []
    for array, fill in ((numbers.astype(dtype.numpy), 0), (full, float("nan"))):
        attrs = {**op.attrs, "value": fill} if op.record is PAD else op.attrs
        type_ = TensorType(DType.of(array.dtype), array.shape)
        (made,) = reference(op.record.call([type_], attrs), [array])
        moved.append(np.asarray(made))
    values = [constant(op, rewriter, a) for a in (moved[0], _without_repeats(moved[1]))]
    return _emit(op, rewriter, DEQUANTIZE, *values, None)


def _without_repeats(scale: Array) -> Array:
    """A scale with extent 1 along each axis on which it does not vary; NaN matches any number."""
    for axis in range(scale.ndim):
        most = np.fmax.reduce(scale, axis=axis, keepdims=True)
        least = np.fmin.reduce(scale, axis=axis, keepdims=True)
        if np.array_equal(most, least, equal_nan=True):
            scale = most
    return np.where(np.isnan(scale), np.float32(1), scale).astype(np.float32)


def _sink_max(op: Op, rewriter: Rewriter) -> Value | None:
    """max(dequantize(x)) -> dequantize(max(x)), for positive scales, which keep the order"""
    found = definer(op.operands[0], DEQUANTIZE)
    number = None if found is None else known_number(found.operands[1])
    return _sink(op, rewriter) if number is not None and number > 0 else None


def _sink_relu(op: Op, rewriter: Rewriter) -> Value | None:
    found = definer(op.operands[0], DEQUANTIZE)
    if found is None or not _is_plain(found):
        return None
    x, (scale, zero) = found.operands[0], _parameters(found)
    number, start = known_number(scale), 0.0 if zero is None else known_number(zero)
    if x is None or number is None or number <= 0 or start is None:
        return None
    if start > np.iinfo(x.type.dtype.numpy).min:
        least = constant(op, rewriter, np.asarray(start).astype(x.type.dtype.numpy))
        x = _emit(op, rewriter, MAXIMUM, x, least)
    return _like(op, rewriter, found, x)


def _sink_concat(op: Op, rewriter: Rewriter) -> Value | None:
    """concat(dequantize(x, s, z), dequantize(y, s, z)) -> dequantize(concat(x, y), s, z)"""
    found = [definer(v, DEQUANTIZE) for v in op.operands]
    parts = [f for f in found if f is not None and _is_plain(f)]
    if len(parts) < len(found):
        return None
    first = parts[0]
    stored = [f.operands[0] for f in parts]
    if len({v.type.dtype for v in stored if v is not None}) != 1 or not all(
        same(a, b)
        for part in parts[1:]
        for a, b in zip(_parameters(first), _parameters(part), strict=True)
    ):
        return None
    moved = rewriter.create(CONCAT, stored, op.attrs, op.origin).result
    return _like(op, rewriter, first, moved)


# up


def _rise(op: Op, rewriter: Rewriter) -> Value | None:
    """quantize(move(y)) -> move(quantize(y)), if the moved value has no other user"""
    maker = op.operands[0].op if op.operands[0] is not None else None
    if maker is None or maker.record not in _RISES or not _has_one_scale(op):
        return None
    if sole(op.operands[0], maker.record) is None or known(op.operands[0]) is not None:
        return None
    source = maker.operands[0]
    if source is None or (maker.record is GATHER and not _is_wider(maker)):
        return None
    attrs = dict(maker.attrs)
    if maker.record is PAD and attrs["mode"] == "constant":
        number = _quantized_number(op, attrs["value"])
        if number is None:
            return None
        attrs["value"] = number
    if maker.record is MAX_POOL and not _is_positive(_parameters(op)[0]):
        return None
    count = len(maker.operands) if maker.record is CONCAT else 1
    raised = [v if v is None else _like(op, rewriter, op, v) for v in maker.operands[:count]]
    moved = [*raised, *maker.operands[count:]]
    return make(op, rewriter, maker.record, *moved, **attrs)


def _is_wider(op: Op) -> bool:
    """Whether the result has at least as many elements as the operand."""
    source = op.operands[0]
    if source is None or not (source.type.is_static and op.result.type.is_static):
        return False
    return int(np.prod(op.result.type.shape)) >= int(np.prod(source.type.shape))


def _is_positive(scale: Value | None) -> bool:
    number = 1.0 if scale is None else known_number(scale)
    return number is not None and number > 0


def _quantized_number(op: Op, number: Attr) -> float | None:
    """The code to which `op` quantises a number; None if its parameters aren't known."""
    scale, zero = (known(v) for v in _parameters(op))
    if (scale is None and _parameters(op)[0] is not None) or not isinstance(number, (int, float)):
        return None
    if zero is None and _parameters(op)[1] is not None:
        return None
    reference = QUANTIZE.reference
    x = np.asarray(number, np.float32)
    assert reference is not None
    call = QUANTIZE.check([None if v is None else v.type for v in op.operands], op.attrs)
    (found,) = reference(call, [x, scale, zero])
    return float(np.asarray(found).reshape(-1)[0])


# pairs


def _cancel(op: Op, rewriter: Rewriter) -> Value | None:
    """quantize(dequantize(x, s, z), s, z) -> x

    (x - z) * s is off by a part in 2**24 and the quotient by another: less than half a step, as
    |x - z| < 2**17. In f16 a part is one in 2**11, so that 8 bits are the limit.
    """
    found = definer(op.operands[0], DEQUANTIZE)
    x = None if found is None else found.operands[0]
    if found is None or x is None or x.type != op.result.type:
        return None
    if not all(same(a, b) for a, b in zip(_parameters(found), _parameters(op), strict=True)):
        return None
    scale = known(found.operands[1])
    if scale is None or scale.size == 0:
        return None
    low, high = float(scale.min()), float(scale.max())
    if found.result.type.dtype is F32:
        return x if low >= _LOW and high <= _HIGH else None
    is_exact = x.type.dtype.bits == 8 and low >= 2.0**-14 and high * 255 <= 65504
    return x if is_exact else None


def _drop_clamp(op: Op, rewriter: Rewriter) -> Value | None:
    """quantize(max(y, c)) -> quantize(y), where c quantises to the least number; likewise for min
    with the largest number, and for relu"""
    maker = op.operands[0].op if op.operands[0] is not None else None
    if maker is None or maker.record not in (RELU, MAXIMUM, MINIMUM):
        return None
    if not _is_positive(_parameters(op)[0]) or not _has_one_scale(op):
        return None
    bound: float | None = 0.0
    if maker.record is not RELU:
        bound = known_number(maker.operands[1])
    stored = None if bound is None else _quantized_number(op, bound)
    info = np.iinfo(op.result.type.dtype.numpy)
    y = maker.operands[0]
    if stored != (info.max if maker.record is MINIMUM else info.min) or y is None:
        return None
    if y.type != maker.result.type:
        return None
    return make(op, rewriter, QUANTIZE, y, *op.operands[1:], **op.attrs)


def _divide_before(op: Op, rewriter: Rewriter) -> Value | None:
    """quantize(y, s, z) -> quantize(y * (1 / s), 1, z), with the factor merged into earlier ones"""
    y, scale = op.operands[0], _parameters(op)[0]
    divisor = known(scale)
    if y is None or divisor is None or op.result.type.dtype.bits != 8 or y.type.dtype is not F32:
        return None
    if known(y) is not None or divisor.size == 0:
        return None
    if not (float(divisor.min()) >= _LOW and float(divisor.max()) <= _HIGH):
        return None
    inverse = 1 / divisor.astype(np.float64)
    product = _times(op, rewriter, y, inverse, 0)
    if product is None:
        factor = constant(op, rewriter, inverse.astype(np.float32))
        product = _emit(op, rewriter, MUL, y, factor)
    zero = _parameters(op)[1]
    return make(op, rewriter, QUANTIZE, product, None, zero, **op.attrs)


def _scaled_factor(
    op: Op, rewriter: Rewriter, factor: Value | None, inverse: Array
) -> Value | None:
    """A constant times a number, rounded once; None if it overflows or underflows f32."""
    found = known(factor)
    if found is None:
        return None
    product = found.astype(np.float64) * inverse
    size = np.abs(product[product != 0])
    if size.size and not (size.min() >= _LOW and size.max() <= _HIGH):
        return None
    return constant(op, rewriter, product.astype(np.float32))


def _times(op: Op, rewriter: Rewriter, y: Value | None, inverse: Array, depth: int) -> Value | None:
    """`y * inverse` without more ops than y has; None if it takes more."""
    maker = None if y is None else y.op
    if y is None or maker is None or depth == _MAX_DEPTH:
        return None
    if known(y) is not None:
        return _scaled_factor(op, rewriter, y, inverse)
    if maker.record is DEQUANTIZE:
        scale = _scaled_factor(op, rewriter, maker.operands[1], inverse)
        zero = _parameters(maker)[1]
        return (
            None
            if scale is None
            else _emit(op, rewriter, DEQUANTIZE, maker.operands[0], scale, zero)
        )
    if sole(y, maker.record) is None:
        return None
    if maker.record is MUL:
        for u, other in (maker.operands, maker.operands[::-1]):
            factor = _scaled_factor(op, rewriter, other, inverse)
            if factor is not None and u is not None:
                product = _emit(op, rewriter, MUL, u, factor)
                return product if product.type == y.type else None
        return None
    if maker.record not in _HOMOGENEOUS or not _may_times(maker, depth):
        return None
    parts = [_times(op, rewriter, v, inverse, depth + 1) for v in maker.operands]
    if any(part is None for part in parts):
        return None
    product = _emit(op, rewriter, maker.record, *parts)
    return product if product.type == y.type else None


def _may_times(maker: Op, depth: int) -> bool:
    """Whether each operand of `maker` is likely to be accepted by `_times`."""
    return all(
        v is not None
        and (
            known(v) is not None
            or (v.op is not None and v.op.record in (DEQUANTIZE, MUL, *_HOMOGENEOUS))
        )
        for v in maker.operands
    )


def _add_bias(op: Op, rewriter: Rewriter) -> Value | None:
    """cast(sum) * m + dequantize(b, m) -> cast(sum + b) * m, for a known bias b of 32 bits"""
    for product, other in (op.operands, op.operands[::-1]):
        times = sole(product, MUL)
        factor = None if times is None else known(times.operands[1])
        wide = None if times is None else sole(times.operands[0], CAST)
        total = None if wide is None else wide.operands[0]
        if times is None or factor is None or total is None or total.type.dtype is not I32:
            continue
        found = bias_in(other, np.ones(1, np.float32), factor, 1)
        rank = op.result.type.rank
        if found is None or other is None or times.result.type != op.result.type:
            continue
        if factor.size != 1 and factor.reshape(-1).shape[0] != found.reshape(-1).shape[0]:
            continue
        if not _is_bounded(total, found) or found.ndim > rank:
            continue
        added = cast(op, rewriter, add_number(op, rewriter, total, found), F32)
        return make(op, rewriter, MUL, added, times.operands[1])
    return None


def _is_bounded(total: Value, bias: Array) -> bool:
    """Whether sums of 8-bit products plus a bias stay below 2**31."""
    maker = total.op
    extra = 0
    for _ in range(_MAX_DEPTH):
        if maker is None or maker.record is not ADD:
            break
        addend = known(maker.operands[1])
        if addend is None or maker.operands[0] is None:
            return False
        extra += int(np.abs(addend.astype(np.int64)).max(initial=0))
        maker = maker.operands[0].op
    contraction = None if maker is None else maker.record.contraction
    if maker is None or contraction is None:
        return False
    left, right = maker.operands[0], maker.operands[1]
    weights = known(right)
    if left is None or weights is None or left.type.dtype.bits > 8:
        return False
    sums = np.abs(weights.astype(np.int64)).sum(axis=-2).max(initial=0) * 255
    return int(sums) + extra + int(np.abs(bias).max(initial=0)) < LIMIT


_MOVES = (RESHAPE, TRANSPOSE, BROADCAST_TO, SLICE, PAD, GATHER, GATHER_ELEMENTS, GATHER_ND)
_RISES = (RESHAPE, TRANSPOSE, BROADCAST_TO, PAD, GATHER, CONCAT, MAX_POOL)
_HOMOGENEOUS = (ADD, SUB, RELU, MAXIMUM, MINIMUM)


def _typed(rule: Rule) -> Rule:
    """`rule`, applied only where its result has the old type."""

    def rewrite(op: Op, rewriter: Rewriter) -> Value | None:
        return like(op, rule.rewrite(op, rewriter))

    return replace(rule, rewrite=rewrite)


_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            record,
            f"{record.name} of dequantize(x) and dequantize(w) -> sums of integers",
            as_integers,
        )
        for record in RECORDS
    ),
    *(
        Rule(record, f"{record.name}(dequantize(x)) -> dequantize({record.name}(x))", _sink)
        for record in _MOVES
    ),
    Rule(
        TRANSPOSE,
        "transpose(dequantize(x, s)) -> dequantize(transpose(x), transpose(s)), s by channel",
        _sink_columns,
    ),
    *(
        Rule(record, f"{record.name}(dequantize(x, s)) -> dequantize, x and s known", _sink_known)
        for record in (RESHAPE, SLICE, PAD)
    ),
    Rule(MAX_POOL, "max_pool(dequantize(x)) -> dequantize(max_pool(x))", _sink_max),
    Rule(RELU, "relu(dequantize(x, s, z)) -> dequantize(max(x, z), s, z)", _sink_relu),
    Rule(
        CONCAT,
        "concat(dequantize(x, s), dequantize(y, s)) -> dequantize(concat(x, y), s)",
        _sink_concat,
    ),
    Rule(ADD, "cast(sum) * m + dequantize(b, m) -> cast(sum + b) * m", _add_bias),
    Rule(QUANTIZE, "quantize(dequantize(x, s, z), s, z) -> x", _cancel),
    Rule(QUANTIZE, "quantize(max(y, c)) -> quantize(y), where it saturates there", _drop_clamp),
    Rule(QUANTIZE, "quantize(move(y)) -> move(quantize(y))", _rise),
    Rule(QUANTIZE, "quantize(y, s, z) -> quantize(y * (1 / s), 1, z)", _divide_before),
)

RULES = tuple(map(_typed, _RULES))
