"""Tracks which regions of the arena are live while the position in a program advances."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from aot.base.records import dataclass
from aot.errors import InternalError


@dataclass(frozen=True)
class Region:
    """The bytes of one buffer in the arena, live from position `first` to `last`, both included."""

    offset: int
    size_bytes: int
    first: int
    last: int


class Alive:
    """The regions that are live at the current position, which must not overlap."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.position = -1
        self._all = sorted((r for r in regions if r.size_bytes), key=lambda r: r.offset)
        self._waiting = sorted(self._all, key=lambda r: -r.first)
        self._living: list[tuple[int, int, Region]] = []  # by offset
        self._ends: list[tuple[int, int, int]] = []  # (last, offset, size), a heap

    def go_to(self, position: int) -> None:
        """Advances to a position of the program, and checks that the regions live there are
        disjoint.

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
        """A live region that contains one of `size` bytes at `offset`; None if there is none."""
        at = bisect_right(self._living, offset + size - 1, key=lambda e: e[0])
        found = self._living[at - 1][2] if at else None
        return found if found is not None and found.offset + found.size_bytes > offset else None

    def at(self, offset: int) -> Iterator[Region]:
        """The last region that begins at or before an offset, and the next one."""
        at = bisect_right(self._living, offset, key=lambda e: e[0])
        yield from (region for _, _, region in self._living[max(at - 1, 0) : at + 1])

    def ever(self, first: int, last: int) -> Iterator[Region]:
        """Regions that are live at some position from `first` to `last`."""
        yield from (r for r in self._all if r.first <= last and first <= r.last)
