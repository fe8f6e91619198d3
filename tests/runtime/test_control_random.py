"""Random functions with branches, loops and states: programs against the interpreter."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot
from tests.support.control_functions import (
    compare,
    made,
)
from tests.support.control_lowering import program


def check(seed: int, extent: int | str) -> None:
    """As the function stands, with ties and without."""
    module = made(seed, extent, "concat_alias")
    with program(module) as tied, program(module, ties=False) as plain:
        compare(module, seed, extent, [tied, plain])


def check_compiled(seed: int, extent: int | str) -> None:
    """After all passes."""
    module = made(seed, extent, "concat")
    with (
        aot.load(aot.compile(module)) as fused,
        aot.load(aot.compile(module, disable=["fusion"])) as bare,
    ):
        compare(module, seed, extent, [fused, bare])


FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(st.integers(0, 1 << 32), st.sampled_from([16, "N"]))
def test_programs_do_what_the_interpreter_does(seed: int, extent: int | str) -> None:
    check(seed, extent)


@FEW
@given(st.integers(0, 1 << 32), st.sampled_from([16, "N"]))
def test_compiled_functions_do_what_the_interpreter_does(seed: int, extent: int | str) -> None:
    check_compiled(seed, extent)


@pytest.mark.slow
@pytest.mark.parametrize("extent", [16, "N"])
@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 20),
        *(pytest.param(first, 100, marks=pytest.mark.sweep) for first in range(0, 600, 100)),
    ],
)
def test_many_programs(first: int, count: int, extent: int | str) -> None:
    for seed in range(first, first + count):
        check(seed, extent)
        check_compiled(seed, extent)
