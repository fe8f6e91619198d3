"""Products whose sums are in f16, pieces of them in f32: tiles, borders, and how far off they are.

In the kernel interpreter and, under QEMU, in machine code of a CPU that has vectors of f16. Which
products these are is test_narrow_arithmetic.py's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.plan import weight_layouts
from aot.analysis.stages import plans_of
from aot.backends.cpu.compile import compile_kernel, emit_assembly
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.schedule import Schedule
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import lower
from aot.link.code_image import link_image
from aot.target.model import Target
from tests.support import cpu_running
from tests.support.half_contractions import device
from tests.support.half_regions import executable, half_function
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter
from tests.support.qemu import require_runner, run_on

F16 = DType.F16
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
TARGET = "aarch64-linux-dotprod"


def conv(
    channels: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    group: int = 1,
    image: tuple[int, int] = (6, 7),
    layout: Layout | None = CHANNELS_LAST,
) -> tuple[str, Sample]:
    pad = kernel // 2
    types = (
        TensorType(F16, (2, channels, *image), layout),
        TensorType(F16, (filters, channels // group, kernel, kernel)),
        TensorType(F16, (filters,)),
    )
    attrs = {
        "strides": (stride, stride),
        "dilations": (1, 1),
        "pads": (pad,) * 4,
        "group": group,
        "half_sums": True,
    }
    return "conv", Sample(types, attrs)


def matmul(rows: int, depth: int, columns: int) -> tuple[str, Sample]:
    types = TensorType(F16, (rows, depth)), TensorType(F16, (depth, columns))
    return "matmul", Sample(types, {"half_sums": True})


CASES: dict[str, tuple[str, Sample]] = {
    "few-channels": conv(3, 20),
    "uneven": conv(37, 33),
    "taps-are-pieces": conv(131, 16, image=(3, 4)),
    "pointwise": conv(70, 40, kernel=1),
    "pointwise-in-pieces": conv(521, 24, kernel=1, stride=2),
    "planes": conv(300, 24, kernel=1, layout=None, image=(8, 8)),
    "depthwise": conv(24, 24, kernel=5, group=24),
    "groups": conv(24, 32, group=2),
    "few-columns": conv(64, 2, kernel=1),
    "row": matmul(1, 600, 33),
    "rows": matmul(29, 64, 48),
    "whole-pieces": matmul(17, 512, 16),
    "wide": matmul(3, 259, 200),
    "short": matmul(17, 5, 16),
}


def made(case: tuple[str, Sample], target: Target) -> tuple[Function, Sample]:
    """The case as an executable whose weights lie as the plan for a target asks, and its types."""
    op, sample = case
    plain = half_function(REGISTRY[op], sample, is_half=False)
    (call,) = [call_of(o) for o in plain.walk() if o.record is REGISTRY[op]]
    types = list(sample.operands)
    for number, layout in weight_layouts(call, target).items():
        type_ = types[number]
        assert type_ is not None
        types[number] = TensorType(F16, type_.dims, layout)
    packed = Sample(tuple(types), sample.attrs)
    return executable(half_function(REGISTRY[op], packed, is_half=False)), packed


def results(name: str, target: Target, engine: Engine) -> tuple[Any, Any, Any]:
    """What is found, what f64 finds, and the same of the operands' magnitudes."""
    function, sample = made(CASES[name], target)
    rng = np.random.default_rng(5)
    types = [t for t in sample.operands if t is not None]
    arrays = [rng.normal(size=t.shape).astype(np.float16) for t in types]
    op, plain = CASES[name]
    reference = half_function(REGISTRY[op], plain, is_half=False)
    wanted, sizes = (run(reference, x)[0] for x in (arrays, [np.abs(a) for a in arrays]))
    physical = [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]
    (found,) = run_executable(function, target, physical, [], engine)
    return tuple(a.astype(np.float64) for a in (found, wanted, sizes))


def check(name: str, target: Target, engine: Engine) -> None:
    """Roundings of up to 256 terms add up as a random walk does, far below their bound."""
    found, wanted, sizes = results(name, target, engine)
    assert (np.abs(found - wanted) <= 2**-10 * np.abs(wanted) + 2**-9 * sizes).all()
    assert np.sqrt(np.mean((found - wanted) ** 2)) <= 2**-8 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize(
    "name", ["few-channels", "planes", "depthwise", "groups", "few-columns", "row", "short"]
)
def test_sums_in_the_kernel_interpreter(name: str) -> None:
    check(name, device(TARGET), on_interpreter)


def emulator(machine: Target) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        job = cpu_running.make_job(kernel, buffers, params, machine)
        run_on(machine.arch, link_image([compile_kernel(kernel, machine)], machine), [job])
        cpu_running.store_results(job, buffers)

    return run_kernel


@pytest.mark.qemu
@pytest.mark.parametrize("name", CASES)
def test_sums_in_machine_code(name: str) -> None:
    machine = device(TARGET)
    require_runner(machine.arch)
    check(name, machine, emulator(machine))


@pytest.mark.qemu
@pytest.mark.parametrize("terms", [256, 4096])
def test_long_sums_do_not_stall(terms: int) -> None:
    """In f16 alone, 2048 + 1 is 2048."""
    machine = device(TARGET)
    require_runner(machine.arch)
    function, sample = made(matmul(9, terms, 32), machine)
    types = [t for t in sample.operands if t is not None]
    ones = [to_physical(np.ones(t.shape, np.float16), t) for t in types]
    (found,) = run_executable(function, machine, ones, [], emulator(machine))
    assert (found == terms).all()


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
    machine = device(TARGET)
    function, _ = made(CASES[name], machine)
    (plan,) = plans_of(function, machine)
    assert (plan.schedule, plan.lanes) == (schedule, 8)
    assembly = emit_assembly(lower(function, machine), machine)
    products = re.findall(r"\bfmla\tv\d+\.(\w+)", assembly)
    assert products.count("8h") > len(products) // 2


def test_scalars_of_rows_are_lanes() -> None:
    machine = device(TARGET)
    function, _ = made(CASES["whole-pieces"], machine)
    assembly = emit_assembly(lower(function, machine), machine)
    assert re.search(r"\bfmla\tv\d+\.8h, v\d+\.8h, v\d+\.h\[7\]", assembly)
