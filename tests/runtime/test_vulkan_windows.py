"""Classes of buffers larger than what a device binds at once: each operand has a window of its own.

Most phones bind 128 MiB. The bounds are made small here, by patches of the compiler and by a loader
that tells of less than the device has; one test has as much as there really is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.vulkan import backend, requirements
from aot.builder import Builder
from aot.errors import RuntimeFailure, UnsupportedError
from aot.link import module as modules
from aot.link.reader import read_module
from tests.support.samples_module import NATIVE, compare, compiled_apart, entries, inputs_of
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_faults import shim_path, unordered_device
from tests.support.vulkan_runtime import running_on
from tests.support.vulkan_samples import MOST

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]

RANGE = 1 << 18
LAYERS, ROWS, WIDTH = 5, 192, 240  # weights of 225 KiB, activations of 180 KiB


@pytest.fixture
def short_range(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices bind RANGE bytes, and the compiler knows."""
    monkeypatch.setattr(backend, "WINDOW_BYTES", RANGE)
    monkeypatch.setattr(backend, "MOST_WINDOW_OPERAND_BYTES", RANGE - 512)
    monkeypatch.setattr(requirements, "_LEAST_STORAGE_RANGE", RANGE)
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
    shim = ctypes.CDLL(str(shim_path()))
    shim.faults_range(RANGE)
    yield
    shim.faults_range(0)


def layers(rows: int | str = ROWS) -> Any:
    """A model of several products with constants, whose results are all live until their sum."""
    rng = np.random.RandomState(1)
    b = Builder()
    x = b.input("x", f"f32[{rows}, {WIDTH}]")
    made = []
    for _ in range(LAYERS):
        w = (rng.rand(WIDTH, WIDTH) - 0.5).astype(np.float32) / 4
        made.append(b.op("matmul", x, b.constant(w)))
        x = b.op("tanh", made[-1])
    total = x
    for y in reversed(made):
        total = b.op("add", b.op("mul", total, b.constant(0.5, "f32")), y)
    b.output("y", total)
    return b.module()


def feeds(rows: int = ROWS) -> dict[str, Any]:
    return {"x": np.random.RandomState(2).rand(rows, WIDTH).astype(np.float32)}


def check(found: dict[str, Any], module: Any, inputs: dict[str, Any]) -> None:
    """Outputs are those of a CPU."""
    with aot.load(aot.compile(module, targets=NATIVE[:1]).to_bytes(), "cpu") as program:
        expected = program(inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("memory", ["unified", "staged"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_more_is_bound_than_a_device_binds_at_once(
    short_range: None, driver: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
    module = aot.compile(layers(), targets=["vulkan-1.1"])
    (variant,) = module.image.variants
    (entry,) = variant.entry_points
    assert len(module.image.rodata) > 4 * RANGE < 2 * entry.program.arena_bytes
    assert dict(variant.limits).get("maxStorageBufferRange", 0) <= RANGE
    with running_on(driver, tmp_path), aot.load(module.to_bytes(), "vulkan") as program:
        for _ in range(2):
            found = program(feeds())
        check(found, layers(), feeds())


def test_weights_are_in_windows_where_rows_are_open(short_range: None, tmp_path: Path) -> None:
    """An arena without a bound has none: it is bound at once as long as that is possible."""
    module = aot.compile(layers("N"), targets=["vulkan-1.1"])
    with running_on("lavapipe", tmp_path), aot.load(module.to_bytes(), "vulkan") as program:
        check(program(feeds(9)), layers("N"), feeds(9))
        with pytest.raises(RuntimeFailure, match="is above llvmpipe.*'s maxStorageBufferRange"):
            program(feeds(4 * ROWS))
        check(program(feeds(9)), layers("N"), feeds(9))


def test_what_is_larger_than_a_window_declares_it(short_range: None, tmp_path: Path) -> None:
    b = Builder()
    b.output("y", b.op("relu", b.input("x", f"f32[{RANGE}]")))
    module = aot.compile(b.module(), targets=["vulkan-1.1", *NATIVE[:1]])
    gpu = module.image.variants[0]
    assert not any(e.windows for e in gpu.executables)
    assert dict(gpu.limits)["maxStorageBufferRange"] == 4 * RANGE
    refused = pytest.raises(RuntimeFailure, match="maxStorageBufferRange is 262144")
    with running_on("lavapipe", tmp_path), refused:
        aot.load(module.to_bytes(), "vulkan")


@pytest.mark.parametrize("window", [4 << 16, 1 << 16 | 99], ids=["class", "word"])
def test_windows_of_nothing_are_malformed(window: int, tmp_path: Path) -> None:
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[64]")))
    image = read_module(aot.compile(b.module(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    executables = tuple(
        replace(e, windows=((window >> 16, window & 0xFFFF),)) for e in variant.executables
    )
    made = replace(image, variants=(replace(variant, executables=executables),))
    refused = pytest.raises(RuntimeFailure, match="operand 0 with a buffer of its own is of no")
    with running_on("lavapipe", tmp_path), refused:
        aot.load(modules.module_bytes(made), "vulkan")


RUNS = [
    (entry, driver, (number + at) % 6 == 0)
    for number, entry in enumerate(entries(MOST))
    for at, driver in enumerate(DRIVERS)
]


@pytest.mark.parametrize(
    ("entry", "driver"),
    [pytest.param(*case, marks=[] if runs else [pytest.mark.gate]) for *case, runs in RUNS],
)
def test_samples_in_windows(
    entry: str, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operand of every op in a window of its own, on a device that runs dispatches in any
    order."""
    monkeypatch.setattr(backend, "WINDOW_BYTES", -1)
    cases = entries(MOST)[entry]
    try:
        module = compiled_apart("vulkan-1.1", entry, MOST)
    except UnsupportedError:
        module = compiled_apart("vulkan-1.1", entry, MOST, targets=NATIVE[:1])
    assert any(e.windows for v in read_module(module).variants for e in v.executables)
    running = running_on(driver, tmp_path, is_overlapping=True)
    with unordered_device(), running, aot.load(module, "vulkan") as program:
        compare(cases, program(inputs_of(cases)))


@pytest.mark.sweep
def test_weights_and_arena_of_more_than_128_mib(tmp_path: Path) -> None:
    """A model of 192 MiB of weights with as large an arena runs on a device that binds 128 MiB."""
    rng = np.random.RandomState(4)
    b = Builder()
    x = b.input("x", "f32[4096, 16]")
    made = []
    for _ in range(3):
        narrow = b.constant((rng.rand(16, 4096) - 0.5).astype(np.float32))
        weights = b.constant(rng.rand(4096, 4096).astype(np.float32))
        scores = b.op("mul", b.op("matmul", x, narrow), weights)
        made.append(b.op("softmax", scores, axis=1))
    total = b.op("add", b.op("mul", made[0], made[1]), made[2])
    b.output("y", b.op("reduce_max", total, axes=[0], keepdims=False))
    module = b.module()
    compiled = aot.compile(module, targets=["vulkan-1.1"])
    (variant,) = compiled.image.variants
    assert len(compiled.image.rodata) > 128 << 20 < variant.entry_points[0].program.arena_bytes
    inputs = {"x": rng.rand(4096, 16).astype(np.float32)}
    with running_on("lavapipe", tmp_path), aot.load(compiled.to_bytes(), "vulkan") as program:
        check(program(inputs), module, inputs)
