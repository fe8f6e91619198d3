"""Extents of 0: a model gives the same where they are known and where they are open.

One has no rows, no columns or nothing to sum over; each op that has a kernel of its own is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

import aot
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
PRODUCT = "g (float[R, K] p, float[K, N] q) => (float[R, N] y) { y = MatMul(p, q) }"
BATCHED = "g (float[2, R, K] p, float[2, K, N] q) => (float[2, R, N] y) { y = MatMul(p, q) }"
ATTENTION = """g (float[1, T, 4] q, float[1, S, 4] k) => (float[1, T, 4] y) {
  t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t) p = Softmax<axis = -1>(s)
  y = MatMul(p, k) }"""
BYTES = "g (uint8[R, K] p, uint8[K, 3] q) => (int32[R, 3] y) { y = MatMulInteger(p, q) }"
BIASED = "g (float[R, K] p, float[K, 3] q, float[3] b) => (float[R, 3] y) { y = Gemm(p, q, b) }"
EINSUM = """g (float[R, K] p, float[K, 3] q) => (float[R, 3] y) {
  y = Einsum<equation = "ij,jk->ik">(p, q) }"""
LSTM = """g (float[T, B, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[T, 1, B, 3] y,
  float[1, B, 3] h) { y, h = LSTM<hidden_size = 3>(x, w, r) }"""
# name -> model, shape of each input
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "no rows": (PRODUCT, {"p": (0, 64), "q": (64, 64)}),
    "no columns": (PRODUCT, {"p": (300, 64), "q": (64, 0)}),
    "nothing to sum": (PRODUCT, {"p": (300, 0), "q": (0, 64)}),
    "nothing at all": (PRODUCT, {"p": (0, 0), "q": (0, 0)}),
    "a row, no columns": (PRODUCT, {"p": (1, 64), "q": (64, 0)}),
    "a row of nothing": (PRODUCT, {"p": (1, 0), "q": (0, 64)}),
    "batches, no columns": (BATCHED, {"p": (2, 3, 4), "q": (2, 4, 0)}),
    "batches of nothing": (BATCHED, {"p": (2, 3, 0), "q": (2, 0, 4)}),
    "bytes, no rows": (BYTES, {"p": (0, 4), "q": (4, 3)}),
    "bytes of nothing": (BYTES, {"p": (5, 0), "q": (0, 3)}),
    "biased, no rows": (BIASED, {"p": (0, 4), "q": (4, 3), "b": (3,)}),
    "biased, nothing": (BIASED, {"p": (5, 0), "q": (0, 3), "b": (3,)}),
    "einsum, no rows": (EINSUM, {"p": (0, 4), "q": (4, 3)}),
    "einsum of nothing": (EINSUM, {"p": (5, 0), "q": (0, 3)}),
    "attention, no queries": (ATTENTION, {"q": (1, 0, 4), "k": (1, 5, 4)}),
    "attention, no keys": (ATTENTION, {"q": (1, 3, 4), "k": (1, 0, 4)}),
    "lstm, no steps": (LSTM, {"x": (0, 2, 4), "w": (1, 12, 4), "r": (1, 12, 3)}),
    "lstm, no batch": (LSTM, {"x": (3, 0, 4), "w": (1, 12, 4), "r": (1, 12, 3)}),
}


def made(name: str) -> tuple[ModelProto, dict[str, Array]]:
    """The model, and inputs of ones; an LSTM's weights are constants."""
    text, shapes = CASES[name]
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\n' + text)
    dtype = np.uint8 if text == BYTES else np.float32
    feeds = {name: np.ones(shape, dtype) for name, shape in shapes.items()}
    for weight in ("w", "r") if text == LSTM else ():
        array = numpy_helper.from_array(feeds.pop(weight), weight)
        model.graph.initializer.append(array)
        (old,) = (v for v in model.graph.input if v.name == weight)
        model.graph.input.remove(old)
    return model, feeds


def expected(name: str, feeds: dict[str, Array]) -> Array:
    """The first result, in numpy."""
    text, shapes = CASES[name]
    if text == LSTM:
        steps, batch, _ = shapes["x"]
        return np.zeros((steps, 1, batch, 3), np.float32)
    if text == ATTENTION:
        return np.zeros(shapes["q"], np.float32)
    wide = np.int32 if text == BYTES else np.float32
    product = feeds["p"].astype(wide) @ feeds["q"].astype(wide)
    return np.asarray(product + feeds["b"] if "b" in feeds else product)


def check(name: str, target: str, device: str) -> None:
    model, feeds = made(name)
    shapes = {key: list(array.shape) for key, array in feeds.items()}
    for bound in (None, shapes):
        compiled = aot.compile(model, targets=[target], input_shapes=bound)
        with aot.load(compiled, device=device) as program:
            found = next(iter(program(feeds).values()))
        np.testing.assert_array_equal(found, expected(name, feeds), f"{name}, {bound}")


@pytest.mark.parametrize("name", CASES)
def test_on_a_cpu(name: str) -> None:
    check(name, "host", "cpu")


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    with running_on(driver, tmp_path):
        for name in ("nothing to sum", "biased, nothing", "bytes of nothing", "lstm, no steps"):
            check(name, "vulkan-1.1", "vulkan")
        check("attention, no queries", "vulkan-1.1", "vulkan")
        check("attention, no keys", "vulkan-1.1", "vulkan")
