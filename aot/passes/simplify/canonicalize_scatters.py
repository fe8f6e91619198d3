"""Canonicalize's rules for scatters at constant positions: each element gathers the last update
that reaches it, so that elements are computed in parallel.

Owns those equations. A scatter's kernel applies updates in order, by one lane for all that they can
reach; where positions are known, the last update that reaches an element is known too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import OpRecord, elementwise, lines, movement, put, selection
from aot.passes.simplify.algebra_terms import emit, reshaped
from aot.passes.simplify.rewriting import Rule, constant_of, definer

Positions = NDArray[np.int64]

_COMBINE: dict[str, OpRecord] = {
    "add": elementwise.ADD,
    "mul": elementwise.MUL,
    "max": elementwise.MAXIMUM,
    "min": elementwise.MINIMUM,
}
# Each element that could take an update gets its number and whether there is one. Where that
# takes so much more than the positions did, and more than this, few elements of many are written,
# and it stays a scatter.
_BYTES_AN_ELEMENT = 5
_MOST_GROWTH = 4
_LEAST_BYTES = 1 << 16
# Where there are so many lines along an axis, no longer than this, that lanes and workers have
# enough of them, the scatter's own kernel is as quick, and reads fewer positions.
_MANY_LINES = 256
_SHORT_LINE = 4096


@dataclass(frozen=True)
class _Writes:
    """The positions that a scatter writes, by update row.

    Attributes:
        rows: [updates, depth], counted from the front; in range where `is_inside`, of shape
            [updates].
        extents: of data's dims that a row names; the first ones.
        rest: of its other dims.
    """

    rows: Positions
    is_inside: NDArray[np.bool_]
    extents: tuple[int, ...]
    rest: tuple[Dim, ...]

    @staticmethod
    def of(rows: Positions, extents: tuple[int, ...], rest: tuple[Dim, ...]) -> _Writes:
        """The writes at the positions `rows`, where negative positions count from the end."""
        wrapped = np.where(rows < 0, rows + np.array(extents, np.int64), rows)
        is_inside = np.all((wrapped >= 0) & (wrapped < extents), axis=1)
        return _Writes(wrapped, is_inside, extents, rest)

    def box(self) -> tuple[Positions, Positions] | None:
        """(start, extents) if the updates are a box of the data, in its order; else None."""
        if not len(self.rows) or not self.is_inside.all():
            return None
        first, last = self.rows[0], self.rows[-1]
        sizes = last - first + 1
        if np.any(sizes < 1) or math.prod(sizes.tolist()) != len(self.rows):
            return None
        inside = np.indices(tuple(sizes), np.int64).reshape(len(sizes), -1).T
        return (first, sizes) if np.array_equal(inside + first, self.rows) else None

    def last_updates(self) -> tuple[Positions, bool]:
        """(index of each position's last update, or -1; whether no position has two updates)."""
        numbers = np.flatnonzero(self.is_inside)
        flat = np.zeros(len(numbers), np.int64)
        for column, extent in zip(self.rows[numbers].T, self.extents, strict=True):
            flat = flat * extent + column
        found = np.full(math.prod(self.extents), -1, np.int64)
        np.maximum.at(found, flat, numbers)
        return found, len(np.unique(flat)) == len(flat)


def _scatter_nd(op: Op, rewriter: Rewriter) -> Value | None:
    data, positions = op.operands[0], constant_of(op.operands[1])
    depth = op.int("depth")
    assert data is not None
    extents = tuple(d for d in data.type.dims[:depth] if isinstance(d, int))
    if len(extents) != depth or depth == 0:
        return None
    if positions is None:
        found = _box_of_columns(op.operands[1], depth)
        if found is None:
            return None
        first, sizes = found
        corners = _Writes.of(np.stack([first, first + sizes - 1]), extents, data.type.dims[depth:])
        is_box = corners.is_inside.all() and (corners.rows[1] - corners.rows[0] == sizes - 1).all()
        return _put(op, rewriter, corners, corners.rows[0], sizes) if is_box else None
    rows = positions.array.reshape(-1, depth).astype(np.int64)
    return _rewritten(op, rewriter, _Writes.of(rows, extents, data.type.dims[depth:]), positions)


def _box_of_columns(rows: Value | None, depth: int) -> tuple[Positions, Positions] | None:
    """(start, extents) of the box whose positions `rows` lists in order; None for other
    positions."""
    joined = definer(rows, selection.CONCAT)
    if rows is None or joined is None or len(joined.operands) != depth:
        return None
    sizes = tuple(d for d in rows.type.dims[:-1] if isinstance(d, int))
    if joined.attrs["axis"] != len(sizes) or not len(sizes) == rows.type.rank - 1 == depth:
        return None
    first: list[int] = []
    for number, column in enumerate(joined.operands):
        values = _unrepeated(column, sizes)
        if values is None or 0 in values.shape:
            return None
        begin = int(values.flat[0])
        line = np.arange(begin, begin + sizes[number]).reshape(
            [-1 if d == number else 1 for d in range(depth)]
        )
        if not np.array_equal(np.broadcast_to(values, np.broadcast(values, line).shape), line):
            return None
        first.append(begin)
    return np.array(first, np.int64), np.array(sizes, np.int64)


def _unrepeated(column: Value | None, sizes: tuple[int, ...]) -> Positions | None:
    """Constant positions of shape [*sizes, 1] without their broadcast: an array that broadcasts to
    `sizes`. None where they are no constant.
    """
    moved = definer(column, movement.RESHAPE)
    value = column if moved is None else moved.operands[0]
    repeated = definer(value, movement.BROADCAST_TO)
    inner = value if repeated is None else repeated.operands[0]
    data = constant_of(inner)
    if data is None or value is None or value.type.dims not in (sizes, (*sizes, 1)):
        return None
    array = data.array.reshape((1,) * (value.type.rank - data.array.ndim) + data.array.shape)
    return array[..., 0] if value.type.rank > len(sizes) else array


def _scatter_elements(op: Op, rewriter: Rewriter) -> Value | None:
    data, positions = op.operands[0], constant_of(op.operands[1])
    axis = op.int("axis")
    assert data is not None
    extents = tuple(d for d in data.type.dims if isinstance(d, int))
    if positions is None or len(extents) != data.type.rank:
        return None
    rows = np.indices(positions.array.shape, np.int64)
    rows[axis] = positions.array
    rows = rows.reshape(len(extents), -1).T
    line = extents[axis] + positions.array.shape[axis]
    is_parallel = line <= _SHORT_LINE and math.prod(extents) >= _MANY_LINES * extents[axis]
    writes = _Writes.of(rows, extents, ())
    return _rewritten(op, rewriter, writes, positions, only_box=is_parallel)


def _rewritten(
    op: Op,
    rewriter: Rewriter,
    writes: _Writes,
    positions: ConstantData,
    *,
    only_box: bool = False,
) -> Value | None:
    data, updates = op.operands[0], op.operands[2]
    assert data is not None
    assert updates is not None
    if not len(writes.rows):
        return data
    box = writes.box()
    if box is not None:
        return _put(op, rewriter, writes, *box)
    places = math.prod(writes.extents)
    most = max(_LEAST_BYTES, _MOST_GROWTH * positions.array.nbytes)
    if only_box or _BYTES_AN_ELEMENT * places > most:
        return None
    numbers, is_unique = writes.last_updates()
    if not is_unique and op.attrs["reduction"] != "none":
        return None
    shape = (len(writes.rows), *writes.rest)
    listed = reshaped(op, rewriter, updates, shape)
    index = _constant(op, rewriter, np.maximum(numbers, 0).reshape(writes.extents).astype(np.int32))
    chosen = _combined(op, rewriter, data, emit(op, rewriter, selection.GATHER, listed, index))
    is_updated = (numbers >= 0).reshape(*writes.extents, *(1 for _ in writes.rest))
    if is_updated.all():
        return chosen
    condition = _constant(op, rewriter, is_updated)
    return emit(op, rewriter, elementwise.WHERE, condition, chosen, data)


def _put(
    op: Op, rewriter: Rewriter, writes: _Writes, first: Positions, sizes: Positions
) -> Value | None:
    """Replaces a scatter whose updates form a box of data by a slice write of the updates, combined
    with the old data where the scatter combines."""
    data, updates = op.operands[0], op.operands[2]
    assert data is not None
    assert updates is not None
    shape = (*sizes.tolist(), *writes.rest)
    box = reshaped(op, rewriter, updates, shape)
    is_whole = shape == data.type.dims
    old = data
    if op.attrs["reduction"] != "none":
        if not is_whole:
            starts = (*first.tolist(), *(0 for _ in writes.rest))
            stops = (*(first + sizes).tolist(), *writes.rest)
            steps = tuple(1 for _ in starts)
            old = emit(op, rewriter, movement.SLICE, data, starts=starts, stops=stops, steps=steps)
        box = _combined(op, rewriter, old, box)
    if is_whole:
        return box
    begin = np.concatenate([first, np.zeros(len(writes.rest), np.int64)])
    return emit(op, rewriter, put.PUT_SLICE, data, box, _constant(op, rewriter, begin))


def _combined(op: Op, rewriter: Rewriter, old: Value, update: Value) -> Value:
    record = _COMBINE.get(str(op.attrs["reduction"]))
    return update if record is None else emit(op, rewriter, record, old, update)


def _constant(op: Op, rewriter: Rewriter, array: NDArray[np.generic]) -> Value:
    return emit(op, rewriter, CONSTANT, value=ConstantData(np.ascontiguousarray(array)))


RULES: tuple[Rule, ...] = (
    Rule(
        lines.SCATTER_ND,
        "scatter_nd(x, constant rows, u) -> x with a box, or with what gather(u) says",
        _scatter_nd,
    ),
    Rule(
        lines.SCATTER_ELEMENTS,
        "scatter_elements(x, constant positions, u) -> x with a box, or with what gather(u) says",
        _scatter_elements,
    ),
)
