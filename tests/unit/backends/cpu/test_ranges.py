"""Comparisons of indices that loops decide: every answer against all of the loops' iterations."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.backends.cpu.ranges import interval
from aot.ir.dims import decided, symbol
from aot.ir.expr import Var
from aot.ir.types import DType

OPS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@given(st.integers(-6, 6), st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=3))
def test_what_is_decided_holds_at_every_iteration(
    constant: int, loops: list[tuple[int, int]]
) -> None:
    variables = [Var(f"v{n}", DType.INDEX) for n in range(len(loops))]
    terms = [(v, factor) for v, (factor, _) in zip(variables, loops, strict=True)]
    found = interval(
        constant, terms, {v: (0, last) for v, (_, last) in zip(variables, loops, strict=True)}
    )
    values = {
        constant + sum(i * factor for i, (factor, _) in zip(places, loops, strict=True))
        for places in itertools.product(*(range(last + 1) for _, last in loops))
    }
    assert found == (min(values), max(values))
    for op, compare in OPS.items():
        answers = {compare(value, 0) for value in values}
        assert decided(op, found) is (answers.pop() if len(answers) == 1 else None)


@pytest.mark.parametrize(
    ("difference", "answer"),
    [((0, None), True), ((None, -1), False), ((None, 0), None), ((-1, None), None)],
)
def test_open_intervals(difference: tuple[int | None, int | None], answer: bool | None) -> None:
    assert decided("ge", difference) is answer
    assert decided("lt", difference) is (None if answer is None else not answer)
    assert decided("eq", difference) is None


def test_what_is_not_known_decides_nothing() -> None:
    i = Var("i", DType.INDEX)
    assert interval(3, [(i, 1)], {}) == (None, None)
    assert interval(3, [(i, 1)], {i: (0, None)}) == (3, None)
    assert interval(3, [(i, -2)], {i: (0, None)}) == (None, 3)
    assert interval(3, [(i, symbol("N"))], {i: (0, 4)}) == (None, None)
    assert interval(symbol("N"), [], {}) == (0, None)
