"""Where extrema are, in one pass: of equal ones the first or the last, NaN, rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import Engine, on_interpreter

Array = np.ndarray[Any, Any]
NATIVE = native_targets()


def position(
    shape: tuple[int, ...],
    axis: int,
    op: str = "arg_max",
    last: bool = False,
    dtype: str = "f32",
    to: str = "i64",
    opened: bool = False,
) -> Function:
    """A position as an executable, of open extents if that is `opened`."""
    names = [f"d{n}" for n in range(len(shape))] if opened else list(map(str, shape))
    left = [n for d, n in enumerate(names) if d != axis]
    params = f"[{', '.join(names)}]" if opened else ""
    text = f"""
    executable @e0{params}(%0: {dtype}[{", ".join(names)}]) -> ("r0") bindings [2, 3] {{
      %1 = {op}(%0) {{
        axis = {axis}, keepdims = false, select_last = {str(last).lower()}, dtype = {to}
      }} : {to}[{", ".join(left)}]
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function, data: Array, target: str, engine: Engine) -> None:
    (wanted,) = run(function, [data])
    symbols = dict(zip(function.dim_names, data.shape, strict=False))
    memory = [to_memory(data, function.inputs[0].type, symbols)]
    dims = list(symbols.values())
    (got,) = run_executable(function, targets.load(target), memory, dims, engine)
    np.testing.assert_array_equal(got, wanted)


def numbers(shape: tuple[int, ...], seed: int = 1) -> Array:
    """Few numbers, so that many are equal."""
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(np.float32)


WAYS = [(op, last) for op in ("arg_max", "arg_min") for last in (False, True)]


@pytest.mark.parametrize(("op", "last"), WAYS)
@pytest.mark.parametrize("to", ["i32", "i64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_values(axis: int, to: str, op: str, last: bool) -> None:
    for target in NATIVE:
        for terms, results in ((5, 21), (33, 67), (150, 20), (64, 1)):
            shape = (results, terms) if axis else (terms, results)
            function = position(shape, axis, op, last, to=to)
            check(function, numbers(shape), target, on_cpu(target))


@pytest.mark.parametrize(("op", "last"), WAYS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinities(axis: int, op: str, last: bool) -> None:
    """The first NaN, or the last; rows of one infinity alone; infinities that add up to NaN."""
    random = np.random.default_rng(2)
    shape = (37, 70) if axis else (70, 37)
    function = position(shape, axis, op, last)
    for special in (np.nan, np.inf, -np.inf):
        for chance in (1e-3, 0.05, 1.0):
            data = numbers(shape)
            data[random.random(shape) < chance] = special
            data[3, 5], data[3, 6] = -np.inf, np.inf
            for target in NATIVE:
                check(function, data, target, on_cpu(target))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "i64", "u8", "i8"])
def test_element_types(dtype: str, axis: int) -> None:
    of = np.dtype(dtype.replace("f", "float").replace("i", "int").replace("u8", "uint8"))
    data = np.random.default_rng(3).integers(0, 9, (5, 19, 33)).astype(of)
    for op, last in WAYS:
        function = position((5, 19, 33), axis, op, last, dtype)
        for target in NATIVE:
            check(function, data, target, on_cpu(target))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v2", "aarch64-generic", "riscv64-v"])
def test_interpreted(target: str, axis: int) -> None:
    for op, last in WAYS:
        for shape in ((19, 21), (70, 5)):
            data = numbers(shape)
            data[4, 2] = np.nan
            check(position(shape, axis, op, last), data, target, on_interpreter)


@pytest.mark.parametrize("axis", [0, 1])
def test_open_extents(axis: int) -> None:
    for op, last in WAYS:
        function = position((1, 1), axis, op, last, opened=True)
        for target in NATIVE:
            for shape in ((1, 1), (3, 7), (40, 100), (100, 3), (17, 600)):
                data = np.full(shape, -np.inf if op == "arg_max" else np.inf, np.float32)
                check(function, data, target, on_cpu(target))
                check(function, numbers(shape), target, on_cpu(target))


def test_one_pass() -> None:
    """Each element is read by one loop, and by another where one is NaN."""
    for axis, extents in ((0, (64, 64)), (1, (4, 9999))):
        kernel = lower(position(extents, axis), targets.load("x86-64-v4"))
        assert {"best", "place", "seen"} <= {s.name for s in kernel.scratch}
