"""Open dims that meet: a module serves runs in which they are equal and runs in which one is 1."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.frontends.onnx import import_onnx
from aot.ir.bounds import one_or, one_or_which
from aot.ir.dims import Dim, maximum, symbol
from tests.support.onnx_models import Array, graph_model, ort_run, tensor_info

N, M = symbol("N"), symbol("M")
Nodes = list[tuple[Any, ...]]
CONSTANTS = {
    "shape": np.array([3, 1]),
    "row": np.linspace(-1, 1, 5, dtype=np.float32),
    "weights": np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4),
    "axes": np.array([0]),
}
# what becomes of x [x_0, x_1] and y [y_0, y_1], whose extents are 1, or 3 and 5
CASES: dict[str, Nodes] = {
    "sum": [("Add", "x y", "s"), ("Relu", "s", "z")],
    "chain": [("Exp", "x", "e"), ("Mul", "e y", "m"), ("Sub", "m x", "z")],
    "choice": [("Greater", "x y", "g"), ("Where", "g x y", "z")],
    "turned": [
        ("Transpose", "x", "t"),
        ("Transpose", "y", "u"),
        ("Max", "t u", "m"),
        ("Softmax", "m", "z", {"axis": 0}),
    ],
    "constant": [("Add", "x row", "s"), ("Mul", "s y", "z")],
    "expansion": [("Expand", "x shape", "e"), ("Add", "e y", "z")],
    "product": [("Add", "x row", "s"), ("MatMul", "s weights", "p"), ("Unsqueeze", "p axes", "z")],
    "batches": [
        ("Unsqueeze", "x axes", "a"),
        ("Transpose", "a", "b", {"perm": [1, 2, 0]}),
        ("Transpose", "y", "c"),
        ("Unsqueeze", "c axes", "d"),
        ("Transpose", "d", "e", {"perm": [2, 0, 1]}),
        ("MatMul", "b e", "z"),
    ],
}


def _model(nodes: Nodes) -> onnx.ModelProto:
    made = [
        helper.make_node(op, inputs.split(), [output], **(more[0] if more else {}))
        for op, inputs, output, *more in nodes
    ]
    read = {name for node in made for name in node.input}
    inputs = [tensor_info(n, [f"{n}_0", f"{n}_1"]) for n in ("x", "y") if n in read]
    constants = [numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in read]
    return graph_model(made, inputs, ["z"], constants, opset=18)


def _feeds(model: onnx.ModelProto, extents: tuple[int, ...]) -> dict[str, Array]:
    shapes = {"x": extents[:2], "y": extents[2:]}
    rng = np.random.default_rng(0)
    return {
        i.name: rng.uniform(-1, 1, shapes[i.name]).astype(np.float32) for i in model.graph.input
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CASES)
def test_one_module_broadcasts_as_each_run_says(name: str) -> None:
    model = _model(CASES[name])
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        for extents in itertools.product((3, 1), (5, 1), (3, 1), (5, 1)):
            feeds = _feeds(model, extents)
            (found,), (expected,) = program(feeds).values(), ort_run(model, feeds)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "extents"),
    [
        ({"x": (1, 5), "y": (3, 1)}, (1, 5, 3, 1)),
        ({"x": (3, "?"), "y": ("?", 5)}, (3, 1, 1, 5)),
    ],
)
def test_dims_given_when_compiling_mean_the_same(
    shapes: dict[str, Any], extents: tuple[int, ...]
) -> None:
    model = _model(CASES["chain"])
    feeds = _feeds(model, extents)
    module = aot.compile(model, targets=["host"], jobs=1, input_shapes=shapes)
    with aot.load(module.to_bytes()) as program:
        (found,) = program(feeds).values()
    np.testing.assert_allclose(found, ort_run(model, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "choice", "turned"])
@pytest.mark.parametrize("extents", [(0, 5, 0, 1), (0, 5, 1, 5), (1, 1, 0, 0), (3, 0, 1, 1)])
def test_no_elements_meet_one(name: str, extents: tuple[int, ...]) -> None:
    model = _model(CASES[name])
    feeds = _feeds(model, extents)
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        (found,), (expected,) = program(feeds).values(), ort_run(model, feeds)
    assert found.shape == expected.shape


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("more", ["Softmax", "Tanh"])
@pytest.mark.parametrize(("x", "y"), [(1, 0), (1, 3), (3, 3)])
def test_a_result_of_one_element_stands_beside_what_it_meets(more: str, x: int, y: int) -> None:
    nodes: Nodes = [("Exp", "x", "e"), (more, "y", "m"), ("Add", "e m", "z")]
    made = [helper.make_node(op, names.split(), [out]) for op, names, out in nodes]
    model = graph_model(
        made, [tensor_info("x", ["X"]), tensor_info("y", ["Y"])], ["e", "z"], opset=18
    )
    feeds = {"x": np.full(x, 0.5, np.float32), "y": np.full(y, 0.2, np.float32)}
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        for found, expected in zip(program(feeds).values(), ort_run(model, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, strict=True)


def test_other_extents_are_refused_by_name() -> None:
    model = _model(CASES["sum"])
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        text = 'operands broadcast: x_0 is 2, expected 1 or 3; .* axis 0 of input "y"$'
        with pytest.raises(aot.RuntimeFailure, match=text):
            program(_feeds(model, (2, 5, 3, 5)))


def test_a_result_of_much_work_keeps_its_dims() -> None:
    """It could not be fused with what reads it, if it were spread."""
    nodes: Nodes = [("MatMul", "x weights", "p"), ("Add", "p y", "z")]
    function = import_onnx(_model(nodes)).main
    spread = [op for op in function.walk() if op.name == "spread"]
    assert [str(op.operands[0].type) for op in spread if op.operands[0]] == ["f32[y_0, y_1]"]
    assert [str(op.result.type) for op in spread] == ["f32[x_0, 4]"]
    with aot.load(aot.compile(_model(nodes), targets=["host"], jobs=1).to_bytes()) as program:
        text = "y_0 is 3, expected 1 or x_0 = 1;.* for inputs in which one is 1, give their dims"
        feeds = {"x": np.ones((1, 5), np.float32), "y": np.ones((3, 1), np.float32)}
        with pytest.raises(aot.RuntimeFailure, match=text):
            program(feeds)


def test_a_product_that_an_expansion_would_repeat_is_refused_with_what_to_do() -> None:
    nodes: Nodes = [("MatMul", "x weights", "p"), ("Shape", "y", "s"), ("Expand", "p s", "z")]
    model = _model(nodes)
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        text = "operands broadcast: .* for inputs in which one is 1, give their dims"
        with pytest.raises(aot.RuntimeFailure, match=text):
            program({"x": np.ones((3, 5), np.float32), "y": np.ones((1, 4), np.float32)})


@pytest.mark.parametrize("channels", [8, 6])
def test_depth_to_space_of_open_channels_takes_multiples(channels: int) -> None:
    node = helper.make_node("DepthToSpace", ["x"], ["z"], name="d", blocksize=2)
    model = graph_model([node], [tensor_info("x", ["N", "C", "H", 3])], ["z"], opset=18)
    x = np.arange(channels * 12, dtype=np.float32).reshape(2, channels, 2, 3)
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        if channels == 8:
            np.testing.assert_array_equal(program({"x": x})["z"], ort_run(model, {"x": x})[0])
        else:
            with pytest.raises(aot.RuntimeFailure, match="d: channels are a multiple of 4"):
                program({"x": x})


@pytest.mark.parametrize(
    ("dim", "other"), [(N, M), (N, 5), (maximum(N, M), 7), (N, maximum(N, M)), (N, 2 * M)]
)
def test_an_assumption_of_one_or_another_says_which(dim: Dim, other: Dim) -> None:
    made = one_or(dim, other, "")
    assert one_or_which(made.left, made.right) == (dim, other)
    assert one_or_which(dim, other) is None
