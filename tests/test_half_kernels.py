"""Kernels whose operands and results lie in memory as f16 while they compute in f32.

Every op's samples run in that form, against the graph interpreter; contractions must keep their
tiles, and conversions must be the target's instructions where it has them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import cpu_running
import numpy as np
import pytest
import vulkan_device
import vulkan_running
from half_regions import executable, half_function, half_inputs
from lowering import run_executable
from test_lowering import Engine, on_interpreter

import aot.ops  # noqa: F401  (fills the registry)
from aot import target as targets
from aot.analysis.plan import Schedule
from aot.backends.cpu.compile import emit_assembly
from aot.ir.core import Function
from aot.ir.interpreter import run
from aot.ir.types import DType, Layout, TensorType
from aot.kernels.ir import Kernel
from aot.kernels.lower import lower, plan_of
from aot.ops.record import REGISTRY, Sample

F32 = DType.F32
TARGETS = ("x86-64-v4", "x86-64-v2", "vulkan-1.1")
WIDE = (DType.I64, DType.U64, DType.F64)

SAMPLES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, record in sorted(REGISTRY.items())
    if record.compute is not None or record.kind.has_own_kernel
    for number, sample in enumerate(record.samples)
    if "layout" not in sample.attrs
    and any(t is not None and t.dtype is F32 for t in sample.operands)
]


def check(function: Function, inputs: list[Any], target: str, engine: Engine) -> None:
    """Runs the function's one kernel; one unit of f16 is what two roundings may differ by."""
    expected = run(function, inputs)
    found = run_executable(executable(function), targets.load(target), inputs, [], engine)
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(a - b))
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0))
        allowed = 2e-6 * scale + (2**-10 * np.abs(b) if wanted.dtype == np.float16 else 0)
        assert (error <= allowed).all(), float(error.max())


def sample_of(name: str, number: int) -> tuple[Function, list[Any]]:
    record = REGISTRY[name]
    sample = record.samples[number]
    return half_function(record, sample), half_inputs(sample)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_every_op_takes_and_makes_f16(name: str, number: int, target: str) -> None:
    check(*sample_of(name, number), target, on_interpreter)


def on_cpu(target: str) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, targets.load(target))

    return run_kernel


@pytest.mark.parametrize("target", cpu_running.native_targets())
@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_every_op_does_so_in_machine_code(name: str, number: int, target: str) -> None:
    check(*sample_of(name, number), target, on_cpu(target))


def on_driver(driver: str) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        for name, array in vulkan_running.run_on(driver, kernel, buffers, params).items():
            buffers[name][...] = array

    return run_kernel


def _is_for_gpu(name: str, number: int) -> bool:
    sample = REGISTRY[name].samples[number]
    function = half_function(REGISTRY[name], sample)
    types = [v.type for v in (*function.inputs, *function.results)]
    return not any(t.dtype in WIDE for t in types)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize(
    ("name", "number"),
    [p for p in SAMPLES if _is_for_gpu(*p.values)],  # type: ignore[arg-type]
)
def test_every_op_does_so_in_shaders(name: str, number: int, driver: str) -> None:
    check(*sample_of(name, number), "vulkan-1.1", on_driver(driver))


# contractions

CHANNELS_LAST = Layout(order=(0, 2, 3, 1))


def conv(channels: int, layout: Layout | None = CHANNELS_LAST, filters: int = 20) -> Sample:
    panels = Layout(splits=((0, 16),), order=(0, 2, 3, 1, 4))
    return Sample(
        (
            TensorType(F32, (2, channels, 5, 9), layout),
            TensorType(F32, (filters, channels, 3, 3), panels),
            TensorType(F32, (filters,)),
        ),
        {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 1},
    )


def matmul(rows: int, depth: int, columns: int) -> Sample:
    panels = Layout(splits=((1, 16),), order=(1, 0, 2))
    return Sample(
        (TensorType(F32, (rows, depth)), TensorType(F32, (depth, columns), panels)),
    )


CONTRACTIONS = {
    "conv": ("conv", conv(32)),
    "conv-dense": ("conv", conv(32, None)),
    "conv-few-channels": ("conv", conv(3)),
    "conv-uneven": ("conv", conv(37)),
    "matmul": ("matmul", matmul(29, 64, 48)),
    "matmul-one-row": ("matmul", matmul(1, 300, 33)),
    "matmul-in-pieces": ("matmul", matmul(17, 519, 16)),
    "matmul-short": ("matmul", matmul(17, 5, 16)),
}


def physical(arrays: list[Any], sample: Sample) -> list[Any]:
    from aot.ir.types import to_physical

    types = [t for t in sample.operands if t is not None]
    return [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]


def check_contraction(name: str, target: str, engine: Engine) -> None:
    op, sample = CONTRACTIONS[name]
    function, inputs = half_function(REGISTRY[op], sample), half_inputs(sample)
    expected = run(function, inputs)
    made = executable(function)
    (got,) = run_executable(made, targets.load(target), physical(inputs, sample), [], engine)
    wanted = expected[0].astype(np.float64)
    error = np.abs(got.astype(np.float64) - wanted)
    assert (error <= 2**-10 * np.abs(wanted) + 1e-5 * np.abs(wanted).max()).all()


@pytest.mark.parametrize("target", cpu_running.native_targets())
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_on_a_cpu(name: str, target: str) -> None:
    check_contraction(name, target, on_cpu(target))


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_in_shaders(name: str, driver: str) -> None:
    check_contraction(name, "vulkan-1.1", on_driver(driver))


def contraction(name: str) -> Function:
    op, sample = CONTRACTIONS[name]
    return executable(half_function(REGISTRY[op], sample))


@pytest.mark.parametrize("target", ("x86-64-v4", "x86-64-v2", "aarch64-generic", "vulkan-1.1"))
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_keep_their_tiles(name: str, target: str) -> None:
    made, device = contraction(name), targets.load(target)
    (acc,) = [s for s in lower(made, device).scratch if s.name == "acc"]
    plan = plan_of(made, device)
    assert plan.schedule is Schedule.CONTRACTION
    assert acc.dtype is F32
    assert acc.shape[1] * acc.shape[2] == plan.columns
    assert acc.shape[0] == min(plan.rows, made.results[0].type.shape[0 if "matmul" in name else -1])


@pytest.mark.parametrize(
    ("name", "target", "is_staged"),
    [
        ("conv", "x86-64-v4", True),
        ("matmul", "x86-64-v2", True),
        ("matmul-one-row", "aarch64-generic", True),
        ("conv-dense", "x86-64-v4", False),  # channels lie apart: there are no vectors of them
        ("conv-few-channels", "x86-64-v4", False),
        ("matmul-short", "x86-64-v4", False),
        ("matmul", "vulkan-1.1", False),
    ],
)
def test_the_left_side_is_converted_in_vectors_where_it_is_long(
    name: str, target: str, is_staged: bool
) -> None:
    names = [s.name for s in lower(contraction(name), targets.load(target)).scratch]
    assert ("left" in names) is is_staged


# instructions


@pytest.mark.parametrize(
    ("target", "widens", "narrows"),
    [
        ("x86-64-v4", r"vcvtph2ps\b.*%zmm", r"vcvtps2ph\b.*%zmm"),
        ("x86-64-v3", r"vcvtph2ps\b.*%ymm", r"vcvtps2ph\b.*%ymm"),
        ("aarch64-generic", r"fcvtl\b", r"fcvtn\b"),
        ("aarch64-linux-dotprod", r"fcvtl\b", r"fcvtn\b"),
        ("armv7-neon+fp16", r"vcvt\.f32\.f16\s+q", r"vcvt\.f16\.f32\s+d"),
        ("riscv64-v+zfhmin+zvfhmin", r"vfwcvt\.f\.f\.v", r"vfncvt\.f\.f\.w"),
        ("thumbv7em", r"vcvtb\.f32\.f16", r"vcvtb\.f16\.f32"),
        ("x86-64-v2", "", ""),
        ("armv7-neon", "", ""),
        ("riscv64-v", "", ""),
    ],
)
def test_conversions_are_instructions_where_there_are_any(
    target: str, widens: str, narrows: str
) -> None:
    name, *features = target.split("+")
    device = targets.load(name)
    device = dataclasses.replace(device, features=(*device.features, *features))
    text = emit_assembly(lower(contraction("matmul"), device), device)
    found = re.findall(r"vcvtph2ps|vcvtps2ph|fcvtl|fcvtn|vcvtb?\.f\d+\.f16|vfwcvt\.f\.f", text)
    if not widens:
        assert not found
        return
    assert re.search(widens, text)
    assert re.search(narrows, text)
