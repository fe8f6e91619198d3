"""Kernels whose operands and results lie in memory as f16 while they compute in f32.

Contractions must keep their tiles, and conversions must be the target's instructions where it has
them. Every op's samples run in that form in test_op_samples.py.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import aot
import aot.ops
from aot.analysis.stages import plans_of
from aot.ir.builder import Builder
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.schedule import Schedule
from aot.ir.types import DType
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support import vulkan_device
from tests.support.executables import NATIVE, Ops
from tests.support.half_contractions import CONTRACTIONS
from tests.support.kernel_backends import device, on_cpu, on_driver, on_qemu

F32 = DType.F32

# contractions


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_on_a_cpu(name: str, target: str) -> None:
    CONTRACTIONS[name].check(target, on_cpu(target), "normal")


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_in_shaders(name: str, driver: str) -> None:
    CONTRACTIONS[name].check("vulkan-1.1", on_driver(driver), "normal")


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_sum_in_f32_on_a_gpu(name: str) -> None:
    made, machine = CONTRACTIONS[name].function(), targets.load("vulkan-1.1")
    (plan,) = plans_of(made, machine)
    assert plan.schedule is Schedule.CONTRACTION
    assert {s.dtype for s in lower(made, machine).scratch if s.name == "acc"} == {F32}


@pytest.mark.parametrize("target", ("x86-64-v4", "x86-64-v2", "aarch64-generic"))
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_f16_keep_their_tiles(name: str, target: str) -> None:
    made, machine = CONTRACTIONS[name].function(), targets.load(target)
    (acc,) = [s for s in lower(made, machine).scratch if s.name == "acc"]
    (plan,) = plans_of(made, machine)
    assert plan.schedule is Schedule.CONTRACTION
    assert acc.dtype is F32
    assert acc.shape[1] * acc.shape[2] == plan.columns
    assert acc.shape[0] == min(plan.rows, made.results[0].type.shape[0 if "matmul" in name else -1])


@pytest.mark.parametrize(
    ("name", "target", "staged"),
    [
        ("conv", "x86-64-v4", {"left"}),
        ("matmul-one-row", "aarch64-generic", {"left"}),
        ("conv-dense", "x86-64-v4", set()),  # channels lie apart: there are no vectors of them
        ("conv-few-channels", "x86-64-v4", set()),
        ("matmul-short", "x86-64-v4", set()),
        ("matmul", "vulkan-1.1", set()),
        # conversions are many instructions: they would take the tile's registers
        ("matmul", "x86-64-v2", {"left", "right"}),
        ("conv-dense", "x86-64-v2", {"right"}),
        ("matmul", "armv7-neon", {"left", "right"}),
        ("matmul", "armv7-neon+fp16", {"left"}),
    ],
)
def test_long_sides_are_converted_before_they_are_multiplied(
    name: str, target: str, staged: set[str]
) -> None:
    names = {s.name for s in CONTRACTIONS[name].lowered(target).scratch}
    assert names & {"left", "right"} == staged


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
    text = CONTRACTIONS["matmul"].assembly(target)
    found = re.findall(r"vcvtph2ps|vcvtps2ph|fcvtl|fcvtn|vcvtb?\.f\d+\.f16|vfwcvt\.f\.f", text)
    if not widens:
        assert not found
        return
    assert re.search(widens, text)
    assert re.search(narrows, text)


EMULATED = ("aarch64-generic", "armv7-neon", "armv7-neon+fp16", "thumbv7em", "riscv64")


@pytest.mark.qemu
@pytest.mark.parametrize("name", EMULATED)
def test_conversions_elsewhere_are_exact(name: str) -> None:
    """All f16 to f32 and back, and f32 between two f16, at each half and beside it."""
    target = device(name)
    engine = on_qemu(target)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide = halves.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        between = (wide + np.nextafter(halves, np.float16(np.inf)).astype(np.float32)) / 2
        beside = np.concatenate([wide, between, np.nextafter(between, np.float32(0))])
        rounded = beside.astype(np.float16)
    for given, wanted, to in ((halves, wide, F32), (beside, rounded, DType.F16)):
        types = (f"{DType.of(given)}[{given.size}]",), f"{to}[{given.size}]"
        case = Ops(types[0], (f"cast(%0) {{ to = {to} }}",), types[1])
        np.testing.assert_array_equal(case.computed(target, engine, [given]), wanted)


@pytest.mark.qemu
@pytest.mark.parametrize("target", [*EMULATED, "riscv64-v", "aarch64-linux-dotprod"])
@pytest.mark.parametrize("name", ["conv", "matmul-in-pieces"])
def test_contractions_of_f16_elsewhere(name: str, target: str) -> None:
    CONTRACTIONS[name].check(target, on_qemu(target), "normal")


# models in f16


def f16_model() -> Module:
    """Convolution, matrix product and recurrent layer, all in f16, with f16 weights."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (rng.normal(size=shape) / 8).astype(np.float16)

    b = Builder()
    x = b.input("x", "f16[1, 8, 6, 6]")
    same: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    y = b.op("conv", x, b.constant(weights(48, 8, 3, 3)), group=1, **same)
    y = b.op("relu", b.op("add", y, b.constant(weights(48, 1, 1))))
    y = b.op("conv", y, b.constant(weights(48, 1, 3, 3)), group=48, **same)
    y = b.op("matmul", b.op("reshape", y, shape=(48, 36)), b.constant(weights(36, 64)))
    y = b.op("reshape", y, shape=(48, 1, 64))
    layer = b.op(
        "gru", y, b.constant(weights(1, 96, 64)), b.constant(weights(1, 96, 32)), hidden_size=32
    )
    b.output("y", layer[0])
    return b.module()


@pytest.mark.parametrize("target", NATIVE)
def test_weights_of_f16_models_stay_f16_and_are_read_so(target: str) -> None:
    module = f16_model()
    inputs = {"x": np.random.default_rng(1).normal(size=(1, 8, 6, 6)).astype(np.float16)}
    data = aot.compile(module, targets=[target])
    with aot.load(data) as program:
        found = program(inputs)["y"].astype(np.float64)
    (wanted,) = run(module.main, inputs)
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted.astype(np.float64)).max()
    count = sum(op.attrs["value"].array.size for op in module.main.block if op.name == "constant")  # type: ignore[union-attr]
    small = 4096  # folding keeps what is as small in f32
    assert data.stats["rodata"]["bytes_kept"] <= 2 * count + 2 * small
    (variant,) = data.stats["variants"]
    assert variant["dispatches"] <= 6, variant["dispatches"]
