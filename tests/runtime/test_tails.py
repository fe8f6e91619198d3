"""Functions of one number, within 4 units in the last place over all of f32 on every target.

Default tests take a slice, dense at edges; `-m sweep` takes many more. The oracle is numpy's and
C's double precision, which `test_oracle` compares with mpmath.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import aot
from aot.ir.interpreter.interpreter import run
from tests.support.cross import run_module
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.samples_module import NATIVE
from tests.support.unary_functions import FUNCTIONS, check, exact, from_bits, module, points
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
SLICE = points(6000)
CROSS = {"aarch64-generic": "aarch64", "armv7-neon": "arm", "riscv64-v": "riscv64"}
STRIDE = 1009  # of the sweep: 4 million numbers


@cache
def compiled(target: str) -> Any:
    return aot.compile(module(), targets=[target])


def check_all(found: dict[str, Array], x: Array, *, flushes: bool = False) -> None:
    for name in FUNCTIONS:
        check(name, x, found[name], flushes=flushes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_oracle(name: str) -> None:
    """Far more digits than f32 has, as far as results of f64 are normal."""
    x = SLICE[np.isfinite(SLICE)][::23]
    with mp.workdps(60):
        for number, found in zip(x.tolist(), exact(name, x).tolist(), strict=True):
            if not math.isfinite(found) or abs(found) < 1e-290:
                continue
            right = FUNCTIONS[name].mpmath(mp.mpf(number))
            assert abs(found - right) <= abs(right) * 2.0**-40, number


def test_interpreted() -> None:
    m = module()
    found = run(m.main, [SLICE])
    check_all(dict(zip(m.main.result_names, found, strict=True)), SLICE)


@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str) -> None:
    with aot.load(compiled(target)) as program:
        found = program({"x": SLICE})
        check_all(found, SLICE)
        few = program({"x": SLICE[1:6]})
    for name, result in few.items():  # of no whole vector
        bits, wanted = result.view(np.uint32), found[name][1:6].view(np.uint32)
        is_same = (bits == wanted) | np.isnan(result)
        assert is_same.all(), name


@pytest.mark.parametrize("target", NATIVE)
def test_one_by_one_as_many_at_once(target: str) -> None:
    """Vectors and what is left of them give equal bits."""
    x = SLICE[::7]
    with aot.load(compiled(target)) as program:
        found = program({"x": x})
        parts = [program({"x": x[at : at + 3]}) for at in range(0, len(x), 3)]
    for name, all in found.items():
        few = np.concatenate([part[name] for part in parts])
        is_same = (few.view(np.uint32) == all.view(np.uint32)) | (np.isnan(few) & np.isnan(all))
        assert is_same.all(), name


@pytest.mark.qemu
@pytest.mark.parametrize("target", CROSS)
def test_under_qemu(target: str, tmp_path: Path) -> None:
    """Vectors of Armv7 flush subnormal numbers."""
    found, _ = run_module(CROSS[target], tmp_path, compiled(target).to_bytes(), {"x": SLICE})
    check_all(found, SLICE, flushes=target == "armv7-neon")


def test_under_node(tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    path = tmp_path / "tails.aotm"
    path.write_bytes(compiled("wasm32").to_bytes())
    loader = make_package(path, tmp_path / "package")
    (outcome,) = run_calls(loader, [Call({"x": SLICE})])
    assert not outcome.message
    check_all(outcome.outputs, SLICE)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    with running_on(driver, tmp_path), aot.load(compiled("vulkan-1.1"), "vulkan") as program:
        check_all(program({"x": SLICE}), SLICE, flushes=True)


# sweeps


def numbers(part: int, parts: int) -> Array:
    """Every `STRIDE`-th bit pattern, in parts."""
    return from_bits(np.arange(part * STRIDE // parts, 1 << 32, STRIDE))


@pytest.mark.sweep
@pytest.mark.parametrize("target", NATIVE)
def test_sweep_on_a_cpu(target: str) -> None:
    with aot.load(compiled(target)) as program:
        for x in np.array_split(np.concatenate([points(400_000), numbers(0, 1)]), 16):
            check_all(program({"x": x}), x)


@pytest.mark.sweep
@pytest.mark.qemu
@pytest.mark.parametrize("target", CROSS)
def test_sweep_under_qemu(target: str, tmp_path: Path) -> None:
    x = np.concatenate([points(100_000), numbers(0, 1)[::16]])
    found, _ = run_module(CROSS[target], tmp_path, compiled(target).to_bytes(), {"x": x})
    check_all(found, x, flushes=target == "armv7-neon")


@pytest.mark.sweep
def test_sweep_under_node(tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    path = tmp_path / "tails.aotm"
    path.write_bytes(compiled("wasm32").to_bytes())
    loader = make_package(path, tmp_path / "package")
    x = np.concatenate([points(100_000), numbers(0, 1)[::32]])
    (outcome,) = run_calls(loader, [Call({"x": x})])
    check_all(outcome.outputs, x)


@pytest.mark.sweep
@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_sweep_on_a_gpu(driver: str, tmp_path: Path) -> None:
    x = np.concatenate([points(200_000), numbers(0, 1)[::4]])
    with running_on(driver, tmp_path), aot.load(compiled("vulkan-1.1"), "vulkan") as program:
        for part in np.array_split(x, 8):  # drivers limit how long a buffer is
            check_all(program({"x": part}), part, flushes=True)
