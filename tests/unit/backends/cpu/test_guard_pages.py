"""Machine code touches no byte outside the buffers that it is given: not behind them, where wide
loads would, nor before them. No buffer needs padding: samples of all ops run with a page without
access at the first or the last byte of each of their buffers, whatever its class, and so do the
accesses of tests/support/cpu_cases.py. Scratch ends at such a page too. Samples take turns on
targets and sides; all with all are a sweep.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest

from aot.backends.cpu.compile import compile_kernel
from aot.ir.record import REGISTRY, OpRecord, Sample
from aot.kernels.ir.nodes import Kernel
from aot.link.code_image import link_image
from tests.support import cpu_running
from tests.support.cpu_cases import access_cases
from tests.support.cpu_linked import check_linked
from tests.support.cpu_running import (
    make_job,
    native_targets,
    run_native,
    store_results,
    target_of,
)
from tests.support.lowering_checks import Engine, sample_runs
from tests.support.paths import ROOT
from tests.support.qemu import require_runner, run_on

SIDES = ("before", "behind")
EMULATED = ("aarch64-generic", "armv7-neon")
NATIVE_TURNS, EMULATED_TURNS = 4, 16  # QEMU runs a process a sample

Buffers = dict[str, Any]


def samples(turn: int, turns: int) -> Iterator[tuple[OpRecord, Sample]]:
    """The samples whose ops have kernels; where there are several turns, one of them."""
    found = [
        (record, sample)
        for _, record in sorted(REGISTRY.items())
        if record.compute is not None or record.kind.has_handwritten_kernel
        for sample in record.samples
    ]
    yield from found[turn % turns :: turns]


def ways(targets: Sequence[str]) -> list[tuple[int, str, str]]:
    """Targets and sides, each with a turn of its own."""
    return [(turn, *way) for turn, way in enumerate(product(targets, SIDES))]


def here(target: str, side: str) -> Engine:
    def run(kernel: Kernel, buffers: Buffers, params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, target_of(target), side)

    return run


def emulated(target: str, side: str) -> Engine:
    machine = target_of(target)
    require_runner(machine.arch)

    def run(kernel: Kernel, buffers: Buffers, params: dict[str, Any]) -> None:
        job = make_job(kernel, buffers, params, machine, side)
        run_on(machine.arch, link_image([compile_kernel(kernel, machine)], machine), [job])
        store_results(job, buffers)

    return run


def check_samples(engine: Engine, target: str, turn: int, turns: int) -> None:
    for record, sample in samples(turn, turns):
        sample_runs(record, sample).check(target, engine)


@pytest.mark.parametrize(("turn", "target", "side"), ways(native_targets()))
def test_samples_stay_in_their_buffers(turn: int, target: str, side: str) -> None:
    check_samples(here(target, side), target, turn, NATIVE_TURNS)


@pytest.mark.sweep
@pytest.mark.parametrize(("turn", "target", "side"), ways(native_targets()))
def test_all_samples_stay_in_their_buffers(turn: int, target: str, side: str) -> None:
    check_samples(here(target, side), target, turn, 1)


@pytest.mark.qemu
@pytest.mark.parametrize(("turn", "target", "side"), ways(EMULATED))
def test_samples_under_qemu_stay_in_their_buffers(turn: int, target: str, side: str) -> None:
    check_samples(emulated(target, side), target, turn, EMULATED_TURNS)


@pytest.mark.qemu
@pytest.mark.sweep
@pytest.mark.parametrize(("turn", "target", "side"), ways(EMULATED))
def test_all_samples_under_qemu_stay_in_their_buffers(turn: int, target: str, side: str) -> None:
    check_samples(emulated(target, side), target, turn, 1)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("target", native_targets())
def test_accesses_stay_in_their_buffers(target: str, side: str) -> None:
    machine = target_of(target)
    cases = [case for case in access_cases() if case.runs_on(machine)]
    check_linked(cases, machine, run_native, side)


@pytest.mark.qemu
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("target", EMULATED)
def test_accesses_under_qemu_stay_in_their_buffers(target: str, side: str) -> None:
    machine = target_of(target)
    require_runner(machine.arch)
    cases = [case for case in access_cases() if case.runs_on(machine)]
    check_linked(cases, machine, partial(run_on, machine.arch), side)


BEYOND = """
import numpy as np
from aot.ir.record import REGISTRY
from tests.support.lowering_checks import sample_runs
from tests.support import cpu_running

def cut(kernel, buffers, params):
    for buffer in kernel.buffers:
        buffers[buffer.name] = np.ascontiguousarray(buffers[buffer.name]).reshape(-1)[:-1]
    cpu_running.run(kernel, buffers, params, cpu_running.target_of({target!r}), "behind")

record = REGISTRY["relu"]
sample_runs(record, record.samples[0]).check({target!r}, cut)
"""


@pytest.mark.parametrize("target", native_targets())
def test_an_element_too_many_is_a_fault(target: str) -> None:
    """What these tests rely on: a kernel whose buffers lack their last element doesn't end well."""
    command = [sys.executable, "-c", BEYOND.format(target=target)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert result.returncode == -signal.SIGSEGV, result.stderr
