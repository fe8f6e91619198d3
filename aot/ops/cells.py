"""Cells of recurrent layers: one step of one hidden unit, and the activations.

Cells and activations are written twice: as scalar expressions, of which kernels are made, and for
numpy, which the reference runs. Knows nothing of loops or memory.

Formulas: https://onnx.ai/onnx/operators (LSTM, GRU, RNN).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.ir import expr as e
from aot.ir.expr import Expr
from aot.ir.types import Array
from aot.ir.wide_functions import sigmoid


@dataclass(frozen=True)
class ActivationKind:
    """An activation of recurrent layers.

    Attributes:
        defaults: alpha and beta, as many as it has.
        build: the expression of x, alpha, beta.
        numpy: the same for a float64 array.
    """

    defaults: tuple[float, ...]
    build: Callable[[Expr, Sequence[float]], Expr]
    numpy: Callable[[Array, Sequence[float]], Array]


def _number(value: float, like: Expr) -> Expr:
    return e.const(value, like.dtype)


def _affine(x: Expr, alpha: float, beta: float) -> Expr:
    return e.add(e.mul(x, _number(alpha, x)), _number(beta, x))


def _unless_negative(x: Expr, otherwise: Expr) -> Expr:
    return e.select(e.binary("lt", x, _number(0, x)), otherwise, x)


def _softplus(x: Expr) -> Expr:
    # max(x, 0) + log(1 + exp(-|x|)) can't overflow
    tail = e.unary("exp", e.unary("neg", e.unary("abs", x)))
    return e.add(e.binary("max", x, _number(0, x)), e.unary("log1p", tail))


def _elu(x: Expr, alpha: float) -> Expr:
    return _unless_negative(x, e.mul(e.unary("expm1", x), _number(alpha, x)))


def _clamped(x: Expr, low: float, high: float) -> Expr:
    return e.binary("min", e.binary("max", x, _number(low, x)), _number(high, x))


ACTIVATIONS: Mapping[str, ActivationKind] = {
    "affine": ActivationKind(
        (1.0, 0.0), lambda x, p: _affine(x, p[0], p[1]), lambda x, p: p[0] * x + p[1]
    ),
    "elu": ActivationKind(
        (1.0,),
        lambda x, p: _elu(x, p[0]),
        lambda x, p: np.where(x < 0, p[0] * np.expm1(np.minimum(x, 0)), x),
    ),
    "hardsigmoid": ActivationKind(
        (0.2, 0.5),
        lambda x, p: _clamped(_affine(x, p[0], p[1]), 0.0, 1.0),
        lambda x, p: np.clip(p[0] * x + p[1], 0, 1),
    ),
    "leakyrelu": ActivationKind(
        (0.01,),
        lambda x, p: _unless_negative(x, e.mul(x, _number(p[0], x))),
        lambda x, p: np.where(x < 0, p[0] * x, x),
    ),
    "relu": ActivationKind(
        (), lambda x, p: e.binary("max", x, _number(0, x)), lambda x, p: np.maximum(x, 0)
    ),
    "scaledtanh": ActivationKind(
        (1.0, 1.0),
        lambda x, p: e.mul(e.unary("tanh", e.mul(x, _number(p[1], x))), _number(p[0], x)),
        lambda x, p: p[0] * np.tanh(p[1] * x),
    ),
    "sigmoid": ActivationKind((), lambda x, p: e.unary("sigmoid", x), lambda x, p: sigmoid(x)),
    "softplus": ActivationKind((), lambda x, p: _softplus(x), lambda x, p: np.logaddexp(x, 0)),
    "softsign": ActivationKind(
        (),
        lambda x, p: e.binary("div", x, e.add(e.unary("abs", x), _number(1, x))),
        lambda x, p: x / (1 + np.abs(x)),
    ),
    "tanh": ActivationKind((), lambda x, p: e.unary("tanh", x), lambda x, p: np.tanh(x)),
    "thresholdedrelu": ActivationKind(
        (1.0,),
        lambda x, p: e.select(e.binary("lt", x, _number(p[0], x)), _number(0, x), x),
        lambda x, p: np.where(x < p[0], 0, x),
    ),
}


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters; text is "tanh" or "affine(2.0, 0.5)"."""

    name: str
    parameters: tuple[float, ...] = ()

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(map(repr, self.parameters))})"

    def build(self, x: Expr) -> Expr:
        return ACTIVATIONS[self.name].build(x, self.parameters)

    def numpy(self, x: Array) -> Array:
        return np.asarray(ACTIVATIONS[self.name].numpy(x, self.parameters))


_ONE = re.compile(r"\s*([a-z]+)(?:\(([^()]*)\))?\s*(?:;|$)")


def parse_activations(text: str) -> tuple[Activation, ...] | None:
    """The activations that `text`, like "sigmoid; affine(2.0, 0.5)", lists; None if it is wrong."""
    found: list[Activation] = []
    at = 0
    while at < len(text):
        match = _ONE.match(text, at)
        if match is None or match[1] not in ACTIVATIONS:
            return None
        try:
            numbers = tuple(float(item) for item in (match[2] or "").split(",") if item.strip())
        except ValueError:
            return None
        if len(numbers) != len(ACTIVATIONS[match[1]].defaults):
            return None
        found.append(Activation(match[1], numbers))
        at = match.end()
    return tuple(found)


def activations_text(activations: Sequence[Activation]) -> str:
    return "; ".join(map(str, activations))


@dataclass(frozen=True)
class Unit:
    """One hidden unit in one step, over expressions or arrays alike.

    Attributes:
        before: the states before the step: h, and c of an LSTM.
        input, recurrent: the two sums of a gate, biases included: over the step's input, and over
            the state. Where a cell never asks for them apart, `recurrent` may be 0.
        peephole: the weight of a gate's look at c; None where there is none.
        activate: activation number n of the layer, after clipping.
        name: gives a value that is used twice a name.
    """

    before: Sequence[Any]
    input: Callable[[int], Any]
    recurrent: Callable[[int], Any]
    peephole: Callable[[int], Any]
    activate: Callable[[int, Any], Any]
    name: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    sub: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    one: Any

    def gate(self, number: int, looks_at: Any = None) -> Any:
        """The complete sum of a gate, including a peephole on `looks_at`, if given."""
        total = self.add(self.input(number), self.recurrent(number))
        weight = None if looks_at is None else self.peephole(number)
        return total if weight is None else self.add(total, self.mul(weight, looks_at))


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell, such as LSTM or GRU.

    Attributes:
        gates: w and r have gates * hidden_size rows.
        states: what is carried from step to step: h, and c of an LSTM.
        activations: the usual ones, one each that `unit` asks for.
        unclipped: activations whose operand is no sum of a gate, which `clip` leaves alone.
        is_split: `unit` asks for the two sums of a gate apart.
        late_gate: the gate whose recurrent sum is over `late_state` instead of h; -1 for none.
        late_state: what that is, from the other gates.
        unit: the states after the step.
    """

    gates: int
    states: int
    activations: tuple[str, ...]
    unit: Callable[[Unit], Sequence[Any]]
    unclipped: frozenset[int] = frozenset()
    is_split: bool = False
    late_gate: int = -1
    late_state: Callable[[Unit], Any] | None = None


def _lstm_unit(forgets_by_input: bool) -> Callable[[Unit], Sequence[Any]]:
    """The LSTM cell: c' = f c + i g; h' = o tanh(c'); gates in the order i, o, f, g."""

    def unit(u: Unit) -> Sequence[Any]:
        before = u.name(u.before[1])
        i = u.name(u.activate(0, u.gate(0, before)))
        f = u.sub(u.one, i) if forgets_by_input else u.activate(0, u.gate(2, before))
        g = u.activate(1, u.gate(3))
        cell = u.name(u.add(u.mul(f, before), u.mul(i, g)))
        o = u.activate(0, u.gate(1, cell))
        return [u.mul(o, u.activate(2, cell)), cell]

    return unit


def _gru_reset(u: Unit) -> Any:
    return u.mul(u.activate(0, u.gate(1)), u.before[0])


def _gru_unit(resets_after: bool) -> Callable[[Unit], Sequence[Any]]:
    """The GRU cell: h' = (1 - z) g + z h; gates in the order z, r, g. The reset gate r scales h
    before the recurrent product of g, or that product if `resets_after`."""

    def unit(u: Unit) -> Sequence[Any]:
        z = u.name(u.activate(0, u.gate(0)))
        recurrent = u.recurrent(2)
        if resets_after:
            recurrent = u.mul(u.activate(0, u.gate(1)), recurrent)
        g = u.activate(1, u.add(u.input(2), recurrent))
        return [u.add(u.mul(u.sub(u.one, z), g), u.mul(z, u.before[0]))]

    return unit


def lstm_cell(forgets_by_input: bool) -> Cell:
    return Cell(
        4, 2, ("sigmoid", "tanh", "tanh"), _lstm_unit(forgets_by_input), unclipped=frozenset({2})
    )


def gru_cell(resets_after: bool) -> Cell:
    """The GRU cell; `resets_after` is ONNX's linear_before_reset."""
    if resets_after:
        return Cell(3, 1, ("sigmoid", "tanh"), _gru_unit(True), is_split=True)
    return Cell(
        3,
        1,
        ("sigmoid", "tanh"),
        _gru_unit(False),
        is_split=True,
        late_gate=2,
        late_state=_gru_reset,
    )


def rnn_cell() -> Cell:
    """The plain recurrent cell: h' = tanh(x W + h R + b)."""
    return Cell(1, 1, ("tanh",), lambda u: [u.activate(0, u.gate(0))])
