"""ONNX's recurrent layers: LSTM, GRU and RNN, with all variants of their attributes."""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.recurrent import Layer, activations_of, recurrent
from aot.frontends.onnx.table import Node, onnx_op
from aot.ir.dims import DimExpr
from aot.ir.graph import Attr, Value
from aot.ops.cells import Activation, gru_cell, lstm_cell, rnn_cell


def _activations(node: Node, usual: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """The activations of each direction."""
    names = [name.lower() for name in node.strs_attr("activations", usual * directions)]
    if len(names) != len(usual) * directions:
        raise node.error(
            f"attribute 'activations' has {len(names)} items, expected {len(usual) * directions}"
        )
    alphas, betas = (node.floats_attr(f"activation_{name}", ()) for name in ("alpha", "beta"))
    found = activations_of(names, alphas, betas)
    return [found[d * len(usual) : (d + 1) * len(usual)] for d in range(directions)]


def _hidden_size(node: Node, r: Value) -> int:
    extent = r.type.dims[-1] if r.type.rank == 3 else 0
    if isinstance(extent, DimExpr) or extent == 0:
        raise node.error("attribute 'hidden_size' is missing, and r does not tell it")
    return extent


def _recurrent(
    node: Node, op: str, usual: tuple[str, ...], operands: int, attrs: dict[str, Attr]
) -> Sequence[Value]:
    """Emits `op` with the first `operands` operands of the node."""
    direction = node.str_attr("direction", "forward").lower()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.error(
            f"attribute 'direction' is {direction!r}, expected 'forward', 'reverse' "
            "or 'bidirectional'"
        )
    activations = _activations(node, usual, 2 if direction == "bidirectional" else 1)
    inputs = [node.optional(number) for number in range(operands)]
    x, r = node.input(0), node.input(2)
    if x.type.rank != 3:
        raise node.error(f"x has rank {x.type.rank}, expected 3")
    is_batch_first = bool(node.int_attr("layout", 0))
    attrs = {
        **attrs,
        "hidden_size": node.int_attr("hidden_size", _hidden_size(node, r)),
        "clip": node.float_attr("clip", 0.0),
    }
    return recurrent(node, Layer(op, direction, activations, attrs, is_batch_first), inputs)


@onnx_op("LSTM", since=7)
def lstm(node: Node) -> Sequence[Value]:
    coupled = bool(node.int_attr("input_forget", 0))
    return _recurrent(node, "lstm", lstm_cell(coupled).activations, 8, {"input_forget": coupled})


@onnx_op("GRU", since=7)
def gru(node: Node) -> Sequence[Value]:
    after = bool(node.int_attr("linear_before_reset", 0))
    return _recurrent(node, "gru", gru_cell(after).activations, 6, {"linear_before_reset": after})


@onnx_op("RNN", since=7)
def rnn(node: Node) -> Sequence[Value]:
    return _recurrent(node, "rnn", rnn_cell().activations, 6, {})
