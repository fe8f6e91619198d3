"""Kernels at extents by chance read nothing that nobody wrote, and their lanes don't race.

The interpreter refuses scratch that is read before it is written, and lanes that meet without a
barrier; what is written of a result may not depend on what was there. On CPUs with tiny caches
and scratch small extents reach every branch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from aot.ir.dims import product
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Buffer
from aot.target import selection as targets
from tests.support.kernel_steps import cost
from tests.support.random_kernels import Random, random_kernels
from tests.support.tiny_target import tiny

CPUS = ("x86-64-v3", "x86-64-v4", "aarch64-generic", "armv7-neon", "riscv64-v", "thumbv7em")
GPUS = ("vulkan-1.1", "nvidia-matrix", "adreno-fp16", "mali-valhall")
OFTEN, MOST_COST = 300, 60_000
MANY, MOST_OF_MANY = 2_000, 1_000_000

Array = np.ndarray[Any, Any]


def _filled(buffer: Buffer, pattern: int | None, rng: np.random.Generator) -> Array:
    """What a buffer holds before a kernel runs: elements drawn, or a pattern in each byte."""
    size = product(buffer.shape)
    assert isinstance(size, int)
    dtype = buffer.dtype.numpy
    if pattern is not None:
        return np.full(size * np.dtype(dtype).itemsize, pattern, np.uint8).view(dtype)
    if dtype.kind == "f":
        return rng.uniform(-2, 2, size).astype(dtype)
    return rng.integers(0, 2, size).astype(dtype)


def check(made: Random, seed: int) -> None:
    """Fails where a run depends on what was in memory, or lanes on each other."""
    found: list[dict[str, Array]] = []
    for pattern in (0, 0xFF):
        rng = np.random.default_rng(seed)
        buffers = {
            b.name: _filled(b, pattern if b.is_written and made.is_whole else None, rng)
            for b in made.kernel.buffers
        }
        with np.errstate(all="ignore"):
            interpreter.run(made.kernel, buffers, {}, check_races=not found)
        found.append(buffers)
    for buffer in made.kernel.buffers:
        first, second = (run[buffer.name].view(np.uint8) for run in found)
        assert np.array_equal(first, second), f"{made.what}: {buffer.name} is not all written"


def check_many(rng: random.Random, names: tuple[str, ...], count: int, most_cost: int) -> None:
    for made in random_kernels(rng, names):
        if cost(made.kernel.body) > most_cost:
            continue
        check(made, count)
        count -= 1
        if count <= 0:
            break


@pytest.mark.parametrize("names", [tuple(map(tiny, CPUS)), GPUS], ids=["cpu", "gpu"])
def test_random_kernels(names: tuple[str, ...]) -> None:
    check_many(random.Random(1), names, OFTEN, MOST_COST)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_kernels(seed: int) -> None:
    machines = targets.names()
    names = (*machines, *(tiny(n) for n in machines if targets.load(n).gpu is None))
    check_many(random.Random(seed), names, MANY, MOST_OF_MANY)
