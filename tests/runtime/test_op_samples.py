"""Every sample of every op, compiled, linked and run by the C runtime: here and under QEMU.

All samples are entry points of one module a target, so that what is tested is what is shipped:
passes, kernels, code image, file, loader. The oracle is the op's reference.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
import aot.ops
from aot.ir.clone import clone_function
from aot.ir.graph import Module
from tests.support.cross import require_runtime, run_emulated
from tests.support.samples_module import (
    CASES,
    CROSS,
    NATIVE,
    compare,
    compiled,
    inputs_of,
    samples_module,
)

# QEMU 7.2 fails on a vfcvt.rtz that is the first instruction of what it translates at once, which a
# page's end may make it
QEMU_FAULT = "decode_save_opc"


def compiled_alone(target: str, entry: str) -> bytes:
    """One sample in a module of its own, so that its code lies elsewhere in the image."""
    function = samples_module().functions[entry]
    return aot.compile(Module([clone_function(function)]), targets=[target]).to_bytes()


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
