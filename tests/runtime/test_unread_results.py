"""Of ops with several results any one may be all that is read."""

from __future__ import annotations

import pytest

import aot
from aot.ir.builder import Builder
from aot.ir.record import REGISTRY
from tests.support.samples_module import (
    CASES,
    NATIVE,
    Case,
    add_sample,
    compare,
    expected,
    inputs_of,
    label,
    samples_module,
)


def _positions(case: Case) -> list[int]:
    """The results of a sample that are not its kernel's memory."""
    count = len(samples_module().functions[label(*case)].result_names)
    return [n for n in range(count) if n not in REGISTRY[case[0]].room]


SEVERAL = sorted({name for name, number in CASES if len(_positions((name, number))) > 1})


@pytest.mark.parametrize("op", SEVERAL)
@pytest.mark.parametrize("target", NATIVE[-1:])
def test_one_result_alone(op: str, target: str) -> None:
    for case in [case for case in CASES if case[0] == op]:
        for position in _positions(case):
            builder = Builder("main")
            add_sample(builder, *case, only=position)
            with aot.load(aot.compile(builder.module(), targets=[target])) as program:
                found = program(inputs_of([case]))
            compare([case], {**expected(case), **found})
            assert list(found) == [f"{label(*case)}_y{position}"]
