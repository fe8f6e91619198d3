"""What alias analysis found of values: tests compare it with what a run does."""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.location_sets import Locations, intersect, members
from aot.ir.graph import Value


def may_alias(db: AliasDb, a: Value, b: Value) -> bool:
    """Whether `a` and `b` may be the same memory, in part or whole."""
    return a is b or intersect(_own(db, a), _own(db, b))


def may_contain_alias(db: AliasDb, a: Value, b: Value) -> bool:
    """As `may_alias`, for what either is or keeps."""
    return a is b or intersect(db.reached(a), db.reached(b))


def locations(db: AliasDb, value: Value) -> tuple[int, ...]:
    """What `value` may be, by numbers that only this database knows."""
    return tuple(members(_own(db, value)))


def _own(db: AliasDb, value: Value) -> Locations:
    facts = db.facts
    return facts.graph.answers[2 * facts.number_of(value)]
