"""Where the buffers of one run lie in the arena.

Owns the offline plan for buffers of known size; the runtime does the same at run time for the ones
whose size only the input shapes tell. Knows nothing of what a buffer is for: two that may share
memory ("tied") are one request of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.errors import InternalError

MAX_REQUESTS_FOR_ALL_ORDERS = 1500


@dataclass(frozen=True)
class ArenaRequest:
    """A buffer of `size_bytes` that lives from position `first` to `last`, both included."""

    size_bytes: int
    first: int
    last: int
    alignment: int = 64


@dataclass(frozen=True)
class ArenaPlan:
    """The answer to a list of requests.

    Attributes:
        offsets: byte offset of each request, in the requests' order.
        total_bytes: where the furthest buffer ends.
        lower_bound_bytes: the largest sum of sizes that live at one position; no plan is smaller.
    """

    offsets: tuple[int, ...]
    total_bytes: int
    lower_bound_bytes: int


def plan(requests: Sequence[ArenaRequest]) -> ArenaPlan:
    """Places the requests so that no two that live at one position overlap.

    Greedy: in each of a few orders, every request goes into the best (or the first) gap between
    those placed before it; the smallest arena wins, the earliest of equals. Deterministic.
    An empty request takes no memory and gets offset 0.

    Raises:
        InternalError: a size is negative, a lifetime ends before it starts, or an alignment is not
            a power of two.
    """
    for number, request in enumerate(requests):
        _check(number, request)
    lower_bound = _lower_bound(requests)
    best: ArenaPlan | None = None
    for order, is_best_fit in _strategies(requests):
        offsets, total = _place(requests, order, is_best_fit)
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


def _strategies(requests: Sequence[ArenaRequest]) -> list[tuple[list[int], bool]]:
    numbers = [n for n, r in enumerate(requests) if r.size_bytes > 0]
    orders = _ORDERS if len(numbers) <= MAX_REQUESTS_FOR_ALL_ORDERS else _ORDERS[:1]
    return [
        (sorted(numbers, key=lambda n: (*key(requests[n]), n)), is_best_fit)
        for key in orders
        for is_best_fit in (True, False)
    ]


def _place(
    requests: Sequence[ArenaRequest], order: Sequence[int], is_best_fit: bool
) -> tuple[list[int], int]:
    offsets = [0] * len(requests)
    placed: np.ndarray[Any, Any] = np.zeros((len(order), 4), np.int64)  # start, end, first, last
    total = 0
    for count, number in enumerate(order):
        request = requests[number]
        rows = placed[:count]
        live = rows[(rows[:, 2] <= request.last) & (rows[:, 3] >= request.first)]
        start = _find_gap(live, request, is_best_fit)
        end = start + request.size_bytes
        # Rows stay sorted by start, so that gaps come in address order.
        at = int(np.searchsorted(rows[:, 0], start, side="right"))
        placed[at + 1 : count + 1] = placed[at:count].copy()
        placed[at] = (start, end, request.first, request.last)
        offsets[number] = start
        total = max(total, end)
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
