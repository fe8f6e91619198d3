"""Linked kernels of other CPUs agree with the interpreter when QEMU runs them."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_case import Case
from cpu_cases import access_cases
from cpu_checking import check, expected_of, inputs_for
from cpu_operators import operator_cases
from cpu_running import Job, make_job, store_results, target_of
from hard_kernels import HARD_KERNELS, class_buffers, results_of
from qemu import require_runner, run_on

from aot.backends.cpu import compile_kernel
from aot.link.code_image import link_image

pytestmark = pytest.mark.qemu

TARGETS = (
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "armv7-neon",
    "thumbv7em",
    "thumbv7em-m7",
    "riscv64",
    "riscv64-v",
)


# QEMU 7.2 aborts on vector conversions with a rounding mode of their own (decode_save_opc).
_ABORTS_ON_RVV = ("narrow-", "unary-f", "cast-f")


def skip_aborting(cases: list[Case], target_name: str) -> list[Case]:
    return [
        c
        for c in cases
        if target_name != "riscv64-v"
        or not c.name.startswith(_ABORTS_ON_RVV)
        or c.name.endswith("-scalar")
    ]


def check_cases(cases: list[Case], target_name: str) -> None:
    """Compiles all, links them to one image and runs it in one process."""
    target = target_of(target_name)
    require_runner(target.arch)
    jobs: list[Job] = []
    expected = []
    for case in cases:
        kernel = case.make()
        expected.append(expected_of(case, kernel, target))
        jobs.append(make_job(kernel, inputs_for(case, target), case.params, target))
    image = link_image([compile_kernel(job.kernel, target) for job in jobs], target)
    assert image.functions_met == len(jobs)
    run_on(target.arch, image, jobs)
    failures = []
    for case, job, right in zip(cases, jobs, expected, strict=True):
        got = inputs_for(case, target)
        store_results(job, got)
        try:
            check(case, right, got, target)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("target", TARGETS)
def test_access(target: str) -> None:
    cases = [c for c in access_cases() if c.runs_on(target_of(target))]
    check_cases(skip_aborting(cases, target), target)


@pytest.mark.parametrize("style", ["scalar", "vector"])
@pytest.mark.parametrize("target", TARGETS)
def test_operators(target: str, style: str) -> None:
    check_cases(skip_aborting(operator_cases(target_of(target), [style]), target), target)


@pytest.mark.parametrize("target", ["aarch64-generic", "armv7-neon", "riscv64"])
def test_hard_kernels(target: str) -> None:
    record = target_of(target)
    require_runner(record.arch)
    cases = [
        c
        for c in HARD_KERNELS
        if not any(b.dtype.bytes > record.word_bytes for b in c.kernel.buffers)
    ]
    jobs, places = [], []
    for case in cases:
        arrays, params, where = class_buffers(case)
        jobs.append(make_job(case.kernel, arrays, params, record))
        places.append(where)
    run_on(record.arch, link_image([compile_kernel(c.kernel, record) for c in cases], record), jobs)
    for case, job, where in zip(cases, jobs, places, strict=True):
        arrays = {n: np.frombuffer(bytes(d), np.uint8) for n, d in job.classes.items()}
        assert case.largest_error(results_of(case, arrays, where)) <= case.tolerance, case.name
