"""Ops that only rename elements: derives permutations from a record's `compute`.

Changes nothing, and knows no op by its name.
"""

from __future__ import annotations

from aot.analysis.accesses import accesses_of
from aot.ir.graph import Op
from aot.ir.record import Kind


def permutation_of(op: Op) -> tuple[int, ...] | None:
    """The permutation p with result dim d equal to operand dim p[d], if the op only reorders dims;
    else None.
    """
    if op.record.kind is not Kind.MOVEMENT or len(op.operands) != 1 or op.record.compute is None:
        return None
    (accesses,) = accesses_of(op)
    element = accesses.element
    if element is None or element.conditions or accesses.is_widened:
        return None
    source = {s.variable: number for number, s in enumerate(element.subscripts)}
    if len(element.subscripts) != accesses.rank or set(source) != set(range(accesses.rank)):
        return None
    perm = tuple(source[d] for d in range(accesses.rank))
    operand = op.operand_types[0]
    assert operand is not None
    # a slice from the start has the same indices, and leaves elements out
    return perm if tuple(operand.dims[d] for d in perm) == accesses.extents else None
