"""Sequences with data-dependent length, stored as tensors stacked along a new leading dim.

Owns how such a sequence is laid out, and how lists and stacks are brought to one layout. Tensors of
several shapes have zeros behind them in a stack, and their extents beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from aot.base.records import dataclass
from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.lib.extents import (
    check_is,
    dim_value,
    extent_of,
    is_made_inside,
    ragged,
    room,
    widened,
)
from aot.frontends.lib.place import Place
from aot.frontends.onnx.scopes import StackedList, TensorList
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Block, ConstantData, Value
from aot.ir.types import DType

I64 = DType.I64
AnyList = TensorList | StackedList


@dataclass(frozen=True)
class StackType:
    """The common type of a sequence's tensors.

    Attributes:
        most: dims that each of them fits into.
        ragged: axes along which they differ, ascending.
    """

    dtype: DType
    most: tuple[Dim, ...]
    ragged: tuple[int, ...] = ()

    def __str__(self) -> str:
        extents = ["?" if axis in self.ragged else str(n) for axis, n in enumerate(self.most)]
        return f"{self.dtype}[{', '.join(extents)}]"


def type_of(held: AnyList) -> list[StackType]:
    """The types of a sequence's tensors; empty for an empty list."""
    if isinstance(held, TensorList):
        return [StackType(v.type.dtype, v.type.dims) for v in held.values]
    return [StackType(held.values.type.dtype, held.values.type.dims[1:], held.axes)]


def joined(place: Place, types: Iterable[StackType], inside: Sequence[Block] = ()) -> StackType:
    """The common stack type of `types`, valid outside the blocks `inside`, which define some
    extents.

    Raises:
        CompileError: they differ in element type.
        UnsupportedNodeError: they differ in rank.
    """
    first, *others = types
    for other in others:
        found = f"its sequence has tensors {first} and {other}"
        if other.dtype is not first.dtype:
            raise place.error(found)
        if len(other.most) != len(first.most):
            raise UnsupportedNodeError(
                f"{found}, and data decide its length or a position in it; make that known at "
                "compile time, or give all tensors one rank"
            )
    most: list[Dim] = []
    ragged_axes: list[int] = []
    for axis in range(len(first.most)):
        extents = list(dict.fromkeys(t.most[axis] for t in (first, *others)))
        is_ragged = any(axis in t.ragged for t in (first, *others))
        is_hidden = any(is_made_inside(block, extents) for block in inside)
        if len(extents) == 1 and not is_hidden:
            most.append(extents[0])
        else:
            is_ragged = True
            most.append(dims.maximum(*(room(place, extent) for extent in extents)))
        if is_ragged:
            ragged_axes.append(axis)
    return StackType(first.dtype, tuple(most), tuple(ragged_axes))


def stacked(place: Place, held: AnyList, type: StackType) -> StackedList:
    """A sequence converted to a stack of the given type."""
    if isinstance(held, TensorList):
        return _listed(place, held, type)
    count, *own = held.values.type.dims
    if type_of(held) == [type]:
        return held
    columns = []
    for axis in type.ragged:
        if axis in held.axes:
            column = _column(place, held, held.axes.index(axis))
        else:
            extent = place.reshape(dim_value(place, own[axis]), (1, 1))
            column = place.emit("broadcast_to", extent, shape=(count, 1))
        columns.append(column)
    return StackedList(
        widened(place, held.values, (count, *type.most)),
        _side_by_side(place, columns, count),
        type.ragged,
    )


def _listed(place: Place, held: TensorList, type: StackType) -> StackedList:
    rows, extents = [], []
    for value in held.values:
        rows.append(place.reshape(widened(place, value, type.most), (1, *type.most)))
        columns = [
            place.reshape(dim_value(place, value.type.dims[axis]), (1, 1)) for axis in type.ragged
        ]
        extents.append(_side_by_side(place, columns, 1))
    if not rows:
        zero = ConstantData(np.zeros((), type.dtype.numpy))
        rows.append(place.emit("fill", shape=(0, *type.most), value=zero))
        shape, zero = (0, len(type.ragged)), ConstantData(np.zeros((), np.int64))
        extents.append(place.emit("fill", shape=shape, value=zero) if type.ragged else None)
    beside = [v for v in extents if v is not None]
    return StackedList(
        join(place, rows, 0), join(place, beside, 0) if type.ragged else None, type.ragged
    )


def join(place: Place, values: Sequence[Value], axis: int) -> Value:
    """`values` concatenated along `axis`; a single value itself."""
    return values[0] if len(values) == 1 else place.emit("concat", *values, axis=axis)


def _side_by_side(place: Place, columns: Sequence[Value], count: Dim) -> Value | None:
    return join(place, columns, 1) if columns else None


def _column(place: Place, held: StackedList, number: int) -> Value:
    """The extents of all tensors along a ragged axis: i64[n, 1]."""
    assert held.extents is not None
    count = held.extents.type.dims[0]
    if len(held.axes) == 1:
        return held.extents
    cut = {"starts": (0, number), "stops": (count, number + 1), "steps": (1, 1)}
    return place.emit("slice", held.extents, **cut)


def tensors_of(held: StackedList) -> list[Value]:
    """The one or two tensors that represent a stack: its rows, and their extents if they are
    ragged."""
    return [held.values] if held.extents is None else [held.values, held.extents]


def row_of(place: Place, value: Value, type: StackType) -> list[Value]:
    """A tensor in the form of a stack's row: padded to the largest extents, with its own
    extents."""
    parts = tensors_of(stacked(place, TensorList((value,)), type))
    return [place.reshape(v, v.type.dims[1:]) for v in parts]


def stack_of(parts: Sequence[Value], type: StackType) -> StackedList:
    """The stack represented by tensors of a type: rows, and their extents if they are ragged."""
    return StackedList(parts[0], parts[1] if type.ragged else None, type.ragged)


def length(held: StackedList) -> Dim:
    """The number of tensors in a sequence."""
    found: Dim = held.values.type.dims[0]
    return found


def part(place: Place, held: StackedList, start: Dim, stop: Dim) -> StackedList:
    """The tensors of a sequence from position `start` to `stop`."""

    def cut(value: Value) -> Value:
        rest = value.type.dims[1:]
        starts, steps = (start, *[0] * len(rest)), (1,) * value.type.rank
        return place.emit("slice", value, starts=starts, stops=(stop, *rest), steps=steps)

    extents = None if held.extents is None else cut(held.extents)
    return StackedList(cut(held.values), extents, held.axes)


def behind(place: Place, parts: Sequence[StackedList]) -> StackedList:
    """The concatenation of sequences of one type."""
    extents = [s.extents for s in parts if s.extents is not None]
    return StackedList(
        join(place, [s.values for s in parts], 0),
        join(place, extents, 0) if extents else None,
        parts[0].axes,
    )


def only(place: Place, held: StackedList) -> Value:
    """The tensor of a sequence with one element."""
    value = place.reshape(held.values, held.values.type.dims[1:])
    shape = list(value.type.dims)
    for number, axis in enumerate(held.axes):
        count = place.reshape(_column(place, held, number), ())
        shape[axis] = extent_of(place, count, shape[axis], "a tensor of its sequence")
    if not held.axes:
        return value
    rank = len(shape)
    return place.emit("slice", value, starts=(0,) * rank, stops=tuple(shape), steps=(1,) * rank)


def common_extent(place: Place, held: StackedList, axis: int) -> Dim:
    """The extent of all tensors along an axis, 0 if there are none; a run fails if they differ."""
    number = held.axes.index(axis)
    column = _column(place, held, number)
    most = place.emit("reduce_max", _with_zero(place, column), axes=(0, 1), keepdims=False)
    total = place.emit("reduce_sum", column, axes=(0, 1), keepdims=False)
    what = "tensors of its sequence have one shape"
    found = extent_of(place, most, held.values.type.dims[1 + axis], what)
    if_equal = place.emit("mul", most, dim_value(place, length(held)))
    check_is(place, place.emit("sub", if_equal, total), 0)
    return found


def _with_zero(place: Place, column: Value) -> Value:
    zero = ConstantData(np.zeros((), np.int64))
    return place.emit("concat", column, place.emit("fill", shape=(1, 1), value=zero), axis=0)


def level(place: Place, held: StackedList, axes: Sequence[int]) -> StackedList:
    """The sequence with uniform extents along `axes`; a run fails if its tensors differ there."""
    wanted = [axis for axis in held.axes if axis in axes]
    if not wanted:
        return held
    shape = list(held.values.type.dims)
    for axis in wanted:
        shape[1 + axis] = common_extent(place, held, axis)
    rank = len(shape)
    values = place.emit(
        "slice", held.values, starts=(0,) * rank, stops=tuple(shape), steps=(1,) * rank
    )
    rest = [number for number, axis in enumerate(held.axes) if axis not in wanted]
    columns = [_column(place, held, number) for number in rest]
    extents = _side_by_side(place, columns, length(held))
    return StackedList(values, extents, tuple(held.axes[n] for n in rest))


def concatenated(place: Place, held: StackedList, axis: int, *, is_new: bool) -> Value:
    """A sequence's tensors concatenated along an axis, or stacked along a new one."""
    rank = len(held.values.type.dims) - 1
    others = [d for d in range(rank) if is_new or d != axis]
    flat = level(place, held, others)
    count, *own = flat.values.type.dims
    if is_new:
        perm = [*range(1, rank + 1)]
        perm.insert(axis, 0)
        return place.emit("transpose", flat.values, perm=tuple(perm)) if axis else flat.values
    perm = [0, 1 + axis, *(1 + d for d in others)]
    values = flat.values
    if axis:
        values = place.emit("transpose", values, perm=tuple(perm))
    rest = [own[d] for d in others]
    if flat.extents is None:
        joined_rows = place.reshape(values, (dims.multiply(count, own[axis]), *rest))
    else:
        _, joined_rows = ragged(place, values, place.reshape(flat.extents, (count,)))
    if not axis:
        return joined_rows
    back = [*range(1, rank)]
    back.insert(axis, 0)
    return place.emit("transpose", joined_rows, perm=tuple(back))
