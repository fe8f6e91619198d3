"""Which regions of the arena live at one position of a program after another."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from aot.base.records import dataclass
from aot.errors import InternalError


@dataclass(frozen=True)
class Region:
    """Bytes of the arena that one buffer has from position `first` to `last`, both included."""

    offset: int
    size_bytes: int
    first: int
    last: int


class Alive:
    """Regions that live at one position after another, which share no byte."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.position = -1
        self._all = sorted((r for r in regions if r.size_bytes), key=lambda r: r.offset)
        self._waiting = sorted(self._all, key=lambda r: -r.first)
        self._living: list[tuple[int, int, Region]] = []  # by offset
        self._ends: list[tuple[int, int, int]] = []  # (last, offset, size), a heap

    def go_to(self, position: int) -> None:
        """Advances to a position of the program, and checks the regions that live there.

        Raises:
            InternalError: two of them share bytes.
        """
        self.position = position
        while self._ends and self._ends[0][0] < position:
            _, offset, _ = heapq.heappop(self._ends)
            del self._living[bisect_right(self._living, (offset, -1))]
        while self._waiting and self._waiting[-1].first <= position:
            region = self._waiting.pop()
            if region.last < position:
                continue
            other = self.met(region.offset, region.size_bytes)
            if other is not None:
                raise InternalError(f"{region} and {other} share bytes at position {position}")
            insort(self._living, (region.offset, region.size_bytes, region), key=lambda e: e[:2])
            heapq.heappush(self._ends, (region.last, region.offset, region.size_bytes))

    def met(self, offset: int, size: int) -> Region | None:
        """A live region that contains one of these bytes; None if there is none."""
        at = bisect_right(self._living, offset + size - 1, key=lambda e: e[0])
        found = self._living[at - 1][2] if at else None
        return found if found is not None and found.offset + found.size_bytes > offset else None

    def at(self, offset: int) -> Iterator[Region]:
        """The region that begins at an offset or before it, and the next one."""
        at = bisect_right(self._living, offset, key=lambda e: e[0])
        yield from (region for _, _, region in self._living[max(at - 1, 0) : at + 1])

    def ever(self, first: int, last: int) -> Iterator[Region]:
        """Regions that live at a position from `first` to `last`."""
        yield from (r for r in self._all if r.first <= last and first <= r.last)
