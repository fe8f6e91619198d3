"""Counts the cache lines that a kernel's loads and stores touch, and the misses they cause.

A loop whose turn touches no more than a level of cache holds finds there in a turn what the one
before has left, where addresses are not so far apart that few of their lines stay. Owns this model
alone: two levels, as targets have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from aot.base.records import dataclass
from aot.ir.expr import Expr, Var
from aot.kernels.ir.nodes import Buffer, Scratch
from aot.kernels.price.indices import Indices
from aot.target.model import CACHE_LINE, CACHE_WAYS, WAY_BYTES, Target


@dataclass
class Stream:
    """The cache lines that a load or store touches over all iterations of the loops already closed.

    Attributes:
        memory, indices: what is accessed.
        lanes: the vector loop that it is in, whose lanes are one access.
        steps: bytes between turns, and turns, of each loop that moves it.
        weight: how often it is reached, of the turns of the loop it stands in.
        lines: that are touched.
        near, far: of them, how many come from the second level of cache, and from beyond.
        collides: whether few of them stay in a cache.
    """

    memory: Buffer | Scratch
    indices: Sequence[Expr]
    lanes: Var | None
    weight: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    lines: float = 1.0
    near: float = 0.0
    far: float = 0.0
    collides: bool = False

    def move(self, by: float, turns: int) -> None:
        """Adds a loop of `turns` iterations, each of which moves the accesses by `by` bytes."""
        self.steps.append((by, turns))
        span, self.lines = float(self.memory.dtype.bytes), 1.0
        for step, count in sorted(self.steps):
            if step <= max(span, CACHE_LINE):
                span += step * (count - 1)
                self.lines = max(self.lines, span / CACHE_LINE)
            else:
                self.lines *= count


class Lines:
    """Counts the cache lines that loops touch on a target."""

    def __init__(self, target: Target, indices: Indices) -> None:
        self.target, self.indices = target, indices

    def access(
        self, memory: Buffer | Scratch, indices: Sequence[Expr], lanes: Var | None, weight: float
    ) -> Stream:
        """A load or store that is reached `weight` times per iteration."""
        made = Stream(memory, indices, lanes, weight)
        if lanes is not None and (by := self._bytes(made, lanes)):
            made.move(by, self.indices.extents[lanes])
        made.near = made.far = weight * made.lines
        return made

    def repeat(self, streams: Sequence[Stream], var: Var) -> None:
        """Extends the memory that one iteration of a loop touches to what all its
        iterations touch.
        """
        size = self._touched(streams) * CACHE_LINE
        is_near, is_far = size <= self.target.l1_bytes, size > self.target.l2_bytes
        turns = self.indices.extents[var]
        for stream in streams:
            if stream.lanes is var:
                continue
            if by := self._bytes(stream, var):
                stream.move(by, turns)
            all_lines = stream.lines * stream.weight
            stream.near = all_lines if is_near and not stream.collides else stream.near * turns
            stream.far = all_lines if not is_far and not stream.collides else stream.far * turns
            stream.collides |= by >= WAY_BYTES and by % WAY_BYTES == 0 and turns > CACHE_WAYS

    def misses(self, streams: Sequence[Stream]) -> tuple[float, float]:
        """(misses served by the second-level cache, misses served from beyond it). Memory that fits
        a cache is counted once at most, as it may be cached already."""
        lines = self._touched(streams)
        free = [lines * CACHE_LINE <= n for n in (self.target.l1_bytes, self.target.l2_bytes)]
        near, far = sum(s.near for s in streams), sum(s.far for s in streams)
        return max(near - free[0] * lines, 0.0), max(far - free[1] * lines, 0.0)

    def _bytes(self, stream: Stream, var: Var) -> float:
        """The bytes between the addresses of two iterations; a cache line where addresses depend on
        data.
        """
        step = self.indices.address_step(stream.memory, stream.indices, var)
        return CACHE_LINE if step is None else abs(step) * stream.memory.dtype.bytes

    def _touched(self, streams: Sequence[Stream]) -> float:
        """The number of cache lines of all streams together, limited to each buffer's size."""
        lines: dict[Buffer | Scratch, float] = {}
        for stream in streams:
            lines[stream.memory] = lines.get(stream.memory, 0.0) + stream.lines * stream.weight
        for memory, touched in lines.items():
            size = memory.dtype.bytes
            for extent in memory.shape:
                size *= self.indices.number(extent)
            most = max(1.0, size / CACHE_LINE)
            if touched > most:
                lines[memory] = most
                for stream in streams:
                    stream.lines *= most / touched if stream.memory is memory else 1.0
        return sum(lines.values())
