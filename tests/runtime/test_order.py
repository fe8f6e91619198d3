"""The order of elements with NaN among them: it is greater than any number, and equal to NaN.

Each form that the kernel of top_k has runs, and Unique, whose sort it is; positions of extrema are
those of the first NaN, as NaN is the extremum.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import aot
from aot.builder import Builder
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
# name -> type, k; axis 1
FORMS = {
    "few in registers": ("f32[3, 37]", 5),
    "few of an open extent": ("f32[3, N]", 5),
    "all of few": ("f32[2, 5]", 5),
    "few of many lines": ("f32[35, 37]", 4),
    "places are counted": ("f32[3, 37]", 20),
    "the k-th bit by bit": ("f32[2, 150]", 20),
    "all, by their places": ("f32[2, 45]", 45),
    "all but a few": ("f32[2, 140]", 133),
    "heap of doubles": ("f64[3, 37]", 20),
    "few doubles": ("f64[3, 37]", 3),
    "heap of an open extent": ("f32[2, N]", 11),
    "halves": ("f16[3, 37]", 7),
    "heap of halves": ("f16[3, 37]", 20),
}
ON_GPU = {name: form for name, form in FORMS.items() if "f64" not in form[0]}


def module(forms: dict[str, tuple[str, int]]) -> Any:
    b = Builder()
    for n, (type_, k) in enumerate(forms.values()):
        x = b.input(f"x{n}", type_)
        for largest in (True, False):
            values, places = b.op("top_k", x, axis=1, k=k, largest=largest)
            b.output(f"values{n}_{largest}", values)
            b.output(f"places{n}_{largest}", places)
            b.output(f"only{n}_{largest}", b.op("top_k", x, axis=1, k=k, largest=largest)[0])
            b.output(f"where{n}_{largest}", b.op("top_k", x, axis=1, k=k, largest=largest)[1])
        for name in ("arg_max", "arg_min"):
            b.output(f"{name}{n}", b.op(name, x, axis=1, keepdims=False))
    return b.module()


def given(forms: dict[str, tuple[str, int]]) -> dict[str, Array]:
    """Numbers that are often equal, infinities, zeros of both signs, and NaN of both."""
    rng = np.random.default_rng(3)
    numbers = [-math.inf, -2.5, -1.0, -0.0, 0.0, 1.0, 2.0, math.inf]
    feeds = {}
    for n, (type_, _) in enumerate(forms.values()):
        dtype, shape = type_.split("[")
        rows, columns = shape.rstrip("]").replace("N", "37").split(",")
        size = int(rows), int(columns)
        x = rng.choice(np.array([*numbers, math.nan, -math.nan], dtype.replace("f", "float")), size)
        x[0, :] = math.nan
        x[1, :-1] = -1
        feeds[f"x{n}"] = x
    return feeds


def check(found: dict[str, Array], forms: dict[str, tuple[str, int]]) -> None:
    for n, ((_, k), x) in enumerate(zip(forms.values(), given(forms).values(), strict=True)):
        for row, line in enumerate(x.tolist()):
            for largest in (True, False):
                turn = -1 if largest else 1

                def key(i: int, line: list[float] = line, turn: int = turn) -> tuple[float, float]:
                    is_nan = math.isnan(line[i])
                    return turn * is_nan, 0.0 if is_nan else turn * line[i]

                order = sorted(range(len(line)), key=key)[:k]
                what = f"{list(forms)[n]}, largest={largest}, row {row}"
                for name in ("places", "where"):
                    assert found[f"{name}{n}_{largest}"][row].tolist() == order, what
                for name in ("values", "only"):
                    np.testing.assert_array_equal(
                        found[f"{name}{n}_{largest}"][row], x[row, order], what
                    )
            assert found[f"arg_max{n}"][row] == np.argmax(x[row])
            assert found[f"arg_min{n}"][row] == np.argmin(x[row])


def test_interpreted() -> None:
    m = module(FORMS)
    found = run(m.main, list(given(FORMS).values()))
    check(dict(zip(m.main.result_names, found, strict=True)), FORMS)


@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str) -> None:
    with aot.load(aot.compile(module(FORMS), targets=[target])) as program:
        check(program(given(FORMS)), FORMS)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    compiled = aot.compile(module(ON_GPU), targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check(program(given(ON_GPU)), ON_GPU)


def test_positions_fit_their_type() -> None:
    b = Builder()
    with pytest.raises(aot.CompileError, match="dtype holds the positions along axis"):
        b.op("top_k", b.input("x", f"i8[{(1 << 31) + 1}]"), axis=0, k=1, dtype=DType.I32)


def test_unique() -> None:
    """As numpy's: one NaN, at the end of ascending order."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[K] y, int64[K] i, '
        "int64[N] v, int64[K] c) { y, i, v, c = Unique(x) }"
    )
    x = np.array([3, math.nan, 1, math.nan, 3, 2], np.float32)
    found = aot.load(aot.compile(model))({"x": x})
    numbers = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for name, wanted in zip("yivc", numbers, strict=True):
        np.testing.assert_array_equal(found[name], wanted, name)


def test_unique_rows() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N, 2] x) => (float[K, 2] y, '
        "int64[K] i, int64[N] v, int64[K] c) { y, i, v, c = Unique<axis=0>(x) }"
    )
    n = math.nan
    x = np.array([[3, n], [1, n], [3, n], [n, 1], [3, 2], [n, 1]], np.float32)
    found = aot.load(aot.compile(model))({"x": x})
    np.testing.assert_array_equal(found["y"], [[1, n], [3, 2], [3, n], [n, 1]])
    assert found["i"].tolist() == [1, 4, 0, 3]
    assert found["v"].tolist() == [2, 0, 2, 3, 1, 3]
    assert found["c"].tolist() == [1, 1, 2, 2]
