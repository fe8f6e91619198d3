"""Cases for the recurrent layers: every variety, each against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(11)
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_OPSET = 14  # the first with `layout`


def _f(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(-1.5, 1.5, shape), np.float32)


def case(
    op: str,
    present: str = "",
    directions: int = 1,
    lengths: tuple[int, ...] = (3, 3),
    constant: tuple[int, ...] = (1, 2, 3, 4),
    **attrs: Any,
) -> Case:
    """`present` names optional operands: b, l(engths), h, c, p."""
    steps, batch, features, hidden = 3, 2, 5, 4
    d, g = directions, _GATES[op]
    if d == 2:
        attrs["direction"] = "bidirectional"
    optional = {
        "b": _f(d, 2 * g * hidden),
        "l": np.array(lengths, np.int32),
        "h": _f(d, batch, hidden),
        "c": _f(d, batch, hidden),
        "p": _f(d, 3 * hidden),
    }
    inputs = [
        _f(steps, batch, features),
        _f(d, g * hidden, features),
        _f(d, g * hidden, hidden),
        *(array if name in present else None for name, array in optional.items()),
    ]
    if attrs.get("layout"):
        inputs = [
            None if a is None else np.ascontiguousarray(a.swapaxes(0, 1)) if n in (0, 5, 6) else a
            for n, a in enumerate(inputs)
        ]
    while inputs[-1] is None:
        inputs.pop()
    shown = " ".join(f"{k}={v}" for k, v in attrs.items())
    return Case(
        op,
        inputs,
        {"hidden_size": hidden, **attrs},
        opset=_OPSET,
        constant=list(constant),
        outputs=3 if op == "LSTM" else 2,
        is_symbolic="l" not in present or lengths != (3, 3),
        name=f"{present} {lengths if 'l' in present else ''} {shown}",
    )


_EACH = [
    variety
    for op in _GATES
    for variety in (
        case(op),
        case(op, "bh"),
        case(op, "b", direction="reverse"),
        case(op, "bh", 2),
        case(op, "l", lengths=(3, 2)),
        case(op, "bl", 2, lengths=(1, 3)),
        case(op, "bl", 2, lengths=(1, 3), constant=(1, 2, 3)),
        case(op, "l", lengths=(2, 3), direction="reverse"),
        case(op, "b", clip=0.3),
    )
]

CASES = [
    *_EACH,
    case("LSTM", "bhcp"),
    case("LSTM", "bl", direction="reverse"),
    case("LSTM", "bhcp", 2),
    case("LSTM", "bhcp", clip=0.4),
    case("LSTM", "b", input_forget=1),
    case("LSTM", "b", activations=["Sigmoid", "Tanh", "Tanh"]),
    case(
        "LSTM",
        "b",
        activations=["HardSigmoid", "Softsign", "LeakyRelu"],
        activation_alpha=[0.3, 0.1],
        activation_beta=[0.4],
    ),
    case("LSTM", "bhc", 2, activations=["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"]),
    case("LSTM", "bhc", 2, activations=["Sigmoid", "Tanh", "Relu"] * 2),
    case("GRU", "bh", linear_before_reset=1),
    case("GRU", "", linear_before_reset=1),
    case("GRU", "bh", 2, linear_before_reset=1),
    case("GRU", "bl", 2, linear_before_reset=1, lengths=(1, 3)),
    case(
        "GRU",
        "b",
        activations=["Affine", "ScaledTanh"],
        activation_alpha=[0.5, 1.5],
        activation_beta=[0.25, 0.5],
    ),
    case("GRU", "b", clip=0.4, linear_before_reset=1),
    *(
        case("RNN", "b", activations=[a])
        for a in ("Relu", "Sigmoid", "Elu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu")
    ),
    case("RNN", "b", activations=["ThresholdedRelu"], activation_alpha=[0.3]),
]
# ONNX Runtime has no layout=1: the suite of ONNX's own node tests covers it
