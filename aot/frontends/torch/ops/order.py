"""PyTorch's order statistics, running extrema, and distinct elements.

NaN is greater than any number. Of equal elements torch leaves open which one's place it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aot.frontends.lib import distinct, extents
from aot.frontends.torch.ops.movement import sliced
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.bounds import bounds_of
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType

I64 = DType.I64
_MOST_EXTENT = 1 << 31  # of a dim without a bound


def _ordered(n: Node, x: Value, axis: int, count: Dim) -> tuple[Value, Value]:
    """(values, positions) of the `count` smallest elements along a dim, ascending."""
    numbers = n.cast(x, DType.U8) if x.type.dtype is DType.BOOL else x
    values, places = n.emit_all("top_k", numbers, axis=axis, k=count, largest=False)
    return n.cast(values, x.type.dtype), places


def _vector(n: Node, x: Value) -> Value:
    return n.reshape(x, (x.type.element_count,))


def _found(n: Node, values: Value, places: Value) -> list[Value]:
    """The results of an op along a dim, with that dim kept or removed."""
    return [n.reshape(values, n.dims), n.reshape(places, n.dims)]


def _kth(n: Node, x: Value, axis: int, k: Dim) -> tuple[Value, Value]:
    """(value, position) of the k-th smallest element along a dim, counted from 1."""
    values, places = _ordered(n, x, axis, k)
    last = dims.add(k, -1)
    return sliced(n, values, axis, last, k), sliced(n, places, axis, last, k)


@torch_op("aten.kthvalue.default")
def kth_value(n: Node, x: Value, k: Dim, axis: int, keepdims: bool) -> list[Value]:
    if x.type.rank == 0:
        return [x, n.scalar(0, I64)]
    return _found(n, *_kth(n, x, n.axis(axis, x.type.rank), k))


def _median(n: Node, x: Value, axis: int) -> tuple[Value, Value]:
    """(value, position) of the lower median; NaN if there is any."""
    extent = x.type.dims[axis]
    if extent == 0:
        raise UnsupportedNodeError("the median of no elements is not supported")
    middle = dims.add(dims.floor_divide(dims.add(extent, -1), 2), 1)
    values, places = _kth(n, x, axis, middle)
    if not x.type.dtype.is_float:
        return values, places
    is_nan = n.cast(n.emit("is_nan", x), DType.I32)
    has_nan = n("less", 0, n.emit("reduce_max", is_nan, axes=(axis,), keepdims=True))
    first = n.emit("arg_max", is_nan, axis=axis, keepdims=True)
    return n("where", has_nan, math.nan, values), n.emit("where", has_nan, first, places)


def _median_of_numbers(n: Node, x: Value, axis: int) -> tuple[Value, Value]:
    """(value, position) of the median along an axis, ignoring NaN; NaN if there is nothing else."""
    if not x.type.dtype.is_float:
        return _median(n, x, axis)
    values, places = _ordered(n, x, axis, x.type.dims[axis])
    is_number = n.cast(n.emit("not", n.emit("is_nan", x)), I64)
    count = n.emit("reduce_sum", is_number, axes=(axis,), keepdims=True)
    middle = n("div", n("maximum", n("sub", count, 1), 0), 2)
    return _chosen(n, values, places, middle, axis)


def _chosen(n: Node, values: Value, places: Value, at: Value, axis: int) -> tuple[Value, Value]:
    """The elements at positions along a dim, and their original positions."""
    found = [n.emit("gather_elements", v, at, axis=axis) for v in (values, places)]
    return found[0], found[1]


def _along(find: Callable[[Node, Value, int], tuple[Value, Value]]) -> Callable[..., Any]:
    def build(n: Node, x: Value, axis: int, keepdims: bool) -> list[Value]:
        if x.type.rank == 0:
            return [x, n.scalar(0, I64)]
        return _found(n, *find(n, x, n.axis(axis, x.type.rank)))

    return build


def _of_all(find: Callable[[Node, Value, int], tuple[Value, Value]]) -> Callable[..., Any]:
    return lambda n, x: n.reshape(find(n, _vector(n, x), 0)[0], ())


for _name, _find in {"median": _median, "nanmedian": _median_of_numbers}.items():
    torch_op(f"aten.{_name}.dim")(_along(_find))
    torch_op(f"aten.{_name}.default")(_of_all(_find))


def _mode(n: Node, x: Value, axis: int) -> tuple[Value, Value]:
    """(value, position) of the smallest most frequent element: where the first of the longest runs
    ends."""
    extent = x.type.dims[axis]
    values, places = _ordered(n, x, axis, extent)
    numbers = n.cast(values, DType.U8) if x.type.dtype is DType.BOOL else values
    last = dims.maximum(dims.add(extent, -1), 0)
    is_same = n("equal", sliced(n, numbers, axis, 1, extent), sliced(n, numbers, axis, 0, last))
    first = _filled(n, is_same, axis, 1, False)
    is_same = n.emit("concat", first, is_same, axis=axis)
    row = [extent if d == axis else 1 for d in range(x.type.rank)]
    place = n.broadcast(n.reshape(n.emit("range", size=extent), row), x.type.dims)
    begin = running(n, n("where", is_same, 0, place), axis, _larger, 0)
    best = n.emit("arg_max", n("sub", place, begin), axis=axis, keepdims=True)
    return _chosen(n, values, places, best, axis)


torch_op("aten.mode.default")(_along(_mode))


# running extrema


def _filled(n: Node, x: Value, axis: int, count: Dim, value: float | bool) -> Value:
    """`count` rows of a constant along a dim."""
    shape = tuple(count if d == axis else e for d, e in enumerate(x.type.dims))
    return n.emit("fill", shape=shape, value=ConstantData(np.array(value, x.type.dtype.numpy)))


def _larger(n: Node, a: Value, b: Value) -> Value:
    return n.emit("maximum", a, b)


def _smaller(n: Node, a: Value, b: Value) -> Value:
    return n.emit("minimum", a, b)


def running(
    n: Node, x: Value, axis: int, join: Callable[[Node, Value, Value], Value], nothing: float
) -> Value:
    """A running reduction along a dim, in doubling steps up to the dim's upper bound.

    Args:
        join: an associative function of two.
        nothing: what changes nothing by it.
    """
    extent = x.type.dims[axis]
    most = dims.bounds(extent, bounds_of(n.rewriter.function.assumptions))[1]
    step = 1
    while step < (_MOST_EXTENT if most is None else most):
        own = dims.minimum(step, extent)
        before = sliced(n, x, axis, 0, dims.add(extent, dims.multiply(own, -1)))
        shifted = n.emit("concat", _filled(n, x, axis, own, nothing), before, axis=axis)
        x = join(n, n.reshape(shifted, x.type.dims), x)
        step *= 2
    return x


def _running_extremum(is_largest: bool) -> Callable[..., list[Value]]:
    """An entry for the running extremum up to each element and its last position; NaN stays."""
    join = _larger if is_largest else _smaller

    def build(n: Node, x: Value, axis: int) -> list[Value]:
        if x.type.rank == 0:
            return [x, n.scalar(0, I64)]
        at = n.axis(axis, x.type.rank)
        numbers = n.cast(x, DType.U8) if x.type.dtype is DType.BOOL else x
        dtype = numbers.type.dtype
        if dtype.is_float:
            nothing: float = -math.inf if is_largest else math.inf
        else:
            ends = np.iinfo(dtype.numpy)
            nothing = ends.min if is_largest else ends.max
        best = running(n, numbers, at, join, nothing)
        is_best = n.emit("equal", numbers, best)
        if dtype.is_float:
            is_best = n.emit("or", is_best, n.emit("is_nan", numbers))
        row = [x.type.dims[at] if d == at else 1 for d in range(x.type.rank)]
        place = n.broadcast(n.reshape(n.emit("range", size=row[at]), row), x.type.dims)
        places = running(n, n("where", is_best, place, 0), at, _larger, 0)
        return [n.cast(best, x.type.dtype), places]

    return build


torch_op("aten.cummax.default")(_running_extremum(is_largest=True))
torch_op("aten.cummin.default")(_running_extremum(is_largest=False))


def log_add_exp(n: Node, a: Value, b: Value) -> Value:
    """log(exp(a) + exp(b))."""
    larger, apart = n.emit("maximum", a, b), n("neg", n("abs", n.emit("sub", a, b)))
    # of two equal infinities nothing is subtracted
    apart = n("where", n.emit("equal", a, b), 0.0, apart)
    is_infinite = n("equal", n("abs", larger), math.inf)
    return n.emit("where", is_infinite, larger, n("add", larger, n("log1p", n("exp", apart))))


@torch_op("aten.logcumsumexp.default")
def running_log_sum_exp(n: Node, x: Value, axis: int) -> Value:
    if x.type.rank == 0:
        return x
    return running(n, x, n.axis(axis, x.type.rank), log_add_exp, -math.inf)


# distinct elements


def _comparable(n: Node, x: Value) -> Value:
    return n.cast(x, DType.U8) if x.type.dtype is DType.BOOL else x


@torch_op("aten._unique2.default")
def unique(
    n: Node, x: Value, is_sorted: bool = True, with_inverse: bool = False, with_counts: bool = False
) -> list[Value]:
    flat = _comparable(n, _vector(n, x))
    values, _, inverse, counts = distinct.distinct(n, flat, is_sorted=True)
    return [n.cast(values, x.type.dtype), n.reshape(inverse, x.type.dims), counts]


@torch_op("aten.unique_dim.default")
def unique_slices(
    n: Node,
    x: Value,
    axis: int,
    is_sorted: bool = True,
    with_inverse: bool = False,
    with_counts: bool = False,
) -> list[Value]:
    at = n.axis(axis, x.type.rank)
    made = distinct.distinct_slices(n, _comparable(n, x), at, is_sorted=True)
    return [n.cast(made[0], x.type.dtype), made[2], made[3]]


@torch_op("aten.unique_consecutive.default")
def unique_in_runs(
    n: Node,
    x: Value,
    with_inverse: bool = False,
    with_counts: bool = False,
    axis: int | None = None,
) -> list[Value]:
    """One element, or slice, of each run of equal ones. NaN equals nothing."""
    whole = _vector(n, x) if axis is None else x
    at = 0 if axis is None else n.axis(axis, x.type.rank)
    firsts, inverse, counts = distinct.runs(n, _comparable(n, whole), at)
    values = n.emit("gather", whole, firsts, axis=at)
    return [values, n.reshape(inverse, x.type.dims) if axis is None else inverse, counts]


@torch_op("aten.bincount.default")
def bin_count(n: Node, x: Value, weights: Value | None = None, least: int = 0) -> Value:
    """bincount: the frequency of each number up to the largest one, or the sum of its weights."""
    count = n.scalar(least, I64)
    at = n.cast(x, I64)
    if x.type.element_count != 0:
        largest = n.emit("reduce_max", at, axes=(0,), keepdims=False)
        count = n("maximum", n("add", largest, 1), least)
    extent = extents.extent_of(n, count, None, "the largest number")
    dtype = I64
    if weights is not None:
        dtype = DType.F32 if weights.type.dtype is DType.F32 else DType.F64
    one = n.scalar(1, dtype) if weights is None else n.cast(weights, dtype)
    zeros = n.emit("fill", shape=(extent,), value=ConstantData(np.zeros((), dtype.numpy)))
    updates = n.broadcast(one, x.type.dims)
    return n.emit("scatter_elements", zeros, at, updates, axis=0, reduction="add")
