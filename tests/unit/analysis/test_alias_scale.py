"""Work and memory of the alias database grow with the function, no faster; counted, not timed."""

from __future__ import annotations

import pytest

from aot.analysis.alias.database import AliasDb, count_alias
from aot.analysis.alias.lint import lint
from aot.analysis.alias.points_to import PointsTo
from aot.builder import Builder
from aot.ir.graph import Value
from tests.support.alias_answers import locations
from tests.support.alias_scale import STAGE, residual_graph, rewrite_all


def words(graph: PointsTo) -> int:
    """Words that the answers take, beyond single locations."""
    return sum(len(a) for a in graph.answers if isinstance(a, tuple))


@pytest.mark.parametrize("stage", [STAGE, 0])
def test_work_is_linear(stage: int) -> None:
    costs = []
    for size in (500, 1000, 2000):
        function = residual_graph(size, stage)
        with count_alias() as counts:
            db = AliasDb.of(function)
            built = db.facts.graph.work
            count = rewrite_all(function, db)
            assert db.has_writes
        assert counts.builds == 1
        assert counts.updates >= 4 * count
        costs.append((size, built, db.facts.graph.work - built, len(db.facts.numbers)))
        assert words(db.facts.graph) == 0, "every value here is in one location"
        if size == 500:
            lint(db)
    for size, built, updating, values in costs:
        assert built <= 1.5 * size
        assert updating <= 6 * size
        assert values <= 8 * size


def test_sets_that_grow_stay_small() -> None:
    """A value that may be one of many memories takes bits for those, not for all."""
    sizes = []
    for count in (300, 600):
        db, value = chosen_again(count)
        assert len(locations(db, value)) == count + 1
        sizes.append(words(db.facts.graph))
        assert sizes[-1] <= 8 * count * count / 256 + 8 * count
    assert sizes[1] <= 4.5 * sizes[0]


def chosen_again(count: int) -> tuple[AliasDb, Value]:
    """Each value is the one before it or a new one, by a condition."""
    b = Builder()
    t, x = b.input("t", "bool[]"), b.input("x", "f32[2]")
    for _ in range(count):  # what is nobody's choice
        x = b.op("neg", x)
    for _ in range(count):
        here = x
        then = b.block([], lambda here=here: b.op("neg", here))
        other = b.block([], lambda here=here: here)
        x = b.op("if", t, blocks=[then, other])
    b.output("y", x)
    return AliasDb.of(b.module().main), x
