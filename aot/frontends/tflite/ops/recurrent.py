"""TFLite's recurrent layers. Their states are variable tensors, which persist between calls.

LSTMs that clip, project or normalise are loops over a step; the others are our `lstm`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.base.records import dataclass
from aot.frontends.lib.normalization import standardised
from aot.frontends.lib.recurrent import Layer, activations_of, recurrent
from aot.frontends.tflite.ops.movement import sliced
from aot.frontends.tflite.table import ACTIVATIONS, Node, UnsupportedNodeError, tflite_op
from aot.ir.dims import add
from aot.ir.graph import Value

INPUT, FORGET, CELL, OUTPUT = range(4)  # gates, in the order of operands


@dataclass(frozen=True)
class Weights:
    """The operands of an LSTM, dequantised; None for absent ones.

    Attributes:
        of_inputs, of_states, biases, norms: one a gate.
        peepholes: of the gates INPUT, FORGET and OUTPUT.
    """

    of_inputs: Sequence[Value | None]
    of_states: Sequence[Value | None]
    peepholes: Sequence[Value | None]
    biases: Sequence[Value | None]
    projection: Value | None
    projection_bias: Value | None
    norms: Sequence[Value | None]

    @property
    def is_coupled(self) -> bool:
        """Whether the input gate is coupled: 1 minus the forget gate."""
        return self.of_inputs[INPUT] is None


def _given(n: Node, numbers: Sequence[int]) -> list[Value | None]:
    return [n.real(number) if n.has(number) else None for number in numbers]


def _weights(n: Node, first: int, norms: int | None) -> Weights:
    """The LSTM operands from number `first`, in the order common to all LSTMs."""
    found = _given(n, range(first, first + 17))
    return Weights(
        found[:4],
        found[4:8],
        found[8:11],
        found[11:15],
        found[15],
        found[16],
        [None] * 4 if norms is None else _given(n, range(norms, norms + 4)),
    )


def _product(n: Node, x: Value, w: Value) -> Value:
    """The product of x and the transpose of w."""
    return n.emit("matmul", x, n.transposed(w, (1, 0)))


def _step(n: Node, w: Weights, x: Value, h: Value, c: Value) -> tuple[Value, Value]:
    """(hidden state, cell state) after one step of an LSTM."""
    name = n.enum("ActivationFunctionType", "fused_activation_function")
    if name not in ACTIVATIONS:
        raise UnsupportedNodeError(f"activation {name} is not supported")
    act = ACTIVATIONS[name]

    def gate(number: int, peephole: Value | None, cell: Value) -> Value:
        of_input, of_state = w.of_inputs[number], w.of_states[number]
        if of_input is None or of_state is None:
            raise n.error("a weight is missing")
        total = n("add", _product(n, x, of_input), _product(n, h, of_state))
        if peephole is not None:
            total = n("add", total, n("mul", cell, peephole))
        norm = w.norms[number]
        if norm is not None:
            total = n("mul", standardised(n, total, (1,), 1e-8), norm)
        bias = w.biases[number]
        return total if bias is None else n("add", total, bias)

    forget = n("sigmoid", gate(FORGET, w.peepholes[1], c))
    if w.is_coupled:
        take = n("sub", n.scalar(1.0, forget.type.dtype), forget)
    else:
        take = n("sigmoid", gate(INPUT, w.peepholes[0], c))
    c = n("add", n("mul", forget, c), n("mul", take, act(n, gate(CELL, None, c))))
    c = _clipped(n, c, "cell_clip")
    h = n("mul", n("sigmoid", gate(OUTPUT, w.peepholes[2], c)), act(n, c))
    if w.projection is not None:
        h = _product(n, h, w.projection)
        if w.projection_bias is not None:
            h = n("add", h, w.projection_bias)
        h = _clipped(n, h, "proj_clip")
    return h, c


def _clipped(n: Node, x: Value, option: str) -> Value:
    limit = float(n.option(option, 0.0))
    return n("minimum", n("maximum", x, -limit), limit) if limit > 0 else x


def _steps(n: Node, w: Weights, xs: Value, h: Value, c: Value) -> tuple[Value, Value, Value]:
    """(outputs [steps, batch, outputs], final hidden state, final cell state) for xs [steps, batch,
    inputs]."""

    def body(inside: Node, number: Value, carried: Sequence[Value]) -> list[Value]:
        row = inside.emit("gather", xs, inside.reshape(number, (1,)), axis=0)
        made = _step(inside, w, inside.reshape(row, xs.type.dims[1:]), *carried)
        return [*made, made[0]]

    h, c, ys = n.repeated(xs.type.dims[0], [h, c], body)
    return ys, h, c


def _is_plain(n: Node, w: Weights) -> bool:
    """Whether the `lstm` op computes this layer: no clipping, projection, norms, coupling or other
    activation.
    """
    return (
        n.option("cell_clip", 0.0) <= 0
        and w.projection is None
        and not any(norm is not None for norm in w.norms)
        and all(v is not None for v in (*w.biases[1:], *w.of_states[1:], *w.of_inputs[1:]))
        and n.enum("ActivationFunctionType", "fused_activation_function") == "TANH"
        and not w.is_coupled
        and len({v is None for v in w.peepholes}) == 1
    )


def _plain(n: Node, w: Weights, xs: Value, h: Value, c: Value) -> tuple[Value, Value, Value]:
    """(outputs, last hidden state, last cell state) of a plain LSTM, by the `lstm` op, whose gates
    are in the order i, o, f, c.
    """
    order = (INPUT, OUTPUT, FORGET, CELL)

    def joined(parts: Sequence[Value | None]) -> Value:
        made = n.emit("concat", *(parts[gate] for gate in order), axis=0)
        return n.reshape(made, (1, *made.type.dims))

    size = h.type.dims[1]
    if not isinstance(size, int):
        raise UnsupportedNodeError("a state whose extent depends on the input's shape")
    bias = joined(w.biases)
    zeros = n.emit("broadcast_to", n.scalar(0.0, bias.type.dtype), shape=bias.type.dims)
    p = None
    if w.peepholes[0] is not None:
        p = n.emit("concat", w.peepholes[0], w.peepholes[2], w.peepholes[1], axis=0)
        p = n.reshape(p, (1, *p.type.dims))
    kinds = [activations_of(("sigmoid", "tanh", "tanh"), (), ())]
    operands = [
        xs,
        joined(w.of_inputs),
        joined(w.of_states),
        n.emit("concat", bias, zeros, axis=1),
        None,
        n.reshape(h, (1, *h.type.dims)),
        n.reshape(c, (1, *c.type.dims)),
        p,
    ]
    ys, last, cell = recurrent(n, Layer("lstm", "forward", kinds, {"hidden_size": size}), operands)
    ys = n.reshape(ys, (ys.type.dims[0], *ys.type.dims[2:]))
    return ys, n.reshape(last, h.type.dims), n.reshape(cell, c.type.dims)


def _layer(n: Node, w: Weights, xs: Value, states: tuple[int, int]) -> Value:
    """An LSTM layer over xs [steps, batch, inputs], with its states in two operands."""
    h, c = (n.real(number) for number in states)
    ys, h, c = (_plain if _is_plain(n, w) else _steps)(n, w, xs, h, c)
    for number, value in zip(states, (h, c), strict=True):
        n.assign(number, value)
    return ys


def _time_first(n: Node, x: Value) -> Value:
    return x if n.option("time_major", False) else n.transposed(x, (1, 0, 2))


@tflite_op("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(n: Node) -> Value:
    xs = _time_first(n, n.real(0))
    norms = 20 if n.count > 20 else None
    return _time_first(n, _layer(n, _weights(n, 1, norms), xs, (18, 19)))


@tflite_op("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(n: Node) -> list[Value]:
    if n.has(39):
        raise UnsupportedNodeError("an auxiliary input is not supported")
    xs = _time_first(n, n.real(0))
    forward = _layer(n, _weights(n, 1, None), xs, (35, 36))
    backward = _reversed(n, _layer(n, _weights(n, 18, None), _reversed(n, xs), (37, 38)))
    both = [_time_first(n, forward), _time_first(n, backward)]
    return [n.emit("concat", *both, axis=2)] if n.option("merge_outputs", False) else both


def _reversed(n: Node, x: Value) -> Value:
    """The steps in reverse order."""
    rest = x.type.dims[1:]
    return sliced(n, x, (add(x.type.dims[0], -1), 0, 0), (-1, *rest), (-1, 1, 1))


@tflite_op("LSTM")
def lstm(n: Node) -> list[Value | None]:
    """LSTM: a single step; the older kernel has all gates in one product."""
    if n.option("kernel_type", 0) == 1:
        return list(_basic_lstm(n))
    x = n.real(0)
    xs = n.reshape(x, (1, *x.type.dims))
    norms = 20 if n.count > 20 else None
    ys = _layer(n, _weights(n, 1, norms), xs, (18, 19))
    y = n.reshape(ys, ys.type.dims[1:])
    return [*[None] * (len(n.operator.outputs) - 1), y]


def _basic_lstm(n: Node) -> Sequence[Value]:
    x, h, w, bias, c = (n.real(i) for i in range(5))
    both = n.emit("concat", x, h, axis=1)
    gates = n("add", _product(n, both, w), bias)
    size = c.type.dims[1]
    if not isinstance(size, int):
        raise UnsupportedNodeError("a state whose extent depends on the input's shape")
    rows = x.type.dims[0]
    take, new, forget, out = (
        sliced(n, gates, (0, i * size), (rows, (i + 1) * size)) for i in range(4)
    )
    kept = n("mul", n("sigmoid", forget), c)
    c = n("add", kept, n("mul", n("sigmoid", take), n("tanh", new)))
    return [n("mul", n("sigmoid", out), n("tanh", c)), c, both, gates]


# plain recurrences


def _rnn(n: Node, xs: Value) -> Value:
    """A plain recurrent layer over xs [steps, batch, inputs]; operands are x, w, r, bias and the
    state."""
    w, r, bias = n.real(1), n.real(2), n.real(3)

    def body(inside: Node, number: Value, carried: Sequence[Value]) -> list[Value]:
        row = inside.emit("gather", xs, inside.reshape(number, (1,)), axis=0)
        x = inside.reshape(row, xs.type.dims[1:])
        total = inside("add", _product(inside, x, w), _product(inside, carried[0], r))
        made = inside.activated(inside("add", total, bias))
        return [made, made]

    h, ys = n.repeated(xs.type.dims[0], [n.real(4)], body)
    n.assign(4, h)
    return ys


@tflite_op("RNN")
def rnn(n: Node) -> Value:
    x = n.real(0)
    ys = _rnn(n, n.reshape(x, (1, *x.type.dims)))
    return n.reshape(ys, ys.type.dims[1:])


@tflite_op("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(n: Node) -> Value:
    return _time_first(n, _rnn(n, _time_first(n, n.real(0))))


@tflite_op("SVDF")
def svdf(n: Node) -> Value:
    """SVDF: a filter over time on features of each input; the state has the latest features."""
    x, of_features, of_time, state = n.real(0), n.real(1), n.real(2), n.real(4)
    filters, memory = of_time.type.dims
    batch, rank = x.type.dims[0], int(n.option("rank", 1))
    if not isinstance(filters, int) or not isinstance(memory, int) or filters % max(rank, 1):
        raise n.error(f"its weights are {of_time.type} and its rank {rank}")
    feature = n.reshape(_product(n, x, of_features), (batch, filters, 1))
    past = n.reshape(state, (batch, filters, memory))
    later = sliced(n, past, (0, 0, 1), (batch, filters, memory))
    now = n.emit("concat", later, feature, axis=2)
    n.assign(4, n.reshape(now, state.type.dims))
    total = n.emit("reduce_sum", n("mul", now, of_time), axes=(2,), keepdims=False)
    units = n.reshape(total, (batch, filters // rank, rank))
    y = n.emit("reduce_sum", units, axes=(2,), keepdims=False)
    return n.activated(n("add", y, n.real(3)) if n.has(3) else y)
