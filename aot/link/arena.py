"""Places a run's buffers in the arena when all sizes are known at compile time.

Owns the offline plan for buffers of known size; the runtime does the same at run time for the ones
whose size only the input shapes tell. Knows nothing of what a buffer is for: two that may share
memory ("tied") are one request of the caller's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import InternalError

ALIGNMENT = 64
NOTHING: Mapping[int, int] = MappingProxyType({})

# Up to the first number every strategy is tried; beyond it two; beyond the second one only where
# there are no more pairs of buffers that live at one position than this many a request, and else
# one that looks at no pairs. So the time is linear in the buffers but for sorting.
MAX_REQUESTS_FOR_ALL_ORDERS = 1500
MAX_REQUESTS_FOR_ALL_PAIRS = 4000
MAX_PAIRS_PER_REQUEST = 64


@dataclass(frozen=True)
class ArenaRequest:
    """A buffer of `size_bytes` that lives from position `first` to `last`, both included."""

    size_bytes: int
    first: int
    last: int
    alignment: int = ALIGNMENT


@dataclass(frozen=True)
class ArenaPlan:
    """The offsets of all requested buffers, and the size of the arena.

    Attributes:
        offsets: byte offset of each request, in the requests' order.
        total_bytes: where the furthest buffer ends.
        lower_bound_bytes: the largest sum of sizes that live at one position; no plan is smaller.
    """

    offsets: tuple[int, ...]
    total_bytes: int
    lower_bound_bytes: int


def plan(requests: Sequence[ArenaRequest], reserved: Mapping[int, int] = NOTHING) -> ArenaPlan:
    """Places the requests so that no two that live at one position overlap.

    At each position of `reserved` so many bytes from offset 0 on are somebody else's.

    Greedy: in each of a few orders, every request goes into the best (or the first) gap between
    those placed before it; the smallest arena wins, the earliest of equals. Deterministic.
    An empty request takes no memory and gets offset 0. Of very many that live at once, each goes
    into the best gap of those that are free when it is made.

    Raises:
        InternalError: a size is negative, a lifetime ends before it starts, or an alignment is not
            a power of two.
    """
    for number, request in enumerate(requests):
        _check(number, request)
    lower_bound = _lower_bound(requests)
    if _has_too_many_pairs(requests):
        return _swept(requests, lower_bound, max(reserved.values(), default=0))
    best: ArenaPlan | None = None
    for order, is_best_fit in _strategies(requests):
        offsets, total = _place(requests, reserved, order, is_best_fit)
        if best is None or total < best.total_bytes:
            best = ArenaPlan(tuple(offsets), total, lower_bound)
        if best.total_bytes == lower_bound:
            break
    assert best is not None
    return best


def _check(number: int, request: ArenaRequest) -> None:
    if request.size_bytes < 0:
        raise InternalError(f"arena request {number} has a size of {request.size_bytes} bytes")
    if request.last < request.first:
        raise InternalError(f"arena request {number} lives from {request.first} to {request.last}")
    if request.alignment < 1 or request.alignment & (request.alignment - 1):
        raise InternalError(
            f"arena request {number} has alignment {request.alignment}, not a power of two"
        )


def _lower_bound(requests: Sequence[ArenaRequest]) -> int:
    # Sizes come and go at lifetimes' ends; at one position what comes is counted before what goes.
    events = sorted(
        [(r.first, 0, r.size_bytes) for r in requests]
        + [(r.last, 1, -r.size_bytes) for r in requests]
    )
    live = most = 0
    for _, _, change in events:
        live += change
        most = max(most, live)
    return most


_ORDERS: tuple[Callable[[ArenaRequest], tuple[int, ...]], ...] = (
    lambda r: (-r.size_bytes, r.first - r.last, r.first),  # large first, then long-lived
    lambda r: (-r.size_bytes * (r.last - r.first + 1), -r.size_bytes),  # by area
    lambda r: (r.first - r.last, -r.size_bytes),  # long-lived first
    lambda r: (r.first, -r.size_bytes),  # as a run meets them
    lambda r: (-r.last, -r.size_bytes),  # as a run meets them, backwards
)


def _has_too_many_pairs(requests: Sequence[ArenaRequest]) -> bool:
    """Whether so many pairs of requests overlap in time that comparing each pair would be too
    slow."""
    count = len(requests)
    if count <= MAX_REQUESTS_FOR_ALL_PAIRS:
        return False
    ends = np.sort(np.array([r.last for r in requests], np.int64))
    starts = np.array([r.first for r in requests], np.int64)
    apart = int(np.searchsorted(ends, starts, side="left").sum())
    return count * (count - 1) // 2 - apart > MAX_PAIRS_PER_REQUEST * count


def _strategies(requests: Sequence[ArenaRequest]) -> list[tuple[list[int], bool]]:
    numbers = [n for n, r in enumerate(requests) if r.size_bytes > 0]
    orders = _ORDERS if len(numbers) <= MAX_REQUESTS_FOR_ALL_ORDERS else _ORDERS[:1]
    return [
        (sorted(numbers, key=lambda n: (*key(requests[n]), n)), is_best_fit)
        for key in orders
        for is_best_fit in (True, False)
    ]


class _Placed:
    """Placed requests, searched by lifetime. Many requests are kept in grids of positions, each
    eight times as coarse as the one before, and a request is entered in the few cells that it
    covers in the grid of its lifetime's width. Few requests are scanned, which is faster.
    """

    NARROWEST_BITS = 4
    STEP_BITS = 3

    def __init__(self, count: int) -> None:
        self._rows: np.ndarray[Any, Any] = np.zeros((count, 4), np.int64)  # start, end, first, last
        self._count = 0
        self._has_grids = count > MAX_REQUESTS_FOR_ALL_PAIRS
        self._grids: dict[int, dict[int, list[int]]] = {}

    def add(self, start: int, request: ArenaRequest) -> None:
        row = self._count
        self._rows[row] = (start, start + request.size_bytes, request.first, request.last)
        self._count += 1
        if not self._has_grids:
            return
        bits = self.NARROWEST_BITS
        while (request.last - request.first) >> bits >= 1 << self.STEP_BITS:
            bits += self.STEP_BITS
        grid = self._grids.setdefault(bits, {})
        for cell in range(request.first >> bits, (request.last >> bits) + 1):
            grid.setdefault(cell, []).append(row)

    def live(self, request: ArenaRequest) -> np.ndarray[Any, Any]:
        """Rows of placed requests, by start: those with a lifetime that overlaps the one of
        `request`.
        """
        rows = self._rows[self._near(request) if self._has_grids else slice(self._count)]
        rows = rows[(rows[:, 2] <= request.last) & (rows[:, 3] >= request.first)]
        ordered: np.ndarray[Any, Any] = rows[np.argsort(rows[:, 0], kind="stable")]
        return ordered

    def _near(self, request: ArenaRequest) -> list[int]:
        found: dict[int, None] = {}
        for bits, grid in self._grids.items():
            for cell in range(request.first >> bits, (request.last >> bits) + 1):
                found.update(dict.fromkeys(grid.get(cell, ())))
        return list(found)


def _place(
    requests: Sequence[ArenaRequest],
    reserved: Mapping[int, int],
    order: Sequence[int],
    is_best_fit: bool,
) -> tuple[list[int], int]:
    offsets = [0] * len(requests)
    placed = _Placed(len(requests) + len(reserved))
    for position, size in reserved.items():
        placed.add(0, ArenaRequest(size, position, position))
    total = max(reserved.values(), default=0)
    for number in order:
        request = requests[number]
        start = _find_gap(placed.live(request), request, is_best_fit)
        placed.add(start, request)
        offsets[number] = start
        total = max(total, start + request.size_bytes)
    return offsets, total


def _find_gap(live: np.ndarray[Any, Any], request: ArenaRequest, is_best_fit: bool) -> int:
    """The start for `request` among `live` rows, which are sorted by start and may overlap."""
    mask = request.alignment - 1
    reach = np.maximum.accumulate(live[:, 1]) if len(live) else live[:, 1]
    starts = (np.concatenate(([0], reach)) + mask) & ~mask
    room = live[:, 0] - starts[:-1]
    fits = np.flatnonzero(room >= request.size_bytes)
    if len(fits) == 0:
        return int(starts[-1])
    return int(starts[fits[np.argmin(room[fits])] if is_best_fit else fits[0]])


@dataclass
class _FreeList:
    """Free bytes below `top`, as gaps that don't touch each other."""

    top: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)  # (size, start), sorted
    by_start: dict[int, int] = field(default_factory=dict)
    by_end: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> int:
        """The start of `size` bytes: from the smallest gap that has them, else at the top."""
        at = bisect_left(self.by_size, (size, 0))
        if at < len(self.by_size):
            found, start = self.by_size[at]
            self._remove(start, start + found)
            if found > size:
                self._insert(start + size, start + found)
            return start
        start = self.by_end.get(self.top, self.top)
        if start < self.top:
            self._remove(start, self.top)
        self.top = start + size
        return start

    def give(self, start: int, end: int) -> None:
        below, above = self.by_end.get(start, start), self.by_start.get(end, end)
        if below < start:
            self._remove(below, start)
        if above > end:
            self._remove(end, above)
        self._insert(below, above)

    def _insert(self, start: int, end: int) -> None:
        insort(self.by_size, (end - start, start))
        self.by_start[start], self.by_end[end] = end, start

    def _remove(self, start: int, end: int) -> None:
        del self.by_size[bisect_left(self.by_size, (end - start, start))]
        del self.by_start[start], self.by_end[end]


def _swept(requests: Sequence[ArenaRequest], lower_bound: int, begin: int) -> ArenaPlan:
    """A plan made by a sweep over the positions of a run; sizes are rounded up to the largest
    alignment, and placement begins at offset `begin`."""
    unit = max(r.alignment for r in requests)
    offsets = [0] * len(requests)
    free = _FreeList(-(-begin // unit) * unit)
    living: list[tuple[int, int, int]] = []  # (last, start, end)
    total = begin
    numbers = [n for n, r in enumerate(requests) if r.size_bytes > 0]
    for number in sorted(numbers, key=lambda n: (requests[n].first, -requests[n].size_bytes, n)):
        request = requests[number]
        while living and living[0][0] < request.first:
            _, start, end = heapq.heappop(living)
            free.give(start, end)
        size = -(-request.size_bytes // unit) * unit
        offsets[number] = start = free.take(size)
        heapq.heappush(living, (request.last, start, start + size))
        total = max(total, start + request.size_bytes)
    return ArenaPlan(tuple(offsets), total, lower_bound)
