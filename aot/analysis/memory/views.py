"""Views: layouts with which a movement op's result shares its operand's bytes.

The one place that says whether a transpose, reshape or slice is free, and how a type's layout is
written: canonical types that place every element alike are equal. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from aot.ir import dims
from aot.ir.assumed_extents import STRIDE
from aot.ir.dims import Dim
from aot.ir.graph import Op
from aot.ir.index_map import IndexMap, Reshape, Slice, Step, Transpose, step_dims
from aot.ir.record import call_of
from aot.ir.types import Layout, TensorType
from aot.ops.movement import shortest_group


class _Axis(NamedTuple):
    """A logical dim in memory: extent and stride in elements.

    With a `factor` it is stored in pieces of that many elements: `stride` is from piece to piece,
    `inner` from element to element of one.
    """

    extent: Dim
    stride: Dim
    factor: Dim = 0
    inner: Dim = 0


Axes = list[_Axis]


def memory_order(type: TensorType) -> tuple[int, ...]:
    """The logical dims of `type` in the order of memory, outermost first.

    A layout with strides names the order where it isn't the natural one, as strides that are
    parameters of an executable don't show it.
    """
    layout = type.layout
    if layout is None or not layout.order:
        return tuple(range(type.rank))
    return tuple(d for d in layout.order if d < type.rank)


def canonical(type: TensorType) -> TensorType:
    """The type with its layout in canonical form: no layout if it is dense, an order where that
    suffices. Positions of dims with extent 1 are kept.
    """
    axes = None if type.layout is None else _axes(type)
    return type if axes is None else _typed(type, axes)


def view_type(map: IndexMap, type: TensorType, *, may_split: bool = False) -> TensorType | None:
    """The type of `map`'s result as a view of a value of `type`; None if it cannot be a view.

    A slice's bytes begin at `view_offset`. None where no layout does it: a reshape of what doesn't
    are in order, elements repeated or taken backwards, a part of a dim that is in pieces. With
    `may_split` a reshape may join two dims to one that is in pieces.
    """
    axes = _axes(type)
    if axes is None:
        return type if map.is_identity else None
    for step in map.steps:
        seen = _seen(axes, step, may_split=may_split)
        if seen is None:
            return None
        axes = seen
    return _typed(type, axes)


def view_offset(map: IndexMap, type: TensorType) -> Dim:
    """The element offset at which the view by `map` of a value of `type` starts."""
    offset: Dim = 0
    for step in map.steps:
        axes = _axes(type)
        if isinstance(step, Slice) and axes is not None:
            for start, axis in zip(step.starts, axes, strict=True):
                offset = dims.add(offset, dims.multiply(start, axis.stride))
        seen = view_type(IndexMap((step,)), type)
        if seen is None:
            raise ValueError(f"{map} makes no view of {type}")
        type = seen
    return offset


def map_of(op: Op) -> IndexMap | None:
    """The index map from the op's result to its only operand, if the op has one; else None."""
    return None if op.record.index_map is None else op.record.index_map(call_of(op))


def is_view(op: Op) -> bool:
    """Whether the op's result shares its operand's bytes, given the types of both."""
    if op.record.index_map is None:
        return op.record.view_of is not None
    source = op.operands[0]
    if source is None:
        return False
    result = op.result.type
    key = (op.name, *op.attrs.values(), source.type, result)
    known = _VIEWS.get(key)
    if known is None:
        map = map_of(op)
        seen = None if map is None else view_type(map, source.type)
        known = (
            seen is not None
            and seen.dtype is result.dtype
            and seen.layout == canonical(result).layout
        )
        if len(_VIEWS) >= MAX_VIEWS:
            _VIEWS.clear()
        _VIEWS[key] = known
    return known


# What `is_view` said of movements between types: passes ask it of an op many times over.
_VIEWS: dict[Hashable, bool] = {}
MAX_VIEWS = 1 << 14


def _axes(type: TensorType) -> Axes | None:
    """The memory axes of a type; None for padded or nested splits."""
    layout = type.layout
    if layout is None or not layout.splits:
        return [
            _Axis(extent, stride) for extent, stride in zip(type.dims, type.strides, strict=True)
        ]
    split = dict(layout.splits)
    if len(split) != len(layout.splits) or any(
        dims.modulo(type.dims[d], factor) != 0 for d, factor in layout.splits
    ):
        return None
    strides = type.physical_strides
    found = [_Axis(extent, stride) for extent, stride in zip(type.dims, strides, strict=False)]
    for number, (d, factor) in enumerate(layout.splits):
        found[d] = found[d]._replace(factor=factor, inner=strides[type.rank + number])
    return found


def _seen(axes: Axes, step: Step, *, may_split: bool) -> Axes | None:
    """The memory axes after one movement step; None where it cannot be a view."""
    if isinstance(step, Transpose):
        return [axes[p] for p in step.perm]
    if isinstance(step, Reshape):
        return _reshaped(axes, step.dims, may_split=may_split)
    if isinstance(step, Slice) and min(step.steps, default=1) > 0:
        extents = step_dims(step, tuple(axis.extent for axis in axes))
        if any(a.factor and a.extent != n for a, n in zip(axes, extents, strict=True)):
            return None
        return [
            axis._replace(extent=extent, stride=dims.multiply(axis.stride, by))
            for extent, axis, by in zip(extents, axes, step.steps, strict=True)
        ]
    return None


def _reshaped(axes: Axes, fresh: Sequence[Dim], *, may_split: bool) -> Axes | None:
    """The memory axes of a reshaped view; None where elements would have to move."""
    if any(extent == 0 for extent in fresh) or _layout(axes) is None:
        return _dense(fresh)
    old = [axis for axis in axes if axis.extent != 1]
    left = [number for number, extent in enumerate(fresh) if extent != 1]
    found = [_Axis(extent, 1) for extent in fresh]
    while old and left:
        a, b = shortest_group([axis.extent for axis in old], [fresh[d] for d in left])
        group = _regrouped(old[:a], [fresh[d] for d in left[:b]], may_split=may_split)
        if group is None:
            return None
        for number, axis in zip(left[:b], group, strict=True):
            found[number] = axis
        old, left = old[a:], left[b:]
    # what is left has extents that are 1 without being known to be
    return found if not old and not left else None


def _regrouped(old: Axes, fresh: Sequence[Dim], *, may_split: bool) -> Axes | None:
    """`old` regrouped into axes of extents `fresh`, which have as many elements; None where a group
    is not contiguous."""
    if len(old) == len(fresh) == 1:
        return old
    if len(old) == 1 and old[0].factor:
        (axis,) = old
        is_cut = len(fresh) == 2 and fresh[1] == axis.factor
        return [_Axis(fresh[0], axis.stride), _Axis(fresh[1], axis.inner)] if is_cut else None
    if any(axis.factor for axis in old):
        return None
    for outer, inner in pairwise(old):
        if outer.stride != dims.multiply(inner.stride, inner.extent):
            first, last = old[0], old[-1]
            if may_split and len(old) == 2 and len(fresh) == 1 and isinstance(last.extent, int):
                return [_Axis(fresh[0], first.stride, last.extent, last.stride)]
            return None
    found: Axes = []
    step = old[-1].stride
    for extent in reversed(fresh):
        found.insert(0, _Axis(extent, step))
        step = dims.multiply(step, extent)
    return found


def _dense(extents: Sequence[Dim]) -> Axes:
    step: Dim = 1
    found: Axes = []
    for extent in reversed(extents):
        found.insert(0, _Axis(extent, step))
        step = dims.multiply(step, extent)
    return found


def _typed(type: TensorType, axes: Axes) -> TensorType:
    """`type` with the extents and the canonical layout of `axes`."""
    extents = tuple(axis.extent for axis in axes)
    return replace(type, dims=extents, layout=_layout(axes))


def _layout(axes: Axes) -> Layout | None:
    return _layout_of(tuple(axes))


@lru_cache(maxsize=1 << 12)  # layers that are alike have the same views
def _layout_of(axes: tuple[_Axis, ...]) -> Layout | None:
    if any(axis.extent == 0 for axis in axes):
        return None
    splits = tuple((d, axis.factor) for d, axis in enumerate(axes) if axis.factor)
    # physical dims: each logical one, or its pieces; then what is in pieces
    physical: list[tuple[Dim, Dim]] = [
        (dims.floor_divide(a.extent, a.factor) if a.factor else a.extent, a.stride) for a in axes
    ]
    physical += [(factor, axes[d].inner) for d, factor in splits]
    wide = [d for d, (extent, _) in enumerate(physical) if extent != 1]
    found: list[int] = []
    step: Dim = 1
    while len(found) < len(wide):
        following = next((d for d in wide if d not in found and physical[d][1] == step), None)
        if following is None:
            strides = tuple(1 if extent == 1 else stride for extent, stride in physical)
            by_distance = sorted(wide, key=lambda d: -_distance(physical[d][1]))
            return Layout(splits, _order(len(physical), wide, by_distance), strides)
        found.insert(0, following)
        step = dims.multiply(step, physical[following][0])
    order = _order(len(physical), wide, found)
    return Layout(splits, order) if order or splits else None


def _order(rank: int, wide: Sequence[int], moved: Sequence[int]) -> tuple[int, ...]:
    """`moved` at the positions of `wide`, other dims at their own; empty for the natural order."""
    following = iter(moved)
    order = tuple(next(following) if d in wide else d for d in range(rank))
    return () if order == tuple(range(rank)) else order


def _distance(stride: Dim) -> int:
    """A stride as a number to compare by; unknown dims are assumed."""
    known = dims.estimate(stride, STRIDE)
    return 1 << 30 if known is None else known
