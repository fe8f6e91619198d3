"""Determines which dispatches of a GPU's program may run at the same time.

Dispatches that follow each other form a group as long as each touches nothing that another one of
the group writes, nor writes what another one reads: not the values alone but the bytes, for memory
of the arena is used again. Owns that comparison; where values are is the program's. What is not
known to be apart is taken to meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Union

from aot.analysis.memory.storage import ARENA, OUTPUTS, BufferAssignment, BufferSlice
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Op
from aot.ir.types import TensorType
from aot.link.lifetimes import Buffer

WORD_BYTES = 4  # what shaders read and write: elements of less share theirs
MOST_IN_GROUP = 32  # each is compared with all others

# A buffer of the arena, the number of an output, or STATES.
Memory = Union[Buffer, int, str]
STATES = "states"  # what a program keeps, at the arena's start


@dataclass(frozen=True)
class Touch:
    """A dispatch's access to a value.

    Attributes:
        memory: what it is part of, None where that is not known. Two outputs are apart, and so are
            buffers that live at the same time.
        start: its first byte in the arena, None where only a run knows it.
    """

    buffer_slice: BufferSlice
    type: TensorType
    is_written: bool
    memory: Memory | None
    start: int | None


@dataclass
class Overlaps:
    """The current group of dispatches that may run at the same time.

    Attributes:
        assignment: of the function's values.
        memory_of: the memory that a buffer_slice is in, if it is one that is known.
        start_of: where a buffer_slice begins in its class, if that is known.
    """

    assignment: BufferAssignment
    memory_of: Callable[[BufferSlice], Memory | None]
    start_of: Callable[[BufferSlice], int | None]
    _group: list[list[Touch]] = field(default_factory=list)

    def clear(self) -> None:
        """Begins a new group with the next dispatch."""
        self._group.clear()

    def joins(self, op: Op) -> bool:
        """Whether the next dispatch may run beside all of the group. If so it is added to the
        group, else it begins a new one.
        """
        touched = list(self._touched(op))
        is_free = 0 < len(self._group) < MOST_IN_GROUP and not any(
            meet(a, b) for others in self._group for a in others for b in touched
        )
        if not is_free:
            self._group.clear()
        self._group.append(touched)
        return is_free

    def _touched(self, op: Op) -> Iterator[Touch]:
        read = [(value, False) for value in op.operands if value is not None]
        for value, is_written in [*read, *((value, True) for value in op.results)]:
            buffer_slice = self.assignment.of(value)
            if buffer_slice.binding in (ARENA, OUTPUTS):  # nothing writes the others
                start = self.start_of(buffer_slice) if buffer_slice.binding == ARENA else None
                memory = self.memory_of(buffer_slice)
                yield Touch(buffer_slice, value.type, is_written, memory, start)


def meet(a: Touch, b: Touch) -> bool:
    """Whether two dispatches must keep their order because of these two accesses."""
    if not (a.is_written or b.is_written) or a.buffer_slice.binding != b.buffer_slice.binding:
        return False
    if a.buffer_slice.root is b.buffer_slice.root and _begins_in_a_word(a, b):
        parts = [(touch.buffer_slice.offset_bytes, touch.type) for touch in (a, b)]
        if are_apart(*parts):
            return False
    if a.start is not None and b.start is not None:
        return not _is_before((a.start, a.type), (b.start, b.type)) and not _is_before(
            (b.start, b.type), (a.start, a.type)
        )
    if a.memory is None or b.memory is None or a.memory == b.memory:
        return True
    if isinstance(a.memory, Buffer) and isinstance(b.memory, Buffer):
        return a.memory.last < b.memory.first or b.memory.last < a.memory.first
    return False


def _begins_in_a_word(a: Touch, b: Touch) -> bool:
    """Whether the memory of both accesses begins at a whole word; only rows that a loop stacks may
    not."""
    is_known = a.memory is not None or a.start is not None
    return is_known or min(a.type.dtype.bytes, b.type.dtype.bytes) >= WORD_BYTES


Part = tuple[Dim, TensorType]  # of some memory: where it begins, in bytes, and what it is


def are_apart(a: Part, b: Part) -> bool:
    """Whether two parts of one memory, which begins at a whole word, provably share no word.

    One ends before the other begins; or within each period, such as the bytes of all channels of a
    position, both keep to places of their own.
    """
    if _is_before(a, b) or _is_before(b, a):
        return True
    strides = {s for _, type in (a, b) for s, _ in _steps(type)}
    return any(_are_interleaved(a, b, s) for s in strides if isinstance(s, int) and s > 0)


def _is_before(a: Part, b: Part) -> bool:
    """Whether the first part ends before the word in which the second begins."""
    (a_start, a_type), (b_start, _) = a, b
    gap = dims.add(b_start, dims.multiply(dims.add(a_start, a_type.bytes), -1))
    least, _ = dims.bounds(gap, dims.NO_BOUNDS)
    into_word = dims.modulo(b_start, WORD_BYTES)
    needed = into_word if isinstance(into_word, int) else WORD_BYTES - 1
    return least is not None and least >= needed


def _steps(type: TensorType) -> Sequence[tuple[Dim, Dim]]:
    """(stride in bytes, extent) of each physical dim."""
    splits = (type.layout.splits if type.layout else ()) or ()
    extents = list(type.dims)
    for dim, factor in splits:
        extents[dim] = dims.ceil_divide(extents[dim], factor)
        extents.append(factor)
    size = type.dtype.bytes
    return [
        (dims.multiply(stride, size), extent)
        for stride, extent in zip(type.physical_strides, extents, strict=True)
        if extent != 1
    ]


def _are_interleaved(a: Part, b: Part, period: int) -> bool:
    """Whether the two parts use disjoint words within each period."""
    if period % WORD_BYTES:
        return False
    first, second = _within(a, period), _within(b, period)
    if first is None or second is None:
        return False
    return first[1] <= second[0] or second[1] <= first[0]


def _within(part: Part, period: int) -> tuple[int, int] | None:
    """The range of words in each period that contains all elements of a part; None if there is no
    such range.
    """
    start, type = part
    begin = dims.modulo(start, period)
    if isinstance(begin, DimExpr):
        return None
    end = begin + type.dtype.bytes
    for step, extent in _steps(type):
        if dims.modulo(step, period) == 0:
            continue
        if not isinstance(step, int) or not isinstance(extent, int) or step < 0:
            return None
        end += max(extent - 1, 0) * step
    if end > period:
        return None
    return begin // WORD_BYTES, -(-end // WORD_BYTES)
