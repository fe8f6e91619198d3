"""algebra: rewrites by equations of real numbers, which may change the last bits of floats.

Requires: canonical form, constants folded. What it emits on constants wants folding after it.
Ensures: scales and shifts by constants stand in the weights and biases before them; a decomposed
    layer norm is `layer_norm`, and so are `gelu`, `hard_swish` and `attention`; where the contract
    of docs/internals/algebra.md permits.
Never: changes a result by more than its rule's bound, or where that bound may decide (before a
    discontinuity). Touches integers, or keeps the old op alive beside the new one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir.builtin import CONSTANT
from aot.ir.contraction import ContractionDims
from aot.ir.graph import ConstantData, Function, Module, Op, Value
from aot.ir.record import call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType
from aot.ops import elementwise, movement, reduction
from aot.passes.base import Pass, PassContext
from aot.passes.simplify import (
    algebra_activations,
    algebra_attention,
    algebra_flattened,
    algebra_shuffles,
)
from aot.passes.simplify.algebra_terms import (
    emit,
    is_along,
    may_round,
    shaped,
    sizes_of,
    sole,
    will_fold,
)
from aot.passes.simplify.bounds import REORDERS, replaces, rounds, scales
from aot.passes.simplify.rewriting import Rewrite, Rule, RuleSet, constant_of, definer, is_all, make

# The sizes of the weights of a sum, before and after they are scaled, add up to this at most, so
# that it overflows both ways or neither, of elements up to the largest number over this.
MOST_GAIN = {DType.F16: 2.0**8}
_MOST_GAIN = 2.0**32


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("algebra", "rewritten", rewrite(function))


def rewrite(function: Function) -> int:
    """Applies the rules to a function; returns how many rewrites there were."""
    return _RULE_SET.apply(function)


# scales and shifts into weights


def _sole_contraction(value: Value | None) -> tuple[Op, ContractionDims] | None:
    """The contraction that makes `value`, if it has a single user; else None."""
    maker = None if value is None else value.op
    if maker is None or maker.record.contraction is None or sole(value, maker.record) is None:
        return None
    return maker, maker.record.contraction(call_of(maker))


def _scale_columns(op: Op, rewriter: Rewriter) -> Value | None:
    """Merges a multiplication or division by column into the contraction's weights and bias."""
    found, scale = _sole_contraction(op.operands[0]), op.operands[1]
    if found is None:
        return None
    maker, dims = found
    if scale is None or not is_along(scale, op.result.type.rank, dims.column):
        return None
    if not _may_be_scaled(op, maker, dims, scale):
        return None
    operands: list[Value | None] = [*maker.operands]
    for number, column in ((dims.right.operand, dims.right.own[0]), (dims.bias, 0)):
        part = None if number is None or number >= len(operands) else operands[number]
        if number is None or part is None:
            continue
        # a weight that is stored quantised keeps its numbers: its scales are another operand
        if not will_fold(part) or part.type.dtype is not op.result.type.dtype:
            return None
        if number == dims.right.operand and _is_widened(part):
            return None
        extents = part.type.dims
        shape = tuple(n if d == column else 1 for d, n in enumerate(extents))
        factor = shaped(op, rewriter, scale, shape)
        operands[number] = emit(op, rewriter, op.record, part, factor)
    return make(op, rewriter, maker.record, *operands, **maker.attrs)


def _may_be_scaled(op: Op, maker: Op, dims: ContractionDims, scale: Value) -> bool:
    """Whether a scale may move into the weights: no weight underflows, no sum overflows in only one
    of the two forms, and no bias serves to round.
    """
    dtype, weight = op.result.type.dtype, maker.operands[dims.right.operand]
    found, factor = sizes_of(weight), sizes_of(scale)
    if weight is None or found is None or factor is None or factor.has_subnormal:
        return False
    fresh = found.times(factor) if op.record is elementwise.MUL else found.over(factor)
    if fresh is None or not fresh.keeps_bits_in(dtype):
        return False
    terms, columns = weight.type.element_count, weight.type.dims[dims.right.own[0]]
    if not isinstance(terms, int) or not isinstance(columns, int):
        return False
    gain = max(found.largest, fresh.largest) * terms / max(columns, 1)
    if gain > MOST_GAIN.get(dtype, _MOST_GAIN):
        return False
    bias = maker.operands[dims.bias] if _has_bias(maker, dims) and dims.bias is not None else None
    addend = None if bias is None else sizes_of(bias)
    return bias is None or (addend is not None and not may_round(addend, dtype))


def _has_bias(maker: Op, dims: ContractionDims) -> bool:
    number = dims.bias
    return (
        number is not None and number < len(maker.operands) and maker.operands[number] is not None
    )


def _is_widened(value: Value) -> bool:
    """Whether the value was cast from a narrower dtype, which could not hold a scale."""
    cast = definer(value, elementwise.CAST)
    source = None if cast is None else cast.operands[0]
    return source is not None and source.type.dtype.bits < value.type.dtype.bits


def _shift_columns(*, has_bias: bool) -> Rewrite:
    """A rule that turns an added vector into the bias of a contraction without one, or, with
    `has_bias`, adds it to the existing bias.
    """

    def rewrite(op: Op, rewriter: Rewriter) -> Value | None:
        found, shift = _sole_contraction(op.operands[0]), op.operands[1]
        if found is None:
            return None
        maker, dims = found
        number = dims.bias
        if number is None or shift is None or _has_bias(maker, dims) is not has_bias:
            return None
        if not is_along(shift, op.result.type.rank, dims.column):
            return None
        operands = [*maker.operands, *(None for _ in range(len(maker.operands), number + 1))]
        bias = operands[number]
        if bias is not None and not _may_be_one(bias, shift):
            return None
        total = shaped(op, rewriter, shift, (op.result.type.dims[dims.column],))
        if bias is not None:
            total = emit(op, rewriter, elementwise.ADD, bias, total)
        operands[number] = total
        return make(op, rewriter, maker.record, *operands, **maker.attrs)

    return rewrite


def _may_be_one(bias: Value, shift: Value) -> bool:
    """Whether two addends may be merged: neither is a trick constant that serves to round."""
    found = [sizes_of(v) for v in (bias, shift)] if will_fold(bias) else [None]
    return all(sizes is not None and not may_round(sizes, bias.type.dtype) for sizes in found)


# zeros and divisions


def _add_nothing(op: Op, _: Rewriter) -> Value | None:
    """x + 0 -> x, where x comes from an op whose contract leaves the sign of zero open, such as a
    sum.
    """
    x, other = op.operands
    if x is None or x.type != op.result.type or not x.type.dtype.is_float or not is_all(other, 0):
        return None
    maker = x.op
    while maker is not None and maker.record in (movement.RESHAPE, movement.TRANSPOSE):
        maker = None if maker.operands[0] is None else maker.operands[0].op
    return x if maker is not None and maker.record.rounds_freely else None


def _multiply_by_inverse(op: Op, rewriter: Rewriter) -> Value | None:
    """x / c -> x * (1 / c), for constants of at least 1 with normal inverses, so that neither form
    overflows.
    """
    x, divisor = op.operands
    data, sizes = constant_of(divisor), sizes_of(divisor)
    if x is None or data is None or divisor is None or sizes is None or will_fold(x):
        return None
    largest = 1 / float(np.finfo(data.array.dtype).tiny)
    if (
        data.array.size == 0
        or sizes.has_zero
        or sizes.has_subnormal
        or sizes.least < 1
        or sizes.largest > largest
    ):
        return None
    one = emit(op, rewriter, CONSTANT, value=_one_like(data.array))
    return make(op, rewriter, elementwise.MUL, x, emit(op, rewriter, elementwise.DIV, one, divisor))


def _one_like(array: np.ndarray) -> object:
    return ConstantData(np.ones((), array.dtype))


# layer norm


def _last_dims_mean(value: Value | None) -> tuple[Op, int] | None:
    """(mean op, first of its dims) of a mean over the last dims that keeps them; None
    for others.
    """
    op = definer(value, reduction.REDUCE_MEAN)
    if op is None or not op.attrs["keepdims"]:
        return None
    axes, operand = op.attrs["axes"], op.operands[0]
    assert isinstance(axes, tuple) and operand is not None
    first = operand.type.rank - len(axes)
    return (op, first) if axes == tuple(range(first, operand.type.rank)) else None


def _layer_norm(op: Op, rewriter: Rewriter) -> Value | None:
    centred, spread = op.operands
    root = definer(spread, elementwise.SQRT)
    if root is None:
        return None
    variance = _variance_of(root.operands[0], centred)
    minus = definer(centred, elementwise.SUB)
    if variance is None or minus is None:
        return None
    epsilon, axis = variance
    x, mean = minus.operands
    found = _last_dims_mean(mean)
    if x is None or found is None or found[1] != axis or found[0].operands[0] is not x:
        return None
    if not x.type.dtype.is_float:
        return None
    return make(op, rewriter, reduction.LAYER_NORM, x, axis=axis, epsilon=epsilon)


def _unmerged_norm(op: Op, rewriter: Rewriter) -> Value | None:
    """Normalises over an image's own dims instead of a reshape that merges them: with channels
    innermost, groups of channels are not contiguous."""
    if not _has_no_affine(op):
        return None
    merged = definer(op.operands[0], movement.RESHAPE)
    x, axis = merged.operands[0] if merged is not None else None, op.attrs["axis"]
    if x is None or merged is None or not isinstance(axis, int):
        return None
    dims, given = x.type.dims, merged.result.type.dims
    # [N, G, the rest] of [N, C, spatial...]
    if axis != 2 or len(given) != 3 or len(dims) < 3 or given[0] != dims[0]:
        return None
    if not isinstance(dims[1], int) or not isinstance(given[1], int) or dims[1] % given[1]:
        return None
    each = dims[1] // given[1]
    apart = dims if each == 1 else (dims[0], given[1], each, *dims[2:])
    source = x if each == 1 else emit(op, rewriter, movement.RESHAPE, x, shape=apart)
    normal = emit(op, rewriter, reduction.LAYER_NORM, source, **op.attrs)
    return emit(op, rewriter, movement.RESHAPE, normal, shape=given)


def _variance_of(value: Value | None, centred: Value | None) -> tuple[float, int] | None:
    """(epsilon, first dim), where `value` is mean(centred * centred) + epsilon; else None."""
    total = definer(value, elementwise.ADD)
    if total is None:
        return None
    epsilon = constant_of(total.operands[1])
    if epsilon is None or epsilon.array.size != 1:
        return None
    found = _last_dims_mean(total.operands[0])
    square = definer(found[0].operands[0], elementwise.MUL) if found is not None else None
    if found is None or square is None or square.operands != [centred, centred]:
        return None
    return float(epsilon.array.reshape(-1)[0]), found[1]


def _affine(number: int, is_free: Callable[[Op], bool]) -> Rewrite:
    """A rule that turns a constant with the normalised dims into layer_norm's operand `number`."""

    def rewrite(op: Op, rewriter: Rewriter) -> Value | None:
        norm, constant = sole(op.operands[0], reduction.LAYER_NORM), op.operands[1]
        if norm is None or constant is None or constant_of(constant) is None or not is_free(norm):
            return None
        operands = [*norm.operands, None, None][:3]
        axis = norm.int("axis")
        if constant.type.dims != norm.result.type.dims[axis:]:
            return None
        operands[number] = constant
        return make(op, rewriter, norm.record, *operands, **norm.attrs)

    return rewrite


def _has_no_bias(norm: Op) -> bool:
    return len(norm.operands) < 3 or norm.operands[2] is None


def _has_plain_scale(norm: Op) -> bool:
    return _has_no_bias(norm) and (len(norm.operands) < 2 or _is_one(norm.operands[1]))


def _is_one(scale: Value | None) -> bool:
    return scale is None or is_all(scale, 1)


def _has_no_affine(norm: Op) -> bool:
    return all(v is None for v in norm.operands[1:])


def _plain_scale(op: Op, rewriter: Rewriter) -> Value | None:
    x, *affine = op.operands
    if not affine or affine[0] is None or not is_all(affine[0], 1):
        return None
    rest = [None, *affine[1:]] if any(v is not None for v in affine[1:]) else []
    return make(op, rewriter, op.record, x, *rest, **op.attrs)


RULES: tuple[Rule, ...] = (
    Rule(
        elementwise.MUL,
        "(x @ w + b) * s -> x @ (w * s) + b * s, s a column's, of any contraction",
        _scale_columns,
        scales(2),
    ),
    Rule(
        elementwise.DIV,
        "(x @ w + b) / s -> x @ (w / s) + b / s, s a column's, of any contraction",
        _scale_columns,
        scales(2),
    ),
    Rule(
        elementwise.ADD,
        "x @ w + t -> x @ w + t, t a column's, as the bias of a contraction without one",
        _shift_columns(has_bias=False),
        REORDERS,
    ),
    Rule(
        elementwise.ADD,
        "(x @ w + b) + t -> x @ w + (b + t), t a column's, of contractions with a bias",
        _shift_columns(has_bias=True),
        scales(2),
    ),
    Rule(
        elementwise.DIV,
        "(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) -> layer_norm(x)",
        _layer_norm,
        replaces(4),
    ),
    Rule(
        elementwise.ADD,
        "x + 0 -> x, which makes -0 of +0, x a sum or a function that isn't rounded correctly",
        _add_nothing,
        replaces(0),
    ),
    Rule(elementwise.DIV, "x / c -> x * (1 / c), |c| >= 1", _multiply_by_inverse, rounds(2)),
    Rule(reduction.LAYER_NORM, "layer_norm(x, 1, b) -> layer_norm(x, -, b)", _plain_scale),
    Rule(
        reduction.LAYER_NORM,
        "layer_norm(reshape(x)) -> reshape(layer_norm(x)), of an image [N, C, ...] as [N, G, rest]",
        _unmerged_norm,
        REORDERS,
    ),
    Rule(
        elementwise.MUL,
        "layer_norm(x) * s -> layer_norm(x, s)",
        _affine(1, _has_plain_scale),
        replaces(2),
    ),
    Rule(
        elementwise.ADD,
        "layer_norm(x, s) + b -> layer_norm(x, s, b)",
        _affine(2, _has_no_bias),
        replaces(2),
    ),
    *algebra_activations.RULES,
    *algebra_attention.RULES,
    *algebra_shuffles.RULES,
    *algebra_flattened.RULES,
)

_RULE_SET = RuleSet("algebra", RULES)

ALGEBRA = Pass("algebra", run, __doc__)
