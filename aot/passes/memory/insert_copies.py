"""insert-copies: copies a value where a write in place would change what a view of it reads.

A slice or a transpose is defined as a copy, and types often make it a view at no cost: if the
memory of such a view is written before its last use, it is copied. A reshape is defined as its
operand's memory, and types may make it a copy: if that memory is written before the last use, the
reshape is recomputed for each reader.

Requires: views are placed; no regions yet.
Ensures: a value that is a view by its type keeps its elements until its last use. Values that enter
    or leave blocks may be copied there.
Never: copies where nothing is written in between, or loses a write to a copy: that is an error,
    which lists all such writes.
"""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.write_order import WriteOrder
from aot.analysis.control import control_blocks
from aot.analysis.memory.views import is_view
from aot.errors import UnsupportedError
from aot.ir.clone import clone_op
from aot.ir.graph import Function, Module, Op
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.ops.movement import COPY
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        db = AliasDb.where_written(function)
        if db is not None:
            context.count("insert-copies", "copied", insert_copies(function, db))


def insert_copies(function: Function, db: AliasDb) -> int:
    """Inserts copies for a function's views that writes would change; returns how many.

    Raises:
        UnsupportedError: memory that a block hands on is written where others see it.
    """
    copied = 0
    problems: list[str] = []
    for block in control_blocks(function):
        order = WriteOrder(db, block)
        for op in list(order.position):
            if op.parent is not block:
                continue  # shown anew with what it shows
            if op.blocks:
                problems += _handed_on(db, op, order)
            elif _is_copy_by_meaning(op) and is_view(op) and not order.keeps(op.result):
                _copy(function, op)
                copied += 1
            elif _is_view_by_meaning(op) and not is_view(op) and not order.keeps(op.result):
                problems += _written_copies(op)
                copied += _rebuild_view(function, op)
    if problems:
        raise UnsupportedError("these writes in place can't be compiled:", problems)
    return copied


def _is_copy_by_meaning(op: Op) -> bool:
    return op.record.index_map is not None and op.record.view_of is None


def _is_view_by_meaning(op: Op) -> bool:
    return op.record.index_map is not None and op.record.view_of is not None


def _copy(function: Function, op: Op) -> None:
    """Inserts a copy of a view for all its users."""
    rewriter = Rewriter(function, op.parent, op.next)
    attrs = {"layout": op.result.type.layout or Layout()}
    uses = list(op.result.uses)
    made = rewriter.insert(Op(COPY, [op.result], attrs, [op.result.type], (), op.origin)).result
    made.name = op.result.name
    for user, number in uses:
        rewriter.set_operand(user, number, made)


def _rebuild_view(function: Function, op: Op) -> int:
    """Recomputes a view as a copy right before each reader."""
    made = 0
    for user in op.result.users:
        if _is_view_by_meaning(user):
            made += _rebuild_view(function, user)
    for user, number in list(op.result.uses):
        if number not in user.record.writes:
            rewriter = Rewriter(function).at(user)
            values = {v: v for v in op.operands if v is not None}
            rewriter.set_operand(user, number, clone_op(op, values, rewriter).result)
            made += 1
    if not op.result.uses:
        Rewriter(function).erase(op)
    return made


def _written_copies(op: Op) -> list[str]:
    return [
        f"{user.name}{_where(user)} writes through {op.name}{_where(op)}, which has another layout "
        "in memory"
        for user, number in op.result.uses
        if number in user.record.writes
    ]


def _handed_on(db: AliasDb, op: Op, order: WriteOrder) -> list[str]:
    """Errors for values passed through an op's blocks that are written where both sides would share
    memory.
    """
    body = op.record.body
    assert body is not None
    problems = [
        f"{op.name}{_where(op)}: result {value.index} is memory that is written later"
        for value in op.results
        if not order.keeps(value, is_apart=True)
    ]
    for block in op.blocks:
        for number, value in enumerate(block.args):
            if db.writes_to_alias(op, [value]):
                carried = number - len(body.given)
                problems.append(
                    f"{op.name}{_where(op)}: carried value {carried} is memory that is written in "
                    "its body"
                )
    return problems


def _where(op: Op) -> str:
    return f" (node {op.origin!r})" if op.origin else ""


INSERT_COPIES = Pass("insert-copies", run, __doc__)
