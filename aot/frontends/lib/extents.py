"""Dims computed by the model: integer tensors as dims, and values with data-dependent extents.

An element that is needed as a dim becomes a symbol, by an op `extent` right behind what makes it
(aot/ir/data_dims.py). Owns where these ops stand and what limits them; knows no importer's node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.builtin import EXTENT
from aot.ir.data_dims import Largest, is_capacity, limit, limits_of
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Assumption, Block, ConstantData, Value, walk
from aot.ir.record import lookup
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType

MOST_EXTENTS = 64  # of one tensor; larger ones are data, no shapes
I64 = DType.I64
UNBOUNDED = int(np.iinfo(np.int64).max)  # what `extent` has where the user says what it is
# What only chooses among elements: symbols are of what it chooses from.
_MOVES = frozenset({"concat", "reshape", "slice", "gather", "transpose", "cast", "broadcast_to"})


def given_dims(place: Place, x: Value) -> Array | None:
    """The elements of an integer tensor as dims, with a new symbol for each element that the model
    computes. None if the tensor is too large to be read as dims.
    """
    known = place.values.of(x)
    if known is not None:
        return known
    made = False
    for leaf in dict.fromkeys(_leaves(place, x)):
        if not _is_small(leaf):
            return None
        _give(place, leaf)
        made = True
    return place.values.of(x) if made else None


def _is_small(x: Value) -> bool:
    count = x.type.element_count
    is_integer = not x.type.dtype.is_float and x.type.dtype is not DType.BOOL
    return is_integer and isinstance(count, int) and count <= MOST_EXTENTS


def _leaves(place: Place, x: Value) -> list[Value]:
    """The values from which `x` takes its unknown elements."""
    if place.values.of(x) is not None:
        return []
    op = x.op
    if op is None or op.name not in _MOVES or not _is_small(x):
        return [x]
    operands = [v for v in op.operands if v is not None]
    moved = operands if op.name == "concat" else operands[:1]
    if any(place.values.of(v) is None for v in operands[len(moved) :]):
        return [x]
    if any(v.type.dtype.is_float or v.type.dtype is DType.BOOL for v in moved):
        return [x]
    found = [leaf for v in moved for leaf in _leaves(place, v)]
    return found if all(map(_is_small, found)) else [x]


def _give(place: Place, leaf: Value) -> None:
    """Defines a symbol for each element of a value, directly after the value's definition."""
    function = place.rewriter.function
    if leaf.op is None:
        assert isinstance(leaf.owner, Block)
        behind = Rewriter(function, leaf.owner, leaf.owner.first)
        origin = place.label
    else:
        behind, origin = Rewriter(function, leaf.op.parent, leaf.op.next), leaf.op.origin
    count = prod(leaf.type.shape)
    flat = behind.create(lookup("reshape"), [leaf], {"shape": (count,)}, origin).result
    found: list[Dim] = []
    for number in range(count):
        one = flat
        if count > 1:
            attrs = {"starts": (number,), "stops": (number + 1,), "steps": (1,)}
            one = behind.create(lookup("slice"), [flat], attrs, origin).result
        found.append(dims.symbol(place.values.fresh_symbol(origin)))
        behind.create(lookup("extent"), [one], {"dim": found[-1]}, origin)
    elements = np.empty(count, object)
    elements[:] = found
    place.values.define(leaf, elements.reshape(tuple(int(str(d)) for d in leaf.type.dims)))


def is_given(place: Place, dim: Dim) -> bool:
    """Whether a dim contains a symbol defined by a value."""
    return not isinstance(dim, int) and not dims.symbols(dim).isdisjoint(place.values.given)


def is_made_inside(block: Block, extents: Sequence[Dim]) -> bool:
    """Whether dims contain symbols that are defined inside a block."""
    inside = {str(op.attrs["dim"]) for op in walk(block) if op.record is EXTENT}
    return any(not inside.isdisjoint(dims.symbols(extent)) for extent in extents)


def largest(place: Place, dim: Dim, but: Dim = 0) -> Dim | None:
    """An upper bound of a dim without data-dependent symbols, except those in `but`; None if there
    is none."""
    capacities = {
        str(op.attrs["dim"])
        for op in place.rewriter.function.block
        if op.record is EXTENT and is_capacity(op)
    }
    names = place.values.given - dims.symbols(but) - capacities
    limits = limits_of(names, place.rewriter.function.assumptions)
    return Largest(names, limits).largest(dim)


def known_elements(place: Place, x: Value) -> list[Dim | None]:
    """The elements of an integer vector or scalar as dims; None for computed elements, which may be
    negative.
    """
    known = place.values.of(x)
    if known is not None:
        return [v if isinstance(v, DimExpr) else int(v) for v in known.reshape(-1)]
    op, count = x.op, x.type.element_count
    if not isinstance(count, int):
        raise UnsupportedNodeError(f"a vector of {count} elements does not say what has that shape")
    if op is not None and op.name == "concat":
        parts = [known_elements(place, v) for v in op.operands if v is not None]
        return [element for part in parts for element in part]
    is_same = op is not None and op.name in ("reshape", "cast")
    source = op.operands[0] if op is not None and is_same else None
    if source is not None and not source.type.dtype.is_float:
        return known_elements(place, source)
    return [None] * count


def element(place: Place, x: Value, number: int, known: Dim | None) -> Value:
    """Element `number` of an integer vector or scalar as an i64 scalar."""
    if known is not None:
        return dim_value(place, known)
    flat = place.reshape(x, (x.type.element_count,))
    one = place.emit("slice", flat, starts=(number,), stops=(number + 1,), steps=(1,))
    return place.cast(place.reshape(one, ()), I64)


def bound(place: Place, dim: Dim, most: Dim | None, what: str) -> None:
    """Limits a data-dependent dim to `most`; None means no known limit, so that the user must give
    one (aot/passes/check_supported.py)."""
    if most is not None and isinstance(dim, DimExpr) and is_given(place, dim):
        found = limit(dim, most, f"{place.label}: {what}")
        if found is not None:
            place.rewriter.function.assumptions[found] = None


def check_equal(place: Place, a: Dim, b: Dim, what: str) -> None:
    """Assumes that two dims are equal, at least one of which only a run knows."""
    if a != b:
        place.rewriter.function.assumptions[Assumption(a, b, f"{place.label}: {what}")] = None


def extent_of(place: Place, count: Value, most: Dim | None, what: str) -> Dim:
    """The single element of `count` as a dim, at most `most`; 0 if `most` is 0."""
    if most == 0:
        return 0
    leaves = _leaves(place, count)
    if len(leaves) > 1 or any(v.type.element_count != 1 for v in leaves):
        _give(place, count)  # and no symbols of elements beside it
    found = given_dims(place, count)
    assert found is not None
    dim: Dim = found.reshape(-1)[0]
    bound(place, dim, most, what)
    return dim


def own_extent(place: Place, dim: Dim) -> Dim:
    """A new symbol that equals `dim` at run time and is bounded by it, defined by an `extent` op
    here.
    """
    own = dims.symbol(place.values.fresh_symbol(place.label))
    place.emit_all("extent", dim_value(place, dim), dim=own)
    bound(place, own, dim, "an extent of its own")
    return own


def check_most(place: Place, count: Value, most: Dim, what: str) -> None:
    """Adds a check at run time that the single element of `count` is from 0 to `most`."""
    dim = dims.symbol(place.values.fresh_symbol())
    place.emit_all("extent", count, dim=dim, checked=True)
    bound(place, dim, most, what)


def check_is(place: Place, count: Value, dim: Dim) -> None:
    """Adds a check at run time that the single element of `count` equals `dim`."""
    if not isinstance(dim, int):
        count, dim = place.emit("sub", count, dim_value(place, dim)), 0
    place.emit_all("extent", count, dim=dim)


def capacity(place: Place, label: str) -> Dim:
    """A dim as large as the user allows for a node (aot/passes/bind.py), visible in all blocks."""
    function = place.rewriter.function
    for op in function.block:
        if op.record is EXTENT and op.origin == label and is_capacity(op):
            found = op.attrs["dim"]
            assert isinstance(found, DimExpr)
            return found
    at_start = Rewriter(function, function.block, function.block.first)
    most = insert_constant(at_start, ConstantData(np.array(UNBOUNDED)), label)
    dim = dims.symbol(place.values.fresh_symbol(label))
    at_start.create(EXTENT, [most], {"dim": dim}, label)
    return dim


def room(place: Place, dim: Dim) -> Dim:
    """An upper bound of a dim that is visible in all blocks: from known limits, or else from what
    the user allows for the nodes that compute the dim."""
    found = largest(place, dim)
    assumptions = place.rewriter.function.assumptions
    pending = sorted(dims.symbols(dim))
    limits = limits_of(place.values.given, assumptions)
    while found is None and pending:
        name = pending.pop()
        if name in limits:
            pending += sorted(dims.symbols(limits[name]) - {name})
        elif name in place.values.given:
            origin = place.values.origins[name] or place.label
            symbol = dims.symbol(name)
            limit_found = limit(symbol, capacity(place, origin), f"{origin}: what it computes")
            assumptions.update({} if limit_found is None else {limit_found: None})
    found = largest(place, dim) if found is None else found
    return capacity(place, place.label) if found is None else found


def check_not_negative(place: Place, dim: Dim, what: str) -> None:
    """Adds a check at run time that a dim is not negative."""
    least = dims.maximum(dim, 0)
    if least != dim:
        check_equal(place, least, dim, what)


def first(place: Place, x: Value, count: Dim, axis: int = 0) -> Value:
    """The first `count` elements of `x` along an axis."""
    if x.type.dims[axis] == count:
        return x
    return cut(place, x, [count if d == axis else n for d, n in enumerate(x.type.dims)])


def cut(place: Place, x: Value, shape: Sequence[Dim]) -> Value:
    """The leading elements of `x` along each axis."""
    rank = x.type.rank
    return place.emit("slice", x, starts=(0,) * rank, stops=tuple(shape), steps=(1,) * rank)


def true_positions(place: Place, chosen: Value) -> Value:
    """The positions of the true elements of a bool vector, in order: i64[n], with a data-dependent
    n."""
    (extent,) = chosen.type.dims
    numbers = place.cast(chosen, I64)
    before = place.emit("scan", numbers, axis=0, exclusive=True)
    nowhere = dim_value(place, extent)
    at = place.emit("where", chosen, before, nowhere)
    counter = place.emit("range", size=extent)
    zeros = place.emit("fill", shape=(extent,), value=ConstantData(np.zeros((), np.int64)))
    placed = place.emit("scatter_elements", zeros, at, counter, axis=0)
    total = place.emit("reduce_sum", numbers, axes=(0,), keepdims=False)
    return first(place, placed, extent_of(place, total, extent, "elements chosen"))


def ragged(place: Place, rows: Value, counts: Value) -> tuple[Value, Value]:
    """The first counts[r] elements of each of rows[R, most, ...], row after row, with their row
    numbers: (i64[n], elements[n, ...]), with a data-dependent n."""
    count, most, *rest = rows.type.dims
    total = place.emit("reduce_sum", counts, axes=(0,), keepdims=False)
    n = extent_of(place, total, dims.multiply(count, most), "elements of all rows")
    if count == 1:
        row = place.emit("fill", shape=(n,), value=ConstantData(np.zeros((), np.int64)))
        return row, first(place, place.reshape(rows, (most, *rest)), n)
    before = place.emit("scan", counts, axis=0, exclusive=True)
    zeros = place.emit("fill", shape=(n,), value=ConstantData(np.zeros((), np.int64)))
    others = (dims.maximum(dims.add(count, -1), 0),)
    ones = place.emit("fill", shape=others, value=ConstantData(np.ones((), np.int64)))
    begins = place.emit(
        "slice", before, starts=(dims.minimum(count, 1),), stops=(count,), steps=(1,)
    )
    marks = place.emit("scatter_elements", zeros, begins, ones, axis=0, reduction="add")
    row = place.emit("scan", marks, axis=0)
    inside = place.emit("sub", place.emit("range", size=n), place.emit("gather", before, row))
    at = place.emit("add", place.emit("mul", row, dim_value(place, most)), inside)
    flat = place.reshape(rows, (dims.multiply(count, most), *rest))
    return row, place.emit("gather", flat, at, axis=0)


def dim_value(place: Place, dim: Dim) -> Value:
    """A dim as an i64 scalar."""
    if isinstance(dim, int):
        return place.scalar(dim, I64)
    return place.reshape(place.emit("dim_values", dims=(dim,)), ())


def coordinates(place: Place, positions: Value, shape: Sequence[Dim]) -> Value:
    """Multi-dimensional indices i64[rank, n] of flat positions in a tensor of `shape`."""
    count = positions.type.dims[0]
    rows: list[Value] = []
    rest = positions
    for number in range(len(shape) - 1, -1, -1):
        row = rest
        if number > 0:
            extent = dim_value(place, shape[number])
            rest = place.emit("div", row, extent)
            row = place.emit("sub", row, place.emit("mul", rest, extent))
        rows.insert(0, place.reshape(row, (1, count)))
    return rows[0] if len(rows) == 1 else place.emit("concat", *rows, axis=0)


def is_nonzero(place: Place, x: Value) -> Value:
    """Whether each element is non-zero; false for NaN."""
    if x.type.dtype is DType.BOOL:
        return x
    return place.emit("not", place.emit("equal", x, 0))


def widened(place: Place, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` padded at the end of each axis with zeros, up to a shape."""
    for axis, extent in enumerate(shape):
        more = dims.add(extent, dims.multiply(x.type.dims[axis], -1))
        if more == 0:
            continue
        rest = tuple(more if d == axis else n for d, n in enumerate(x.type.dims))
        zero = ConstantData(np.zeros((), x.type.dtype.numpy))
        x = place.emit("concat", x, place.emit("fill", shape=rest, value=zero), axis=axis)
    return x


def narrowed(place: Place, x: Value, counts: Sequence[tuple[int, Value]], what: str) -> Value:
    """`x` cut along axes to the extents given by i64 scalars."""
    shape = list(x.type.dims)
    for axis, count in counts:
        shape[axis] = extent_of(place, count, x.type.dims[axis], what)
    return cut(place, x, shape)
