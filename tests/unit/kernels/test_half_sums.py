"""Products whose sums are in f16, pieces of them in f32: tiles, borders, and how far off they are.

In the kernel interpreter and, under QEMU, in machine code of a CPU that has vectors of f16. Which
products these are is test_narrow_arithmetic.py's.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from aot.analysis.stages import plans_of
from aot.ir.interpreter.interpreter import run
from aot.ir.schedule import Schedule
from tests.support.executables import LAST, PLANES, PLANNED, Conv, Executable, Product
from tests.support.kernel_backends import device, on_qemu
from tests.support.lowering_checks import Engine, on_interpreter

TARGET = "aarch64-linux-dotprod"
HALF = {"dtype": "f16", "more": "half_sums = true"}


def conv(
    channels: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    group: int = 1,
    image: tuple[int, int] = (6, 7),
    layout: str = LAST,
) -> Conv:
    return Conv(
        *((channels, filters, *image), kernel, stride, kernel // 2, layout),
        **{"weights": PLANNED, "group": group, "is_image": True, **HALF},  # type: ignore[arg-type]
    )


def matmul(*sizes: int) -> Product:
    rows, depth, columns = sizes
    return Product((rows, depth, columns), PLANNED, **HALF)


CASES: dict[str, Executable] = {
    "few-channels": conv(3, 20),
    "uneven": conv(37, 33),
    "taps-are-pieces": conv(131, 16, image=(3, 4)),
    "pointwise": conv(70, 40, kernel=1),
    "pointwise-in-pieces": conv(521, 24, kernel=1, stride=2),
    "planes": conv(300, 24, kernel=1, layout=PLANES, image=(8, 8)),
    "depthwise": conv(24, 24, kernel=5, group=24),
    "groups": conv(24, 32, group=2),
    "few-columns": conv(64, 2, kernel=1),
    "row": matmul(1, 600, 33),
    "rows": matmul(29, 64, 48),
    "whole-pieces": matmul(17, 512, 16),
    "wide": matmul(3, 259, 200),
    "short": matmul(17, 5, 16),
}


def check(name: str, engine: Engine) -> None:
    """Roundings of up to 256 terms add up as a random walk does, far below their bound."""
    case, wide = CASES[name], np.float64
    arrays = case.arrays("normal", 5)
    found = case.computed(TARGET, engine, arrays).astype(wide)
    given = arrays, [np.abs(a) for a in arrays]
    wanted, sizes = (run(case.function(), [*x])[0].astype(wide) for x in given)
    assert (np.abs(found - wanted) <= 2**-10 * np.abs(wanted) + 2**-9 * sizes).all()
    assert np.sqrt(np.mean((found - wanted) ** 2)) <= 2**-8 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize(
    "name", ["few-channels", "planes", "depthwise", "groups", "few-columns", "row", "short"]
)
def test_sums_in_the_kernel_interpreter(name: str) -> None:
    check(name, on_interpreter)


@pytest.mark.qemu
@pytest.mark.parametrize("name", CASES)
def test_sums_in_machine_code(name: str) -> None:
    check(name, on_qemu(TARGET))


@pytest.mark.qemu
@pytest.mark.parametrize("terms", [256, 4096])
def test_long_sums_do_not_stall(terms: int) -> None:
    """In f16 alone, 2048 + 1 is 2048."""
    case = matmul(9, terms, 32)
    ones = [np.ones(a.shape, a.dtype) for a in case.arrays()]
    assert (case.computed(TARGET, on_qemu(TARGET), ones) == terms).all()


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("uneven", Schedule.CONTRACTION),
        ("whole-pieces", Schedule.CONTRACTION),
        ("planes", Schedule.PLANES),
        ("few-columns", Schedule.INNER),
    ],
)
def test_vectors_of_f16_are_multiplied(name: str, schedule: Schedule) -> None:
    (plan,) = plans_of(CASES[name].function(TARGET), device(TARGET))
    assert (plan.schedule, plan.lanes) == (schedule, 8)
    assembly = CASES[name].assembly(TARGET)
    products = re.findall(r"\bfmla\tv\d+\.(\w+)", assembly)
    assert products.count("8h") > len(products) // 2


def test_scalars_of_rows_are_lanes() -> None:
    assembly = CASES["whole-pieces"].assembly(TARGET)
    assert re.search(r"\bfmla\tv\d+\.8h, v\d+\.8h, v\d+\.h\[7\]", assembly)
