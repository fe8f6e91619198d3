"""Every sample of every op as entry points of one module a target, and what they must give."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import aot
import aot.ops
from aot.ir.builder import Builder
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY
from aot.target import host_cpu
from aot.target.selection import load
from tests.support.lowering import sample_array

Array = np.ndarray[Any, Any]

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


@cache
def samples_module() -> Module:
    """All samples, an entry point each; operands that models have constant are constants."""
    module = Module()
    for name, number in CASES:
        sample = REGISTRY[name].samples[number]
        rng = np.random.RandomState(7)
        b = Builder(f"{name}_{number}", module)
        operands: list[Any] = []
        for position, type in enumerate(sample.operands):
            if type is None:
                operands.append(None)
            elif position in sample.constant_operands:
                operands.append(b.constant(sample_array(type, sample, rng)))
            else:
                operands.append(b.input(f"x{position}", type))
        made = b.op(name, *operands, **dict(sample.attrs))
        for position, value in enumerate(made if isinstance(made, tuple) else (made,)):
            b.output(f"y{position}", value)
        b.function()
    return module


@cache
def compiled(target: str) -> bytes:
    return aot.compile(samples_module(), targets=[target]).to_bytes()


def inputs_of(entry: str) -> dict[str, Array]:
    name, number = entry.rsplit("_", 1)
    sample = REGISTRY[name].samples[int(number)]
    rng = np.random.RandomState(11)
    function = samples_module().functions[entry]
    types = {v.name: v.type for v in function.inputs}
    return {n: sample_array(t, sample, rng) for n, t in types.items()}


def expected(entry: str) -> list[Array]:
    return run(samples_module().functions[entry], list(inputs_of(entry).values()))


def compare(entry: str, got: list[Array]) -> None:
    for found, wanted in zip(got, expected(entry), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            scale = max(float(np.abs(wanted).max(initial=0)), 1e-30)
            error = float(np.abs(found.astype(np.float64) - wanted).max(initial=0)) / scale
            assert error <= (2e-3 if wanted.dtype.itemsize == 2 else 2e-6), entry
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=entry)
