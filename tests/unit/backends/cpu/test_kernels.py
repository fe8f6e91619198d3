"""Machine code for this machine agrees with the interpreter: every operator, every access."""

from __future__ import annotations

import pytest

from tests.support.cpu_case import Case
from tests.support.cpu_cases import access_cases
from tests.support.cpu_checking import check, expected_of, inputs_for
from tests.support.cpu_operators import operator_cases
from tests.support.cpu_running import native_targets, run, target_of

TARGETS = native_targets()


def check_native(case: Case, target_name: str) -> None:
    target = target_of(target_name)
    kernel = case.make()
    expected = expected_of(case, kernel, target)
    got = inputs_for(case, target)
    run(kernel, got, case.params, target)
    check(case, expected, got, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", access_cases(), ids=lambda case: case.name)
def test_access(case: Case, target: str) -> None:
    if not case.runs_on(target_of(target)):
        pytest.skip(f"{target} does not compute {', '.join(map(str, case.computes))}")
    check_native(case, target)


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in TARGETS
        for case in operator_cases(target_of(name))
    ],
)
def test_operators(target: str, case: Case) -> None:
    check_native(case, target)
