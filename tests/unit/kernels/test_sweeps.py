"""Kernels of one op each at the edges of their rules: what they compute, and who builds them.

The sweeps are tables of tests/support; samples of all rules are test_rules.py's.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.executables import Executable
from tests.support.integer_sweeps import INTEGERS
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import on_interpreter
from tests.support.product_sweeps import PRODUCTS
from tests.support.sweeps import Sweep
from tests.support.window_sweeps import WINDOWS

SWEEPS = (*WINDOWS, *PRODUCTS, *INTEGERS)
HERE = [
    pytest.param(sweep, case, names, id=f"{sweep.name}-{number}")
    for sweep in SWEEPS
    for number, (case, names) in enumerate(sweep.runs_here())
]


def of(*attributes: str) -> list[Any]:
    """Each executable of an attribute of sweeps for each of its targets, with the attribute."""
    return [
        pytest.param(sweep, case, target, attribute, id=f"{sweep.name}-{attribute}-{n}-{target}")
        for sweep in SWEEPS
        for attribute in attributes
        for n, (case, names) in enumerate(getattr(sweep, attribute))
        for target in names
    ]


@pytest.mark.parametrize(("sweep", "case", "names"), HERE)
def test_natively(sweep: Sweep, case: Executable, names: list[str]) -> None:
    rules = sweep.rules if sweep.is_strict else ()
    for name in names:
        for how in sweep.arrays:
            case.check(name, on_cpu(name), how, rules=rules)


@pytest.mark.parametrize(("sweep", "case", "target", "attribute"), of("interpreted"))
def test_interpreted(sweep: Sweep, case: Executable, target: str, attribute: str) -> None:
    """Nothing is read that is not there, and no two lanes or workgroups race."""
    case.check(target, on_interpreter, sweep.arrays[-1])


@pytest.mark.parametrize(("sweep", "case", "target", "attribute"), of("built", "others"))
def test_which_rule_builds(sweep: Sweep, case: Executable, target: str, attribute: str) -> None:
    found = case.rule(target)
    assert (found in sweep.rules) == (attribute == "built"), found


@pytest.mark.parametrize(("sweep", "case", "target", "attribute"), of("asks", "asks_not"))
def test_what_is_prefetched(sweep: Sweep, case: Executable, target: str, attribute: str) -> None:
    found = case.asks(target)
    assert found == (attribute == "asks")
