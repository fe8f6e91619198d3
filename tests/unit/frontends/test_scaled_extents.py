"""Extents times a float, rounded down: what ONNX Runtime and PyTorch make of open dims."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import aot
from aot.frontends.lib.scaled_extents import scaled_extent
from aot.frontends.onnx import import_onnx
from aot.ir.dims import Dim, evaluate, symbol
from aot.ir.types import DType
from tests.support.onnx_models import graph_model, our_run, tensor_info

COORDINATES = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
)
DECIMALS = [1 / 300, 1 / 3, 0.5, 0.6, 0.7, 0.9, 1.1, 1.3, 2.6, 4.125, 0.12345679, 100.1]
L = symbol("L")
MOST = 1 << 22


def _resizing(scale: float, extent: int | str, **attributes: str) -> onnx.ModelProto:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], name="resize", **attributes)
    scales = numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales")
    return graph_model([node], [tensor_info("x", [1, 1, 1, extent])], ["y"], [scales], opset=18)


def _at(extent: Dim, number: int) -> int:
    return extent if isinstance(extent, int) else evaluate(extent, {"L": number})


@pytest.mark.parametrize("scale", DECIMALS)
def test_extents_are_onnx_runtimes(scale: float) -> None:
    model = _resizing(scale, "L", mode="nearest")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    extent = scaled_extent(L, float(np.float32(scale)), DType.F32)
    for number in range(1, 2001):
        (y,) = session.run(None, {"x": np.zeros((1, 1, 1, number), np.float32)})
        assert _at(extent, number) == y.shape[3], number


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("seed", range(8))
def test_extents_are_those_of_rounded_products(dtype: DType, seed: int) -> None:
    rng = random.Random(seed)
    drawn = [rng.randint(1, 200) / rng.randint(1, 99) for _ in range(6)]
    for scale in (*DECIMALS, math.pi, *drawn, *(rng.random() * 3 for _ in range(3))):
        factor = dtype.numpy.type(scale)
        simple = Fraction(float(factor)).limit_denominator(300)
        multiples = [simple.denominator * rng.randint(1, 9000) for _ in range(40)]
        for most in (None, 2000):
            extent = scaled_extent(L, float(factor), dtype, most)
            numbers = [*range(90), *multiples, *(rng.randint(1, MOST) for _ in range(40))]
            for number in numbers:
                wanted = int(np.floor(dtype.numpy.type(number) * factor))
                if number <= (most or MOST) and wanted < 1 << 23:
                    assert _at(extent, number) == wanted, (scale, most, number)


def test_a_fraction_is_what_a_float_stands_for() -> None:
    assert scaled_extent(300 * L, float(np.float32(1 / 300)), DType.F32) == L
    assert str(scaled_extent(L, float(np.float32(0.7)), DType.F32)) == "(7*L)//10"
    assert str(scaled_extent(L, 1 / 3, DType.F64)) == "L//3"
    # 90 times the float is 116.9999957, which no float of 24 bits rounds to 117
    assert _at(scaled_extent(L, float(np.float32(1.3)), DType.F32), 80) == 104
    assert _at(scaled_extent(L, float(np.float32(1.3)), DType.F32), 90) == 116


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_open_and_known_extents_agree(mode: str, coordinates: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    rng = np.random.default_rng(3)
    for scale in (1 / 3, 0.5, 0.7, 0.75, 1.3, 2, 2.6):
        function = import_onnx(_resizing(scale, "L", **attributes)).main
        for number in (1, 2, 3, 5, 10, 33, 90, 500):
            feeds = {"x": rng.normal(size=(1, 1, 1, number)).astype(np.float32)}
            known = import_onnx(_resizing(scale, number, **attributes)).main
            ((found,), (wanted,)) = our_run(function, feeds), our_run(known, feeds)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1 / 300, 1 / 3, 0.7, 1.3])
def test_resizing_of_an_open_extent_is_compiled(scale: float) -> None:
    model = _resizing(scale, "L", mode="linear")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with aot.load(aot.compile(model)) as program:
        for number in (*range(1, 400, 3), 900, 1800, 2000):
            x = np.sin(np.arange(number, dtype=np.float32) / 20).reshape(1, 1, 1, number)
            (wanted,) = session.run(None, {"x": x})
            (found,) = program({"x": x}).values()
            assert found.shape == wanted.shape
            # where the extent stays as it is, ONNX Runtime copies
            if wanted.shape != x.shape:
                np.testing.assert_allclose(found, wanted, atol=1e-4)
