"""ONNX's reductions, and its normalisations along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable

from aot.frontends.lib.means import integer_mean
from aot.frontends.onnx.table import Node, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType

_PLAIN = {
    "ReduceMax": "reduce_max",
    "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceSum": "reduce_sum",
}
_AXES_AN_OPERAND = 18  # and 13 for ReduceSum


def _axes(node: Node, is_operand: bool) -> tuple[int, ...]:
    """The reduced dims; ONNX treats an absent or empty list as all dims, or as none."""
    rank = node.input(0).type.rank
    if not is_operand:
        given = node.ints_attr("axes", range(rank))
    elif node.optional(1) is None:
        given = ()
    else:
        given = node.ints(1, "axes")
    if is_operand and not given and node.int_attr("noop_with_empty_axes", 0):
        return ()
    return node.axes(given, rank) if given else tuple(range(rank))


def _reduce(op: str, is_operand: bool) -> Callable[[Node], Value]:
    def build(node: Node) -> Value:
        node.ignore("noop_with_empty_axes")
        x = node.input(0)
        # of truths the largest is any of them, the smallest all of them
        numbers = node.cast(x, DType.I32) if x.type.dtype is DType.BOOL else x
        axes, keepdims = _axes(node, is_operand), bool(node.int_attr("keepdims", 1))
        if op == "reduce_mean" and x.type.dtype.is_integer:
            return integer_mean(node, x, axes, keepdims=keepdims)
        reduced = node.emit(op, numbers, axes=axes, keepdims=keepdims)
        return (
            node.emit("less", node.scalar(0, DType.I32), reduced)
            if (x.type.dtype is DType.BOOL)
            else reduced
        )

    return build


for _name, _op in _PLAIN.items():
    onnx_op(_name)(_reduce(_op, False))
    onnx_op(_name, since=13 if _name == "ReduceSum" else _AXES_AN_OPERAND)(_reduce(_op, True))


def _composed(name: str, build: Callable[[Node, Callable[[str, Value], Value]], Value]) -> None:
    """Registers a reduction composed of others; `build` receives a function that reduces."""

    def at(is_operand: bool) -> Callable[[Node], Value]:
        def run(node: Node) -> Value:
            node.ignore("noop_with_empty_axes")
            axes, keepdims = _axes(node, is_operand), bool(node.int_attr("keepdims", 1))
            return build(node, lambda op, x: node.emit(op, x, axes=axes, keepdims=keepdims))

        return run

    onnx_op(name)(at(False))
    onnx_op(name, since=_AXES_AN_OPERAND)(at(True))


def _square(node: Node) -> Value:
    return node.emit("mul", node.input(0), node.input(0))


_composed("ReduceL1", lambda node, reduce: reduce("reduce_sum", node.emit("abs", node.input(0))))
_composed("ReduceL2", lambda node, reduce: node.emit("sqrt", reduce("reduce_sum", _square(node))))
_composed("ReduceSumSquare", lambda node, reduce: reduce("reduce_sum", _square(node)))
_composed(
    "ReduceLogSum", lambda node, reduce: node.emit("log", reduce("reduce_sum", node.input(0)))
)


def _log_sum_exp(node: Node, reduce: Callable[[str, Value], Value]) -> Value:
    """ReduceLogSumExp: subtracts the largest element first, so that no exponential overflows;
    infinite ones stay."""
    x = node.input(0)
    top = reduce("reduce_max", x)
    zero, infinity = node.scalar(0, x.type.dtype), node.scalar(math.inf, x.type.dtype)
    is_finite = node.emit("less", node.emit("abs", top), infinity)
    top = node.emit("where", is_finite, top, zero)
    # in the shape that broadcasts to x: its largest again, with the reduced dims of extent 1
    kept = tuple(1 if d in _reduced(node) else n for d, n in enumerate(x.type.dims))
    powers = node.emit("exp", node.emit("sub", x, node.reshape(top, kept)))
    return node.emit("add", node.emit("log", reduce("reduce_sum", powers)), top)


def _reduced(node: Node) -> tuple[int, ...]:
    return _axes(node, node.opset >= _AXES_AN_OPERAND)


_composed("ReduceLogSumExp", _log_sum_exp)


def _softmax(op: str) -> Callable[[Node], Value]:
    return lambda node: node.emit(
        op, node.input(0), axis=node.axis_attr(node.input(0).type.rank, -1)
    )


def _flattened_softmax(op: str) -> Callable[[Node], Value]:
    """Softmax and its variants before opset 13, over all dims from axis, flattened."""

    def build(node: Node) -> Value:
        x = node.input(0)
        shape = x.type.dims
        axis = node.axis_attr(x.type.rank, 1)
        if axis == x.type.rank - 1:
            return node.emit(op, x, axis=axis)
        matrix = (dims.product(shape[:axis]), dims.product(shape[axis:]))
        return node.reshape(node.emit(op, node.reshape(x, matrix), axis=1), shape)

    return build


for _name, _op in {"Softmax": "softmax", "LogSoftmax": "log_softmax"}.items():
    onnx_op(_name)(_flattened_softmax(_op))
    onnx_op(_name, since=13)(_softmax(_op))


def _fitted(node: Node, value: Value, tail: tuple[dims.Dim, ...]) -> Value:
    """A scale or bias broadcast to exactly the normalised dims."""
    if value.type.rank > len(tail):
        value = node.reshape(value, value.type.dims[value.type.rank - len(tail) :])
    return value if value.type.dims == tail else node.emit("broadcast_to", value, shape=tail)


@onnx_op("LayerNormalization", since=17)
def layer_normalization(node: Node) -> Value:
    node.ignore("stash_type")  # sums are kept in f32 at least
    node.refuse_output(1, "mean")
    node.refuse_output(2, "inverse standard deviation")
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, -1)
    tail = x.type.dims[axis:]
    bias = node.optional(2)
    return node.emit(
        "layer_norm",
        x,
        _fitted(node, node.input(1), tail),
        None if bias is None else _fitted(node, bias, tail),
        axis=axis,
        epsilon=node.float_attr("epsilon", 1e-5),
    )
