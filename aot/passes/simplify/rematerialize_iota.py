"""rematerialize-iota: recomputes index-only values, and dequantisations of bytes, in each user.

Requires: constants folded.
Ensures: a counter, a fill, or a cheap function of such (a causal mask) has one user in its own
    block, unless its users can't take it in: fusion then leaves nothing of it that is computed for
    its own sake. A `dequantize` by single numbers has one user, too, if all users can take it in:
    bytes are stored, not floats.
Never: copies another op that reads memory, other than a single constant element, one whose result
    is written in place, or a chain of more than MAX_CHAIN ops.
"""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import control_ops
from aot.ir.builtin import CONSTANT
from aot.ir.clone import clone_op
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ops.quantization import DEQUANTIZE
from aot.passes.base import Pass, PassContext

MAX_CHAIN = 8
MAX_USES = 64
_KINDS = (Kind.SHAPE, Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW)


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        context.count("rematerialize-iota", "copies", sink(function))


def sink(function: Function) -> int:
    """Gives each user its own copy of an index-only value; returns how many copies were made."""
    chains: dict[Value, int] = {}
    for op in control_ops(function):
        length = _chain(op, chains)
        if length is not None:
            chains[op.result] = length
    copies, db = 0, AliasDb.where_written(function)
    # users first: a copy is one more user of what it reads
    for op in reversed(list(control_ops(function))):
        if op.record is CONSTANT or len(op.results) != 1:
            continue
        if op.result not in chains and not _is_of_bytes(op):
            continue
        if db is None or db.is_repeatable(op):
            copies += _copy_for_users(function, op)
    return copies


def _chain(op: Op, chains: dict[Value, int]) -> int | None:
    """The length of the op chain that computes an index-only value; None for other values."""
    if op.record is CONSTANT:
        return 0 if op.result.type.element_count == 1 else None
    record = op.record
    is_light = record.is_cheap or record.kind in (Kind.MOVEMENT, Kind.VIEW)
    if record.kind not in _KINDS or record.compute is None or not is_light or not op.operands:
        is_counter = record.kind is Kind.SHAPE and record.is_cheap and not op.operands
        return 1 if is_counter and len(op.results) == 1 else None
    total = 1
    for value in op.operands:
        if value is None or value not in chains:
            return None
        total += chains[value]
    is_constant = total == 1  # of constants alone: folding has left it for a reason
    return None if is_constant or total > MAX_CHAIN or len(op.results) != 1 else total


def _is_of_bytes(op: Op) -> bool:
    """Whether the op dequantises bytes with single-number parameters, and all users read each
    element once."""
    if op.record is not DEQUANTIZE:
        return False
    x, *parameters = op.operands
    return (
        x is not None
        and x.type.dtype.bits == 8
        and all(v is None or v.type.element_count == 1 for v in parameters)
        and all(_reads_elements(user) for user in op.result.users)
    )


def _reads_elements(user: Op) -> bool:
    """Whether an op reads each element once, as it has no windows or tiles."""
    is_plain = user.record.kind is Kind.REDUCTION and "kernel" not in user.attrs
    return user.record.compute is not None and (is_plain or user.record.kind is Kind.ELEMENTWISE)


def _copy_for_users(function: Function, op: Op) -> int:
    users = op.result.users
    if len(users) > MAX_USES:
        return 0
    takers = [user for user in users if _takes_in(user, op.result)]
    beside = [user for user in takers if user.parent is op.parent]
    if beside and len(takers) == len(users):
        takers.remove(beside[0])  # has the original
    for user in takers:
        into = Rewriter(function).at(user)
        (copy,) = clone_op(op, {v: v for v in op.operands if v is not None}, into).results
        for number, value in enumerate(user.operands):
            if value is op.result:
                into.set_operand(user, number, copy)
    if not op.result.uses:
        Rewriter(function).erase(op)
    return len(takers)


def _takes_in(user: Op, value: Value) -> bool:
    """Whether a region around the user can compute the value's elements as it reads them."""
    if user.record.kind is Kind.ATTENTION:
        return value not in user.operands[:3]
    is_refused = user.record.kind.blocks_fusion or user.record.kind is Kind.CONTRACTION
    return user.record.compute is not None and not is_refused


REMATERIALIZE_IOTA = Pass("rematerialize-iota", run, __doc__)
