"""Contractions of bf16: sums in f32 within bounds of the definition, by dot products and matrices.

The definition is the sum of the products in float64. A sum of n terms may be rounded at each step,
in any order; numbers below the normal ones may count as 0 (VDPBF16PS, BFDOT).
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.ir.interpreter.interpreter import run
from aot.kernels.ir.nodes import MatrixDot, walk
from tests.support.executables import LAST, PLANNED, STRONGEST, Conv, Executable, Product
from tests.support.kernel_backends import device, on_cpu, on_qemu
from tests.support.lowering_checks import Engine, on_interpreter

X86, ARM = "x86-64-v4-bf16", "aarch64-linux-i8mm"
EPSILON = 2.0**-23


def conv(channels: int, filters: int, kernel: int = 3, stride: int = 1, group: int = 1) -> Conv:
    more: dict[str, Any] = {"dtype": "bf16", "group": group, "is_image": True}
    sizes = (channels, filters, 6, 7)
    return Conv(sizes, kernel, stride, kernel // 2, LAST, weights=PLANNED, **more)


def matmul(*sizes: int) -> Product:
    rows, depth, columns = sizes
    return Product((rows, depth, columns), PLANNED, dtype="bf16")


CASES = {
    "three-channels": conv(3, 20),
    "odd-channels": conv(19, 33),
    "even-channels": conv(24, 40, 1),
    "strided": conv(10, 17, 3, 2),
    "groups": conv(12, 34, 3, 1, 2),
    "row": matmul(1, 300, 33),
    "rows": matmul(17, 129, 48),
    "short": matmul(29, 2, 20),
    "wide": matmul(26, 64, 112),
}


def check(case: Executable, target: str, engine: Engine) -> None:
    arrays = case.arrays("normal", 2)
    given = arrays, [np.abs(a) for a in arrays]
    expected, sizes = (run(case.function(), [*x])[0].astype(np.float64) for x in given)
    shape = arrays[1].shape
    terms = shape[0] if isinstance(case, Product) else int(np.prod(shape[1:]))
    found = case.computed(target, engine, arrays)
    assert (np.abs(found - expected) <= EPSILON * (terms + 2) * sizes).all()


@pytest.mark.parametrize("target", STRONGEST)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_near_the_definition_in_machine_code(name: str, target: str) -> None:
    """Whether the target has the instruction or not."""
    check(CASES[name], target, on_cpu(target))


@pytest.mark.qemu
@pytest.mark.parametrize("name", CASES)
def test_sums_are_near_the_definition_on_arm(name: str) -> None:
    check(CASES[name], ARM, on_qemu(ARM))


@pytest.mark.parametrize("target", [X86, ARM])
@pytest.mark.parametrize("name", ["odd-channels", "row", "rows"])
def test_sums_are_near_the_definition_in_the_kernel_interpreter(name: str, target: str) -> None:
    check(CASES[name], target, on_interpreter)


def engines() -> list[Any]:
    natives = [t for t in STRONGEST if device(t).sums_bf16]
    made = [pytest.param(t, False, id=t) for t in natives]
    return [*made, pytest.param(ARM, True, id=ARM, marks=pytest.mark.qemu)]


@pytest.mark.parametrize(("name", "is_emulated"), engines())
@pytest.mark.parametrize("rows", [1, 4])
def test_numbers_that_are_not_finite_or_not_normal(name: str, is_emulated: bool, rows: int) -> None:
    engine = on_qemu(name) if is_emulated else on_cpu(name)
    case = matmul(rows, 4, 16)
    bf16 = ml_dtypes.bfloat16
    left, right = np.ones((rows, 4), bf16), np.ones((4, 16), bf16)
    right[0, 0], right[1, 1], right[2, 2] = np.inf, -np.inf, np.nan
    right[0, 3], right[1, 3] = np.inf, -np.inf
    # a number below the normal ones, times one that makes it large
    left[:, 3], right[:, 4] = 2.0**100, 0
    right[3, :] = 2.0**-130
    found = case.computed(name, engine, [left, right])
    assert (found[:, 0] == np.inf).all()
    assert (found[:, 1] == -np.inf).all()
    assert np.isnan(found[:, 2:4]).all()
    assert np.isin(found[:, 4], [0, 2.0**-30]).all()
    assert np.isin(found[:, 5:], [3, np.float32(3 + 2.0**-30)]).all()


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        (X86, "rows", r"\bvdpbf16ps\b.*%zmm"),
        (X86, "odd-channels", r"\bvdpbf16ps\b.*%zmm"),
        (ARM, "row", r"\bbfdot\b"),
        (ARM, "rows", r"\bbfmmla\b"),
        (ARM, "groups", r"\bbfmmla\b"),
    ],
)
def test_instructions_for_bf16_are_used(target: str, name: str, instruction: str) -> None:
    assert re.search(instruction, CASES[name].assembly(target))


def test_matrices_are_for_targets_that_multiply_them() -> None:
    for name, is_there in ((ARM, True), (X86, False), ("aarch64-linux-dotprod", False)):
        kernel = CASES["rows"].lowered(name)
        assert any(isinstance(stmt, MatrixDot) for stmt in walk(kernel.body)) is is_there
