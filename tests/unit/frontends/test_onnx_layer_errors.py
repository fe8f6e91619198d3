"""Recurrent, quantised and normalising nodes that are wrong: each message, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support import onnx_recurrent_cases
from tests.support.onnx_models import Array, Case, our_run


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def q(*shape: int) -> Array:
    return np.ones(shape, np.int8)


def s(value: object) -> Array:
    return np.array(value, np.float32)


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
        "attribute 'block_size' is 3, and the scale has rank 1; expected the rank of x, 2",
    ),
    (
        Case("QuantizeLinear", [f(3, 5), f(5), q(5)], {"axis": 2}, opset=13),
        "axis 2 is outside a tensor of rank 2",
    ),
    (
        Case("QuantizeLinear", [f(3, 5), f(3, 5), q(3, 5)], opset=13),
        "the scale has rank 2, expected 0 or 1",
    ),
    *(
        (
            Case(op, [x, s(scale), zero], opset=13, constant=[1]),
            f"the scale is {text}, expected a positive finite number",
        )
        for op, x, zero in (
            ("QuantizeLinear", f(3, 5), q()),
            ("DequantizeLinear", q(3, 5), q()),
        )
        for scale, text in (
            (0.0, "0.0"),
            (-0.5, "-0.5"),
            (np.inf, "inf"),
            (np.nan, "nan"),
        )
    ),
    (
        Case("DequantizeLinear", [q(2, 5), s([1.0, 0.0]), q(2)], {"axis": 0}, 13, constant=[1]),
        "the scale is 0.0, expected a positive finite number",
    ),
    (
        Case("DequantizeLinear", [q(2, 5), f(3), q(3)], {"axis": 1}, opset=13),
        "the scale has 3 elements, but axis 1 of the tensor has extent 5",
    ),
    (
        Case("DequantizeLinear", [q(2, 5), f(5), q(2)], {"axis": 1}, opset=13),
        "the zero point has shape (2), expected that of the scale, (5)",
    ),
    (
        Case("QuantizeLinear", [f(2, 5), f(5), q()], {"axis": 1}, opset=13),
        "the zero point has shape (), expected that of the scale, (5)",
    ),
    (
        Case("QuantizeLinear", [f(2), f(), q()], {"output_dtype": 2}, opset=21),
        "attribute 'output_dtype' is u8, but the zero point is i8",
    ),
    (
        Case("DequantizeLinear", [q(2), f(), q().astype(np.uint8)], opset=13),
        "operand 2 (x_zero_point) is u8, expected i8 as the operands before it",
    ),
    (
        Case(
            "DequantizeLinear",
            [np.ones(2, np.int32), f(), np.array(3, np.int32)],
            opset=13,
            constant=[2],
        ),
        "the zero point of an i32 tensor is not 0",
    ),
    (
        Case("MatMulInteger", [q(2, 4), q(4, 3), q(3)], opset=10),
        "the zero point of a has 3 elements, but axis 0 of the tensor has extent 2",
    ),
    (
        Case("ConvInteger", [q(1, 2, 4), q(3, 2, 1), q(2)], opset=10),
        "the zero point of x has shape (2), expected one number",
    ),
    (
        Case("ConvInteger", [q(1, 2, 4), q(3, 2, 1), q(), q(2)], opset=10),
        "the zero point of w has 2 elements, but axis 0 of the tensor has extent 3",
    ),
    (
        Case(
            "QLinearConv", [q(1, 2, 4), s(0.0), q(), q(3, 2, 1), f(), q(), f(), q()], constant=[1]
        ),
        "the scale of x is 0.0, expected a positive finite number",
    ),
    (
        Case("QLinearConcat", [f(), q(), q(2), f()], {"axis": 0}, domain="com.microsoft"),
        "has 2 operands after the scale and the zero point, expected a tensor, its scale and its "
        "zero point for each part",
    ),
    (
        Case("QLinearAdd", [q(2), f(2), q(), q(2), f(), q(), f()], domain="com.microsoft"),
        "the scale of a has 2 elements, expected 1",
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


def test_an_axis_before_its_opset_counts() -> None:
    """Quantisers write it into models of opsets that do not have it yet."""
    inputs = [q(2, 3, 4) * 7, np.arange(1, 5, dtype=np.float32), q(4)]
    found, expected = (
        our_run(import_onnx(case.model()).main, case.feeds())[0]
        for case in (Case("DequantizeLinear", inputs, {"axis": 2}, opset=n) for n in (11, 13))
    )
    np.testing.assert_array_equal(found, expected)


def test_weights_of_another_size_are_refused_by_the_record() -> None:
    case = Case("GRU", [f(3, 2, 5), f(1, 16, 5), f(1, 12, 4)], outputs=2)
    with pytest.raises(CompileError, match=r"constraint 4: w is \[directions, 3 \* hidden_size"):
        import_onnx(case.model())


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            Case("BatchNormalization", [f(2, 3), *[f(3)] * 4], {"spatial": 0}, opset=7),
            "spatial=0 is not supported",
        ),
        (
            Case("QLinearMatMul", [q(2, 4), f(), q(), q(4, 3), f(), q(), f(2), q(2)], opset=10),
            "a result with a scale or zero point for each row is not supported",
        ),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_is_not_supported_is_said(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(case.model())
    assert caught.value.items == (f"{case.op} (node 'the node'): {reason}",)
