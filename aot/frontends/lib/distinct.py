"""The distinct elements of a vector, or slices of a tensor, with their indices and counts.

Their order is that of `top_k`: NaN is greater than any number, and equal to NaN.
"""

from __future__ import annotations

import numpy as np

from aot.frontends.lib.extents import dim_value, first, true_positions
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType

I64 = DType.I64


def distinct(place: Place, x: Value, *, is_sorted: bool) -> tuple[Value, Value, Value, Value]:
    """(distinct elements [n], index of each one's first occurrence i64[n], index into the distinct
    elements of each element i64[N], counts i64[n]) of a vector x [N], in ascending order or in
    order of first occurrence.

    n is a dim that data decide. Equal elements are brought together by a stable sort, so that the
    first of a run is the first in x.
    """
    (count,) = x.type.dims
    if count == 0:
        return x, *_of_nothing(place)
    values, places = place.emit_all("top_k", x, axis=0, k=count, largest=False)
    is_new = _differs_from_last(place, values, count)
    firsts, inverse, counts = _of_runs(place, places, is_new, is_sorted=is_sorted)
    return place.emit("gather", x, firsts, axis=0), firsts, inverse, counts


def distinct_slices(
    place: Place, x: Value, axis: int, *, is_sorted: bool
) -> tuple[Value, Value, Value, Value]:
    """As `distinct`, for slices of x along an axis, compared element by element in memory order.

    Each pair of slices is compared, so that it takes N * N times the elements of a slice.
    """
    count = x.type.dims[axis]
    if count == 0:
        return x, *_of_nothing(place)
    perm = (axis, *(d for d in range(x.type.rank) if d != axis))
    moved = place.emit("transpose", x, perm=perm) if axis else x
    width = dims.product(moved.type.dims[1:])
    rows = place.reshape(moved, (count, width))
    key = _first_difference(
        place, place.reshape(rows, (count, 1, width)), place.reshape(rows, (1, count, width))
    )  # of a pair: below 2 * width and even where the first slice comes first
    number = place.emit("range", size=count)
    of_row, of_other = place.reshape(number, (count, 1)), place.reshape(number, (1, count))
    two, end = place.scalar(2, I64), dim_value(place, dims.multiply(width, 2))
    is_equal = place.emit("equal", key, end)
    half = place.emit("div", key, two)
    is_odd = place.emit("equal", place.emit("sub", key, place.emit("mul", half, two)), _one(place))
    is_behind = place.emit("where", is_equal, place.emit("less", of_other, of_row), is_odd)
    rank = place.emit("reduce_sum", place.cast(is_behind, I64), axes=(1,), keepdims=False)
    places = _inverse(place, rank, count)
    ordered = place.emit("gather", rows, places, axis=0)
    before = place.emit("gather", ordered, _not_negative(place, number), axis=0)
    is_other = place.emit(
        "not", place.emit("equal", _first_difference(place, ordered, before), end)
    )
    is_first = place.emit("equal", number, place.scalar(0, I64))
    is_new = place.emit("or", is_other, is_first)
    firsts, inverse, counts = _of_runs(place, places, is_new, is_sorted=is_sorted)
    return place.emit("gather", x, firsts, axis=axis), firsts, inverse, counts


def runs(place: Place, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """The runs of equal slices of x along an axis. NaN differs from NaN.

    Returns the first slice of each run, i64[n]; the run of each slice, i64[N]; and the length of
    each run, i64[n].
    """
    count = x.type.dims[axis]
    if count == 0:
        return _of_nothing(place)
    counter = place.emit("range", size=count)
    before = place.emit("gather", x, _not_negative(place, counter), axis=axis)
    is_other = place.emit("not", place.emit("equal", x, before))
    rest = tuple(d for d in range(x.type.rank) if d != axis)
    if rest:
        differing = place.emit(
            "reduce_max", place.cast(is_other, DType.I32), axes=rest, keepdims=False
        )
        is_other = place.emit("less", place.scalar(0, DType.I32), differing)
    is_first = place.emit("equal", counter, place.scalar(0, I64))
    return _of_runs(place, counter, place.emit("or", is_other, is_first), is_sorted=True)


def _of_nothing(place: Place) -> tuple[Value, Value, Value]:
    """The results of `distinct` for a tensor without elements."""
    none = place.constant(np.zeros(0, np.int64))
    return none, none, none


def _one(place: Place) -> Value:
    return place.scalar(1, I64)


def _first_difference(place: Place, a: Value, b: Value) -> Value:
    """Sort keys of pairs of slices along the last dim: twice the index of their first difference,
    plus 1 where b's element is the smaller one; twice the extent where they are equal.
    """
    width = a.type.dims[-1]
    twice = place.emit("mul", place.emit("range", size=width), place.scalar(2, I64))
    none = dim_value(place, dims.multiply(width, 2))
    is_greater = _is_before(place, b, a)
    other = place.emit("where", is_greater, place.emit("add", twice, _one(place)), none)
    key = place.emit("where", _is_before(place, a, b), twice, other)
    lowest = place.emit("reduce_min", key, axes=(key.type.rank - 1,), keepdims=False)
    return place.emit("minimum", lowest, none)  # of no elements


def _is_before(place: Place, a: Value, b: Value) -> Value:
    """Whether elements of a precede those of b in ascending order. NaN comes last."""
    is_less = place.emit("less", a, b)
    if not a.type.dtype.is_float:
        return is_less
    is_last = place.emit("and", place.emit("is_nan", b), place.emit("not", place.emit("is_nan", a)))
    return place.emit("or", is_less, is_last)


def _of_runs(
    place: Place, places: Value, is_new: Value, *, is_sorted: bool
) -> tuple[Value, Value, Value]:
    """(first index of each run of equal elements, each element's run, length of each run).

    Args:
        places: where elements in ascending order are from: i64[N].
        is_new: whether a run begins with each of these.
    """
    (count,) = places.type.dims
    starts = true_positions(place, is_new)
    n = starts.type.dims[0]
    firsts = place.emit("gather", places, starts, axis=0)
    numbers = place.emit(
        "sub", place.emit("scan", place.cast(is_new, I64), axis=0), place.scalar(1, I64)
    )
    ends = place.emit(
        "concat",
        place.emit("slice", starts, starts=(_one_of(n),), stops=(n,), steps=(1,)),
        place.reshape(dim_value(place, count), (1,)),
        axis=0,
    )
    counts = place.emit("sub", first(place, ends, n), starts)
    if not is_sorted:
        _, order = place.emit_all("top_k", firsts, axis=0, k=n, largest=False)
        firsts = place.emit("gather", firsts, order, axis=0)
        counts = place.emit("gather", counts, order, axis=0)
        ranks = _inverse(place, order, n)
        numbers = place.emit("gather", ranks, numbers, axis=0)
    zeros = place.emit("fill", shape=(count,), value=ConstantData(np.zeros((), np.int64)))
    return firsts, place.emit("scatter_elements", zeros, places, numbers, axis=0), counts


def _one_of(n: Dim) -> Dim:
    """The smaller of 1 and n: 1 if there are elements, else 0."""
    return dims.minimum(1, n)


def _inverse(place: Place, order: Value, n: Dim) -> Value:
    """The inverse of a permutation of 0, 1, ..., n - 1."""
    zeros = place.emit("fill", shape=(n,), value=ConstantData(np.zeros((), np.int64)))
    return place.emit("scatter_elements", zeros, order, place.emit("range", size=n), axis=0)


def _differs_from_last(place: Place, x: Value, count: Dim) -> Value:
    """Whether each element differs from its predecessor; always true for the first."""
    counter = place.emit("range", size=count)
    before = place.emit("gather", x, _not_negative(place, counter), axis=0)
    is_other = place.emit("not", place.emit("equal", x, before))
    if x.type.dtype.is_float:  # NaN is another than all but NaN, and behind them
        is_other = place.emit("and", is_other, place.emit("not", place.emit("is_nan", before)))
    is_first = place.emit("equal", counter, place.scalar(0, I64))
    return place.emit("or", is_other, is_first)


def _not_negative(place: Place, counter: Value) -> Value:
    """`counter` - 1, but at least 0."""
    less = place.emit("sub", counter, place.scalar(1, I64))
    return place.emit("maximum", less, place.scalar(0, I64))
