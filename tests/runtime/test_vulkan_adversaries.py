"""Samples of all ops by drivers that are as inexact as Vulkan allows, written out as SPIR-V.

A driver may be off by some ulp in a division, may round inside a fused product, and may take a
comparison with NaN as it likes; its memory may not be coherent, its shared memory not be cleared,
its subgroups be of any size, and dispatches without a barrier between them run in any order. What a
module computes must be the same within the tolerance of any other driver, and a NaN must stay one.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.record import REGISTRY, Kind
from aot.ir.types import DType
from tests.support.adversarial_lanes import in_subgroups, with_garbage, without_shared_stores
from tests.support.adversarial_spirv import ADVERSARIES, adversarial, changed, shaders_of
from tests.support.samples_module import (
    CASES,
    NATIVE,
    SIDE_BY_SIDE,
    add_sample,
    compare,
    entries,
    inputs_of,
)
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_faults import unordered_device
from tests.support.vulkan_runtime import running_on
from tests.support.vulkan_samples import MOST, compiled

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]

WORST = {
    "up": ("division-up", "sqrt-up", "unfused", "without-nan"),
    "down": ("division-down", "sqrt-down", "unfused", "without-nan"),
}
RUNS = [
    (entry, driver, worst, (number + at) % 4 == 0)
    for number, entry in enumerate(entries(MOST))
    for at, (driver, worst) in enumerate((d, w) for d in DRIVERS for w in WORST)
]


@pytest.mark.parametrize(
    ("entry", "driver", "worst"),
    [pytest.param(*case, marks=[] if runs else [pytest.mark.gate]) for *case, runs in RUNS],
)
def test_samples_on_the_worst_driver(entry: str, driver: str, worst: str, tmp_path: Path) -> None:
    cases = entries(MOST)[entry]
    module = adversarial(compiled(entry), *WORST[worst], patches=[with_garbage])
    running = running_on(driver, tmp_path, is_overlapping=True)
    with unordered_device(), running, aot.load(module, "vulkan") as program:
        compare(cases, program(inputs_of(cases)))


REDUCING = {Kind.REDUCTION, Kind.ATTENTION}


@cache
def reducing() -> bytes:
    """The samples of ops that combine lanes, for a target that does so by subgroup operations."""
    b = Builder()
    for name, number in CASES:
        if REGISTRY[name].kind in REDUCING:
            add_sample(b, name, number)
    targets = ["lavapipe", *NATIVE[:1]]
    return aot.compile(b.module(), targets=targets, disable=SIDE_BY_SIDE).to_bytes()


@pytest.mark.parametrize("size", [4, 8, 16, 32, 64, 128])
def test_subgroups_of_any_size(size: int, tmp_path: Path) -> None:
    """Reductions, softmax, norms and attention, in subgroups of so many lanes."""
    cases = [case for case in CASES if REGISTRY[case[0]].kind in REDUCING]
    patches = [partial(in_subgroups, size=size), with_garbage]
    module = adversarial(reducing(), patches=patches)
    assert adversarial(reducing(), patches=patches[:1]) != reducing()
    with running_on("lavapipe", tmp_path), aot.load(module, "vulkan") as program:
        assert program.target == "lavapipe"
        compare(cases, program(inputs_of(cases)))


VALUES = np.array(
    [np.nan, -np.nan, -1, 2, np.inf, -np.inf, 0, -0.0, 1e-30, -1e-30, 6, 7, -3, 0.5, 1e30, -6],
    np.float32,
)


def extremum(op: str, bound: float) -> Any:
    return lambda b, x, y: b.op(op, x, b.constant(bound, "f32"))


# Results of two operands of which some are NaN, or of the first one
NAN_CASES: dict[str, Any] = {
    **{
        f"{op} {bound}": extremum(op, bound)
        for op in ("maximum", "minimum")
        for bound in (0.0, -0.0, 6.0, -3.0, 0.5, float("inf"), float("-inf"))
    },
    **{
        op: lambda b, x, y, op=op: b.op(op, x, y)
        for op in ("maximum", "minimum", "less", "less_equal", "equal")
    },
    "relu": lambda b, x, y: b.op("relu", x),
    "reduce_max": lambda b, x, y: b.op("reduce_max", x, axes=[1], keepdims=False),
    "reduce_min": lambda b, x, y: b.op("reduce_min", x, axes=[1], keepdims=False),
    "arg_max": lambda b, x, y: b.op(
        "arg_max", x, axis=1, keepdims=False, select_last=False, dtype="i32"
    ),
    "max_pool": lambda b, x, y: b.op(
        "max_pool",
        b.op("reshape", x, shape=[1, 1, 16, 16]),
        kernel=[3, 2],
        strides=[1, 1],
        dilations=[1, 1],
        pads=[1, 0, 1, 0],
    ),
    "top_k": lambda b, x, y: b.op("top_k", x, axis=1, k=5, largest=True, dtype="i32")[0],
    "where": lambda b, x, y: b.op("where", b.op("less", x, y), x, y),
}


@pytest.mark.parametrize("adversaries", [(), ("without-nan",)], ids=["plain", "without-nan"])
def test_nan_is_kept(adversaries: tuple[str, ...], tmp_path: Path) -> None:
    """Each of the values beside each; a CPU's code keeps every NaN, too."""
    b = Builder()
    x, y = b.input("x", "f32[16, 16]"), b.input("y", "f32[16, 16]")
    for name, make in NAN_CASES.items():
        b.output(name, make(b, x, y))
    module = b.module()
    feeds = {"x": np.tile(VALUES, (16, 1)), "y": np.tile(VALUES[:, None], (1, 16))}
    with aot.load(aot.compile(module, targets=NATIVE[:1]).to_bytes(), "cpu") as program:
        expected = {name: array.copy() for name, array in program(feeds).items()}
    made = adversarial(aot.compile(module, targets=["vulkan-1.1"]).to_bytes(), *adversaries)
    with running_on("lavapipe", tmp_path), aot.load(made, "vulkan") as program:
        found = program(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("driver", DRIVERS)
def test_dispatches_are_reversed(driver: str, tmp_path: Path) -> None:
    """Dispatches between two barriers run in reversed order with the same results; without the
    barriers the results differ."""
    entry = next(iter(entries(MOST)))
    with unordered_device() as loader, running_on(driver, tmp_path, is_overlapping=True):
        with aot.load(compiled(entry), "vulkan") as program:
            program(inputs_of(entries(MOST)[entry]))
        assert loader.faults_reversed() > 1


def test_shared_memory_is_filled(tmp_path: Path) -> None:
    """A reduction whose lanes store nothing finds NaN there, and no result is a number."""
    b = Builder()
    b.output("y", b.op("reduce_sum", b.input("x", "f32[3, 4096]"), axes=[1], keepdims=False))
    module = aot.compile(b.module(), targets=["vulkan-1.1"]).to_bytes()
    for patches in ([with_garbage], [without_shared_stores, with_garbage]):
        made = adversarial(module, patches=patches)
        with running_on("lavapipe", tmp_path), aot.load(made, "vulkan") as program:
            found = program({"x": np.ones((3, 4096), np.float32)})["y"]
        assert (np.isfinite(found) == (len(patches) == 1)).all()


def test_adversaries_change_shaders() -> None:
    """Each of them has something to change in the samples."""
    for name, adversary in ADVERSARIES.items():
        shaders = (s for entry in entries(MOST) for s in shaders_of(compiled(entry)))
        assert any(changed(shader, adversary) != shader for shader in shaders), name


def beside_halves(scales: np.ndarray[Any, Any], each: int) -> np.ndarray[Any, Any]:
    """For each scale `each` values whose quotient by it is at a half, or up to four floats off."""
    rng = np.random.RandomState(7)
    bits = rng.randint(1, 18, (len(scales), each))
    halves = (rng.randint(0, 1 << bits) + 0.5) * rng.choice([-1, 1], bits.shape)
    exact = (halves * scales[:, None].astype(np.float64)).astype(np.float32)
    return (exact.view(np.int32) + rng.randint(-4, 5, bits.shape)).astype(np.int32).view(np.float32)


@pytest.mark.parametrize(
    ("driver", "target"),
    [("lavapipe", "vulkan-1.1"), ("lavapipe", "vulkan-android-15"), ("swiftshader", "vulkan-1.1")],
)
def test_no_division_moves_a_step(driver: str, target: str, tmp_path: Path) -> None:
    """Quantisation to each integer, by drivers whose quotients are off by what Vulkan allows; the
    steps are NumPy's, whose quotients are rounded once."""
    rng = np.random.RandomState(5)
    scales = (rng.uniform(1, 2, 256) * 2.0 ** rng.randint(-20, 10, 256)).astype(np.float32)
    scales[:8] = 2.0 ** np.arange(-4, 4)
    x = beside_halves(scales, 1024)
    quotient = np.rint(x / scales[:, None])
    b = Builder()
    operands = b.input("x", "f32[256, 1024]"), b.input("s", "f32[256, 1]")
    expected = {"rounded": quotient}
    b.output("rounded", b.op("round", b.op("div", *operands)))
    for dtype in (DType.I8, DType.U8, DType.I16, DType.U16):
        name, limits = str(dtype), np.iinfo(dtype.numpy)
        expected[name] = np.clip(quotient, limits.min, limits.max)
        b.output(name, b.op("quantize", *operands, None, to=name))
    module = aot.compile(b.module(), targets=[target]).to_bytes()
    for adversaries in ((), ("division-up",), ("division-down",)):
        made = adversarial(module, *adversaries)
        with running_on(driver, tmp_path), aot.load(made, "vulkan") as program:
            for name, array in program({"x": x, "s": scales[:, None]}).items():
                np.testing.assert_array_equal(array, expected[name], f"{name} {adversaries}")
