"""Operands whose dims may differ in a run: which of them repeat, and to what.

Two open dims that meet are equal in most models, and are then assumed to be. But ONNX lets either
be 1. An operand that comes from inputs by ops that cost little, such as a mask, is spread to the
other's dims by a `spread` op. A result of more work is not: it could not be fused with its user.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir.bounds import bounds_of, one_or
from aot.ir.dims import Dim, DimExpr, bounds, maximum, minimum, product, symbol, symbols
from aot.ir.graph import BROADCAST, Function, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ops.movement import SPREAD

MOST_OPS = 64  # that are looked at on the way from a value to the inputs
_LIGHT = (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW, Kind.SHAPE)


def spread_operands(
    rewriter: Rewriter, operands: Sequence[Value | None], origin: str, last: int = 0
) -> list[Value | None]:
    """The operands of a broadcasting op. Each operand with an open dim that a run may set to 1 gets
    a `spread` op.

    Args:
        last: trailing dims that do not broadcast, such as those of a matrix product.
    """
    if rewriter.block is not rewriter.function.block:
        return list(operands)  # extents of loops and branches are compared with those around them
    shapes = [() if v is None else v.type.dims[: v.type.rank - last] for v in operands]
    wanted = [list(shape) for shape in shapes]
    for axis in range(-max(map(len, shapes), default=0), 0):
        present = [n for n, shape in enumerate(shapes) if -axis <= len(shape)]
        extents = dict.fromkeys(shapes[n][axis] for n in present if shapes[n][axis] != 1)
        if len(extents) < 2 or all(isinstance(extent, int) for extent in extents):
            continue
        target = _target(rewriter.function, operands, shapes, axis, tuple(extents))
        for n in present:
            if target is not None and shapes[n][axis] in target[1]:
                wanted[n][axis] = target[0]
    result: list[Value | None] = []
    for value, shape in zip(operands, wanted, strict=True):
        dims = () if value is None else (*shape, *value.type.dims[len(shape) :])
        result.append(value if value is None else spread(rewriter, value, dims, origin))
    return result


def spread(rewriter: Rewriter, x: Value, shape: Sequence[Dim], origin: str) -> Value:
    """`x` with dims of `shape`, of which it may have 1 in a run; itself where the dims are the
    same."""
    if x.type.dims == tuple(shape):
        return x
    return rewriter.create(SPREAD, [x], {"shape": tuple(shape)}, origin).result


def spread_to(rewriter: Rewriter, x: Value, shape: Sequence[Dim], origin: str) -> Value:
    """`x` spread along open dims that an expansion to `shape` may find to be 1; `shape` has x's
    rank. Dims that stay are assumed to be those of `shape`."""
    function, wanted = rewriter.function, list(x.type.dims)
    light = is_light(function, x)
    for axis, (dim, other) in enumerate(zip(x.type.dims, shape, strict=True)):
        if dim == other or not is_open(function, dim, [other]) or other == 1:
            continue
        if isinstance(other, int):
            wanted[axis] = other
        elif rewriter.block is function.block and is_open(function, other, [dim]) and light:
            wanted[axis] = _broadcast([dim, other])
            function.assumptions[one_or(other, wanted[axis], BROADCAST)] = None
    return spread(rewriter, x, wanted, origin)


def is_open(function: Function, dim: Dim, others: Sequence[Dim]) -> bool:
    """Whether `dim` is an extent of inputs that may be 1, and that `others` do not depend on."""
    if not isinstance(dim, DimExpr) or not _is_plain(dim):
        return False
    names = symbols(dim)
    if any(_is_bound_to(other, names) for other in others if other != dim):
        return False
    low, high = bounds(dim, bounds_of(function.assumptions))
    return (low is None or low <= 1) and (high is None or high >= 1)


def is_light(function: Function, value: Value) -> bool:
    """Whether a value is computed from inputs and constants by a few ops of one element each."""
    pending, seen = [value], {value}
    while pending:
        op = pending.pop().op
        if op is None or not op.operands:
            continue
        if op.record.kind not in _LIGHT or len(seen) > MOST_OPS or op.blocks:
            return False
        fresh = [v for v in op.operands if v is not None and v not in seen]
        seen.update(fresh)
        pending += fresh
    return True


def _target(
    function: Function,
    operands: Sequence[Value | None],
    shapes: Sequence[Sequence[Dim]],
    axis: int,
    extents: Sequence[Dim],
) -> tuple[Dim, set[Dim]] | None:
    """(extent of the result, extents that are spread to it) along an axis; None if all stay."""
    spread = set(extents)
    for value, shape in zip(operands, shapes, strict=True):
        dim = shape[axis] if -axis <= len(shape) else 1
        may_be_one = value is not None and is_light(function, value)
        if dim in spread and not (may_be_one and is_open(function, dim, extents)):
            spread.discard(dim)
    kept = [extent for extent in extents if extent not in spread]
    if not spread:
        return None
    known = [extent for extent in kept if isinstance(extent, int)]
    return (known or kept or [_broadcast(extents)])[0], spread


def _broadcast(extents: Sequence[Dim]) -> Dim:
    """What extents of inputs broadcast to: the largest of them, or 0 where one is 0."""
    names = sorted({name for extent in extents for name in symbols(extent)})
    each: list[Dim] = [symbol(name) for name in names]
    return minimum(maximum(*each), product(each))


def _is_plain(dim: DimExpr) -> bool:
    """Whether a dim is a symbol, or what several broadcast to."""
    return dim == _broadcast([dim])


def _is_bound_to(other: Dim, names: set[str]) -> bool:
    """Whether a dim is computed from symbols, and not just what several broadcast to."""
    return isinstance(other, DimExpr) and not _is_plain(other) and bool(symbols(other) & names)
