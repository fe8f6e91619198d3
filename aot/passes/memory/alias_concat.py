"""alias-concat: makes concats and slices aliases of memory, which move no data.

A slice whose users read any layout is a view into what it slices. A concat whose parts are made by
ops that write any layout is only the memory that they write to: it becomes `concat_alias`, and each
part is made in its place.
    concat(a, b) -> concat_alias(a, b), where a and b have the strides of the whole
A concat whose parts lie side by side in a later one, as those of a dense block do, is a part of it.
A state variable that grows is such a whole, and what it held is a part in its place.

Requires: layouts are assigned and nothing is pending; no regions yet.
Ensures: what became a view has a type under which its elements are where the whole has them.
Never: places a value twice, one that a caller gave or gets, or one that is written in place, turns
    a view that is free into a copy elsewhere, or adds a dispatch: at most one part is copied to its
    place, where the concat itself would have been a dispatch.
"""

from __future__ import annotations

from dataclasses import replace

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import block_of, control_ops
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ops import movement, selection
from aot.passes.base import Pass, PassContext
from aot.passes.memory.concat_aliaser import ConcatAliaser
from aot.passes.memory.place_states import place_states


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        db = AliasDb.where_written(function)
        aliaser = ConcatAliaser(function, context.target, db)
        if db is not None:
            context.count("alias-concat", "states", place_states(function, aliaser))
        if not all(map(context.options.is_enabled, ("fusion", "alias-concat"))):
            continue
        for op in list(control_ops(function)):
            if op.record is selection.CONCAT:
                context.count("alias-concat", "pushed", push_ends(function, op))
        # what is assembled last has the say on where its parts are
        ops = list(enumerate(control_ops(function)))
        left: list[tuple[int, Op]] = []
        for position, op in reversed(ops):
            if op.record is selection.CONCAT and aliaser.concat_alias(op, position):
                context.count("alias-concat", "assembled")
            elif op.record is selection.CONCAT:
                left.append((position, op))
        # the longest first, of which shorter ones are parts again
        for position, op in sorted(left, key=lambda found: -len(found[1].operands)):
            if aliaser.share_parts(op, position):
                context.count("alias-concat", "shared")
        for op in list(control_ops(function)):
            if op.record is movement.SLICE and aliaser.view(op):
                context.count("alias-concat", "slices")
            elif op.record is movement.RESHAPE and aliaser.store_moved(op):
                context.count("alias-concat", "stored")


def push_ends(function: Function, concat: Op) -> int:
    """Moves elementwise ops after a concat to its parts, where they join the producers' dispatches;
    returns the number of moved ops.

        f(concat(a, b)) -> concat(f(a), f(b))

    Gives how many ops were moved.
    """
    pushed = 0
    while (end := _pushable(concat)) is not None:
        rewriter = Rewriter(function).at(end)
        parts: list[Value] = []
        for part in concat.operands:
            operands = [part if v is concat.result else v for v in end.operands]
            parts.append(rewriter.create(end.record, operands, end.attrs, end.origin).result)
        fresh = rewriter.create(concat.record, parts, concat.attrs, concat.origin)
        layout = end.result.type.layout
        rewriter.set_type(fresh.result, replace(fresh.result.type, layout=layout))
        for value, old in zip(parts, concat.operands, strict=True):
            assert old is not None
            rewriter.set_type(value, replace(value.type, layout=old.type.layout))
        rewriter.replace_op(end, fresh.results)
        rewriter.erase(concat)
        concat = fresh
        pushed += 1
    return pushed


_TAKES_ENDS = (Kind.CONTRACTION, Kind.REDUCTION, Kind.ELEMENTWISE)


def _pushable(concat: Op) -> Op | None:
    """The only user of a concat, if it can be applied to each part where that is computed; else
    None."""
    if len(concat.result.uses) != 1 or any(
        part is None or part.op is None or part.op.record.kind not in _TAKES_ENDS
        for part in concat.operands
    ):
        return None
    if any(part is not None and len(part.uses) != 1 for part in concat.operands):
        return None
    (user,) = concat.result.users
    if user.parent is not concat.parent or any(
        part is not None and block_of(part) is not concat.parent for part in concat.operands
    ):
        return None
    dims = concat.result.type.dims
    is_end = user.record.kind is Kind.ELEMENTWISE and user.result.type.dims == dims
    others = [v for v in user.operands if v is not None and v is not concat.result]
    return user if is_end and all(v.type.rank == 0 for v in others) else None


ALIAS_CONCAT = Pass("alias-concat", run, __doc__)
