"""ONNX models in bfloat16: computed in float32, stored and given in their own type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.ir.types import DType

BF16 = DType.BF16.numpy
STEP = 2.0**-8  # half a unit in the last place, relative


def model(element: int, weights: dict[str, Any]) -> bytes:
    """A small network in an element type."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "g"], ["m"], name="matmul"),
        helper.make_node("Softmax", ["m"], ["s"], name="softmax", axis=-1),
        helper.make_node("Transpose", ["r"], ["t"], name="transpose", perm=[0, 2, 3, 1]),
    ]
    tensors = []
    for name, array in weights.items():
        kept = np.asarray(array).astype(BF16)
        if element == TensorProto.FLOAT:
            tensors.append(numpy_helper.from_array(kept.astype(np.float32), name))
        else:
            raw = kept.tobytes()
            tensors.append(helper.make_tensor(name, element, kept.shape, raw, raw=True))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["N", 8, 9, 9])],
        [helper.make_tensor_value_info(name, element, None) for name in ("s", "t")],
        tensors,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return bytes(made.SerializeToString())


def test_a_network() -> None:
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 8, 3, 3), "b": (16,), "g": (16, 1280)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x = rng.standard_normal((2, 8, 9, 9)).astype(BF16)
    made = aot.compile(model(TensorProto.BFLOAT16, weights))
    with aot.load(made) as program:
        assert [t.dtype for t in (*program.inputs, *program.outputs)] == ["bf16"] * 3
        found = program({"x": x})
    session = runtime.InferenceSession(model(TensorProto.FLOAT, weights))
    for (name, array), wanted in zip(
        found.items(), session.run(None, {"x": x.astype(np.float32)}), strict=True
    ):
        assert array.dtype == BF16
        error = np.abs(array.astype(np.float32) - wanted)
        assert float(error.max()) <= STEP * float(np.abs(wanted).max()), name
    # weights take two bytes each
    assert made.stats["rodata"]["bytes_kept"] < 2.1 * sum(a.size for a in weights.values())


def scalar_model(nodes: list[Any]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def test_what_the_model_casts_is_rounded_and_what_it_computes_is_not() -> None:
    """A product and a sum in bfloat16 round once, at the cast that the model has."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="narrow", to=TensorProto.BFLOAT16),
        helper.make_node("Mul", ["a", "a"], ["b"], name="mul"),
        helper.make_node("Add", ["b", "a"], ["c"], name="add"),
        helper.make_node("Cast", ["c"], ["y"], name="wide", to=TensorProto.FLOAT),
    ]
    x = np.array([1.01, -3.3, 1e-20, 70000.0], np.float32)
    a = x.astype(BF16).astype(np.float32)
    with aot.load(aot.compile(scalar_model(nodes))) as program:
        found = program({"x": x})["y"]
    np.testing.assert_array_equal(found, (a * a + a).astype(BF16).astype(np.float32))
