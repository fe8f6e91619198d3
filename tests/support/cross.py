"""Static builds of aot-run for other CPUs, and how to run them here under QEMU.

    tool = build_runtime("aarch64")            # None where the cross compiler is missing
    result = run_emulated("aarch64", [tool, "model.aotm", "--random", "--output", "out"])

Builds are cached by a hash of the sources. Owns no test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.runtime_build import build, tool_sources


@dataclass(frozen=True)
class CrossTarget:
    """A CPU that this machine can emulate.

    Attributes:
        compiler: gcc for it, as Debian calls it.
        flags: what to build the runtime itself for: the baseline.
        emulator: QEMU's user-mode binary.
        cpu: the emulated CPU with everything that compiled modules may need.
    """

    compiler: str
    flags: tuple[str, ...]
    emulator: str
    cpu: str


CROSS_TARGETS = {
    "x86_64": CrossTarget("x86_64-linux-gnu-gcc", ("-march=x86-64",), "qemu-x86_64", "max"),
    "aarch64": CrossTarget("aarch64-linux-gnu-gcc", (), "qemu-aarch64", "max"),
    "arm": CrossTarget(
        "arm-linux-gnueabihf-gcc", ("-march=armv7-a", "-mfpu=vfpv3-d16"), "qemu-arm", "max"
    ),
    "riscv64": CrossTarget(
        "riscv64-linux-gnu-gcc", ("-march=rv64gc",), "qemu-riscv64", "rv64,v=true,vlen=128"
    ),
}


def build_runtime(arch: str) -> Path | None:
    """A static aot-run for a key of CROSS_TARGETS; None where its compiler is missing."""
    target = CROSS_TARGETS[arch]
    flags = ["-O2", "-static", *target.flags]
    return build(f"aot-run-{arch}", tool_sources(), flags, target.compiler)


def require_runtime(arch: str) -> Path:
    """`build_runtime`, skipping the test where compiler or emulator is missing."""
    target = CROSS_TARGETS[arch]
    for program in (target.compiler, target.emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    tool = build_runtime(arch)
    assert tool is not None
    return tool


def run_emulated(
    arch: str,
    command: Sequence[str | Path],
    timeout_s: float = 300,
    cpu: str | None = None,
    options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a command for `arch` under QEMU, given `options`; does not check its exit status."""
    target = CROSS_TARGETS[arch]
    # An empty environment but for what decides nothing: QEMU_* variables would change the CPU.
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    line = [target.emulator, "-cpu", cpu or target.cpu, *options, *map(str, command)]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def run_module(
    arch: str, folder: Path, file: bytes, inputs: dict[str, np.ndarray], *options: str
) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Runs a module by aot-run of another CPU: outputs by name, and the report."""
    tool = require_runtime(arch)
    (folder / "module.aotm").write_bytes(file)
    command: list[str | Path] = [tool, folder / "module.aotm", "--json", "--output", folder / "out"]
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        command += ["--input", f"{name}={folder / name}.npy"]
    result = run_emulated(arch, [*command, *options])
    assert result.returncode == 0, result.stderr
    outputs = {path.stem: np.load(path) for path in (folder / "out").glob("*.npy")}
    return outputs, json.loads(result.stdout.splitlines()[-1])
