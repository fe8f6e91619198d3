"""The alignment of executables' operands and results, over all their dispatches.

What a GPU may load and store as vectors. Looks at a module whose functions are outlined, and says
nothing of memory whose place only a run knows: states, what branches yield, rows of loops. Changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot.analysis.control import control_ops
from aot.analysis.dispatches import executable_of, is_dispatch
from aot.analysis.memory.storage import BufferAssignment, BufferSlice
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim, modulo
from aot.ir.graph import Module, Op, Value
from aot.ops.selection import CONCAT_ALIAS

# buffers of the arena, constants, inputs and outputs begin at multiples of at least so many bytes
ROOT_BYTES = 16


def buffer_alignments(module: Module) -> dict[str, tuple[int, ...]]:
    """The alignment of each operand, then each result, of each dispatched executable: the largest
    power of two, up to ROOT_BYTES, that divides its byte offset in every dispatch.

    It is 1 for an operand whose memory a result takes over.
    """
    found: dict[str, list[int]] = {}
    for function in module.entry_points:
        assignment = BufferAssignment(function)
        for op in control_ops(function):
            if is_dispatch(op):
                here = [_alignment(assignment, v) for v in op.operands if v is not None]
                for operand in _taken_over(op):
                    here[operand] = 1
                here += [_alignment(assignment, v) for v in op.results]
                known = found.setdefault(executable_of(op), here)
                known[:] = map(min, known, here)
    return {name: tuple(alignments) for name, alignments in found.items()}


def _alignment(assignment: BufferAssignment, value: Value) -> int:
    buffer_slice = assignment.of(value)
    element = math.gcd(value.type.dtype.bytes, ROOT_BYTES)
    if not _begins_buffer(assignment, buffer_slice):
        return element
    return max(element, _power_in(buffer_slice.offset_bytes))


def _begins_buffer(assignment: BufferAssignment, buffer_slice: BufferSlice) -> bool:
    """Whether the root of a buffer slice has a buffer of its own, placed by the linker or the
    runtime."""
    root = buffer_slice.root
    if root in assignment.rows or root in assignment.nexts:
        return False
    if not isinstance(root.owner, Op):
        return root.owner is assignment.function.block
    return is_dispatch(root.owner) or root.owner.record in (CONCAT_ALIAS, CONSTANT)


def _power_in(offset: Dim) -> int:
    """The largest power of two, up to ROOT_BYTES, that divides `offset` for all values of its
    symbols."""
    power = ROOT_BYTES
    while power > 1 and modulo(offset, power) != 0:
        power //= 2
    return power


def _taken_over(op: Op) -> Sequence[int]:
    """Numbers of the operands whose memory a dispatch's results reuse."""
    ties = op.attrs.get("ties", ())
    assert isinstance(ties, tuple)
    return [t for t in ties if isinstance(t, int) and t >= 0]
