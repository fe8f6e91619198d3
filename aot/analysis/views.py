"""Which values are other values' bytes: the layouts under which a movement moves nothing.

The one place that says whether a transpose, reshape or slice is free, and how a type's layout is
written: canonical types that place every element alike are equal. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from aot.ir import dims
from aot.ir.core import Op
from aot.ir.dims import Dim
from aot.ir.index_map import IndexMap, Reshape, Slice, Step, Transpose, step_dims
from aot.ir.types import Layout, TensorType
from aot.ops.movement import shortest_group
from aot.ops.record import call_of

Axes = list[tuple[Dim, Dim]]
"""Extent and stride of each logical dim."""


def memory_order(type: TensorType) -> tuple[int, ...]:
    """The logical dims of `type` as they lie in memory, outermost first.

    A layout with strides names the order where it isn't the natural one, as strides that are
    parameters of an executable don't show it.
    """
    layout = type.layout
    if layout is None or not layout.order:
        return tuple(range(type.rank))
    return tuple(d for d in layout.order if d < type.rank)


def canonical(type: TensorType) -> TensorType:
    """The type with its layout in the one way to write it: none where it is dense, an order where
    one says it. Where dims of extent 1 stand makes no difference, and they keep their places."""
    if type.layout is None or type.layout.splits:
        return type
    return _typed(type, list(zip(type.dims, type.strides, strict=True)))


def view_type(map: IndexMap, type: TensorType) -> TensorType | None:
    """The type under which what `map` makes of a value of `type` is that value's bytes.

    A slice's bytes begin at `view_offset`. None where no layout does it: a reshape of what doesn't
    lie in order, elements repeated or taken backwards, a dim in pieces of a layout with splits.
    """
    if type.layout is not None and type.layout.splits:
        return type if map.is_identity else None
    axes: Axes = list(zip(type.dims, type.strides, strict=True))
    for step in map.steps:
        seen = _seen(axes, step)
        if seen is None:
            return None
        axes = seen
    return _typed(type, axes)


def view_offset(map: IndexMap, type: TensorType) -> Dim:
    """How many elements of a value of `type` lie before the first one of its view by `map`."""
    offset: Dim = 0
    for step in map.steps:
        if isinstance(step, Slice):
            for start, stride in zip(step.starts, type.strides, strict=True):
                offset = dims.add(offset, dims.multiply(start, stride))
        seen = view_type(IndexMap((step,)), type)
        if seen is None:
            raise ValueError(f"{map} makes no view of {type}")
        type = seen
    return offset


def map_of(op: Op) -> IndexMap | None:
    """What the op's result is as a map of its only operand, where it is one."""
    return None if op.record.index_map is None else op.record.index_map(call_of(op))


def is_view(op: Op) -> bool:
    """Whether the op's result is bytes of its operand, as the types of both are now."""
    map = map_of(op)
    if map is None:
        return op.record.view_of is not None
    source, result = op.operands[0], op.result.type
    if source is None:
        return False
    seen = view_type(map, source.type)
    return (
        seen is not None and seen.dtype is result.dtype and seen.layout == canonical(result).layout
    )


def _seen(axes: Axes, step: Step) -> Axes | None:
    """The axes after one step, or None where it can't be a view."""
    if isinstance(step, Transpose):
        return [axes[p] for p in step.perm]
    if isinstance(step, Reshape):
        return _reshaped(axes, step.dims)
    if isinstance(step, Slice) and min(step.steps, default=1) > 0:
        extents = step_dims(step, tuple(extent for extent, _ in axes))
        return [
            (extent, dims.multiply(stride, by))
            for extent, (_, stride), by in zip(extents, axes, step.steps, strict=True)
        ]
    return None


def _reshaped(axes: Axes, fresh: Sequence[Dim]) -> Axes | None:
    """The axes of a view of other dims, or None where it would have to move elements."""
    if any(extent == 0 for extent in fresh) or _layout(axes) is None:
        return _dense(fresh)
    old = [axis for axis in axes if axis[0] != 1]
    left = [number for number, extent in enumerate(fresh) if extent != 1]
    found: list[tuple[Dim, Dim]] = [(extent, 1) for extent in fresh]
    while old and left:
        a, b = shortest_group([extent for extent, _ in old], [fresh[d] for d in left])
        for outer, inner in pairwise(old[:a]):
            if outer[1] != dims.multiply(inner[1], inner[0]):
                return None
        step = old[a - 1][1]
        for number in reversed(left[:b]):
            found[number] = (fresh[number], step)
            step = dims.multiply(step, fresh[number])
        old, left = old[a:], left[b:]
    # what is left has extents that are 1 without being known to be
    return found if not old and not left else None


def _dense(extents: Sequence[Dim]) -> Axes:
    step: Dim = 1
    found: Axes = []
    for extent in reversed(extents):
        found.insert(0, (extent, step))
        step = dims.multiply(step, extent)
    return found


def _typed(type: TensorType, axes: Axes) -> TensorType:
    """`type` with these dims, its layout in canonical form."""
    extents = tuple(extent for extent, _ in axes)
    return replace(type, dims=extents, layout=_layout(axes))


def _layout(axes: Axes) -> Layout | None:
    if any(extent == 0 for extent, _ in axes):
        return None
    wide = [d for d, (extent, _) in enumerate(axes) if extent != 1]
    found: list[int] = []
    step: Dim = 1
    while len(found) < len(wide):
        following = next((d for d in wide if d not in found and axes[d][1] == step), None)
        if following is None:
            strides = tuple(1 if extent == 1 else stride for extent, stride in axes)
            by_distance = sorted(wide, key=lambda d: -_distance(axes[d][1]))
            return Layout(order=_order(len(axes), wide, by_distance), strides=strides)
        found.insert(0, following)
        step = dims.multiply(step, axes[following][0])
    order = _order(len(axes), wide, found)
    return Layout(order=order) if order else None


def _order(rank: int, wide: Sequence[int], moved: Sequence[int]) -> tuple[int, ...]:
    """`moved` in the places of `wide`, the other dims in their own; empty for the natural order."""
    following = iter(moved)
    order = tuple(next(following) if d in wide else d for d in range(rank))
    return () if order == tuple(range(rank)) else order


def _distance(stride: Dim) -> int:
    """A stride as a number to compare by; unknown dims count as 64."""
    known = dims.substitute(stride, dict.fromkeys(dims.symbols(stride), 64))
    return known if isinstance(known, int) else 1 << 30
