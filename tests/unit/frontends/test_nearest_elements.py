"""Which element a resized one is, at every door, against fractions: ONNX's text, element by
element, with scales that nothing has rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.frontends.lib.coordinates import KnownLine, Places, line_of, meant, nearest
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from tests.support import litert
from tests.support.tflite_cases import Making

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
OPEN = tuple(c for c in COORDINATES if c != "half_pixel_symmetric")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
FEW = [1, 2, 6, 13, 20, 27, 41]


def place(i: int, coordinates: str, n: int, m: int, scale: Fraction) -> Fraction:
    """Where element i of m is among n, as the text for Resize says."""
    if coordinates == "align_corners":
        return Fraction(0) if m == 1 else Fraction(i * (n - 1), m - 1)
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "pytorch_half_pixel" and m == 1:
        return Fraction(0)
    half = (i + Fraction(1, 2)) / scale - Fraction(1, 2)
    if coordinates == "half_pixel_symmetric":
        return Fraction(n, 2) * (1 - m / (n * scale)) + half
    return half


def rounded(x: Fraction, rounding: str) -> int:
    if rounding == "floor":
        return math.floor(x)
    if rounding == "ceil":
        return math.ceil(x)
    below = math.floor(x)
    rest = x - below
    if rest == Fraction(1, 2):
        return below if rounding == "round_prefer_floor" else below + 1
    return below if rest < Fraction(1, 2) else below + 1


@lru_cache(1024)
def places(coordinates: str, n: int, m: int) -> list[Fraction]:
    scale = Fraction(m, n)
    return [place(i, coordinates, n, m, scale) for i in range(m)]


@lru_cache(4096)
def right(coordinates: str, rounding: str, n: int, m: int) -> tuple[int, ...]:
    found = (rounded(x, rounding) for x in places(coordinates, n, m))
    return tuple(min(max(k, 0), n - 1) for k in found)


def check_table(ns: Iterable[int], ms: Sequence[int]) -> None:
    for n in ns:
        for m in ms:
            for coordinates in COORDINATES:
                line = line_of(coordinates, n, m, Fraction(m, n))
                for rounding in ROUNDING:
                    found = np.clip(nearest(line, rounding, m), 0, n - 1)
                    assert tuple(found) == right(coordinates, rounding, n, m), (
                        coordinates,
                        rounding,
                        n,
                        m,
                    )


def test_elements_of_few_extents() -> None:
    check_table(FEW, FEW)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1, 129, 8))
def test_elements_of_all_extents(first: int) -> None:
    check_table(range(first, first + 8), range(1, 129))


def resize_model(n: int | str, ms: Sequence[int], coordinates: Sequence[str]) -> onnx.ModelProto:
    """A node for each size, coordinates and rounding; with `n` a name, the size is that of `y`."""
    nodes, initializers, outputs = [], [], []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [n])]
    if isinstance(n, str):
        inputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"]))
        nodes.append(helper.make_node("Shape", ["y"], ["size 0"]))
    else:
        initializers += [numpy_helper.from_array(np.array([m], np.int64), f"size {m}") for m in ms]
    for m in ms:
        for mode in coordinates:
            for rounding in ROUNDING:
                outputs.append(f"{mode} {rounding} {m}")
                nodes.append(
                    helper.make_node(
                        "Resize",
                        ["x", "", "", f"size {m}"],
                        [outputs[-1]],
                        mode="nearest",
                        coordinate_transformation_mode=mode,
                        nearest_mode=rounding,
                    )
                )
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def interpreted(module: Module, *arrays: np.ndarray) -> dict[str, np.ndarray]:
    function = module.main
    return dict(zip(function.result_names, run(function, list(arrays)), strict=True))


def numbers(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def check_onnx(n: int, ms: Sequence[int]) -> None:
    module = import_onnx(resize_model(n, ms, COORDINATES))
    for name, found in interpreted(module, numbers(n)).items():
        coordinates, rounding, m = name.split()
        assert tuple(found) == right(coordinates, rounding, n, int(m)), (name, n)


@pytest.mark.parametrize("n", FEW)
def test_onnx(n: int) -> None:
    check_onnx(n, FEW)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 129))
def test_onnx_of_all_extents(n: int) -> None:
    for first in range(1, 129, 16):
        check_onnx(n, range(first, first + 16))


def check_open(ns: Iterable[int], ms: Sequence[int]) -> None:
    module = import_onnx(resize_model("n", [0], OPEN))
    for n in ns:
        for m in ms:
            for name, found in interpreted(module, numbers(n), numbers(m)).items():
                coordinates, rounding, _ = name.split()
                assert tuple(found) == right(coordinates, rounding, n, m), (name, n, m)


def test_open_extents() -> None:
    check_open(FEW, FEW)


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 129))
def test_all_open_extents(n: int) -> None:
    check_open([n], range(1, 129))


def test_a_program_of_open_extents() -> None:
    compiled = aot.compile(resize_model("n", [0], OPEN), targets=["host"])
    with aot.load(compiled) as program:
        for n, m in ((20, 6), (6, 20), (1, 5), (5, 1), (41, 27), (128, 127)):
            for name, found in program({"x": numbers(n), "y": numbers(m)}).items():
                coordinates, rounding, _ = name.split()
                assert tuple(found) == right(coordinates, rounding, n, m), (name, n, m)


@pytest.mark.parametrize(
    ("corners", "half", "coordinates", "rounding"),
    [
        (False, False, "asymmetric", "floor"),
        (False, True, "half_pixel", "round_prefer_ceil"),
        (True, False, "align_corners", "round_prefer_ceil"),
    ],
)
@pytest.mark.parametrize("n", [6, 20, 41])
def test_tflite(corners: bool, half: bool, coordinates: str, rounding: str, n: int) -> None:
    for m in FEW:
        making = Making()
        x = making.input((1, n, 1, 1), data=numbers(n).reshape(1, n, 1, 1))
        y = making.tensor((1, m, 1, 1), np.float32)
        sizes = making.constant(np.array([m, 1], np.int32))
        how = {"align_corners": corners, "half_pixel_centers": half}
        making.op("RESIZE_NEAREST_NEIGHBOR", [x, sizes], [y], "ResizeNearestNeighborOptions", **how)
        (found,) = litert.interpreted(*making.done(y)).values()
        assert tuple(found.reshape(-1)) == right(coordinates, rounding, n, m), m


# what is given as a float


def test_a_scale_is_the_fraction_that_was_rounded() -> None:
    for n in range(1, 129):
        for m in range(1, 129):
            assert meant(float(np.float32(m / n)), DType.F32) == Fraction(m, n)
            assert meant(m / n, DType.F64) == Fraction(m, n)
    pi = float(np.float32(math.pi) / 1024)
    assert np.float32(float(meant(pi, DType.F32))) == np.float32(pi)
    assert meant(1e-30, DType.F64) == Fraction(1e-30)


@pytest.mark.parametrize("scale", [0.3, 0.6, 0.7, 1.1, 1.5, 2.5, 1 / 3])
def test_scales_of_onnx(scale: float) -> None:
    exact = Fraction(scale).limit_denominator(100)
    for n in (5, 10, 20):
        m = math.floor(n * exact)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [n])
        for coordinates in ("half_pixel", "asymmetric"):
            for rounding in ROUNDING:
                node = helper.make_node(
                    "Resize",
                    ["x", "", "scales"],
                    ["y"],
                    mode="nearest",
                    coordinate_transformation_mode=coordinates,
                    nearest_mode=rounding,
                )
                scales = numpy_helper.from_array(np.array([scale], np.float32), "scales")
                y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
                graph = helper.make_graph([node], "g", [x], [y], [scales])
                opsets = [helper.make_opsetid("", 18)]
                model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
                (found,) = interpreted(import_onnx(model), numbers(n)).values()
                expected = [
                    min(max(rounded(place(i, coordinates, n, m, exact), rounding), 0), n - 1)
                    for i in range(m)
                ]
                assert list(found) == expected, (n, coordinates, rounding)


def test_long_fractions_are_whole_numbers_of_python() -> None:
    line = KnownLine.of(Fraction(1e-30) + 1, Fraction(1, 3))
    places = Places.of(line, 4)
    assert places.above.dtype == object
    assert list(places.floors) == [0, 1, 2, 3] and list(places.ceilings) == [1, 2, 3, 4]
    np.testing.assert_allclose(places.beyond(places.floors), [1 / 3] * 4)


def test_regions_end_where_they_say() -> None:
    """The last element of a region that ends at the last element is not outside."""
    for n in range(2, 40):
        for m in range(2, 40):
            line = line_of("tf_crop_and_resize", n, m, Fraction(m, n))
            assert not Places.of(line, m).are_outside(n).any()
