"""The sizes of a variant's buffer classes, by which a GPU binds them as one buffer each or operand
by operand.

Upper bounds for all shapes; a class without one is left out. Places nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aot.analysis.control import control_ops
from aot.analysis.dispatches import is_dispatch
from aot.analysis.memory.storage import ARENA, CONSTANTS, INPUTS, OUTPUTS, BufferAssignment
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.bounds import bounds_of
from aot.ir.dims import Interval
from aot.ir.graph import Function, Value
from aot.link.emit_program import EmittedProgram
from aot.link.rodata import ALIGNMENT, RodataPool


@dataclass(frozen=True)
class ClassSize:
    """Upper bounds in bytes: of a buffer class, and of its largest operand in any dispatch."""

    total: int
    largest: int


def class_sizes(
    functions: Sequence[Function], programs: Sequence[EmittedProgram], rodata: RodataPool
) -> dict[int, ClassSize]:
    """The size of each buffer class, by its number, over all entry points."""
    totals: dict[int, list[int | None]] = {
        CONSTANTS: [rodata.total_bytes],
        ARENA: [_arena_bytes(p) for p in programs],
        INPUTS: [_together(f, f.inputs) for f in functions],
        OUTPUTS: [_together(f, f.results) for f in functions],
    }
    largest: dict[int, list[int | None]] = {number: [0] for number in totals}
    for function in functions:
        for number, size in _operands(function):
            largest[number].append(size)
    found = {}
    for number, sizes in totals.items():
        known = [s for s in (*sizes, *largest[number]) if s is not None]
        if len(known) == len(sizes) + len(largest[number]):
            most = max(s for s in largest[number] if s is not None)
            found[number] = ClassSize(max(known[: len(sizes)], default=0), most)
    return found


def _arena_bytes(program: EmittedProgram) -> int | None:
    """The most that an arena takes; None where shapes don't bound it."""
    is_open = program.entry_point.program.buffers and not program.arena_bytes
    return None if is_open else max(program.arena_bytes, program.entry_point.program.arena_bytes)


def _most(value: Value, known: Mapping[str, Interval]) -> int | None:
    return dims.bounds(value.type.bytes, known)[1]


def _together(function: Function, values: Sequence[Value]) -> int | None:
    """Bytes of values side by side in a buffer."""
    total, known = 0, bounds_of(function.assumptions)
    for value in values:
        size = _most(value, known)
        if size is None:
            return None
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return total


def _operands(function: Function) -> Iterator[tuple[int, int | None]]:
    """(class, bytes at most) of the memory that each operand or result of a dispatch is in."""
    assignment, known = BufferAssignment(function), bounds_of(function.assumptions)
    sizes: dict[Value, int | None] = {}
    for op in control_ops(function):
        for value in (*op.operands, *op.results) if is_dispatch(op) else ():
            if value is None:
                continue
            place = assignment.of(value)
            if place.root not in sizes:
                sizes[place.root] = _most(place.root, known)
            yield place.binding, sizes[place.root]
