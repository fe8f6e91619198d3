"""Recurrent layers in any format, converted to the operands of our recurrent ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir.graph import Attr, Value
from aot.ops.cells import ACTIVATIONS, Activation, activations_text

# Places of operands: x, w, r, b, lengths, and the states at the start.
X, LENGTHS = 0, 4
STATES = (5, 6)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer with one or two directions.

    Attributes:
        op: lstm, gru or rnn.
        direction: forward, reverse or bidirectional.
        activations: of each direction.
        attrs: the other attributes of `op`.
        is_batch_first: x is [batch, steps, ...] and not [steps, batch, ...]; states and results
            alike.
    """

    op: str
    direction: str
    activations: Sequence[Sequence[Activation]]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    is_batch_first: bool = False


def activations_of(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """The named activations; alphas and betas are assigned, in order, to those that have such
    parameters.

    Raises:
        UnsupportedNodeError: a name is none that we have.
    """
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown:
        raise UnsupportedNodeError(f"activation {', '.join(unknown)} is not supported")
    given = iter(alphas), iter(betas)
    return [Activation(name, _parameters(name, *given)) for name in names]


def _parameters(name: str, alphas: Iterator[float], betas: Iterator[float]) -> tuple[float, ...]:
    return tuple(
        next(given, default)
        for given, default in zip((alphas, betas), ACTIVATIONS[name].defaults, strict=False)
    )


def recurrent(b: GraphBuilder, layer: Layer, operands: Sequence[Value | None]) -> list[Value]:
    """The results of a layer: the output of each step, and the final states."""
    inputs = list(operands)
    if layer.is_batch_first:
        for number in (X, *STATES):
            if number < len(inputs):
                inputs[number] = _swapped(b, inputs[number])
    x = inputs[X]
    inputs[LENGTHS] = _lengths(b, inputs[LENGTHS], None if x is None else x.type.dims[0])

    def run(
        direction: str, inputs: Sequence[Value | None], chosen: Sequence[Activation]
    ) -> list[Value]:
        text = activations_text(list(chosen))
        return b.emit_all(layer.op, *inputs, direction=direction, activations=text, **layer.attrs)

    kinds = layer.activations
    if layer.direction == "bidirectional" and kinds[0] != kinds[1]:
        results = _apart(b, inputs, lambda n, own: run(("forward", "reverse")[n], own, kinds[n]))
    else:
        results = run(layer.direction, inputs, kinds[0])
    if layer.is_batch_first:
        y = b.emit("transpose", results[0], perm=(2, 0, 1, 3))
        results = [y, *(b.emit("transpose", s, perm=(1, 0, 2)) for s in results[1:])]
    return results


def _lengths(b: GraphBuilder, value: Value | None, steps: object) -> Value | None:
    """The lengths of sequences; None if all sequences are certainly complete."""
    known = None if value is None else b.values.of(value)
    return None if known is not None and all(n == steps for n in known.flat) else value


def _swapped(b: GraphBuilder, value: Value | None) -> Value | None:
    """A rank-3 value with its first two dims exchanged; None stays None."""
    return None if value is None else b.emit("transpose", value, perm=(1, 0, 2))


def _apart(
    b: GraphBuilder,
    inputs: Sequence[Value | None],
    run: Callable[[int, Sequence[Value | None]], list[Value]],
) -> list[Value]:
    """Both directions as separate layers, where they differ in kind."""

    def half(value: Value | None, number: int, direction: int) -> Value | None:
        if value is None or number in (X, LENGTHS):
            return value
        rank = value.type.rank
        return b.emit(
            "slice",
            value,
            starts=(direction, *[0] * (rank - 1)),
            stops=(direction + 1, *value.type.dims[1:]),
            steps=(1,) * rank,
        )

    parts = [run(d, [half(v, n, d) for n, v in enumerate(inputs)]) for d in range(2)]
    return [
        b.emit("concat", *pair, axis=1 if number == 0 else 0)
        for number, pair in enumerate(zip(*parts, strict=True))
    ]
