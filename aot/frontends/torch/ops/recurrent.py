"""PyTorch's stacked recurrent layers, whose gates torch stores in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.frontends.lib.recurrent import Layer, activations_of, recurrent
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir.graph import Attr, Value
from aot.ops.cells import gru_cell, lstm_cell, rnn_cell

# Our gates, by their numbers in torch's order.
_LSTM_GATES = (0, 3, 1, 2)  # i, o, f, c of i, f, c, o
_GRU_GATES = (1, 0, 2)  # z, r, h of r, z, h
_RNN_GATES = (0,)


def _rows(n: Node, x: Value, first: int, last: int) -> Value:
    rank = x.type.rank
    return n.emit(
        "slice",
        x,
        starts=(first, *[0] * (rank - 1)),
        stops=(last, *x.type.dims[1:]),
        steps=(1,) * rank,
    )


def _reordered(n: Node, x: Value, gates: Sequence[int], size: int) -> Value:
    if len(gates) == 1:
        return x
    return n.emit("concat", *(_rows(n, x, g * size, (g + 1) * size) for g in gates), axis=0)


def _stacked(n: Node, parts: Sequence[Value]) -> Value:
    spread = [n.reshape(p, (1, *p.type.dims)) for p in parts]
    return spread[0] if len(spread) == 1 else n.emit("concat", *spread, axis=0)


def _flat(n: Node, y: Value) -> Value:
    """[T, directions, B, H] transposed and flattened to [T, B, directions * H]."""
    steps, directions, batch, size = y.type.dims
    if directions == 1:
        return n.reshape(y, (steps, batch, size))
    moved = n.emit("transpose", y, perm=(0, 2, 1, 3))
    return n.reshape(moved, (steps, batch, directions * size))


class _Stack:
    """The layers of one call of a stacked recurrent module."""

    def __init__(self, n: Node, op: str, gates: Sequence[int], attrs: dict[str, Attr]) -> None:
        self.n, self.op, self.gates, self.attrs = n, op, gates, attrs

    def run(
        self,
        x: Value,
        states: Sequence[Value],
        weights: Sequence[Value],
        has_biases: bool,
        layers: int,
        is_bidirectional: bool,
        is_batch_first: bool,
        activations: tuple[str, ...],
    ) -> list[Value]:
        n, directions = self.n, 2 if is_bidirectional else 1
        is_batched = x.type.rank == 3
        if not is_batched:
            x = n.reshape(x, (x.type.dims[0], 1, x.type.dims[1]))
            states = [n.reshape(s, (s.type.dims[0], 1, s.type.dims[1])) for s in states]
        elif is_batch_first:
            x = n.emit("transpose", x, perm=(1, 0, 2))
        ends: list[list[Value]] = [[] for _ in states]
        count = (4 if has_biases else 2) * directions
        for number in range(layers):
            own = weights[number * count : (number + 1) * count]
            starts = [_rows(n, s, number * directions, (number + 1) * directions) for s in states]
            y, *last = self._layer(x, own, starts, has_biases, directions, activations)
            x = _flat(n, y)
            for kept, state in zip(ends, last, strict=True):
                kept.append(state)
        finals = [s[0] if len(s) == 1 else n.emit("concat", *s, axis=0) for s in ends]
        if not is_batched:
            x = n.reshape(x, (x.type.dims[0], x.type.dims[2]))
            finals = [n.reshape(s, (s.type.dims[0], s.type.dims[2])) for s in finals]
        elif is_batch_first:
            x = n.emit("transpose", x, perm=(1, 0, 2))
        return [x, *finals]

    def _layer(
        self,
        x: Value,
        weights: Sequence[Value],
        starts: Sequence[Value],
        has_biases: bool,
        directions: int,
        activations: tuple[str, ...],
    ) -> list[Value]:
        n, each = self.n, len(weights) // directions
        size = weights[1].type.dims[-1]
        if not isinstance(size, int):
            raise UnsupportedNodeError("a state whose size depends on the input's shape")
        by_direction = [
            [_reordered(n, w, self.gates, size) for w in weights[d * each : (d + 1) * each]]
            for d in range(directions)
        ]
        w, r = (_stacked(n, [own[i] for own in by_direction]) for i in range(2))
        bias = None
        if has_biases:
            bias = _stacked(n, [n.emit("concat", own[2], own[3], axis=0) for own in by_direction])
        direction = "bidirectional" if directions == 2 else "forward"
        kinds = [activations_of(activations, (), ())] * directions
        layer = Layer(self.op, direction, kinds, {**self.attrs, "hidden_size": size})
        return recurrent(n, layer, [x, w, r, bias, None, *starts])


def _check(n: Node, dropout: float, is_training: bool, weights: int, usual: int) -> None:
    if is_training and dropout:
        raise UnsupportedNodeError("dropout in training is not supported")
    if weights != usual:
        raise UnsupportedNodeError("projections of states are not supported")


def _layers(
    op: str, gates: Sequence[int], attrs: dict[str, Attr], activations: tuple[str, ...]
) -> Callable[..., list[Value]]:
    """An entry for stacked layers of one kind, whose state is one value or several."""

    def build(
        n: Node,
        x: Value,
        states: Value | Sequence[Value],
        weights: Sequence[Value],
        has_biases: bool,
        layers: int,
        dropout: float,
        is_training: bool,
        is_bidirectional: bool,
        is_batch_first: bool,
    ) -> list[Value]:
        usual = layers * (2 if is_bidirectional else 1) * (4 if has_biases else 2)
        _check(n, dropout, is_training, len(weights), usual)
        return _Stack(n, op, gates, attrs).run(
            x,
            [states] if isinstance(states, Value) else states,
            weights,
            has_biases,
            layers,
            is_bidirectional,
            is_batch_first,
            activations,
        )

    return build


torch_op("aten.lstm.input")(_layers("lstm", _LSTM_GATES, {}, lstm_cell(False).activations))
torch_op("aten.gru.input")(
    _layers("gru", _GRU_GATES, {"linear_before_reset": True}, gru_cell(True).activations)
)
torch_op("aten.rnn_tanh.input")(_layers("rnn", _RNN_GATES, {}, rnn_cell().activations))
torch_op("aten.rnn_relu.input")(_layers("rnn", _RNN_GATES, {}, ("relu",)))
