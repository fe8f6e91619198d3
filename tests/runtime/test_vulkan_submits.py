"""A run on a GPU is split into submissions by the price of its dispatches.

Systems end what keeps a GPU for some seconds. A program without prices is one submission.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.link import module as modules
from aot.link.program import decode
from aot.link.reader import read_module
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import info_of, running_on

pytestmark = pytest.mark.vulkan

MS = 1_000_000  # ns
COUNT = 6


def chain() -> Any:
    """y of COUNT products and tanhs, which are as many dispatches, of N rows; 64 in a workgroup at
    most."""
    b = Builder()
    x = b.input("x", "f32[N, 64]")
    w = b.constant(np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64))
    for _ in range(COUNT):
        x = b.op("tanh", b.op("matmul", x, w))
    b.output("y", x)
    return b.module()


def priced(module: bytes, ns: int) -> bytes:
    """The module whose dispatches have one price a workgroup."""
    image = read_module(module)
    (variant,) = image.variants
    executables = tuple(replace(e, group_ns=ns) for e in variant.executables)
    return modules.module_bytes(
        replace(image, variants=(replace(variant, executables=executables),))
    )


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_is_split_by_price(driver: str, tmp_path: Path) -> None:
    """Each submission has as many dispatches as 100 ms have room for, and one at least; results are
    the same, and a second run at the same rows records nothing."""
    module = aot.compile(chain(), targets=["vulkan-1.1"]).to_bytes()
    feeds = {"x": np.random.RandomState(3).rand(5, 64).astype(np.float32)}
    found: dict[int, Any] = {}
    with running_on(driver, tmp_path):
        for ns, submits in ((0, 1), (10 * MS, 1), (16 * MS, 1), (40 * MS, 3), (200 * MS, 6)):
            with aot.load(priced(module, ns), "vulkan") as program:
                found[ns] = program(feeds)["y"].copy()
                assert (ns, info_of(program).submit_count) == (ns, submits)
                recorded = info_of(program).recording_count
                program(feeds)
                assert info_of(program).submit_count == 2 * submits
                assert info_of(program).recording_count == recorded <= submits
    for y in found.values():
        np.testing.assert_array_equal(y, found[0])


def test_prices_grow_with_the_grid(tmp_path: Path) -> None:
    """What is priced for a workgroup is priced again by the grid of a run."""
    module = aot.compile(chain(), targets=["vulkan-1.1"]).to_bytes()
    with running_on("lavapipe", tmp_path), aot.load(priced(module, 16 * MS), "vulkan") as program:
        counts = []
        for rows in (5, 5000):
            before = info_of(program).submit_count
            program({"x": np.zeros((rows, 64), np.float32)})
            counts.append(info_of(program).submit_count - before)
    assert counts == [1, COUNT]


def test_dispatches_are_priced_by_the_speed_of_a_target() -> None:
    """A product of 1024^3 by lavapipe's 11,000 multiply-adds in a microsecond takes 98 ms, and a
    sum of 64 MiB by its 4,500 bytes 30 ms; a CPU's have no price."""
    b = Builder()
    x, y = b.input("x", "f32[1024, 1024]"), b.input("y", "f32[16777216]")
    b.output("product", b.op("matmul", x, x))
    b.output("sums", b.op("add", y, y))
    module = aot.compile(b.module(), targets=["lavapipe", "host"])
    gpu, cpu = module.image.variants
    assert not any(e.group_ns for e in cpu.executables)
    (entry,) = gpu.entry_points
    totals = sorted(_prices(entry, gpu.executables))
    assert totals == pytest.approx([2 * (64 << 20) / 4500 * 1000, 1024**3 / 11000 * 1000], rel=0.05)


def _prices(entry: Any, executables: Any) -> list[float]:
    """Nanoseconds of each dispatch of a program without symbolic extents."""
    program = entry.program
    constants = {}
    totals = []
    for instruction in decode(program.code):
        if instruction.name == "CONST":
            register, low, high = instruction.operands
            constants[register] = high << 32 | low
        elif instruction.name == "DISPATCH":
            number, *grid = instruction.operands[:4]
            groups = np.prod([constants[r] for r in grid])
            totals.append(float(groups * executables[number].group_ns))
    return totals
