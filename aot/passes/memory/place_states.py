"""Writes growing state variables in place: a run computes its rows directly after the existing
ones.

    assign(state, concat(past, new)) -> assign(state, concat_alias(past, new)), new made in place

Part of alias-concat. What can't be made there is copied there, which is what a run adds at most;
the past is never copied. Owns the question whether other readers can tell.
"""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import control_ops
from aot.analysis.memory.views import canonical
from aot.base.records import dataclass
from aot.errors import UnsupportedError
from aot.ir.graph import Function, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.ops import movement, selection
from aot.passes.memory.concat_aliaser import ConcatAliaser, places_of


@dataclass(frozen=True)
class Growth:
    """One assignment of a growing state variable.

    Attributes:
        shown: the state as it is afterwards.
        concat: what is assigned: the past, and what is new.
    """

    assign: Op
    shown: Value
    concat: Op


def place_states(function: Function, aliaser: ConcatAliaser) -> int:
    """Places the new rows of growing states in the states' memory where possible; returns for how
    many.

    Raises:
        UnsupportedError: a growing state is assigned something else than itself and more.
    """
    placed = 0
    for op in list(control_ops(function)):
        if op.record.writes and _is_growing(op.operands[0]):
            _place(_growth(op), aliaser)
            placed += 1
    return placed


def _is_growing(value: Value | None) -> bool:
    op = None if value is None else value.op
    return op is not None and op.record.is_state and op.attrs["capacity"] != 0


def _growth(assign: Op) -> Growth:
    """The append that an assignment to a growing state performs.

    Raises:
        UnsupportedError: it can't be done.
    """
    shown, value = assign.operands
    assert shown is not None and shown.op is not None and value is not None
    while value.op is not None and value.op.record is movement.COPY:
        assert value.op.operands[0] is not None
        value = value.op.operands[0]  # of what is assigned, only where it goes to counts
    op, variable = value.op, str(shown.op.attrs["variable"])
    found = op is not None and op.record is selection.CONCAT and _is_past(op, shown)
    if op is None or not found or not _is_alone(assign, shown):
        raise UnsupportedError(
            f"state {variable!r} grows, and what is assigned to it is not itself and more, once at "
            "the end of a run:",
            [f"it is made by {'an input' if op is None else op.name}"],
        )
    return Growth(assign, shown, op)


def _is_past(concat: Op, shown: Value) -> bool:
    """Whether the first part of a concat is the state's previous content, in its place."""
    past = concat.operands[0]
    if past is None or past.op is None or shown.op is None or not past.op.record.is_state:
        return False
    same = all(past.op.attrs[k] == shown.op.attrs[k] for k in ("variable", "capacity", "axis"))
    return same and concat.attrs["axis"] == shown.op.attrs["axis"]


def _is_alone(assign: Op, shown: Value) -> bool:
    """Whether nothing else writes the state, or reads past its previous content."""
    function = assign.parent.owner if assign.parent is not None else None
    assert shown.op is not None
    if not isinstance(function, Function):
        return False  # it may run any number of times
    variable, axis = shown.op.attrs["variable"], shown.op.int("axis")
    for op in control_ops(function):
        if not op.record.is_state or op.attrs["variable"] != variable:
            continue
        is_past = op.result.type.dims[axis] == op.attrs["length"]
        uses = list(op.result.uses)
        if not (uses == [(assign, 0)] if op is shown.op else is_past):
            return False
    db = AliasDb.of(function)
    return all(writer is assign for writer in db.writers(shown))


def _place(growth: Growth, aliaser: ConcatAliaser) -> None:
    """Places the new rows directly after the existing ones in the state's memory."""
    concat, type = growth.concat, canonical(growth.shown.type)
    rewriter = Rewriter(aliaser.function).at(concat)
    types = aliaser.users_types(concat.result, type, but=growth.assign)
    if types is not None:
        aliaser.set_types(types)
    parts = list(concat.operands[:1])
    for part, place in zip(concat.operands[1:], places_of(concat, type)[1:], strict=True):
        assert part is not None and place is not None
        found = (
            None if types is None or part in parts else aliaser.placed_types(concat, part, place)
        )
        if found is None:
            attrs = {"layout": place.layout or Layout()}
            part = rewriter.create(movement.COPY, [part], attrs, concat.origin).result
            aliaser.placed.add(part)
        else:
            aliaser.set_types(found[1])
            aliaser.placed.add(found[0])
        parts.append(part)
    made = Op(selection.CONCAT_ALIAS, parts, concat.attrs, [type], (), concat.origin)
    whole = rewriter.insert(made).result
    aliaser.placed.add(whole)
    dead = growth.assign.operands[1]
    rewriter.rewire(growth.assign, 1, whole)
    while dead is not None and not dead.uses and dead is not concat.result and dead.op is not None:
        before = dead.op.operands[0]
        rewriter.erase(dead.op)
        dead = before
    if types is not None:
        rewriter.replace_op(concat, [whole])
    elif not concat.result.uses:
        rewriter.erase(concat)
