"""Which elements of its operand an op's result elements are, as the record's `compute` says it.

Changes nothing, and knows no op by its name.
"""

from __future__ import annotations

from aot.ir.expr import Load
from aot.ir.graph import Op
from aot.ir.record import Kind, call_of


def permutation_of(op: Op) -> tuple[int, ...] | None:
    """p such that result dim d of the op is dim p[d] of its operand, if it only reorders dims."""
    if op.record.kind is not Kind.MOVEMENT or len(op.operands) != 1 or op.record.compute is None:
        return None
    (compute,) = op.record.compute(call_of(op))
    load = compute.value
    if not isinstance(load, Load) or load.guard is not None:
        return None
    source = {index: number for number, index in enumerate(load.indices)}
    if len(source) != len(load.indices) or set(source) != set(compute.indices):
        return None
    return tuple(source[index] for index in compute.indices)
