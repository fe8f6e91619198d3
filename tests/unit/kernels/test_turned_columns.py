"""Products with a transposed right side in place, whose columns are turned in scratch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.ir.graph import Function
from aot.ir.text.parser import parse_module
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import Engine, on_interpreter, on_whole_numbers

NATIVE = native_targets()
# batch, rows, terms, columns
SIZES = [
    (1, 16, 64, 64),
    (3, 49, 32, 49),
    (2, 49, 49, 32),
    (1, 8, 516, 100),
    (2, 30, 21, 17),
    (1, 9, 6, 33),
    (1, 70, 7, 16),
    (1, 20, 3, 40),
    (2, 5, 32, 32),
    (1, 12, 1100, 20),
]


def product(size: tuple[int, int, int, int], end: str = "") -> Function:
    batch, rows, terms, columns = size
    result = f"f32[{batch}, {rows}, {columns}]"
    tail = f"%2 = {end}(%1) : {result}\n return(%2)" if end else "return(%1)"
    text = f"""
    executable @e0(
      %x: f32[{batch}, {rows}, {terms}],
      %y: f32[{batch}, {terms}, {columns}]{{order=0:2:1}}
    ) -> ("r0") bindings [2, 2, 3] {{
      %1 = matmul(%x, %y) : {result}
      {tail}
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function, target: str, engine: Engine) -> None:
    got, wanted = on_whole_numbers(function, target, engine)
    np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_natively(size: tuple[int, int, int, int]) -> None:
    for target in NATIVE:
        for end in ("", "tanh"):
            check(product(size, end), target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    for size in ((2, 9, 10, 19), (1, 8, 16, 32), (1, 9, 5, 37)):
        check(product(size), target, on_interpreter)


@pytest.mark.parametrize("columns", [8, 12, 24])
def test_tiles_of_a_persons_choice(columns: int) -> None:
    """A tile whose columns fill no vectors is not transposed in scratch."""
    for target in ("x86-64-v4", "x86-64-v3"):
        function = product((1, 20, 33, 70))
        (made,) = planned(function, targets.load(target))
        function.schedule = (replace(made, columns=columns),)
        check(function, target, on_interpreter)


def test_which_are_turned() -> None:
    def is_turned(size: tuple[int, int, int, int], target: str) -> bool:
        kernel = lower(product(size), targets.load(target))
        return kernel.rules == ("products/turned_columns",)

    assert is_turned((3, 49, 32, 49), "x86-64-v4")
    assert is_turned((3, 49, 32, 49), "aarch64-generic")
    assert not is_turned((3, 4, 32, 49), "x86-64-v4")  # rows that serve nobody
    assert not is_turned((1, 12, 1100, 20), "x86-64-v4")  # more than scratch holds
    assert not is_turned((3, 49, 32, 49), "vulkan-1.1")
