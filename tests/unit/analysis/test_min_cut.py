"""Labellings by minimum cut against all labellings tried, and chains of 100,000 things."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from aot.analysis.cost.min_cut import Labelling, Table

COST = st.integers(0, 9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int, Table]]]:
    count = draw(st.integers(1, 7))
    alone = [(draw(COST), draw(COST)) for _ in range(count)]
    pairs = []
    for _ in range(draw(st.integers(0, 10))):
        first, second = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        same0, same1, up, down = (draw(COST) for _ in range(4))
        if same0 + same1 > up + down:
            same0, same1, up, down = up, down, same0, same1
        pairs.append((first, second, ((same0, up), (down, same1))))
    return alone, pairs


@given(problems())
def test_no_labelling_is_cheaper(
    problem: tuple[list[tuple[int, int]], list[tuple[int, int, Table]]],
) -> None:
    alone, pairs = problem

    def cost(labels: tuple[int, ...]) -> int:
        return sum(costs[a] for costs, a in zip(alone, labels, strict=True)) + sum(
            table[labels[first]][labels[second]] for first, second, table in pairs
        )

    labelling = Labelling(len(alone))
    for thing, costs in enumerate(alone):
        labelling.add(thing, costs)
    for first, second, table in pairs:
        labelling.add_pair(first, second, table)
    every = list(product((0, 1), repeat=len(alone)))
    best = min(map(cost, every))
    found = tuple(labelling.solve())
    assert cost(found) == best
    # of several the one with the fewest ones
    assert sum(found) == min(sum(labels) for labels in every if cost(labels) == best)


def test_what_is_no_cut_is_taken_as_indifferent() -> None:
    labelling = Labelling(2)
    labelling.add_pair(0, 1, ((5, 0), (0, 5)))
    labelling.add(0, (1, 0))
    assert labelling.solve()[0] == 1


def test_a_long_chain() -> None:
    count = 100_000
    labelling = Labelling(count)
    for thing in range(count):
        wanted = thing // 1000 % 2
        labelling.add(thing, (wanted * 3, (1 - wanted) * 3))
    for thing in range(count - 1):
        labelling.add_pair(thing, thing + 1, ((0, 10), (10, 0)))
    assert labelling.solve() == [thing // 1000 % 2 for thing in range(count)]
