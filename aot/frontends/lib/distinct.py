"""The distinct elements of a vector: which there are, where and how often."""

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
    """What a vector x[N] has in it: each distinct element once, [n]; where it is first, i64[n]; for
    each element of x the number of its like in the first result, i64[N]; and how many there are of
    each, i64[n]. In ascending order, or else in the order of x.

    n is a dim that data decide. Equal elements are brought together by a stable sort, so that the
    first of a run is the first in x.
    """
    (count,) = x.type.dims
    values, places = place.emit_all("top_k", x, axis=0, k=count, largest=False)
    is_new = _differs_from_last(place, values, count)
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
    inverse = place.emit("scatter_elements", zeros, places, numbers, axis=0)
    return place.emit("gather", x, firsts, axis=0), firsts, inverse, counts


def _one_of(n: Dim) -> Dim:
    """1, or 0 where there is no element."""
    return dims.minimum(1, n)


def _inverse(place: Place, order: Value, n: Dim) -> Value:
    """Where each of 0, 1, ... stands in a permutation."""
    zeros = place.emit("fill", shape=(n,), value=ConstantData(np.zeros((), np.int64)))
    return place.emit("scatter_elements", zeros, order, place.emit("range", size=n), axis=0)


def _differs_from_last(place: Place, x: Value, count: Dim) -> Value:
    """Whether each element is another one than that before it; the first one always is."""
    counter = place.emit("range", size=count)
    before = place.emit("gather", x, _not_negative(place, counter), axis=0)
    is_other = place.emit("not", place.emit("equal", x, before))
    is_first = place.emit("equal", counter, place.scalar(0, I64))
    return place.emit("or", is_other, is_first)


def _not_negative(place: Place, counter: Value) -> Value:
    """Each number but one, and 0 for the first."""
    less = place.emit("sub", counter, place.scalar(1, I64))
    return place.emit("maximum", less, place.scalar(0, I64))
