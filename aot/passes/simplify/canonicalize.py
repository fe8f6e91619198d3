"""canonicalize: rewrites equivalent forms to a single one, and removes ops without effect.

Requires: nothing.
Ensures: no rule of `RULES` applies anywhere.
Never: changes a result by a bit (a NaN may change which NaN it is), or makes a program longer: a
    scatter by constant positions becomes several ops, which are one dispatch, and a concat of many
    open parts becomes concats of some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.ir.builtin import CONSTANT
from aot.ir.graph import ConstantData, Function, Module, Op, Value, casts_as_one
from aot.ir.rewriter import Rewriter
from aot.ops import contraction, elementwise, movement, selection
from aot.passes.base import Pass, PassContext
from aot.passes.simplify import canonicalize_scatters
from aot.passes.simplify.canonicalize_pads import pad_inside, without_far_taps
from aot.passes.simplify.rewriting import (
    Rewrite,
    Rule,
    RuleSet,
    constant_of,
    definer,
    is_all,
    like,
    make,
)

MAX_OPEN_PARTS = 12  # of a concat, where their extents are known on the device only


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        context.count("canonicalize", "rewritten", canonicalize(function))


def canonicalize(function: Function) -> int:
    """Applies the rules to a function; returns how many rewrites there were."""
    return _RULE_SET.apply(function)


# what does nothing


def _identity(op: Op, _: Rewriter) -> Value | None:
    return like(op, op.operands[0])


def _same_type_slice(op: Op, _: Rewriter) -> Value | None:
    steps = op.attrs["steps"]
    is_forward = isinstance(steps, tuple) and all(step == 1 for step in steps)
    return like(op, op.operands[0]) if is_forward else None


def _identity_transpose(op: Op, _: Rewriter) -> Value | None:
    perm = op.attrs["perm"]
    is_identity = isinstance(perm, tuple) and perm == tuple(range(len(perm)))
    return like(op, op.operands[0]) if is_identity else None


def _without_padding(op: Op, _: Rewriter) -> Value | None:
    pads = op.attrs["pads"]
    is_none = isinstance(pads, tuple) and all(p == 0 for p in pads)
    return like(op, op.operands[0]) if is_none else None


def _only_part(op: Op, _: Rewriter) -> Value | None:
    return like(op, op.operands[0]) if len(op.operands) == 1 else None


def _neutral(number: float, float_number: float) -> Rewrite:
    """A rule for x op number -> x; for floats the number must be `float_number`."""

    def rewrite(op: Op, _: Rewriter) -> Value | None:
        wanted = float_number if op.result.type.dtype.is_float else number
        return like(op, op.operands[0]) if is_all(op.operands[1], wanted) else None

    return rewrite


def _same_operands(first: int, second: int) -> Rewrite:
    def rewrite(op: Op, _: Rewriter) -> Value | None:
        is_same = op.operands[first] is op.operands[second]
        return like(op, op.operands[first]) if is_same else None

    return rewrite


# two of a kind


def _involution(op: Op, _: Rewriter) -> Value | None:
    inner = definer(op.operands[0], op.record)
    return None if inner is None else like(op, inner.operands[0])


def _idempotent(op: Op, _: Rewriter) -> Value | None:
    inner = definer(op.operands[0], op.record)
    return None if inner is None else like(op, inner.result)


def _skip_inner(op: Op, rewriter: Rewriter) -> Value | None:
    inner = definer(op.operands[0], op.record)
    return None if inner is None else make(op, rewriter, op.record, inner.operands[0], **op.attrs)


def _skip_neg(op: Op, rewriter: Rewriter) -> Value | None:
    inner = definer(op.operands[0], elementwise.NEG)
    return None if inner is None else make(op, rewriter, op.record, inner.operands[0])


def _join_transposes(op: Op, rewriter: Rewriter) -> Value | None:
    inner = definer(op.operands[0], op.record)
    if inner is None:
        return None
    outer_perm, inner_perm = op.attrs["perm"], inner.attrs["perm"]
    assert isinstance(outer_perm, tuple) and isinstance(inner_perm, tuple)
    joined = tuple(inner_perm[d] for d in outer_perm if isinstance(d, int))
    return make(op, rewriter, op.record, inner.operands[0], perm=joined)


def _skip_exact_cast(op: Op, _: Rewriter) -> Value | None:
    inner = definer(op.operands[0], op.record)
    if inner is None:
        return None
    value = inner.operands[0]
    if value is None or not casts_as_one(
        value.type.dtype, inner.result.type.dtype, op.result.type.dtype
    ):
        return None
    return like(op, value)


def _split_open_parts(op: Op, rewriter: Rewriter) -> Value | None:
    """Splits a concat with many parts, some with dynamic extents, into concats of concats: its
    kernel then finds an element's part by a short search in two levels. Parts with known extents
    need no search.
    """
    parts, axis = op.operands, op.int("axis")
    extents = [v.type.dims[axis] for v in parts if v is not None]
    if len(parts) <= MAX_OPEN_PARTS or all(isinstance(n, int) for n in extents):
        return None
    groups = [
        rewriter.create(op.record, parts[start : start + MAX_OPEN_PARTS], op.attrs, op.origin)
        for start in range(0, len(parts), MAX_OPEN_PARTS)
    ]
    return make(op, rewriter, op.record, *[group.result for group in groups], **op.attrs)


def _join_slices(op: Op, rewriter: Rewriter) -> Value | None:
    """Merges two neighbouring parts of a concat that are neighbouring slices of the same value."""
    axis = op.int("axis")
    for number in range(len(op.operands) - 1):
        first, second = (definer(v, movement.SLICE) for v in op.operands[number : number + 2])
        if first is None or second is None or first.operands != second.operands:
            continue
        cut, following = _cut(first), _cut(second)
        same = [d for d in range(len(cut)) if d != axis]
        if any(step != 1 for *_, step in (*cut, *following)) or (
            cut[axis][1] != following[axis][0] or any(cut[d] != following[d] for d in same)
        ):
            continue
        cut[axis] = (cut[axis][0], following[axis][1], 1)
        (whole,) = first.operands
        assert whole is not None
        if cut != [(0, extent, 1) for extent in whole.type.dims]:
            starts, stops, steps = zip(*cut, strict=True)
            attrs = {"starts": starts, "stops": stops, "steps": steps}
            whole = rewriter.create(movement.SLICE, [whole], attrs, first.origin).result
        parts = [*op.operands[:number], whole, *op.operands[number + 2 :]]
        return make(op, rewriter, op.record, *parts, **op.attrs)
    return None


def _cut(op: Op) -> list[Any]:
    """(start, stop, step) of a slice, by dim."""
    names = ("starts", "stops", "steps")
    return list(zip(*(op.attrs[n] for n in names), strict=True))


# another spelling


def _constant_last(op: Op, rewriter: Rewriter) -> Value | None:
    a, b = op.operands
    if constant_of(a) is None or constant_of(b) is not None:
        return None
    return make(op, rewriter, op.record, b, a, **op.attrs)


def _transpose_to_reshape(op: Op, rewriter: Rewriter) -> Value | None:
    perm, value = op.attrs["perm"], op.operands[0]
    assert isinstance(perm, tuple) and value is not None
    moved = [d for d in perm if isinstance(d, int) and value.type.dims[d] != 1]
    if moved != sorted(moved) or value.type.layout is not None:
        return None
    return make(op, rewriter, movement.RESHAPE, value, shape=op.result.type.dims)


def _exact_inverse(op: Op, rewriter: Rewriter) -> Value | None:
    """x / c -> x * (1 / c) for powers of two whose inverses are normal numbers: both round the same
    real number once.
    """
    x, data = op.operands[0], constant_of(op.operands[1])
    if x is None or data is None or not op.result.type.dtype.is_float or data.array.size == 0:
        return None
    with np.errstate(all="ignore"):
        numbers = data.array.astype(np.float64)
        inverse = 1 / numbers
        tiny = float(np.finfo(data.array.dtype).tiny)
        mantissa, _ = np.frexp(np.abs(numbers))
        fits = (mantissa == 0.5) & (np.abs(numbers) >= tiny) & (np.abs(inverse) >= tiny)
    if not fits.all() or not np.isfinite(inverse).all():
        return None
    rounded = ConstantData(inverse.astype(data.array.dtype))
    if not np.isfinite(rounded.array).all():
        return None
    constant = rewriter.create(CONSTANT, [], {"value": rounded}, op.origin).result
    return make(op, rewriter, elementwise.MUL, x, constant)


def _square(op: Op, rewriter: Rewriter) -> Value | None:
    if not is_all(op.operands[1], 2):
        return None
    return make(op, rewriter, elementwise.MUL, op.operands[0], op.operands[0])


def _swap_where(op: Op, rewriter: Rewriter) -> Value | None:
    inner = definer(op.operands[0], elementwise.NOT)
    return (
        None
        if inner is None
        else make(op, rewriter, op.record, inner.operands[0], op.operands[2], op.operands[1])
    )


RULES: tuple[Rule, ...] = (
    Rule(movement.RESHAPE, "reshape(x) of x's dims -> x", _identity),
    Rule(movement.RESHAPE, "reshape(reshape(x)) -> reshape(x)", _skip_inner),
    Rule(movement.TRANSPOSE, "transpose(x) in x's order -> x", _identity_transpose),
    Rule(
        movement.TRANSPOSE, "transpose(transpose(x, p), q) -> transpose(x, p[q])", _join_transposes
    ),
    Rule(
        movement.TRANSPOSE,
        "transpose(x) that moves extents of 1 only -> reshape(x)",
        _transpose_to_reshape,
    ),
    Rule(movement.BROADCAST_TO, "broadcast_to(x) of x's dims -> x", _identity),
    Rule(movement.BROADCAST_TO, "broadcast_to(broadcast_to(x)) -> broadcast_to(x)", _skip_inner),
    Rule(movement.SLICE, "x[0:n:1] -> x", _same_type_slice),
    Rule(movement.PAD, "pad(x) by nothing -> x", _without_padding),
    Rule(contraction.CONV, "conv(pad(x)) -> conv(x) with these pads", pad_inside),
    Rule(
        contraction.CONV,
        "conv(x, w) -> conv(x, w[taps that some window has in the image])",
        without_far_taps,
    ),
    Rule(selection.CONCAT, "concat(x) -> x", _only_part),
    Rule(
        selection.CONCAT, "concat(x, ..., y, ...) -> concat(concat(x, ...), ...)", _split_open_parts
    ),
    Rule(selection.CONCAT, "concat(x[i:j], x[j:k], ...) -> concat(x[i:k], ...)", _join_slices),
    Rule(elementwise.CAST, "cast(x) to x's dtype -> x", _identity),
    Rule(
        elementwise.CAST,
        "cast(cast(x, wide), narrow) -> x, where x is narrow and wide holds it",
        _skip_exact_cast,
    ),
    *(
        Rule(record, f"{record.name}(c, x) -> {record.name}(x, c)", _constant_last)
        for record in (
            elementwise.ADD,
            elementwise.MUL,
            elementwise.MINIMUM,
            elementwise.MAXIMUM,
            elementwise.EQUAL,
            elementwise.AND,
            elementwise.OR,
            elementwise.XOR,
        )
    ),
    # -0 + 0 is 0, but x + -0 is x and x - 0 is x for every x
    Rule(elementwise.ADD, "x + 0 -> x; of floats x + -0 -> x", _neutral(0, -0.0)),
    Rule(elementwise.SUB, "x - 0 -> x", _neutral(0, 0.0)),
    Rule(elementwise.MUL, "x * 1 -> x", _neutral(1, 1.0)),
    Rule(elementwise.DIV, "x / 1 -> x", _neutral(1, 1.0)),
    Rule(elementwise.DIV, "x / 2^k -> x * 2^-k", _exact_inverse),
    Rule(elementwise.POW, "pow(x, 1) -> x", _neutral(1, 1.0)),
    # a float's square is exact in twice its bits, so that both round it once
    Rule(elementwise.POW, "pow(x, 2) -> x * x", _square),
    Rule(elementwise.NEG, "-(-x) -> x", _involution),
    Rule(elementwise.NOT, "not not x -> x", _involution),
    *(
        Rule(record, f"{record.name}({record.name}(x)) -> {record.name}(x)", _idempotent)
        for record in (
            elementwise.RELU,
            elementwise.ABS,
            elementwise.FLOOR,
            elementwise.CEIL,
            elementwise.ROUND,
        )
    ),
    Rule(elementwise.ABS, "|-x| -> |x|", _skip_neg),
    *(
        Rule(record, f"{record.name}(x, x) -> x", _same_operands(0, 1))
        for record in (elementwise.MINIMUM, elementwise.MAXIMUM, elementwise.AND, elementwise.OR)
    ),
    Rule(elementwise.WHERE, "where(c, x, x) -> x", _same_operands(1, 2)),
    Rule(elementwise.WHERE, "where(not c, a, b) -> where(c, b, a)", _swap_where),
    *canonicalize_scatters.RULES,
)

_RULE_SET = RuleSet("canonicalize", RULES, is_exact=True)

CANONICALIZE = Pass("canonicalize", run, __doc__)
