"""Linked kernels of other CPUs agree with the interpreter when QEMU runs them."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.cpu_case import Case
from tests.support.cpu_cases import access_cases
from tests.support.cpu_linked import check_hard_kernels, check_linked
from tests.support.cpu_operators import operator_cases
from tests.support.cpu_running import target_of
from tests.support.hard_kernels import HARD_KERNELS
from tests.support.qemu import EMULATED_TARGETS, require_runner, run_on

pytestmark = pytest.mark.qemu

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
    target = target_of(target_name)
    require_runner(target.arch)
    check_linked(cases, target, partial(run_on, target.arch))


@pytest.mark.parametrize("target", EMULATED_TARGETS)
def test_access(target: str) -> None:
    cases = [c for c in access_cases() if c.runs_on(target_of(target))]
    check_cases(skip_aborting(cases, target), target)


@pytest.mark.parametrize("style", ["scalar", "vector"])
@pytest.mark.parametrize("target", EMULATED_TARGETS)
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
    check_hard_kernels(cases, record, partial(run_on, record.arch))
