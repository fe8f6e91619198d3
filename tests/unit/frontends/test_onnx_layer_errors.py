"""Recurrent, quantised and normalising nodes that are wrong: each message, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support import onnx_recurrent_cases
from tests.support.onnx_models import Array, Case


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def q(*shape: int) -> Array:
    return np.ones(shape, np.int8)


def lstm(**attrs: object) -> Case:
    return onnx_recurrent_cases.case("LSTM", **attrs)  # type: ignore[arg-type]


WRONG = [
    (
        lstm(direction="sideways"),
        "attribute 'direction' is 'sideways', expected 'forward', 'reverse' or 'bidirectional'",
    ),
    (lstm(activations=["Tanh"]), "attribute 'activations' has 1 items, expected 3"),
    (Case("GRU", [f(3, 2), f(1, 12, 5), f(1, 12, 4)], outputs=2), "x has rank 2, expected 3"),
    (
        Case("RNN", [f(3, 2, 5), f(1, 4, 5), f(4, 4)], outputs=2),
        "attribute 'hidden_size' is missing, and r does not tell it",
    ),
    (
        Case("DequantizeLinear", [q(3, 5), f(3, 2), q(3, 2)], {"block_size": 2}, opset=21),
        "axis 1 of x has extent 5, which is not 2 blocks of 2",
    ),
    (
        Case("DequantizeLinear", [q(3, 5), f(2), q(2)], {"block_size": 3}, opset=21),
        "attribute 'block_size' is 3, and operand 1 has rank 1; expected the rank of x, 2",
    ),
    (
        Case("QuantizeLinear", [f(3, 5), f(5), q(5)], {"axis": 2}, opset=13),
        "axis 2 is outside a tensor of rank 2",
    ),
    (
        Case("QuantizeLinear", [f(3, 5), f(3, 5), q(3, 5)], opset=13),
        "a scale or zero point has rank 2, expected 0 or 1",
    ),
    (
        Case("GroupNormalization", [f(1, 6, 4), f(6), f(6)], {"num_groups": 4}, opset=21),
        "attribute 'num_groups' is 4, which does not divide 6 channels",
    ),
    (
        Case("GroupNormalization", [f(6), f(6), f(6)], {"num_groups": 2}, opset=21),
        "x has rank 1, expected 2 or more",
    ),
]


@pytest.mark.parametrize(("case", "text"), WRONG, ids=lambda v: str(v)[:50])
def test_what_is_wrong_is_said(case: Case, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_onnx(case.model())
    assert str(caught.value) == f"model: {case.op} (node 'the node'): {text}"


def test_weights_of_another_size_are_refused_by_the_record() -> None:
    case = Case("GRU", [f(3, 2, 5), f(1, 16, 5), f(1, 12, 4)], outputs=2)
    with pytest.raises(CompileError, match=r"constraint 4: w is \[directions, 3 \* hidden_size"):
        import_onnx(case.model())


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            Case("BatchNormalization", [f(2, 3), *[f(3)] * 4], {"training_mode": 1}, opset=15),
            "training mode and spatial=0 are not supported",
        ),
        (
            Case("QLinearMatMul", [q(2, 4), f(), q(), q(4, 3), f(), q(), f(2), q(2)], opset=10),
            "a result with a scale or zero point for each row is not supported",
        ),
        (
            Case("QuantizeLinear", [f(3), f()], {"output_dtype": 17}, opset=21),
            "element type float8e4m3fn is not supported",
        ),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_is_not_supported_is_said(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(case.model())
    assert caught.value.items == (f"{case.op} (node 'the node'): {reason}",)
