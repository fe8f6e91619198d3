"""Copies between the memory of a GPU and that of its host: which bytes are copied, and when.

A value that the host made is handed to the GPU before something there touches its memory, and none
is handed over that the other one has. What is known holds for a stretch of a control block: at the
borders of control flow all that is still needed is the GPU's. Only memory that no other value
shares at the time is followed; any other is handed over around each dispatch that the host runs.
Owns these decisions; where values are is the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Union

from aot.analysis.memory.storage import ARENA, OUTPUTS, BufferAssignment, BufferSlice
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Op, Value
from aot.ir.types import TensorType
from aot.link.lifetimes import Buffer
from aot.link.states import is_contiguous

Memory = Union[Buffer, int]  # of the arena's buffers, or the number of an output


@dataclass(frozen=True)
class Span:
    """A range of bytes in one buffer of the program, its start and size in registers."""

    binding: int
    start: int
    size: int


@dataclass
class HostCopies:
    """Emits copies between a GPU's memory and the host's, only where the other side's copy is
    stale.

    Attributes:
        assignment: buffers of the function's values.
        memory_of: the memory that a buffer_slice is in, if it can be tracked.
        start_of, size_of: registers of the start of a buffer_slice, and of a number of bytes.
        emit: adds an instruction to the execute part.
    """

    assignment: BufferAssignment
    memory_of: Callable[[BufferSlice], Memory | None]
    start_of: Callable[[BufferSlice], int]
    size_of: Callable[[Dim], int]
    emit: Callable[..., None]
    # spans that the host has as they are; whether the GPU doesn't
    _held: dict[Hashable, dict[Span, bool]] = field(default_factory=dict)

    def before_host(self, op: Op, position: int) -> None:
        """Emits copies to the host before a dispatch on the host: of its operands, and of results
        whose elements have gaps between them.
        """
        self._forget(position)
        spaced = [v for v in op.results if not is_contiguous(v.type)]
        for value in (*(v for v in op.operands if v is not None), *spaced):
            self._fetch(value)

    def after_host(self, op: Op) -> None:
        """Records that an op on the host wrote its results; emits the copies to the GPU that cannot
        be put off."""
        for value in op.results:
            buffer_slice = self.assignment.of(value)
            memory, span = self.memory_of(buffer_slice), self._span(buffer_slice, value.type)
            if memory is None:
                self.emit("TO_DEVICE", span.binding, span.start, span.size)
                continue
            known = self._held.setdefault(memory, {})
            for other, is_dirty in known.items():
                if is_dirty and other != span:
                    self.emit("TO_DEVICE", other.binding, other.start, other.size)
            self._held[memory] = {span: True}

    def before_device(self, op: Op, position: int) -> None:
        """Emits the copies before a dispatch that the GPU runs."""
        self._forget(position)
        for value in op.operands:
            if value is not None:
                self.device_reads(value)
        for value in op.results:
            self.device_writes(value)

    def device_reads(self, value: Value) -> None:
        """Emits the copy to the GPU that a read of a value needs, by the GPU or the program."""
        memory = self.memory_of(self.assignment.of(value))
        if memory is not None:
            self._send(memory)

    def device_writes(self, value: Value) -> None:
        """Emits the copy to the GPU that must precede a write of a value, by the GPU or the
        program."""
        memory = self.memory_of(self.assignment.of(value))
        if memory is not None:
            self._send(memory)
            self._held.pop(memory, None)

    def border(self, position: int) -> None:
        """Emits copies to the GPU of all live values that only the host has; called where control
        flow branches or joins.
        """
        self._forget(position)
        for memory in self._held:
            self._send(memory)
        self._held.clear()

    def _forget(self, position: int) -> None:
        """Stops tracking buffers that are dead at `position`, whose memory others may use."""
        for memory in list(self._held):
            if isinstance(memory, Buffer) and memory.last < position:
                del self._held[memory]

    def _fetch(self, value: Value) -> None:
        buffer_slice = self.assignment.of(value)
        if buffer_slice.binding not in (ARENA, OUTPUTS):
            return  # the host has inputs and constants, and nothing writes them
        memory, span = self.memory_of(buffer_slice), self._span(buffer_slice, value.type)
        if memory is not None:
            if span in self._held.get(memory, {}):
                return
            self._send(memory)
            self._held.setdefault(memory, {})[span] = False
        self.emit("TO_HOST", span.binding, span.start, span.size)

    def _send(self, memory: Hashable) -> None:
        for span, is_dirty in self._held.get(memory, {}).items():
            if is_dirty:
                self.emit("TO_DEVICE", span.binding, span.start, span.size)
                self._held[memory][span] = False

    def _span(self, buffer_slice: BufferSlice, type: TensorType) -> Span:
        size = type.bytes
        if not isinstance(size, int):
            size = dims.maximum(size, 0)  # what has gaps is less than nothing without elements
        return Span(buffer_slice.binding, self.start_of(buffer_slice), self.size_of(size))
