"""Every sample of every op, compiled, linked and run by the C runtime: here and under QEMU.

All samples are entry points of one module a target, so that what is tested is what is shipped:
passes, kernels, code image, file, loader. The oracle is the op's reference.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
import aot.ops
from aot.ir.builder import Builder
from aot.ir.clone import clone_function
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY
from aot.target import host_cpu
from aot.target.selection import load
from tests.support.cross import require_runtime, run_emulated
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
# QEMU 7.2 fails on a vfcvt.rtz that is the first instruction of what it translates at once, which a
# page's end may make it
QEMU_FAULT = "decode_save_opc"
CASES = [
    (name, number)
    for name, record in sorted(REGISTRY.items())
    if record.compute is not None or record.kind.has_own_kernel
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


def compiled_alone(target: str, entry: str) -> bytes:
    """One sample in a module of its own, so that its code lies elsewhere in the image."""
    function = samples_module().functions[entry]
    return aot.compile(Module([clone_function(function)]), targets=[target]).to_bytes()


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


@pytest.mark.parametrize("target", NATIVE)
def test_natively(target: str) -> None:
    data = compiled(target)
    for name, number in CASES:
        entry = f"{name}_{number}"
        with aot.load(data, entry=entry) as program:
            compare(entry, list(program(inputs_of(entry)).values()))


@pytest.mark.parametrize("target", CROSS)
def test_under_qemu(target: str, tmp_path: Path) -> None:
    tool = require_runtime(CROSS[target])
    module, single = tmp_path / "samples.aotm", tmp_path / "single.aotm"
    module.write_bytes(compiled(target))
    for name, number in CASES:
        entry = f"{name}_{number}"
        command: list[str | Path] = [
            tool,
            module,
            "--entry",
            entry,
            "--runs",
            "0",
            "--output",
            tmp_path,
        ]
        for input_name, array in inputs_of(entry).items():
            path = tmp_path / f"{input_name}.npy"
            np.save(path, array)
            command += ["--input", f"{input_name}={path}"]
        result = run_emulated(CROSS[target], command)
        if QEMU_FAULT in result.stderr:
            single.write_bytes(compiled_alone(target, entry))
            result = run_emulated(CROSS[target], [single if c is module else c for c in command])
        assert result.returncode == 0, f"{entry}: {result.stderr}"
        count = len(samples_module().functions[entry].results)
        compare(entry, [np.load(tmp_path / f"y{n}.npy") for n in range(count)])
