"""Recurrent layers: loops over steps, with handwritten kernels in aot/kernels.

One record a cell; all of them have ONNX's operands, and differ in gates and states only. Without w,
x is what the product with it gives: the gates' sums over the input of all steps, which one matrix
product makes before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.ir.dims import Dim, add, product
from aot.ir.graph import Attr
from aot.ir.record import (
    FLOATS,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.cells import (
    Activation,
    Cell,
    Unit,
    activations_text,
    gru_cell,
    lstm_cell,
    parse_activations,
    rnn_cell,
)
from aot.ops.contraction import add_products

F32, I32 = DType.F32, DType.I32
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
# number of each operand; the last two are an LSTM's
X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = range(8)

_CELLS: Mapping[str, Callable[[Mapping[str, Attr]], Cell]] = {
    "lstm": lambda attrs: lstm_cell(bool(attrs["input_forget"])),
    "gru": lambda attrs: gru_cell(bool(attrs["linear_before_reset"])),
    "rnn": lambda attrs: rnn_cell(),
}


def cell_of(name: str, attrs: Mapping[str, Attr]) -> Cell:
    """The cell of op `name` with complete attributes."""
    return _CELLS[name](attrs)


def activations_of(attrs: Mapping[str, Attr]) -> tuple[Activation, ...]:
    """The layer's activations, in the order in which its cell numbers them."""
    return parse_activations(str(attrs["activations"])) or ()


def _cell(call: Call) -> Cell:
    return cell_of(call.record.name, call.attrs)


def _directions(call: Call) -> int:
    return _DIRECTIONS[str(call.attrs["direction"])]


def _expected(call: Call) -> dict[int, tuple[Dim, ...]]:
    """The dims that each operand must have, by its number."""
    d, h, gates = _directions(call), call.int("hidden_size"), _cell(call).gates
    steps, batch, features = call.operand(X).dims
    return {
        X: (steps, batch, features if call.has(W) else d * gates * h),
        W: (d, gates * h, features),
        R: (d, gates * h, h),
        B: (d, 2 * gates * h),
        LENGTHS: (batch,),
        INITIAL_H: (d, batch, h),
        INITIAL_C: (d, batch, h),
        PEEPHOLES: (d, 3 * h),
    }


def _operand_fits(number: int) -> Callable[[Call], bool]:
    def holds(call: Call) -> bool:
        if not call.has(number):
            return True
        wanted, found = _expected(call)[number], call.operand(number).dims
        name = call.record.operands[number].name
        return len(found) == len(wanted) and all(
            call.equal(a, b, f"{call.record.name}: dims of {name}")
            for a, b in zip(found, wanted, strict=True)
        )

    return holds


def _has_its_activations(call: Call) -> bool:
    found = parse_activations(str(call.attrs["activations"]))
    return found is not None and len(found) == len(_cell(call).activations)


def _types(call: Call) -> Sequence[TensorType]:
    x = call.operand(X)
    d, h = _directions(call), call.int("hidden_size")
    steps, batch, _ = x.dims
    last = TensorType(x.dtype, (d, batch, h))
    return [TensorType(x.dtype, (steps, d, batch, h)), *[last] * _cell(call).states]


# the reference


def _times(a: Array, b: Array, is_exact: bool) -> Array:
    out = np.zeros((*a.shape[:-1], b.shape[-1]), np.float64)
    add_products(out, a, b, is_exact)
    return out


class _Direction:
    """One direction of a recurrent layer, in float64; the reference."""

    def __init__(self, call: Call, operands: Sequence[Array | None]) -> None:
        self.call, self.cell = call, _cell(call)
        self.hidden = call.int("hidden_size")
        x, w, r, b = operands[:4]
        assert x is not None and r is not None
        rows = self.cell.gates * self.hidden
        self.x, self.w, self.r = x, w, r * call.float("r_scale")
        self.input_bias = np.zeros(rows) if b is None else b[:rows]
        self.bias = np.zeros(rows) if b is None else b[rows:]
        zero = np.zeros((x.shape[1], self.hidden))
        self.states = [zero if s is None else s for s in operands[INITIAL_H:PEEPHOLES]]
        self.states = self.states[: self.cell.states]
        self.peepholes = operands[PEEPHOLES]
        self.activations = activations_of(call.attrs)
        self.clip = call.float("clip")

    def _activate(self, number: int, x: Array) -> Array:
        if self.clip and number not in self.cell.unclipped:
            x = np.clip(x, -self.clip, self.clip)
        return self.activations[number].numpy(x)

    def _peephole(self, gate: int) -> Array | None:
        if self.peepholes is None:
            return None
        return self.peepholes[gate * self.hidden : (gate + 1) * self.hidden]

    def step(self, x: Array) -> None:
        """Advances the states by one step with input x [B, I]."""
        exact, h = self.call.is_exact, self.states[0]
        into = (x if self.w is None else _times(x, self.w.T, exact)) + self.input_bias
        around = _times(h, self.r.T, exact) + self.bias

        def gate_of(sums: Array) -> Callable[[int], Array]:
            return lambda n: sums[:, n * self.hidden : (n + 1) * self.hidden]

        unit = Unit(
            self.states,
            gate_of(into),
            gate_of(around),
            self._peephole,
            self._activate,
            lambda v: v,
            np.add,
            np.subtract,
            np.multiply,
            1.0,
        )
        if self.cell.late_state is not None:
            late = self.cell.late_state(unit)
            rows = slice(self.cell.late_gate * self.hidden, (self.cell.late_gate + 1) * self.hidden)
            around[:, rows] = _times(late, self.r[rows].T, exact) + self.bias[rows]
        self.states = list(self.cell.unit(unit))

    def run(self, lengths: Array, is_reverse: bool) -> Array:
        """The outputs y [T, B, H], 0 after each sequence's end; the states keep their last
        values."""
        steps, batch, _ = self.x.shape
        y = np.zeros((steps, batch, self.hidden))
        rows = np.arange(batch)
        for t in range(steps):
            is_there = t < lengths
            at = np.where(is_there, lengths - 1 - t, t) if is_reverse else np.full(batch, t)
            before = self.states
            self.step(self.x[at, rows])
            self.states = [
                np.where(is_there[:, None], new, old)
                for new, old in zip(self.states, before, strict=True)
            ]
            y[at, rows] = np.where(is_there[:, None], self.states[0], 0)
        return y


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    padded: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    dtype = padded[X].dtype
    steps, batch, _ = padded[X].shape
    lengths = (
        np.full(batch, steps)
        if padded[LENGTHS] is None
        else (np.clip(padded[LENGTHS].astype(np.int64), 0, steps))
    )
    ys: list[Array] = []
    lasts: list[list[Array]] = []
    for d in range(_directions(call)):
        operands = [
            None if a is None or n == LENGTHS else np.asarray(a[d], np.float64)
            for n, a in enumerate(padded[1:], 1)
        ]
        x = padded[X].astype(np.float64)
        if padded[W] is None:
            x = np.split(x, _directions(call), axis=-1)[d]
        one = _Direction(call, [x, *operands])
        with np.errstate(all="ignore"):
            ys.append(one.run(lengths, d == 1 or call.attrs["direction"] == "reverse"))
        lasts.append(one.states)
    y = np.stack(ys, axis=1).astype(dtype)
    return [y, *(np.stack(states).astype(dtype) for states in zip(*lasts, strict=True))]


# the records


def _sample(
    name: str, steps: int, batch: int, features: int, hidden: int, present: str = "", **attrs: Attr
) -> Sample:
    """A sample of a recurrent op. `present` names optional operands: b, l(engths), h, c, p; x means
    that sums replace w."""
    complete: dict[str, Attr] = {"input_forget": False, "linear_before_reset": False, **attrs}
    gates = cell_of(name, complete).gates
    d = _DIRECTIONS[str(attrs.get("direction", "forward"))]
    types = {
        "b": TensorType(F32, (d, 2 * gates * hidden)),
        "l": TensorType(I32, (batch,)),
        "h": TensorType(F32, (d, batch, hidden)),
        "c": TensorType(F32, (d, batch, hidden)),
        "p": TensorType(F32, (d, 3 * hidden)),
    }
    optional = [types[key] if key in present else None for key in types]
    required: tuple[TensorType | None, ...] = (
        TensorType(F32, (steps, batch, features)),
        TensorType(F32, (d, gates * hidden, features)),
        TensorType(F32, (d, gates * hidden, hidden)),
    )
    if "x" in present:
        required = (TensorType(F32, (steps, batch, d * gates * hidden)), None, required[2])
    operands = (*required, *(optional if name == "lstm" else optional[:3]))
    # lengths are drawn from the same range: with some they go up to the number of steps
    return Sample(
        operands,
        {"hidden_size": hidden, **attrs},
        low=-0.5 if "l" in present else -1.0,
        high=float(steps) if "l" in present else 1.0,
        constant_operands=(R,) if "x" in present else (W, R),
    )


def _flops(call: Call) -> Dim:
    """Arithmetic operations of both weight products in each step; gates cost little in
    comparison."""
    steps, batch, _ = call.operand(X).dims
    given = call.operand(W).element_count if call.has(W) else 0
    weights = add(given, call.operand(R).element_count)
    return product([2, steps, batch, weights])


def _record(
    name: str, summary: str, cell: Cell, more: tuple[Attribute, ...], samples: tuple[Sample, ...]
) -> OpRecord:
    g = "" if cell.gates == 1 else f"{cell.gates} * "
    optional = [
        Operand("b", FLOATS, "optional", same_as="x"),
        Operand("lengths", frozenset({I32}), "optional"),
        Operand("initial_h", FLOATS, "optional", same_as="x"),
    ]
    fits = [
        Constraint(f"w is [directions, {g}hidden_size, features]", _operand_fits(W)),
        Constraint(f"r is [directions, {g}hidden_size, hidden_size]", _operand_fits(R)),
        Constraint(f"b is [directions, {2 * cell.gates} * hidden_size]", _operand_fits(B)),
        Constraint("lengths is [batch]", _operand_fits(LENGTHS)),
        Constraint("initial_h is [directions, batch, hidden_size]", _operand_fits(INITIAL_H)),
    ]
    if cell.states == 2:
        optional += [
            Operand("initial_c", FLOATS, "optional", same_as="x"),
            Operand("p", FLOATS, "optional", same_as="x"),
        ]
        fits += [
            Constraint("initial_c is [directions, batch, hidden_size]", _operand_fits(INITIAL_C)),
            Constraint("p is [directions, 3 * hidden_size]", _operand_fits(PEEPHOLES)),
        ]
    usual = activations_text([Activation(a) for a in cell.activations])
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(
                Operand("x", FLOATS),
                Operand("w", FLOATS, "optional", same_as="x"),
                Operand("r", FLOATS, same_as="x"),
                *optional,
            ),
            attributes=(
                Attribute("hidden_size", "int"),
                Attribute("direction", "str", "forward", "forward, reverse or bidirectional"),
                Attribute("activations", "str", usual, "one each, as: sigmoid; affine(2.0, 0.5)"),
                Attribute("clip", "float", 0.0, "limit of the gates' sums; 0 for none"),
                Attribute("r_scale", "float", 1.0, "a factor of r, whose elements may be bytes"),
                *more,
            ),
            constraints=(
                Constraint(
                    "direction is forward, reverse or bidirectional",
                    lambda call: call.attrs["direction"] in _DIRECTIONS,
                ),
                Constraint("hidden_size is positive", lambda call: call.int("hidden_size") >= 1),
                Constraint("x is [steps, batch, features]", lambda call: call.operand(X).rank == 3),
                *fits,
                Constraint(
                    f"activations are {len(cell.activations)} known ones with their numbers",
                    _has_its_activations,
                ),
                Constraint("clip is not negative", lambda call: call.float("clip") >= 0),
                Constraint(
                    f"without w, x is [steps, batch, directions * {g}hidden_size]", _operand_fits(X)
                ),
            ),
            infer=_types,
            reference=_reference,
            flops=_flops,
            kind=Kind.RECURRENCE,
            samples=samples,
        )
    )


LSTM = _record(
    "lstm",
    "Long short-term memory over x [T, B, I]; gates in the order i, o, f, c.",
    lstm_cell(False),
    (Attribute("input_forget", "bool", False, "the forget gate is 1 - i"),),
    (
        _sample("lstm", 3, 2, 5, 7, "bhc"),
        _sample("lstm", 1, 1, 4, 8),
        _sample("lstm", 1, 2, 5, 32, "bhcp"),
        _sample("lstm", 2, 3, 2, 16, "hc", direction="bidirectional"),
        _sample("lstm", 4, 3, 3, 5, "bhcp", direction="reverse"),
        _sample("lstm", 2, 2, 6, 3, "b", direction="bidirectional"),
        _sample("lstm", 4, 5, 2, 4, "lhc", direction="bidirectional"),
        _sample("lstm", 3, 2, 1, 32, "xbh", direction="bidirectional"),
        _sample("lstm", 3, 2, 1, 7, "xl", direction="bidirectional"),
        _sample("lstm", 3, 2, 1, 16, "xb", r_scale=0.25),
        _sample(
            "lstm",
            3,
            2,
            4,
            17,
            "b",
            clip=0.4,
            input_forget=True,
            activations="hardsigmoid(0.3, 0.4); softsign; leakyrelu(0.1)",
        ),
    ),
)

GRU = _record(
    "gru",
    "Gated recurrent unit over x [T, B, I]; gates in the order z, r, h.",
    gru_cell(False),
    (
        Attribute(
            "linear_before_reset",
            "bool",
            False,
            "the reset gate scales the recurrent product and not the state",
        ),
    ),
    (
        _sample("gru", 3, 2, 5, 7, "bh"),
        _sample("gru", 1, 1, 4, 16),
        _sample("gru", 3, 2, 5, 9, "bh", linear_before_reset=True),
        _sample("gru", 3, 1, 5, 32, "bh", linear_before_reset=True, direction="reverse"),
        _sample("gru", 1, 2, 3, 16, "b", linear_before_reset=True),
        _sample("gru", 4, 3, 3, 17, "b", direction="reverse"),
        _sample("gru", 4, 5, 2, 4, "lh", direction="bidirectional"),
        _sample("gru", 3, 2, 1, 16, "xb", linear_before_reset=True, direction="bidirectional"),
        _sample("gru", 3, 2, 1, 5, "xbh", direction="reverse", r_scale=0.5),
        _sample(
            "gru",
            3,
            2,
            4,
            5,
            "b",
            clip=0.4,
            linear_before_reset=True,
            direction="bidirectional",
            activations="elu(0.5); softplus",
        ),
    ),
)

RNN = _record(
    "rnn",
    "Plain recurrence h' = tanh(x W + h R + b) over x [T, B, I].",
    rnn_cell(),
    (),
    (
        _sample("rnn", 3, 2, 5, 7, "bh"),
        _sample("rnn", 1, 1, 4, 16),
        _sample("rnn", 2, 2, 4, 32, "bh"),
        _sample("rnn", 3, 2, 1, 17, "xb"),
        _sample("rnn", 4, 5, 2, 18, "blh", direction="bidirectional"),
        _sample("rnn", 3, 2, 4, 5, "b", activations="scaledtanh(1.5, 0.5)", direction="reverse"),
        _sample("rnn", 2, 2, 4, 5, activations="thresholdedrelu(0.3)"),
        _sample("rnn", 2, 2, 4, 5, activations="relu", clip=0.5),
        _sample("rnn", 2, 2, 4, 5, activations="affine(0.5, 0.25)"),
    ),
)
