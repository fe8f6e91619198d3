"""Kernels read nothing that nobody wrote, and their lanes don't race.

For the samples of ops this is proved, but for a list of kernels. Those the interpreter runs, at
extents by chance: it refuses scratch that is read before it is written, and lanes that meet without
a barrier; what is written of a result may not depend on what was there. It runs kernels of all ops
as well, on CPUs with tiny caches and scratch, where small extents reach every branch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import aot.ops  # noqa: F401
from aot.ir.record import REGISTRY
from aot.kernels.ir import interpreter
from aot.kernels.proof.definedness import check_definedness
from aot.kernels.proof.races import check_races
from aot.target import selection as targets
from tests.support.kernel_runs import filled
from tests.support.kernel_steps import cost
from tests.support.random_kernels import Random, changed_sample, kernels_of, random_kernels
from tests.support.tiny_target import tiny

CPUS = ("x86-64-v3", "x86-64-v4", "aarch64-generic", "armv7-neon", "riscv64-v", "thumbv7em")
GPUS = ("vulkan-1.1", "nvidia-matrix", "adreno-fp16", "mali-valhall")
PROVED = ("x86-64-v3", tiny("x86-64-v3"), "aarch64-generic", "vulkan-1.1")
# Samples whose kernels the interpreter decides on, by the targets on which no proof is found: the
# letters of x86-64-v3, the same with tiny caches, AArch64 and Vulkan. It is to become shorter.
LETTERS = "xtav"
INTERPRETED = {
    "conv 1": "t",
    "conv_bf16 0": "t",
    "matmul_blocked 12": "xta",
    "conv_integer 1": "v",
    "scatter_elements 1": "v",
    "scatter_elements 2": "v",
    "scatter_nd 0": "v",
    "scatter_nd 1": "v",
    "scatter_nd 4": "v",
    "top_k 0": "v",
    "top_k 1": "v",
    "top_k 2": "v",
    "top_k 3": "v",
    "pack 2": "v",
    "lstm 6": "xtav",
    "lstm 8": "xtav",
    "gru 6": "xtav",
    "rnn 4": "xtav",
    "non_max_suppression 0": "xtav",
    "non_max_suppression 1": "xtav",
    "non_max_suppression 2": "xtav",
    "winograd_inputs 0": "v",
    "winograd_outputs 0": "v",
}
MOST_INTERPRETED = 46
SHAPES = 2  # by chance, of each of them
TRIES = 8  # to find as many that an op takes

OFTEN, MOST_COST = 300, 60_000
MANY, MOST_OF_MANY = 2_000, 1_000_000

Array = np.ndarray[Any, Any]


def check(made: Random, seed: int) -> None:
    """Fails where a run depends on what was in memory, or lanes on each other."""
    found: list[dict[str, Array]] = []
    for pattern in (0, 0xFF):
        rng = np.random.default_rng(seed)
        buffers = {
            b.name: filled(b, pattern if b.is_written and made.is_whole else None, rng)
            for b in made.kernel.buffers
        }
        with np.errstate(all="ignore"):
            interpreter.run(made.kernel, buffers, {}, check_races=not found)
        found.append(buffers)
    for buffer in made.kernel.buffers:
        first, second = (run[buffer.name].view(np.uint8) for run in found)
        assert np.array_equal(first, second), f"{made.what}: {buffer.name} is not all written"


def reasons_of(made: Random) -> list[str]:
    """What is not proved of a kernel."""
    bits = made.target.word_bytes * 8
    written = [b.name for b in made.kernel.buffers if b.is_written]
    held = () if made.is_whole else written
    undefined = check_definedness(made.kernel, index_bits=bits, initialised=held).unproved
    races = check_races(made.kernel, index_bits=bits).unproved
    return list(dict.fromkeys(map(str, (*undefined, *races))))


def check_samples(number: int, of: int) -> None:
    """Proves what is written by the kernels of samples, each on every `of`-th target, from the
    one of its own number on. Kernels without a proof are listed, and interpreted at other extents.
    """
    machines = [targets.load(name) for name in PROVED]
    found: dict[str, str] = {}
    expected: dict[str, str] = {}
    count = 0
    for op, record in REGISTRY.items():
        for k, sample in enumerate(record.samples):
            name = f"{op} {k}"
            number += 1
            chosen = [at for at in range(len(machines)) if (at + number) % of == 0]
            listed = INTERPRETED.get(name, "")
            expected[name] = "".join(LETTERS[at] for at in chosen if LETTERS[at] in listed)
            for at in chosen:
                reasons: list[str] = []
                for made in kernels_of(record, sample, machines[at]):
                    reasons += reasons_of(made)
                    count += 1
                if reasons:
                    found[name] = found.get(name, "") + LETTERS[at]
                    print(f"{name} for {machines[at].name}: {'; '.join(reasons)}")
                    interpret(op, k, PROVED[at])
    print(f"{count} kernels, {sum(map(len, found.values()))} without a proof")
    assert found == {name: letters for name, letters in expected.items() if letters}


def interpret(op: str, k: int, machine: str) -> None:
    """Runs the kernels of a sample, and of it at extents by chance."""
    record, target = REGISTRY[op], targets.load(machine)
    rng = random.Random(f"{op} {k}")
    shapes = [record.samples[k]]
    for _ in range(TRIES):
        changed = changed_sample(rng, record.samples[k])
        if changed is not None and len(shapes) <= SHAPES:
            made = list(kernels_of(record, changed, target))
            if made and sum(cost(each.kernel.body) for each in made) < MOST_COST:
                shapes.append(changed)
    for shape in shapes:
        for each in kernels_of(record, shape, target):
            check(each, k)


def check_many(rng: random.Random, names: tuple[str, ...], count: int, most_cost: int) -> None:
    for made in random_kernels(rng, names):
        if cost(made.kernel.body) > most_cost:
            continue
        check(made, count)
        count -= 1
        if count <= 0:
            break


def test_list_of_interpreted_samples() -> None:
    assert sum(map(len, INTERPRETED.values())) <= MOST_INTERPRETED


@pytest.mark.slow
def test_samples_are_proved() -> None:
    check_samples(0, of=4 * len(PROVED))  # a quarter of them, each on one target


@pytest.mark.sweep
def test_samples_are_proved_on_each_target() -> None:
    check_samples(0, of=1)


@pytest.mark.parametrize("names", [tuple(map(tiny, CPUS)), GPUS], ids=["cpu", "gpu"])
def test_random_kernels(names: tuple[str, ...]) -> None:
    check_many(random.Random(1), names, OFTEN, MOST_COST)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_kernels(seed: int) -> None:
    machines = targets.names()
    names = (*machines, *(tiny(n) for n in machines if targets.load(n).gpu is None))
    check_many(random.Random(seed), names, MANY, MOST_OF_MANY)
