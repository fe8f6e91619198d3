"""PyTorch's reductions, softmaxes, cumulative sums, and positions of extrema."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from aot.frontends.torch.ops.elementwise import truth
from aot.frontends.torch.table import Node, Number, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

I64 = DType.I64


def axes_of(n: Node, x: Value, given: Any) -> tuple[int, ...]:
    """The reduced dims: all of them if none are given."""
    listed = [given] if isinstance(given, int) else list(given or [])
    if x.type.rank == 0:
        return ()
    return n.axes(listed, x.type.rank) if listed else tuple(range(x.type.rank))


def reduced(n: Node, op: str, x: Value, axes: Sequence[int], keepdims: bool) -> Value:
    return n.emit(op, x, axes=tuple(axes), keepdims=keepdims) if axes else x


@torch_op("aten.sum.default", "aten.sum.dim_IntList")
def sum_(n: Node, x: Value, axes: Any = None, keepdims: bool = False, dtype: Any = None) -> Value:
    if isinstance(axes, DType):  # sum.default has no dims
        axes = None
    return reduced(n, "reduce_sum", n.cast(x, n.dtype), axes_of(n, x, axes), keepdims)


@torch_op("aten.mean.default", "aten.mean.dim")
def mean(n: Node, x: Value, axes: Any = None, keepdims: bool = False, dtype: Any = None) -> Value:
    if isinstance(axes, DType):
        axes = None
    return reduced(n, "reduce_mean", n.cast(x, n.dtype), axes_of(n, x, axes), keepdims)


@torch_op("aten.prod.default", "aten.prod.dim_int")
def product(
    n: Node, x: Value, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Value:
    if isinstance(axis, DType):
        axis = None
    axes = axes_of(n, x, axis)
    return reduced(n, "reduce_prod", n.cast(x, n.dtype), axes, keepdims)


def _extremum(op: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
        if x.type.dtype is not DType.BOOL:
            return reduced(n, op, x, axes_of(n, x, axes), keepdims)
        found = reduced(n, op, n.cast(x, DType.I32), axes_of(n, x, axes), keepdims)
        return n("less", 0, found)

    return build


torch_op("aten.amax.default", "aten.max.default")(_extremum("reduce_max"))
torch_op("aten.amin.default", "aten.min.default")(_extremum("reduce_min"))


def _truths(op: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
        numbers = n.cast(truth(n, x), DType.I32)
        found = reduced(n, op, numbers, axes_of(n, x, axes), keepdims)
        return n.emit("less", n.scalar(0, DType.I32), found)

    return build


for _name, _op in {"any": "reduce_max", "all": "reduce_min"}.items():
    torch_op(f"aten.{_name}.default", f"aten.{_name}.dim", f"aten.{_name}.dims")(_truths(_op))


def _places(op: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, axis: int | None, keepdims: bool) -> Value:
        if axis is None or x.type.rank == 0:
            x, axis = n.reshape(x, (x.type.element_count,)), 0
        found = n.emit(op, x, axis=n.axis(axis, x.type.rank), keepdims=keepdims)
        return n.reshape(found, n.dims)

    return build


torch_op("aten.argmax.default")(_places("arg_max"))
torch_op("aten.argmin.default")(_places("arg_min"))


def _with_place(reduce: str, place: str) -> Callable[..., list[Value]]:
    def build(n: Node, x: Value, axis: int, keepdims: bool) -> list[Value]:
        if x.type.rank == 0:
            return [x, n.scalar(0, I64)]
        at = n.axis(axis, x.type.rank)
        numbers = n.cast(x, DType.U8) if x.type.dtype is DType.BOOL else x
        best = n.cast(n.emit(reduce, numbers, axes=(at,), keepdims=keepdims), x.type.dtype)
        if not n.wants(1):
            return [best, best]
        return [best, n.emit(place, numbers, axis=at, keepdims=keepdims)]

    return build


torch_op("aten.max.dim")(_with_place("reduce_max", "arg_max"))
torch_op("aten.min.dim")(_with_place("reduce_min", "arg_min"))


# spread


def _variance(
    n: Node, x: Value, axes: Sequence[int], correction: Number, keepdims: bool
) -> tuple[Value, Value]:
    """(variance, mean), with dims kept or not; f16 is computed in f32."""
    wide = n.cast(x, x.type.dtype.accumulator)
    average = reduced(n, "reduce_mean", wide, axes, True)
    centred = n("sub", wide, average)
    total = reduced(n, "reduce_sum", n("mul", centred, centred), axes, True)
    count = dims.product([x.type.dims[d] for d in axes])
    if isinstance(count, int):
        below: Value = n.scalar(max(count - correction, 0), wide.type.dtype)
    else:
        below = n("maximum", n("sub", n.value(count, wide.type.dtype), correction), 0)
    rest = [e for d, e in enumerate(x.type.dims) if keepdims or d not in axes]
    shape = [1 if d in axes else e for d, e in enumerate(x.type.dims)] if keepdims else rest
    dtype = x.type.dtype
    found = n.reshape(n.emit("div", total, below), shape)
    return n.cast(found, dtype), n.cast(n.reshape(average, shape), dtype)


@torch_op("aten.var.correction")
def variance(n: Node, x: Value, axes: Any, correction: Number | None, keepdims: bool) -> Value:
    own = axes_of(n, x, axes)
    return _variance(n, x, own, 1 if correction is None else correction, keepdims)[0]


@torch_op("aten.std.correction")
def deviation(n: Node, x: Value, axes: Any, correction: Number | None, keepdims: bool) -> Value:
    return n("sqrt", variance(n, x, axes, correction, keepdims))


@torch_op("aten.var_mean.correction")
def variance_and_mean(
    n: Node, x: Value, axes: Any, correction: Number | None, keepdims: bool
) -> list[Value]:
    own = axes_of(n, x, axes)
    return list(_variance(n, x, own, 1 if correction is None else correction, keepdims))


@torch_op("aten.linalg_vector_norm.default")
def vector_norm(
    n: Node, x: Value, order: Number, axes: Any, keepdims: bool, dtype: DType | None
) -> Value:
    x, own = n.cast(x, n.dtype), axes_of(n, x, axes)
    if order == math.inf:
        return reduced(n, "reduce_max", n("abs", x), own, keepdims)
    if order == -math.inf:
        return reduced(n, "reduce_min", n("abs", x), own, keepdims)
    if order == 0:
        return reduced(n, "reduce_sum", n.cast(truth(n, x), n.dtype), own, keepdims)
    if order == 2:
        return n("sqrt", reduced(n, "reduce_sum", n("mul", x, x), own, keepdims))
    size = n("abs", x)
    if order == 1:
        return reduced(n, "reduce_sum", size, own, keepdims)
    return n("pow", reduced(n, "reduce_sum", n("pow", size, order), own, keepdims), 1 / order)


@torch_op("aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def norm(n: Node, x: Value, p: Number | None, axes: Any = None, keepdims: bool = False) -> Value:
    return vector_norm(n, x, 2 if p is None else p, axes, keepdims, None)


@torch_op("aten.dist.default")
def distance(n: Node, a: Value, b: Value, p: Number) -> Value:
    apart = n.emit("sub", n.cast(a, n.dtype), n.cast(b, n.dtype))
    return vector_norm(n, apart, p, None, False, None)


@torch_op("aten.logsumexp.default")
def log_sum_exp(n: Node, x: Value, axes: Any, keepdims: bool) -> Value:
    x, own = n.cast(x, n.dtype), axes_of(n, x, axes)
    peak = reduced(n, "reduce_max", x, own, True)
    # of what is infinite, nothing is taken away
    peak = n("where", n("less", n("abs", peak), math.inf), peak, 0.0)
    total = reduced(n, "reduce_sum", n("exp", n("sub", x, peak)), own, True)
    return n.reshape(n("add", n("log", total), peak), n.dims)


# along one dim


def _softmax(op: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, axis: int, other: Any = None) -> Value:
        x = n.cast(x, n.dtype)
        if x.type.rank == 0:
            return n.reshape(n.emit(op, n.reshape(x, (1,)), axis=0), ())
        return n.emit(op, x, axis=n.axis(axis, x.type.rank))

    return build


for _name, _op in {"softmax": "softmax", "log_softmax": "log_softmax"}.items():
    torch_op(f"aten.{_name}.int", f"aten._{_name}.default")(_softmax(_op))


def _scan(combine: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, axis: int, dtype: DType | None) -> Value:
        x = n.cast(x, n.dtype)
        if x.type.rank == 0:
            return x
        return n.emit("scan", x, axis=n.axis(axis, x.type.rank), combine=combine)

    return build


torch_op("aten.cumsum.default")(_scan("sum"))
torch_op("aten.cumprod.default")(_scan("prod"))


def _best(n: Node, x: Value, axis: int, k: Dim, largest: bool) -> list[Value]:
    if x.type.rank == 0:
        return [x, n.scalar(0, I64)]
    at = n.axis(axis, x.type.rank)
    numbers = n.cast(x, DType.U8) if x.type.dtype is DType.BOOL else x
    values, places = n.emit_all("top_k", numbers, axis=at, k=k, largest=largest)
    return [n.cast(values, x.type.dtype), places]


@torch_op("aten.topk.default")
def top_k(n: Node, x: Value, k: Dim, axis: int, largest: bool, is_sorted: bool) -> list[Value]:
    return _best(n, x, axis, k, largest)


@torch_op("aten.sort.default")
def sort(n: Node, x: Value, axis: int, descending: bool) -> list[Value]:
    extent = x.type.dims[n.axis(axis, x.type.rank)] if x.type.rank else 1
    return _best(n, x, axis, extent, descending)


@torch_op("aten.sort.stable")
def stable_sort(n: Node, x: Value, stable: bool, axis: int, descending: bool) -> list[Value]:
    return sort(n, x, axis, descending)


@torch_op("aten.argsort.default", "aten.argsort.stable")
def arg_sort(n: Node, x: Value, *options: Any) -> Value:
    axis, descending = options[-2:]
    return sort(n, x, axis, descending)[1]


@torch_op("aten.histc.default")
def histogram(n: Node, x: Value, bins: int, low: Number, high: Number) -> Value:
    """histc: the number of elements in each of equal parts of [low, high]; the last part includes
    both ends."""
    if low >= high:
        raise UnsupportedNodeError("a histogram whose bounds are those of the data")
    count = x.type.element_count
    column = n.reshape(x, (count, 1))
    scaled = n("div", n("mul", n("sub", column, float(low)), float(bins)), float(high - low))
    part = n.emit("minimum", n.emit("floor", scaled), n.scalar(float(bins - 1), n.dtype))
    inside = n.emit(
        "and",
        n("less_equal", n.scalar(float(low), n.dtype), column),
        n("less_equal", column, float(high)),
    )
    is_there = n("equal", part, n.cast(n.emit("range", size=bins), n.dtype))
    found = n.cast(n.emit("and", inside, is_there), n.dtype)
    return n.emit("reduce_sum", found, axes=(0,), keepdims=False)
