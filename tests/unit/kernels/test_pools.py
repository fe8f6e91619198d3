"""Pools of planes and of channels that lie side by side: taps down the plane before those along a
line, and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Kernel, Prefetch, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import Engine, on_interpreter

Array = np.ndarray[Any, Any]
NATIVE = native_targets()
LAST = "{order=0:2:3:1}"


def pool(
    name: str,
    shape: tuple[int, int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilations: tuple[int, int] = (1, 1),
    dtype: str = "f32",
    counts: str = "false",
    layout: str = LAST,
) -> Function:
    """A pool as an executable; `pads` are before and behind the lines, then the places of one."""
    batch, channels, *extents = shape
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    down, along = (
        (n + pads[d] + pads[2 + d] - spans[d]) // strides[d] + 1 for d, n in enumerate(extents)
    )
    counted = f"count_include_pad = {counts}, " if name == "average_pool" else ""
    text = f"""
    executable @e0(%0: {dtype}[{", ".join(map(str, shape))}]{layout})
        -> ("r0") bindings [2, 3] {{
      %1 = {name}(%0) {{
        {counted}kernel = {list(kernel)}, strides = {list(strides)},
        dilations = {list(dilations)}, pads = {list(pads)}
      }} : {dtype}[{batch}, {channels}, {down}, {along}]{layout}
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function, data: Array, target: str, engine: Engine) -> None:
    (wanted,) = run(function, [data])
    memory = [to_memory(data, function.inputs[0].type, {})]
    (got,) = run_executable(function, targets.load(target), memory, [], engine)
    if next(iter(function.block)).name == "max_pool":
        np.testing.assert_array_equal(got, wanted)
    else:
        np.testing.assert_allclose(got, wanted, 2e-5, 1e-5)


def numbers(shape: tuple[int, ...], seed: int = 3) -> Array:
    return np.random.default_rng(seed).uniform(-9, 9, shape).astype(np.float32)


def is_apart(kernel: Kernel) -> bool:
    return bool({"windows/pools", "windows/plane_pools"} & set(kernel.rules))


WINDOWS = [
    ((3, 3), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (2, 2), (1, 1, 1, 1)),
    ((2, 2), (2, 2), (0, 0, 0, 0)),
    ((5, 5), (1, 1), (2, 2, 2, 2)),
    ((2, 3), (3, 1), (0, 2, 1, 0)),
    ((3, 2), (1, 4), (2, 0, 0, 1)),
    ((7, 4), (2, 3), (0, 3, 5, 3)),
    ((13, 13), (1, 1), (6, 6, 6, 6)),
]


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
@pytest.mark.parametrize(("kernel", "strides", "pads"), WINDOWS, ids=str)
def test_values(
    name: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    layout: str,
) -> None:
    """Lines of one tile and of several, one line and many, channels that fill no vector."""
    for target in NATIVE:
        shapes = ((2, 16, 13, 13), (1, 21, 14, 75), (1, 640, 13, 14))
        for shape in shapes if layout else ((2, 3, 13, 13), (1, 1, 14, 275), (1, 2, 33, 33)):
            function = pool(name, shape, kernel, strides, pads, layout=layout)
            assert is_apart(lower(function, targets.load(target)))
            check(function, numbers(shape), target, on_cpu(target))


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_planes_that_no_near_cache_holds(name: str, strides: tuple[int, int], layout: str) -> None:
    """Tiles ask for lines of those below them, unless a near cache holds all or there is none."""

    def asks(function: Function, target: str) -> bool:
        body = lower(function, targets.load(target)).body
        return any(isinstance(stmt, Prefetch) for stmt in walk(body))

    def of(*shape: int) -> Function:
        assert len(shape) == 4
        return pool(name, shape, (5, 3), strides, (2, 1, 2, 1), layout=layout)

    shape = (1, 40, 191, 197)
    for target in NATIVE:
        assert asks(of(*shape), target)
        assert not asks(of(1, 16, 23, 29), target)
        check(of(*shape), numbers(shape), target, on_cpu(target))
    assert not asks(of(*shape), "thumbv7em")


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v2", "aarch64-generic", "riscv64-v"])
def test_interpreted(name: str, target: str, layout: str) -> None:
    for shape in ((1, 18, 5, 6),) if layout else ((1, 2, 7, 18), (2, 1, 5, 13)):
        for kernel, strides, pads in WINDOWS[:5]:
            function = pool(name, shape, kernel, strides, pads, layout=layout)
            check(function, numbers(shape), target, on_interpreter)


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_nan_and_infinities(strides: tuple[int, int], layout: str) -> None:
    """Infinities of both signs add up to NaN, and no result is one for that."""
    shape = (1, 24, 17, 41)
    function = pool("max_pool", shape, (3, 3), strides, (1, 1, 1, 1), layout=layout)
    random = np.random.default_rng(5)
    for special in (np.nan, -np.nan, np.inf, -np.inf):
        for chance in (1e-4, 0.02, 1.0):
            data = numbers(shape)
            data[random.random(shape) < chance] = special
            data[0, 3, 4, 5] = -np.inf
            for target in NATIVE:
                check(function, data, target, on_cpu(target))


@pytest.mark.parametrize("at", [(0, 0), (16, 40), (8, 32)])
@pytest.mark.parametrize("layout", [LAST, ""])
def test_one_nan(at: tuple[int, int], layout: str) -> None:
    for kernel, strides, pads in WINDOWS[1:4:2]:
        shape = (1, 24, 17, 41)
        function = pool("max_pool", shape, kernel, strides, pads, layout=layout)
        data = numbers(shape)
        data[0, 17, at[0], at[1]] = np.nan
        for target in NATIVE:
            check(function, data, target, on_cpu(target))


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
def test_taps_apart(name: str, layout: str) -> None:
    """The nearest place that is there may be none of a window's."""
    shape = (1, 24, 12, 19)
    for pads in ((1, 1, 1, 1), (2, 2, 2, 2), (0, 0, 0, 0)):
        for kernel, dilations in (((3, 3), (2, 2)), ((2, 3), (3, 1))):
            function = pool(name, shape, kernel, (1, 1), pads, dilations, layout=layout)
            for target in NATIVE:
                check(function, numbers(shape), target, on_cpu(target))


def test_results_over_an_operand() -> None:
    """An operand that results overwrite is read once at each place, be lines ever so odd."""
    shape = (1, 2, 9, 37)
    text = """
    executable @e0(%0: f32[1, 2, 9, 37], %1: f32[1, 2, 9, 37]) -> ("r0") bindings [2, 1, 1] {
      %2 = max_pool(%0) {
        kernel = [3, 3], strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]
      } : f32[1, 2, 9, 37]
      %3 = add(%2, %1) : f32[1, 2, 9, 37]
      return(%3)
    }
    """
    (function,) = parse_module(text).executables
    for target in NATIVE:
        assert is_apart(lower(function, targets.load(target)))
        data = [numbers(shape, 1), numbers(shape, 2)]
        (wanted,) = run(function, data)
        memory = [to_memory(d, v.type, {}) for d, v in zip(data, function.inputs, strict=True)]
        (got,) = run_executable(function, targets.load(target), memory, [], on_cpu(target))
        np.testing.assert_array_equal(got, wanted)


def test_means_of_all_taps() -> None:
    shape = (2, 33, 9, 10)
    function = pool("average_pool", shape, (3, 3), (2, 1), (1, 1, 1, 1), counts="true")
    for target in NATIVE:
        check(function, numbers(shape), target, on_cpu(target))


@pytest.mark.parametrize("layout", [LAST, ""])
@pytest.mark.parametrize("dtype", ["u8", "i8", "i32", "f64", "f16"])
def test_element_types(dtype: str, layout: str) -> None:
    shape = (1, 70, 9, 40) if layout else (1, 3, 9, 140)
    function = pool("max_pool", shape, (3, 3), (1, 2), (1, 1, 1, 1), dtype=dtype, layout=layout)
    random = np.random.default_rng(1)
    if dtype.startswith("f"):
        data = random.uniform(-9, 9, shape).astype({"f64": np.float64, "f16": np.float16}[dtype])
        data[0, 2, 4, 5] = np.nan
    else:
        of = {"u8": np.uint8, "i8": np.int8, "i32": np.int32}[dtype]
        data = random.integers(np.iinfo(of).min, np.iinfo(of).max, shape, of, endpoint=True)
    for target in NATIVE:
        check(function, data, target, on_cpu(target))
