"""TFLite's reductions, and positions and cumulative sums along a dim."""

from __future__ import annotations

from collections.abc import Callable

from aot.frontends.lib.means import integer_mean
from aot.frontends.tflite.table import Node, tflite_op
from aot.ir.graph import Value
from aot.ir.types import DType


def _axes(n: Node, x: Value) -> tuple[int, ...]:
    found = {n.axis(a, x.type.rank) for a in n.ints(1)}
    return tuple(sorted(found))


def _reduction(op: str, *, moves: bool = False) -> Callable[[Node], Value]:
    """A table entry for TFLite operators that reduce by `op`. With `moves`, each result is one of
    the elements, so that integers stay quantised."""

    def build(n: Node) -> Value:
        x = n.stored_like_output(0) if moves else n.real(0)
        axes = _axes(n, x)
        keeps = bool(n.option("keep_dims", False))
        return n.emit(op, x, axes=axes, keepdims=keeps) if axes else x

    return build


tflite_op("SUM")(_reduction("reduce_sum"))
tflite_op("REDUCE_PROD")(_reduction("reduce_prod"))
tflite_op("REDUCE_MAX")(_reduction("reduce_max", moves=True))
tflite_op("REDUCE_MIN")(_reduction("reduce_min", moves=True))


@tflite_op("MEAN")
def mean(n: Node) -> Value:
    x = n.real(0)
    axes, keeps = _axes(n, x), bool(n.option("keep_dims", False))
    if not axes:
        return x
    if x.type.dtype.is_float:
        return n.emit("reduce_mean", x, axes=axes, keepdims=keeps)
    return integer_mean(n, x, axes, keepdims=keeps)


def _truths(op: str) -> Callable[[Node], Value]:
    def build(n: Node) -> Value:
        x = n.input(0)
        axes, keeps = _axes(n, x), bool(n.option("keep_dims", False))
        if not axes:
            return x
        found = n.emit(op, n.cast(x, DType.I32), axes=axes, keepdims=keeps)
        return n.cast(found, DType.BOOL)

    return build


tflite_op("REDUCE_ANY")(_truths("reduce_max"))
tflite_op("REDUCE_ALL")(_truths("reduce_min"))


def _best(op: str) -> Callable[[Node], Value]:
    def build(n: Node) -> Value:
        x = n.input(0)
        (axis,) = n.ints(1) or [x.type.rank - 1]
        found = n.emit(op, x, axis=n.axis(axis, x.type.rank), keepdims=False)
        return n.cast(found, n.output().dtype)

    return build


tflite_op("ARG_MAX")(_best("arg_max"))
tflite_op("ARG_MIN")(_best("arg_min"))


@tflite_op("CUMSUM")
def cumsum(n: Node) -> Value:
    x = n.real(0)
    (axis,) = n.ints(1)
    return n.emit(
        "scan",
        x,
        axis=n.axis(axis, x.type.rank),
        exclusive=bool(n.option("exclusive", False)),
        reverse=bool(n.option("reverse", False)),
    )


@tflite_op("TOPK_V2")
def top_k(n: Node) -> list[Value]:
    x = n.stored_like_output(0)
    (count,) = n.dims_of(1)
    values, places = n.emit_all("top_k", x, k=count, axis=x.type.rank - 1)
    return [values, n.cast(places, n.output(1).dtype)]
