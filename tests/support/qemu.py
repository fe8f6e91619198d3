"""Runs linked code images of other CPUs under QEMU's user mode, many dispatches in one process.

    run_on("aarch64", image, jobs)           job i calls entry i; changes the jobs' classes in place

Owns the runner's file format. Skips the calling test where a cross compiler or QEMU is missing.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

import pytest

from aot.link.code_image import CodeImage
from aot.target.model import Target
from tests.support.cpu_running import CLASSES, Job
from tests.support.cross import CROSS_TARGETS, run_emulated
from tests.support.runtime_build import build

_SOURCE = Path(__file__).resolve().with_name("qemu_runner.c")
# What runs a target's code. Thumb-2 code for Cortex-M has nothing that an Armv7-A CPU lacks.
_RUNNERS = {"aarch64": "aarch64", "arm": "arm", "thumb": "arm", "riscv64": "riscv64"}

EMULATED_TARGETS = (
    *("aarch64-generic", "aarch64-linux-dotprod", "armv7-neon"),
    *("thumbv7em", "thumbv7em-m7", "riscv64", "riscv64-v"),
)
"""Targets whose kernels tests run one by one."""


def can_emulate(target: Target) -> bool:
    """Whether there is a runner for the target's architecture at all."""
    return target.arch in _RUNNERS


def require_runner(arch: str) -> Path:
    """The runner for an architecture of module.fbs, in lower case."""
    cross = CROSS_TARGETS[_RUNNERS[arch]]
    for program in (cross.compiler, cross.emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    flags = ["-O1", "-static", "-D_GNU_SOURCE", *cross.flags]
    runner = build(f"qemu-runner-{_RUNNERS[arch]}", [_SOURCE], flags, cross.compiler)
    assert runner is not None
    return runner


def run_on(arch: str, image: CodeImage, jobs: list[Job], timeout_s: float = 300) -> None:
    """Runs job i with entry i of the image, changing the jobs' classes in place.

    Raises:
        AssertionError: the runner failed; names the job's kernel.
    """
    runner = require_runner(arch)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("image", "jobs", "out")]
        paths[0].write_bytes(image.data)
        paths[1].write_bytes(_pack(image, jobs))
        result = run_emulated(_RUNNERS[arch], [runner, *paths], timeout_s)
        if result.returncode:
            last = result.stdout.split()
            kernel = jobs[int(last[-1])].kernel.name if last else "none"
            raise AssertionError(
                f"runner for {arch} ended with {result.returncode} in kernel "
                f"{kernel}: {result.stderr.strip()}"
            )
        out = paths[2].read_bytes()
    for job in jobs:
        for name in ("arena", "outputs"):
            size = len(job.classes[name])
            job.classes[name][:], out = out[:size], out[size:]
    assert not out, f"{len(out)} bytes left of the runner's output"


def _pack(image: CodeImage, jobs: list[Job]) -> bytes:
    parts = [struct.pack("<I", len(jobs))]
    for job, entry in zip(jobs, image.entries, strict=True):
        scratch = -(-job.scratch_bytes // 64) * 64
        blobs = [bytes(job.classes[c]) for c in CLASSES] + [job.block]
        guards = [(CLASSES.index(name), at) for name, all in job.guards.items() for at in all]
        parts.append(
            struct.pack("<QIIII6Q", entry, *job.grid, len(guards), *map(len, blobs), scratch)
        )
        parts += [struct.pack("<QQ", *guard) for guard in guards]
        parts.extend(blobs)
    return b"".join(parts)
