"""Kernels of all ops at extents by chance are proved, on every target, bound and open."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest

from aot.analysis.needs import needs_of_function
from aot.builder import Builder
from aot.driver import proofs
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.kernels.lowering import lower
from aot.kernels.proof.bounds import check_bounds
from aot.passes.base import PassContext
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.random_kernels import random_kernels
from tests.support.shape_cases import NOT_OPEN, case_of, module_of

OFTEN = 400
MANY = 5_000
OPEN = 150
MANY_OPEN = 2_000


def _check(seed: int, count: int) -> None:
    for made in islice(random_kernels(random.Random(seed)), count):
        unproved = check_bounds(made.kernel, index_bits=made.target.word_bytes * 8).unproved
        assert not unproved, f"{made.what}: {unproved[0]}"


def test_random_kernels_are_proved() -> None:
    _check(1, OFTEN)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_kernels_are_proved(seed: int) -> None:
    _check(seed, MANY)


def _open_modules(seed: int) -> Iterator[tuple[str, Module]]:
    """Ops with producers and consumers of some open extents, and convolutions of open images."""
    rng = random.Random(seed)
    for number in count(seed):
        case = case_of(number)
        opened = replace(case, is_open=frozenset(n for n, _ in case.extents if rng.random() < 0.6))
        made = None if case.op in NOT_OPEN or not opened.is_open else module_of(opened)
        if made is not None:
            yield f"case {number}, {opened}", made[0]
        if number % 4 == 0:
            yield from _convolutions(rng)


def _convolutions(rng: random.Random) -> Iterator[tuple[str, Module]]:
    images = rng.choice(("1", "2", "N"))
    size = rng.choice(("H, W", "H, 32", "H, H", "32, W", "2*H, 2*W", "H, 7", "H, 1"))
    channels = rng.choice(((3, 16, 16), (16, 16, 32), (32, 64, 64), (8, 8, 8), (64, 24, 7)))
    kernel, stride, is_deep = rng.choice((3, 3, 3, 1, 5)), rng.choice((1, 1, 2)), rng.random() < 0.3
    pad = rng.choice((0, kernel // 2))
    attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1)}
    b = Builder()
    x = b.input("x", f"f32[{images}, {channels[0]}, {size}]")
    try:
        y = b.op("conv", x, _weights(channels[1], channels[0], kernel), **attrs)
        if is_deep:
            around = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
            y = b.op("conv", y, _weights(channels[1], 1, 3), group=channels[1], **around)
        y = b.op("conv", b.op("relu", y), _weights(channels[2], channels[1], 3), **attrs)
    except CompileError:
        return  # a kernel that does not fit
    b.output("y", y)
    yield (
        f"{kernel}x{kernel} {attrs} of f32[{images}, {channels[0]}, {size}], {channels}",
        b.module(),
    )


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((*shape, shape[-1])).astype(np.float32)


def _check_open(seed: int, number: int) -> None:
    rng = random.Random(-seed)
    for what, module in islice(_open_modules(seed), number):
        target = targets.load(rng.choice(targets.names()))
        context = PassContext(target=target)
        try:
            for step in (*MODEL_PASSES, *TARGET_PASSES):
                step.run(module, context)
        except CompileError:
            continue  # an extent that must be a number, or that no other may be
        sites = proofs._sites(module)
        for function in module.executables:
            needs = [need.room for need in needs_of_function(function)]
            kernel = lower(function, target)
            unproved = proofs.proof_of(kernel, sites.get(function.name, ()), target, needs).unproved
            assert not unproved, f"{what} for {target.name}: {unproved[0]}"


def test_random_open_kernels_are_proved() -> None:
    _check_open(1, OPEN)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1_000_000, 1_500_000, 50_000))
def test_many_random_open_kernels_are_proved(seed: int) -> None:
    _check_open(seed, MANY_OPEN)
