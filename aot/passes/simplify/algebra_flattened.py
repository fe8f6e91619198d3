"""Rules of algebra for flattened images: the order of a product's sum is absorbed by its weights.

Owns the equation that sums the channels of a pixel one after the other, as a convolution whose
channels are innermost in memory makes them: then nothing moves between both.
"""

from __future__ import annotations

from math import prod

from aot.ir.dims import Dim
from aot.ir.graph import Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ops import contraction, movement
from aot.passes.simplify.algebra_terms import MAX_STEPS, emit, sole, will_fold
from aot.passes.simplify.bounds import REORDERS
from aot.passes.simplify.rewriting import Rule, make

# fewer channels may lie in planes, whose lines are vectors
LEAST_CHANNELS = 8
# a weight of more numbers takes longer to bring in order, while compiling, than that is worth
MOST_WEIGHTS = 1 << 24


def _is_image(value: Value) -> bool:
    """Whether a value is a convolution's result, possibly after windows and elementwise ops."""
    for _ in range(MAX_STEPS):
        op = value.op
        if op is None or len(op.results) != 1:
            return False
        if op.record is contraction.CONV:
            return True
        source = next(
            (v for v in op.operands if v is not None and v.type.rank == value.type.rank), None
        )
        if source is None or op.record.kind not in (Kind.ELEMENTWISE, Kind.REDUCTION):
            return False
        value = source
    return False


def _merged(source: tuple[Dim, ...], count: Dim) -> list[int] | None:
    """The trailing dims, of `count` elements together, that a reshape merges; None where it merges
    none."""
    extents: list[int] = []
    for extent in reversed(source):
        if prod(extents) == count:
            break
        if not isinstance(extent, int):
            return None
        extents.insert(0, extent)
    return extents if prod(extents) == count and len(extents) > 1 else None


def _channels_innermost(op: Op, rewriter: Rewriter) -> Value | None:
    x, weight = op.operands
    joined = sole(x, movement.RESHAPE)
    source = joined.operands[0] if joined is not None else None
    if x is None or joined is None or source is None or weight is None:
        return None
    if not will_fold(weight) or weight.type.rank != 2:
        return None
    extents = _merged(source.type.dims, x.type.dims[-1])
    moved = sole(source, movement.TRANSPOSE)
    image, perm = source, tuple(range(source.type.rank))
    if moved is not None and moved.operands[0] is not None:
        image, perm = moved.operands[0], call_of(moved).ints("perm")
    if extents is None or not 3 <= image.type.rank == len(perm) or not _is_image(image):
        return None
    first, channels = len(perm) - len(extents), perm.index(1)
    number = channels - first
    if number < 0 or extents[number] < LEAST_CHANNELS or prod(extents[number + 1 :]) == 1:
        return None
    if prod(extents) * weight.type.dims[1] > MOST_WEIGHTS:
        return None
    order = [*(n for n in range(len(extents)) if n != number), number]
    perm = (*perm[:first], *(perm[first + n] for n in order))
    shape = (*extents, weight.type.dims[1])
    apart = emit(op, rewriter, movement.RESHAPE, weight, shape=shape)
    turned = emit(op, rewriter, movement.TRANSPOSE, apart, perm=(*order, len(order)))
    weight = emit(op, rewriter, movement.RESHAPE, turned, shape=weight.type.dims)
    flat = emit(op, rewriter, movement.TRANSPOSE, image, perm=perm)
    flat = emit(op, rewriter, movement.RESHAPE, flat, shape=x.type.dims)
    return make(op, rewriter, op.record, flat, weight, **op.attrs)


RULES: tuple[Rule, ...] = (
    Rule(
        contraction.MATMUL,
        "flat(x) @ w -> flat(t(x)) @ t'(w), x an image that a convolution makes, t its channels "
        "innermost and t' the same of the rows of w",
        _channels_innermost,
        REORDERS,
    ),
)
