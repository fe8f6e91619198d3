"""inline: replaces calls by their callees' bodies, and tuple rows at known positions by the tuple's
operands.

Requires: nothing pending.
Ensures: the module has no calls and none of the functions that were called; no `get` and no tuple
    is left, but where memory is written.
Never: changes what memory an op reads or writes: an argument is the operand's own memory.
"""

from __future__ import annotations

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.errors import CompileError
from aot.ir.builtin import CONSTANT
from aot.ir.clone import clone_op
from aot.ir.graph import Attr, ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ops.control import CALL, GET, TUPLE
from aot.ops.elementwise import MAXIMUM
from aot.ops.movement import RESHAPE, SLICE
from aot.ops.selection import CONCAT, GATHER
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    called: dict[str, None] = {}
    for function in module.entry_points:
        _inline_calls(module, function, called)
    for name in called:
        del module.functions[name]
    context.count("inline", "functions", len(called))
    for function in module.entry_points:
        _open_tuples(function)


def _inline_calls(module: Module, function: Function, called: dict[str, None]) -> None:
    """Inlines all calls, those in called functions included."""
    waiting: list[tuple[Op, tuple[str, ...]]] = []

    def find(ops: list[Op], path: tuple[str, ...]) -> None:
        waiting.extend((op, path) for op in reversed(ops) if op.record is CALL)

    find(list(function.walk()), (function.name,))
    while waiting:
        op, path = waiting.pop()
        reference = op.attrs["function"]
        assert isinstance(reference, FunctionRef)
        if reference.name in path:
            chain = " calls ".join(f"@{name}" for name in (*path, reference.name))
            raise CompileError(f"{_where(op)}: {chain}, without an end; a loop can be compiled")
        called[reference.name] = None
        made = _inlined(module.functions[reference.name], function, op)
        find([inner for each in made for inner in (each, *_inside(each))], (*path, reference.name))


def _inside(op: Op) -> list[Op]:
    return [inner for block in op.blocks for each in block for inner in (each, *_inside(each))]


def _where(op: Op) -> str:
    return f"call (node {op.origin!r})" if op.origin else "call"


def _inlined(callee: Function, function: Function, call: Op) -> list[Op]:
    """Replaces a call by copies of the callee's ops; returns these."""
    operands = (v for v in call.operands if v is not None)
    values: dict[Value, Value] = dict(zip(callee.inputs, operands, strict=True))
    function.assumptions.update(callee.assumptions)
    into = Rewriter(function).at(call)
    made: list[Op] = []
    for op in callee.block:
        if op.record.is_terminator:
            results = [values[v] for v in op.operands if v is not None]
            into.replace_op(call, results)
            break
        made.append(clone_op(op, values, into))
    return made


def _open_tuples(function: Function) -> None:
    ops = [op for op in function.walk() if op.record in (TUPLE, GET)]
    if not ops:
        return
    for op in ops:
        if op.record is GET and op.parent is not None:
            _open_row(function, op)
    if AliasDb.where_written(function) is not None:
        return
    for op in ops:
        if op.parent is not None:
            copy_rows(function, op)


def copy_rows(function: Function, op: Op) -> None:
    """Replaces a `tuple` or `get` by a copy, if nobody writes its memory while it is used."""
    if op.record is TUPLE:
        _stack(function, op)
    elif _position(op) is None:
        _gather_row(function, op)
    else:
        _slice_row(function, op)


def _position(op: Op) -> int | None:
    """The row that a `get` reads, if known; else None."""
    rows, index = op.operands
    assert rows is not None and index is not None
    count = rows.type.dims[0]
    data = None if index.op is None or index.op.record is not CONSTANT else index.op.attrs["value"]
    if not isinstance(data, ConstantData) or not isinstance(count, int):
        return None
    return min(max(int(np.asarray(data.array).reshape(())), 0), count - 1)


def _open_row(function: Function, op: Op) -> None:
    """Replaces a `get` of a tuple's row by the tuple's operand, which shares its memory."""
    rows, at = op.operands[0], _position(op)
    if rows is None or rows.op is None or rows.op.record is not TUPLE or at is None:
        return
    row = rows.op.operands[at]
    assert row is not None
    Rewriter(function).at(op).replace_op(op, [row])
    if not rows.uses:
        Rewriter(function).at(rows.op).erase(rows.op)


def _slice_row(function: Function, op: Op) -> None:
    """Replaces a `get` at a known position by a slice of the memory."""
    rows, at = op.operands[0], _position(op)
    assert rows is not None and at is not None
    into, others = Rewriter(function).at(op), rows.type.dims[1:]
    attrs: dict[str, Attr] = {
        "starts": (at, *(0 for _ in others)),
        "stops": (at + 1, *others),
        "steps": (1,) * rows.type.rank,
    }
    part = into.create(SLICE, [rows], attrs, op.origin).result
    made = into.create(RESHAPE, [part], {"shape": others}, op.origin).result
    into.replace_op(op, [made])


def _gather_row(function: Function, op: Op) -> None:
    """Replaces a `get` at a position computed at run time by a gather; negative positions read row
    0."""
    into, (rows, index) = Rewriter(function).at(op), op.operands
    first = insert_constant(into, ConstantData(np.zeros((), np.int64)), op.origin)
    at = into.create(MAXIMUM, [index, first], {}, op.origin).result
    into.replace_op(op, [into.create(GATHER, [rows, at], {"axis": 0}, op.origin).result])


def _stack(function: Function, op: Op) -> None:
    """Replaces a tuple whose memory is never written by a concat of its operands."""
    into = Rewriter(function).at(op)
    shape = (1, *op.result.type.dims[1:])
    rows: list[Value | None] = [
        into.create(RESHAPE, [v], {"shape": shape}, op.origin).result for v in op.operands
    ]
    made = rows[0]
    if len(rows) > 1:
        made = into.create(CONCAT, rows, {"axis": 0}, op.origin).result
    assert made is not None
    into.replace_op(op, [made])


INLINE = Pass("inline", run, __doc__)
