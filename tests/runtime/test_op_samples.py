"""Every sample of every op, compiled, linked and run by the C runtime: here and under QEMU.

All samples are entry points of one module a target, so that what is tested is what is shipped:
passes, kernels, code image, file, loader. The oracle is the op's reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from tests.support import samples_module
from tests.support.cross import require_runtime, run_emulated
from tests.support.samples_module import (
    CROSS,
    NATIVE,
    Array,
    Case,
    compare,
    compiled,
    compiled_apart,
    entries,
    inputs_of,
    label,
)

# QEMU 7.2 fails on a vfcvt.rtz that is the first instruction of what it translates at once, which a
# page's end may make it: a module that holds less has its code elsewhere
QEMU_FAULT = "decode_save_opc"
# ... and where it is the first on floats behind a branch, wherever that lies
NOT_EMULATED = {("riscv64-v", "grid_sample_5")}
# what such a module has before it, in turn, where that happens by itself, too
BESIDE: tuple[tuple[str, ...], ...] = ((), ("relu_0",), ("conv_0",), ("softmax_0",), ("conv_3",))
# samples in an entry point, which is a start of QEMU
MOST_EMULATED = 24


# Much like another: x86-64-v3 on vectors as long as x86-64-v2's; and aarch64-generic with sums of
# products of bytes and arithmetic in f16, which run under QEMU kernel by kernel:
# tests/unit/kernels/test_integer_products.py, tests/unit/backends/cpu/test_qemu.py.
ALIKE = ("x86-64-v3-128", "aarch64-linux-dotprod")


def by_likeness(names: Iterable[str]) -> list[Any]:
    """Targets, those that are much like another as a sweep."""
    return [pytest.param(t, marks=pytest.mark.sweep) if t in ALIKE else t for t in names]


@pytest.mark.parametrize("target", by_likeness(NATIVE))
def test_natively(target: str) -> None:
    """On the first target each is a program; on others programs hold many, as under QEMU."""
    most = 1 if target == NATIVE[0] else MOST_EMULATED
    data = compiled(target, most)
    for entry, cases in entries(most).items():
        with aot.load(data, entry=entry) as program:
            compare(cases, program(inputs_of(cases)))


def run_on(
    arch: str, module: Path, entry: str, cases: list[Case], folder: Path
) -> dict[str, Array] | None:
    """The outputs of an entry point; None where QEMU failed, whatever the code is."""
    tool = require_runtime(arch)
    command: list[str | Path] = [tool, module, "--entry", entry, "--runs", "0", "--output", folder]
    for name, array in inputs_of(cases).items():
        path = folder / f"{name}.npy"
        np.save(path, array)
        command += ["--input", f"{name}={path}"]
    result = run_emulated(arch, command)
    if QEMU_FAULT in result.stderr:
        return None
    assert result.returncode == 0, f"{entry}: {result.stderr}"
    return {path.stem: np.load(path) for path in folder.glob("*_y*.npy")}


@pytest.mark.parametrize("target", by_likeness(CROSS))
def test_under_qemu(target: str, tmp_path: Path) -> None:
    arch = CROSS[target]
    module, apart = tmp_path / "samples.aotm", tmp_path / "apart.aotm"
    module.write_bytes(compiled(target, MOST_EMULATED))
    for entry, cases in entries(MOST_EMULATED).items():
        folder = tmp_path / entry
        folder.mkdir()
        outputs = run_on(arch, module, entry, cases, folder)
        if outputs is not None:
            compare(cases, outputs)
            continue
        for case in cases:
            alone = folder / label(*case)
            alone.mkdir()
            for beside in BESIDE:
                apart.write_bytes(compiled_apart(target, label(*case), 1, *beside))
                outputs = run_on(arch, apart, label(*case), [case], alone)
                if outputs is not None:
                    break
            is_emulated = (target, label(*case)) not in NOT_EMULATED
            assert (outputs is not None) == is_emulated, label(*case)
            if outputs is not None:
                compare([case], outputs)


def test_samples_of_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytest --op NAME` runs those alone."""
    monkeypatch.setattr(samples_module, "CASES", list(samples_module.CASES))
    name = samples_module.CASES[0][0]
    samples_module.restrict_to([name])
    assert {op for cases in entries(MOST_EMULATED).values() for op, _ in cases} == {name}
    with pytest.raises(ValueError, match="no op 'rely' has samples that programs run"):
        samples_module.restrict_to([name, "rely"])
