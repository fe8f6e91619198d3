"""Recurrent layers: loops over steps whose kernels are written by hand in aot/kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.ir.dims import Dim
from aot.ir.types import DType, TensorType
from aot.ops.contraction import add_products
from aot.ops.record import (
    FLOATS,
    Array,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)

F32 = DType.F32
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _directions(call: Call) -> int:
    return _DIRECTIONS[str(call.attrs["direction"])]


def _expected(call: Call) -> dict[int, tuple[str, tuple[Dim, ...]]]:
    """Operand number -> (name, dims it must have)."""
    d, h = _directions(call), call.int("hidden_size")
    _, batch, features = call.operand(0).dims
    return {1: ("w", (d, 4 * h, features)), 2: ("r", (d, 4 * h, h)), 3: ("b", (d, 8 * h)),
            4: ("initial_h", (d, batch, h)), 5: ("initial_c", (d, batch, h)), 6: ("p", (d, 3 * h))}


def _operand_fits(number: int) -> Callable[[Call], bool]:
    def holds(call: Call) -> bool:
        if not call.has(number):
            return True
        name, wanted = _expected(call)[number]
        found = call.operand(number).dims
        return len(found) == len(wanted) and all(
            call.equal(a, b, f"lstm: dims of {name}") for a, b in zip(found, wanted, strict=True))

    return holds


def _lstm_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    d, h = _directions(call), call.int("hidden_size")
    steps, batch, _ = x.dims
    last = TensorType(x.dtype, (d, batch, h))
    return [TensorType(x.dtype, (steps, d, batch, h)), last, last]


def _sigmoid(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + z), z / (1 + z)))


def _times(a: Array, b: Array, is_exact: bool) -> Array:
    out = np.zeros((*a.shape[:-1], b.shape[-1]), np.float64)
    add_products(out, a, b, is_exact)
    return out


def _one_direction(call: Call, x: Array, weights: Sequence[Array | None], reverse: bool,
                   ) -> tuple[Array, Array, Array]:
    """y [T, B, H], and the last h and c [B, H], in float64."""
    hidden = call.int("hidden_size")
    w, r, b, h, c, p = weights
    assert w is not None and r is not None
    steps, batch, _ = x.shape
    zero = np.zeros((batch, hidden))
    h, c = zero if h is None else h, zero if c is None else c
    bias = np.zeros(4 * hidden) if b is None else b[: 4 * hidden] + b[4 * hidden :]
    peep = np.zeros((3, hidden)) if p is None else p.reshape(3, hidden)
    y = np.zeros((steps, batch, hidden))
    for t in reversed(range(steps)) if reverse else range(steps):
        gates = _times(x[t], w.T, call.is_exact) + _times(h, r.T, call.is_exact) + bias
        i, o, f, g = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
        c_before = c
        c = _sigmoid(f + peep[2] * c) * c + _sigmoid(i + peep[0] * c_before) * np.tanh(g)
        h = _sigmoid(o + peep[1] * c) * np.tanh(c)
        y[t] = h
    return y, h, c


def _lstm_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0].astype(np.float64)
    present = [None if a is None else a.astype(np.float64) for a in inputs[1:]]
    present += [None] * (6 - len(present))
    parts = []
    for d in range(_directions(call)):
        weights = [None if a is None else a[d] for a in present]
        is_reverse = d == 1 or call.attrs["direction"] == "reverse"
        parts.append(_one_direction(call, x, weights, is_reverse))
    dtype = inputs[0].dtype
    y = np.stack([part[0] for part in parts], axis=1)
    return [y.astype(dtype), *(np.stack([part[k] for part in parts]).astype(dtype)
                               for k in (1, 2))]


def _sample(steps: int, batch: int, features: int, hidden: int, direction: str,
            present: str) -> Sample:
    d = _DIRECTIONS[direction]
    shapes: dict[str, tuple[int, ...]] = {
        "b": (d, 8 * hidden), "h": (d, batch, hidden), "c": (d, batch, hidden),
        "p": (d, 3 * hidden)}
    optional = [TensorType(F32, shape) if name in present else None
                for name, shape in shapes.items()]
    required = (TensorType(F32, (steps, batch, features)),
                TensorType(F32, (d, 4 * hidden, features)),
                TensorType(F32, (d, 4 * hidden, hidden)))
    return Sample((*required, *optional), {"hidden_size": hidden, "direction": direction},
                  low=-1.0, high=1.0, constant_operands=(1, 2))


LSTM = register(OpRecord(
    name="lstm",
    summary="Long short-term memory over x [T, B, I]; gates in the order i, o, f, c.",
    operands=(Operand("x", FLOATS), Operand("w", FLOATS, same_as="x"),
              Operand("r", FLOATS, same_as="x"),
              *(Operand(name, FLOATS, "optional", same_as="x")
                for name in ("b", "initial_h", "initial_c", "p"))),
    attributes=(Attribute("hidden_size", "int"),
                Attribute("direction", "str", "forward", "forward, reverse or bidirectional")),
    constraints=(
        Constraint("direction is forward, reverse or bidirectional",
                   lambda call: call.attrs["direction"] in _DIRECTIONS),
        Constraint("hidden_size is positive", lambda call: call.int("hidden_size") >= 1),
        Constraint("x is [steps, batch, features]", lambda call: call.operand(0).rank == 3),
        Constraint("w is [directions, 4 * hidden_size, features]", _operand_fits(1)),
        Constraint("r is [directions, 4 * hidden_size, hidden_size]", _operand_fits(2)),
        Constraint("b is [directions, 8 * hidden_size]", _operand_fits(3)),
        Constraint("initial_h is [directions, batch, hidden_size]", _operand_fits(4)),
        Constraint("initial_c is [directions, batch, hidden_size]", _operand_fits(5)),
        Constraint("p is [directions, 3 * hidden_size]", _operand_fits(6))),
    infer=_lstm_type,
    reference=_lstm_reference,
    kind=Kind.RECURRENCE,
    samples=(_sample(3, 2, 5, 7, "forward", "bhc"), _sample(1, 1, 4, 8, "forward", ""),
             _sample(4, 3, 3, 5, "reverse", "bhcp"), _sample(2, 2, 6, 3, "bidirectional", "b")),
))
