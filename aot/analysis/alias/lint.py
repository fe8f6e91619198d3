"""Checks an incrementally updated alias database against one that is rebuilt; for tests.

Compares locations by the values that created them, never by numbers. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.facts import AliasFacts
from aot.analysis.alias.location_sets import EMPTY, Locations, intersect, members
from aot.errors import InternalError
from aot.ir.graph import Value

Label = Hashable


def lint(db: AliasDb) -> None:
    """Checks a database against a rebuilt one.

    Raises:
        InternalError: a value, what it may be, or what an op writes differs.
    """
    kept = db.facts
    built = AliasFacts(db.function)
    built.solve()
    known = {v for v in kept.numbers if v not in kept.drafts}
    for value in known ^ built.numbers.keys():
        which = "dangles" if value in known else "is missing"
        raise _error(db, f"{value!r} {which}")
    shown = _Names(kept, built), _Names(built, built)
    for value in built.numbers:
        for part, what in ((0, "be"), (1, "keep")):
            _compare(db, value, what, [n.of_value(value, part) for n in shown])
    if set(kept.writes.ops()) != set(built.writes.ops()):
        raise _error(db, "the ops that write differ")
    for op in built.writes.ops():
        one, other = (n.of(n.facts.writes.written_by(op)) for n in shown)
        if one != other or kept.writes.is_unknown(op) != built.writes.is_unknown(op):
            raise _error(db, f"{op} writes {_text(one)}, rebuilt it writes {_text(other)}")
    _check_register(db, kept)


def _compare(db: AliasDb, value: Value, what: str, found: list[frozenset[Label]]) -> None:
    one, other = found
    if one != other:
        raise _error(db, f"{value!r} may {what} {_text(one)}, rebuilt it may {what} {_text(other)}")


def _check_register(db: AliasDb, facts: AliasFacts) -> None:
    """Checks that the index of writers by location agrees with the locations by writer."""
    for value, number in facts.numbers.items():
        locations = facts.graph.answers[2 * number]
        found = (
            set(facts.writes.writers(locations, is_outside=False)) if locations != EMPTY else set()
        )
        wanted = {
            op for op in facts.writes.ops() if intersect(facts.writes.written_by(op), locations)
        }
        if found != wanted:
            raise _error(db, f"the writers of {value!r} differ from what ops say that they write")


class _Names:
    """Names for memory locations that are the same in every database of a function."""

    def __init__(self, facts: AliasFacts, built: AliasFacts) -> None:
        self.facts = facts
        self._names: dict[int, Label] = {}
        self._names.update(facts.owners)
        self._names.update({n: str(dtype) for dtype, n in facts.outside.items()})
        # a removed state leaves its location behind, which nothing but unknown results has
        self._names.update({n: name for name, n in facts.states.items() if name in built.states})
        self._gone = {n for name, n in facts.states.items() if name not in built.states}

    def of(self, locations: Locations) -> frozenset[Label]:
        return frozenset(
            self._names.get(n, f"<retired {n}>") for n in members(locations) if n not in self._gone
        )

    def of_value(self, value: Value, part: int) -> frozenset[Label]:
        return self.of(self.facts.graph.answers[2 * self.facts.numbers[value] + part])


def _text(labels: frozenset[Label]) -> str:
    return "{" + ", ".join(sorted(map(repr, labels))) + "}"


def _error(db: AliasDb, problem: str) -> InternalError:
    return InternalError(f"alias database of function {db.function.name!r}: {problem}")
