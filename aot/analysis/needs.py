"""Conditions on dynamic extents under which ops access only elements of their operands.

A slice of an open extent may end behind it, and more elements may be asked for than there are.
What bounds do not decide, a program checks before what needs it, and proofs take for granted.
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Function, Op
from aot.ir.index_map import Slice, step_dims
from aot.ir.record import Need, call_of


def needs_of(op: Op) -> Iterator[Need]:
    """The conditions on dynamic extents that an op requires."""
    if op.record.index_map is None and op.record.needs is None:
        return
    call = call_of(op)
    if op.record.needs is not None:
        yield from filter(_is_open, op.record.needs(call))
    if op.record.index_map is not None:
        source = call.operand(0).dims
        for step in op.record.index_map(call).steps:
            if isinstance(step, Slice):
                yield from filter(_is_open, _of_slice(step, source))
            source = step_dims(step, source)


def needs_of_function(function: Function) -> tuple[Need, ...]:
    """The conditions on an executable's dim parameters that its ops require, without duplicates."""
    if not function.dim_names:
        return ()
    return tuple(dict.fromkeys(need for op in function.walk() for need in needs_of(op)))


def _of_slice(step: Slice, source: tuple[Dim, ...]) -> Iterator[Need]:
    ends = zip(step.starts, step.stops, step.steps, source, strict=True)
    for axis, (start, stop, by, extent) in enumerate(ends):
        # a stop may lie behind the end, by less than a step
        span = dims.add(stop, dims.multiply(start, -1))
        count = dims.ceil_divide(span, by)
        last = dims.add(start, dims.multiply(dims.add(count, -1), by))
        first, behind = (start, dims.add(last, 1)) if by > 0 else (last, dims.add(start, 1))
        what = f"axis {axis} of its input is too short"
        yield from (Need(0, first, what), Need(behind, extent, what))


def _is_open(need: Need) -> bool:
    low, _ = dims.bounds(need.room, {})
    return low is None or low < 0
