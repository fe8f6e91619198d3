"""Extents that a model computes from those of its inputs: quotients, and in floats.

Declared dims count as at least 1 where a quotient needs it, and that is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.errors import AotError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import graph_model, ort_run, our_run, tensor_info

CONSTANTS = {
    "axis": np.array([0]),
    "two": np.array([2]),
    "zero": np.array([0]),
    "one": np.ones(1, np.float32),
    "stride": np.array([2], np.float32),
    "taps": np.array([3], np.float32),
    "unit": np.array([1], np.float32),
    "third": np.array([3], np.float32),
    "table": np.arange(200, dtype=np.float32).reshape(40, 5),
    "forty": np.array([40]),
    "far": np.array([2**62]),
    "minus": np.array([-1]),
    "taps_whole": np.array([3]),
}


def _model(nodes: list[tuple[Any, ...]], **more: Any) -> onnx.ModelProto:
    """Nodes as (op, inputs, output); H is the extent of x, [H, 5], as an i64[1]."""
    made = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "begin"], ["H"], name="H"),
    ]
    constants = {**CONSTANTS, "begin": np.array([1]), **more}
    for op, inputs, output, *attrs in nodes:
        attributes = attrs[0] if attrs else {}
        made.append(
            helper.make_node(op, inputs.split(), [output], name=f"{op} {output}", **attributes)
        )
    used = {name for node in made for name in node.input}
    init = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items() if k in used]
    return graph_model(made, [tensor_info("x", ["H", 5])], ["y"], init, opset=18)


# TensorFlow's "same" padding of a window of 3 at every second element, in floats
SAME = [
    ("Cast", "H", "h", {"to": 1}),
    ("Div", "h stride", "q"),
    ("Ceil", "q", "count"),
    ("Sub", "count unit", "last"),
    ("Mul", "last stride", "start"),
    ("Add", "start taps", "end"),
    ("Sub", "end h", "missing"),
    ("Cast", "missing", "whole", {"to": 7}),
    ("Max", "whole zero", "pads"),
    ("Div", "pads two", "before"),
    ("Sub", "pads before", "after"),
    ("Concat", "before zero after zero", "all", {"axis": 0}),
    ("Pad", "x all", "y"),
]
CASES = {
    "same": SAME,
    "quotient of a number": [("Div", "number H", "q"), ("Expand", "one q", "y")],
    "quotient of a difference": [
        ("Sub", "H begin", "less"),
        ("Div", "less two", "q"),
        ("Concat", "q zero", "all", {"axis": 0}),
        ("Slice", "x zero q axis", "y"),
    ],
    "floor of a third": [
        ("Cast", "H", "h", {"to": 1}),
        ("Div", "h third", "q"),
        ("Floor", "q", "f"),
        ("Cast", "f", "n", {"to": 7}),
        ("Slice", "x zero n axis", "y"),
    ],
    "from a bound of either sign": [
        ("Sub", "forty H", "n"),
        ("Slice", "table n far axis", "y"),
    ],
    "the last row meets all": [
        ("Slice", "x minus far axis", "last"),
        ("Add", "H begin", "more"),
        ("Div", "more two", "q"),
        ("Slice", "x zero q axis", "first"),
        ("Slice", "first minus far axis", "middle"),
        ("Add", "x last", "z"),
        ("Sub", "z middle", "y"),
    ],
    "as many from the end": [("Neg", "H", "n"), ("Slice", "table n far axis", "y")],
    "all but as many": [("Neg", "H", "n"), ("Slice", "table zero n axis", "y")],
    "up to a multiple": [
        ("Neg", "H", "n"),
        ("Mod", "n taps_whole", "missing"),
        ("Concat", "zero zero missing zero", "all", {"axis": 0}),
        ("Pad", "x all", "y"),
    ],
    "what is over a multiple": [
        ("Mod", "H taps_whole", "over"),
        ("Slice", "x over far axis", "y"),
    ],
    "truncated half": [
        ("Cast", "H", "h", {"to": 11}),
        ("Mul", "h half", "q"),
        ("Cast", "q", "n", {"to": 7}),
        ("Slice", "x zero n axis", "y"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_extents_are_computed_when_the_model_runs(name: str) -> None:
    model = _model(CASES[name], number=np.array([32]), half=np.array([0.5]))
    with aot.load(aot.compile(model).to_bytes()) as program:
        for extent in (1, 2, 3, 7, 8, 31, 33):
            x = np.random.default_rng(extent).random((extent, 5), np.float32)
            (expected,) = ort_run(model, {"x": x})
            (found,) = program({"x": x}).values()
            np.testing.assert_array_equal(found, expected)


def test_what_was_taken_for_granted_is_checked() -> None:
    model = _model(CASES["quotient of a number"], number=np.array([32]))
    with aot.load(aot.compile(model).to_bytes()) as program:
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.zeros((0, 5), np.float32)})
        assert "axis 0, H, must be at least 1" in str(error.value)


def test_a_bound_that_counts_from_the_end_is_not_0() -> None:
    with aot.load(aot.compile(_model(CASES["as many from the end"])).to_bytes()) as program:
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.zeros((0, 5), np.float32)})
        assert "axis 0, H, must be at least 1" in str(error.value)


def test_a_bound_of_either_sign_counts_from_the_front() -> None:
    model = _model(CASES["from a bound of either sign"])
    with aot.load(aot.compile(model).to_bytes()) as program:
        (found,) = program({"x": np.zeros((40, 5), np.float32)}).values()
        np.testing.assert_array_equal(found, CONSTANTS["table"])
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.zeros((41, 5), np.float32)})
        assert str(error.value) == (
            "Slice y: bound -H + 40 of a slice must not be negative: -H + 40 is -1, expected at "
            'least 0; H is 41, axis 0 of input "x"'
        )


def test_nothing_is_taken_for_granted_that_no_quotient_needs() -> None:
    model = _model([("Add", "H begin", "n"), ("Expand", "one n", "y")])
    assert not import_onnx(model).main.assumptions


def test_a_bound_that_is_missing_is_asked_for() -> None:
    nodes = [
        ("Sub", "H four", "d"),
        ("Div", "number d", "q"),
        ("Concat", "q q", "image", {"axis": 0}),
        ("Unsqueeze", "x zero", "rows"),
        ("Col2Im", "rows image image", "y"),
    ]
    model = _model(nodes, number=np.array([32]), four=np.array([4]))
    with pytest.raises(UnsupportedError) as error:
        import_onnx(model)
    assert list(error.value.items) == [
        "Col2Im (node 'Col2Im y'): operand 1 (image_shape) is not known at compile time: it "
        "depends on 0 < H - 4; bounds of these extents may decide it, as in "
        "--input-shape x=1x3xH:32..960"
    ]
    with pytest.raises(AotError) as refused:
        import_onnx(model, input_shapes={"x": ("H:5..99", 5)})
    assert "image_shape" not in str(refused.value)


def test_what_is_divided_is_taken_to_be_positive() -> None:
    """The windows of 8 elements that there are, as of a convolution."""
    nodes = [
        ("Sub", "H eight", "less"),
        ("Div", "less two", "q"),
        ("Add", "q begin", "n"),
        ("Expand", "one n", "y"),
    ]
    model = _model(nodes, eight=np.array([8]))
    with aot.load(aot.compile(model).to_bytes()) as program:
        for extent in (8, 9, 20):
            x = np.zeros((extent, 5), np.float32)
            (found,) = program({"x": x}).values()
            assert found.shape == ort_run(model, {"x": x})[0].shape
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.zeros((7, 5), np.float32)})
    assert "axis 0, H, must be at least 8" in str(error.value)


def _squeezing(shape: list[int | str | None], rank: int | None) -> onnx.ModelProto:
    """Squeeze without axes of x, whose result is declared to have a rank, or not."""
    node = helper.make_node("Squeeze", ["x"], ["y"], name="squeeze")
    model = graph_model([node], [tensor_info("x", shape)], ["y"], opset=18)
    if rank is not None:
        del model.graph.output[:]
        model.graph.output.append(tensor_info("y", [None] * rank))
    return model


@pytest.mark.parametrize(
    ("shape", "rank", "fitting", "others"),
    [
        (["N", 1, 2], 1, [(1, 1, 2)], [(3, 1, 2), (0, 1, 2)]),
        (["N", 1, 2], 2, [(3, 1, 2), (0, 1, 2)], [(1, 1, 2)]),
        (["N", 1, 2], None, [(3, 1, 2), (0, 1, 2)], [(1, 1, 2)]),
        (["N", "M", 2], 1, [(1, 1, 2)], [(3, 1, 2), (1, 3, 2)]),
        (["N", "M", 2], 3, [(2, 3, 2)], [(3, 1, 2), (1, 3, 2), (1, 1, 2)]),
        (["N", 4, "N"], 1, [(1, 4, 1)], [(3, 4, 3)]),
        (["N", 4], 0, [(3, 4)], [(1, 4)]),  # a rank that it never has says nothing
    ],
)
def test_the_declared_rank_says_which_open_dims_squeeze_drops(
    shape: list[int | str | None],
    rank: int | None,
    fitting: list[tuple[int, ...]],
    others: list[tuple[int, ...]],
) -> None:
    model = _squeezing(shape, rank)
    function = import_onnx(model).main
    with aot.load(aot.compile(model).to_bytes()) as program:
        for extents in fitting:
            x = np.random.default_rng(1).random(extents, np.float32)
            (expected,) = ort_run(_squeezing(shape, None), {"x": x})
            for found in (*our_run(function, {"x": x}), *program({"x": x}).values()):
                assert found.shape == expected.shape
                np.testing.assert_array_equal(found, expected)
        for extents in others:
            with pytest.raises(aot.RuntimeFailure, match="Squeeze without axes"):
                program({"x": np.ones(extents, np.float32)})


def test_what_squeeze_keeps_or_drops_is_said_by_name() -> None:
    with aot.load(aot.compile(_squeezing(["N", 1, 2], 1)).to_bytes()) as program:
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.ones((3, 1, 2), np.float32)})
        assert str(error.value) == (
            "squeeze: axis 0 of x is dropped by Squeeze without axes, as the model says that the "
            'result has rank 1: N is 3, expected 1; N is 3, axis 0 of input "x"'
        )
    with aot.load(aot.compile(_squeezing(["N", 1, 2], None)).to_bytes()) as program:
        with pytest.raises(aot.RuntimeFailure) as error:
            program({"x": np.ones((1, 1, 2), np.float32)})
        assert str(error.value) == (
            "squeeze: Squeeze without axes drops axis 0 of x where it is 1; give the node axes, or "
            "compile for that extent (--input-shape): N is 1, expected another number; N is 1, "
            'axis 0 of input "x"'
        )


def test_a_rank_that_leaves_open_which_dim_squeeze_drops() -> None:
    model = _squeezing(["N", "M", 2], 2)
    with pytest.raises(UnsupportedError) as error:
        import_onnx(model)
    assert str(error.value).splitlines()[1] == (
        "  Squeeze (node 'squeeze'): without axes it would drop 1 of the open dims N, M, as the "
        "model says that the result has rank 2, and only a run says which; give the node axes, or "
        "give these dims or bounds of them (--input-shape)"
    )
    bounded = import_onnx(model, input_shapes={"x": ("N:2..", None, None)}).main
    x = np.ones((3, 1, 2), np.float32)
    (found,) = our_run(bounded, {"x": x})
    assert found.shape == ort_run(model, {"x": x})[0].shape
