"""ONNX's recurrent layers: LSTM, GRU and RNN, with the varieties that their attributes make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.dims import DimExpr
from aot.ir.graph import Attr, Value
from aot.ops.cells import ACTIVATIONS, Activation, activations_text, gru_cell, lstm_cell, rnn_cell

_LENGTHS = 4
_STATES = (5, 6)


def _activations(node: Node, usual: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """The activations of each direction; alphas and betas go, in order, to those that have one."""
    names = [name.lower() for name in node.strs_attr("activations", usual * directions)]
    if len(names) != len(usual) * directions:
        raise node.error(
            f"attribute 'activations' has {len(names)} items, expected {len(usual) * directions}"
        )
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown:
        raise UnsupportedNodeError(f"activation {', '.join(unknown)} is not supported")
    alphas, betas = (iter(node.floats_attr(f"activation_{name}", ())) for name in ("alpha", "beta"))
    found = [Activation(name, _parameters(name, alphas, betas)) for name in names]
    return [found[d * len(usual) : (d + 1) * len(usual)] for d in range(directions)]


def _parameters(name: str, alphas: Iterator[float], betas: Iterator[float]) -> tuple[float, ...]:
    return tuple(
        next(given, default)
        for given, default in zip((alphas, betas), ACTIVATIONS[name].defaults, strict=False)
    )


def _hidden_size(node: Node, r: Value) -> int:
    extent = r.type.dims[-1] if r.type.rank == 3 else 0
    if isinstance(extent, DimExpr) or extent == 0:
        raise node.error("attribute 'hidden_size' is missing, and r does not tell it")
    return extent


def _lengths(node: Node, steps: object) -> Value | None:
    """Operand sequence_lens; None where it surely says that all sequences are whole."""
    value = node.optional(_LENGTHS)
    known = None if value is None else node.values.of(value)
    return None if known is not None and all(n == steps for n in known.flat) else value


def _swapped(node: Node, value: Value | None) -> Value | None:
    """The first two dims exchanged, for layout=1."""
    return None if value is None else node.emit("transpose", value, perm=(1, 0, 2))


def _recurrent(
    node: Node, op: str, usual: tuple[str, ...], operands: int, attrs: dict[str, Attr]
) -> Sequence[Value]:
    """Emits `op`, which takes the first `operands` operands of the node."""
    direction = node.str_attr("direction", "forward").lower()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.error(
            f"attribute 'direction' is {direction!r}, expected 'forward', 'reverse' "
            "or 'bidirectional'"
        )
    both = direction == "bidirectional"
    activations = _activations(node, usual, 2 if both else 1)
    inputs = [node.optional(number) for number in range(operands)]
    x, r = node.input(0), node.input(2)
    if x.type.rank != 3:
        raise node.error(f"x has rank {x.type.rank}, expected 3")
    is_batch_first = bool(node.int_attr("layout", 0))
    if is_batch_first:
        for number in (0, *_STATES):
            if number < operands:
                inputs[number] = _swapped(node, inputs[number])
        x = inputs[0] or x
    inputs[_LENGTHS] = _lengths(node, x.type.dims[0])
    attrs = {
        **attrs,
        "hidden_size": node.int_attr("hidden_size", _hidden_size(node, r)),
        "clip": node.float_attr("clip", 0.0),
    }

    def run(
        direction: str, inputs: Sequence[Value | None], chosen: list[Activation]
    ) -> list[Value]:
        return node.emit_all(
            op, *inputs, direction=direction, activations=activations_text(chosen), **attrs
        )

    if both and activations[0] != activations[1]:
        results = _apart(
            node, inputs, lambda n, own: run(("forward", "reverse")[n], own, activations[n])
        )
    else:
        results = run(direction, inputs, activations[0])
    if is_batch_first:
        y = node.emit("transpose", results[0], perm=(2, 0, 1, 3))
        results = [y, *(node.emit("transpose", s, perm=(1, 0, 2)) for s in results[1:])]
    return results


def _apart(
    node: Node,
    inputs: Sequence[Value | None],
    run: Callable[[int, Sequence[Value | None]], list[Value]],
) -> list[Value]:
    """Both directions as a layer each, where they are of different kinds."""

    def half(value: Value | None, number: int, direction: int) -> Value | None:
        if value is None or number in (0, _LENGTHS):
            return value
        rank = value.type.rank
        return node.emit(
            "slice",
            value,
            starts=(direction, *[0] * (rank - 1)),
            stops=(direction + 1, *value.type.dims[1:]),
            steps=(1,) * rank,
        )

    parts = [run(d, [half(v, n, d) for n, v in enumerate(inputs)]) for d in range(2)]
    return [
        node.emit("concat", *pair, axis=1 if number == 0 else 0)
        for number, pair in enumerate(zip(*parts, strict=True))
    ]


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
