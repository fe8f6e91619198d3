"""Every sample of every op as entry points of one module a target, and what they must give.

An entry point may hold several samples, which share nothing: where loading a program, or starting
an emulator, takes longer than a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import aot
import aot.ops
from aot.ir.builder import Builder
from aot.ir.clone import clone_function
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY
from aot.target import host_cpu
from aot.target.selection import load
from tests.support.lowering import sample_array

Array = np.ndarray[Any, Any]
Case = tuple[str, int]
"""An op's name, and the number of its sample."""

# this machine's own levels, as far as it has them
NATIVE = [
    name
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v3-128", "x86-64-v4")
    if host_cpu.machine() == "x86_64" and host_cpu.features().issuperset(load(name).features)
]

CROSS = {
    "aarch64-generic": "aarch64",
    "aarch64-linux-dotprod": "aarch64",
    "armv7-neon": "arm",
    "riscv64": "riscv64",
    "riscv64-v": "riscv64",
}

CASES = [
    (name, number)
    for name, record in sorted(REGISTRY.items())
    if record.compute is not None or record.kind.has_handwritten_kernel
    for number, sample in enumerate(record.samples)
    if "layout" not in sample.attrs
]


def restrict_to(ops: Sequence[str]) -> None:
    """Drops the samples of all other ops, before anything is compiled: `pytest --op NAME`.

    Raises:
        ValueError: an op has no samples that programs run.
    """
    known = {name for name, _ in CASES}
    for name in ops:
        if name not in known:
            raise ValueError(f"no op {name!r} has samples that programs run")
    CASES[:] = [case for case in CASES if case[0] in ops]


def label(name: str, number: int) -> str:
    """What a sample is called: the entry point that begins with it, and what its operands and
    results begin with."""
    return f"{name}_{number}"


def entries(most: int) -> dict[str, list[Case]]:
    """The samples of each entry point, `most` in one; its name is the first one's label."""
    return {label(*CASES[n]): CASES[n : n + most] for n in range(0, len(CASES), most)}


@cache
def samples_module(most: int = 1) -> Module:
    """All samples, `most` in an entry point; operands that models have constant are constants."""
    module = Module()
    for entry, cases in entries(most).items():
        b = Builder(entry, module)
        for case in cases:
            add_sample(b, *case)
        b.function()
    return module


def add_sample(b: Builder, name: str, number: int, only: int | None = None) -> None:
    """Adds a sample to a graph, whose outputs are all of its results, or one."""
    sample = REGISTRY[name].samples[number]
    rng = np.random.RandomState(7)
    begin = label(name, number)
    operands: list[Any] = []
    for position, type in enumerate(sample.operands):
        if type is None:
            operands.append(None)
        elif position in sample.constant_operands:
            operands.append(b.constant(sample_array(type, sample, rng)))
        else:
            operands.append(b.input(f"{begin}_x{position}", type))
    made = b.op(name, *operands, **dict(sample.attrs))
    for position, value in enumerate(made if isinstance(made, tuple) else (made,)):
        if only in (None, position):
            b.output(f"{begin}_y{position}", value)


# Passes that may change several samples that share nothing but an entry point.
SIDE_BY_SIDE = ("join-regions", "merge-siblings")


@cache
def compiled(target: str, most: int = 1) -> bytes:
    disable = SIDE_BY_SIDE if most > 1 else ()
    return aot.compile(samples_module(most), targets=[target], disable=disable).to_bytes()


def compiled_apart(
    target: str, entry: str, most: int, *beside: str, targets: Sequence[str] = ()
) -> bytes:
    """An entry point of `samples_module(most)` in a module of its own, or behind others; for more
    `targets` than one, too."""
    functions = samples_module(most).functions
    module = Module([clone_function(functions[name]) for name in (*beside, entry)])
    disable = SIDE_BY_SIDE if most > 1 else ()
    return aot.compile(module, targets=[target, *targets], disable=disable).to_bytes()


def inputs_of(cases: Sequence[Case]) -> dict[str, Array]:
    """The inputs of an entry point of these samples."""
    return {name: array for case in cases for name, array in _inputs_of(case).items()}


def _inputs_of(case: Case) -> dict[str, Array]:
    sample = REGISTRY[case[0]].samples[case[1]]
    rng = np.random.RandomState(11)
    inputs = samples_module().functions[label(*case)].inputs
    return {str(v.name): sample_array(v.type, sample, rng) for v in inputs}


@cache
def expected(case: Case) -> dict[str, Array]:
    """A sample's results, by name."""
    function = samples_module().functions[label(*case)]
    results = run(function, list(_inputs_of(case).values()))
    return dict(zip(function.result_names, results, strict=True))


def compare(cases: Sequence[Case], outputs: Mapping[str, Array]) -> None:
    """Fails where the outputs of an entry point of these samples are not what they must give."""
    wanted_of = {name: array for case in cases for name, array in expected(case).items()}
    assert outputs.keys() == wanted_of.keys()
    for name, wanted in wanted_of.items():
        found = outputs[name]
        assert found.shape == wanted.shape, name
        assert found.dtype == wanted.dtype, name
        if wanted.dtype.kind == "f":
            scale = max(float(np.abs(wanted).max(initial=0)), 1e-30)
            error = float(np.abs(found.astype(np.float64) - wanted).max(initial=0)) / scale
            assert error <= (2e-3 if wanted.dtype.itemsize == 2 else 2e-6), name
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=name)
