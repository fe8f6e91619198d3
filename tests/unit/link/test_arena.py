"""The arena plan: nothing alive overlaps, alignment holds, small cases come out exactly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import InternalError
from aot.link import arena
from aot.link.arena import ArenaRequest, plan
from tests.support.scaling import lines_run


def _overlaps(a0: int, a1: int, b0: int, b1: int) -> bool:
    return a0 < b1 and b0 < a1


def _live_bytes(requests: list[ArenaRequest]) -> int:
    positions = {r.first for r in requests}
    return max(
        (sum(r.size_bytes for r in requests if r.first <= p <= r.last) for p in positions),
        default=0,
    )


@st.composite
def _requests(draw: st.DrawFn) -> list[ArenaRequest]:
    made = []
    for _ in range(draw(st.integers(0, 16))):
        first = draw(st.integers(0, 12))
        size = draw(st.integers(0, 5000))
        alignment = draw(st.sampled_from([1, 4, 64, 256]))
        made.append(ArenaRequest(size, first, first + draw(st.integers(0, 6)), alignment))
    return made


@given(_requests(), st.sampled_from(["few", "many", "crowded"]))
@settings(max_examples=300, deadline=None)
def test_live_buffers_never_overlap(requests: list[ArenaRequest], how_many: str) -> None:
    limits = {"few": (1500, 4000, 64), "many": (0, 0, 1 << 20), "crowded": (0, 0, 0)}[how_many]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "MAX_REQUESTS_FOR_ALL_ORDERS", limits[0])
        patch.setattr(arena, "MAX_REQUESTS_FOR_ALL_PAIRS", limits[1])
        patch.setattr(arena, "MAX_PAIRS_PER_REQUEST", limits[2])
        _check_plan(requests)


def _check_plan(requests: list[ArenaRequest]) -> None:
    result = plan(requests)
    assert len(result.offsets) == len(requests)
    for i, (a, at) in enumerate(zip(requests, result.offsets, strict=True)):
        assert at >= 0
        assert at % a.alignment == 0
        assert at + a.size_bytes <= result.total_bytes
        for b, bt in list(zip(requests, result.offsets, strict=True))[:i]:
            if a.first <= b.last and b.first <= a.last and a.size_bytes and b.size_bytes:
                assert not _overlaps(at, at + a.size_bytes, bt, bt + b.size_bytes)
    assert result.lower_bound_bytes == _live_bytes(requests)
    assert result.lower_bound_bytes <= result.total_bytes
    assert plan(requests) == result


def test_a_chain_takes_the_two_largest_neighbours() -> None:
    #  position   0    1    2    3
    #  a (640)    ====
    #  b (1280)   =========
    #  c (320)         =========
    #  d (640)              ====
    sizes = [(640, 0, 0), (1280, 0, 1), (320, 1, 2), (640, 2, 3)]
    result = plan([ArenaRequest(*s) for s in sizes])
    assert result.total_bytes == result.lower_bound_bytes == 1280 + 640
    assert result.offsets == (1280, 0, 1280, 0)


def test_lifetimes_include_both_ends() -> None:
    touching = plan([ArenaRequest(64, 0, 1), ArenaRequest(64, 1, 2)])
    apart = plan([ArenaRequest(64, 0, 1), ArenaRequest(64, 2, 3)])
    assert (touching.total_bytes, apart.total_bytes) == (128, 64)


def test_the_smallest_gap_that_fits_is_taken() -> None:
    requests = [
        ArenaRequest(1024, 0, 9),
        ArenaRequest(512, 0, 0),  # leaves a gap of 512 at position 5
        ArenaRequest(256, 0, 9),
        ArenaRequest(128, 0, 0),  # leaves a gap of 128
        ArenaRequest(64, 0, 9),
        ArenaRequest(100, 5, 5),
    ]
    assert plan(requests).total_bytes == 1024 + 512 + 256 + 128 + 64


def test_nothing_takes_nothing() -> None:
    assert plan([]) == arena.ArenaPlan((), 0, 0)
    assert plan([ArenaRequest(0, 0, 5)]) == arena.ArenaPlan((0,), 0, 0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ArenaRequest(-1, 0, 0), "arena request 0 has a size of -1 bytes"),
        (ArenaRequest(1, 3, 2), "arena request 0 lives from 3 to 2"),
        (ArenaRequest(1, 0, 0, 48), "arena request 0 has alignment 48, not a power of two"),
    ],
)
def test_bad_requests_are_refused(request_: ArenaRequest, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        plan([request_])


def test_many_are_found_by_lifetime_as_if_all_were_looked_at() -> None:
    requests = [
        ArenaRequest(64 * (1 + (n * 7919) % 97), n, n + (n * 31) % (200 if n % 10 else 5))
        for n in range(600)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "MAX_REQUESTS_FOR_ALL_ORDERS", 0)
        all_seen = plan(requests)
        patch.setattr(arena, "MAX_REQUESTS_FOR_ALL_PAIRS", 0)
        patch.setattr(arena, "MAX_PAIRS_PER_REQUEST", 600)
        assert plan(requests) == all_seen


def test_a_crowd_is_planned_in_one_sweep() -> None:
    # all live at position 6000, so that there are 18 million pairs; none can share memory
    requests = [ArenaRequest(64 * (1 + n % 7), n, 12_000 - n) for n in range(6000)]
    started = lines_run(lambda: plan(requests[:4001]))
    result = plan(requests)
    assert result.total_bytes == result.lower_bound_bytes
    assert lines_run(lambda: plan(requests)) / started < 6000 / 4001 * 1.2


def test_freed_neighbours_are_one_gap() -> None:
    free = arena._FreeList()
    places = [free.take(size) for size in (128, 64, 64, 64)]
    assert places == [0, 128, 192, 256]
    free.give(0, 128)
    free.give(192, 256)
    assert free.take(64) == 192  # the smallest that fits
    free.give(192, 256)
    free.give(128, 192)
    assert free.by_size == [(256, 0)]
    free.give(256, 320)
    assert (free.take(512), free.top) == (0, 512)  # the last gap grows


def test_many_buffers_are_planned_close_to_the_bound() -> None:
    # A residual network's pattern: short-lived results, and one skip connection in every four.
    requests = [
        ArenaRequest(64 * (1 + (n * 7919) % 97), n, n + (4 if n % 4 == 0 else 1))
        for n in range(2000)
    ]
    result = plan(requests)
    assert result.total_bytes <= 1.25 * result.lower_bound_bytes


def test_what_is_reserved_at_a_position_stays_free_there() -> None:
    rng = random.Random(5)
    for count in (*range(12), 40):
        requests = [
            ArenaRequest(rng.randrange(0, 900), first, first + rng.randrange(0, 4))
            for first in (rng.randrange(0, 12) for _ in range(count))
        ]
        reserved = {p: rng.randrange(1, 700) for p in range(16) if rng.random() < 0.4}
        made = plan(requests, reserved)
        for request, offset in zip(requests, made.offsets, strict=True):
            for position in range(request.first, request.last + 1):
                assert offset >= reserved.get(position, 0) or not request.size_bytes
        assert made.total_bytes >= max(reserved.values(), default=0)
        assert made.lower_bound_bytes == plan(requests).lower_bound_bytes


def test_a_small_reservation_does_not_move_a_peak_elsewhere() -> None:
    requests = [ArenaRequest(3200, 0, 1), ArenaRequest(800, 1, 5), ArenaRequest(100, 3, 4)]
    made = plan(requests, {0: 64, 4: 640})
    assert made.total_bytes == 4000 + 64


def test_reservations_hold_where_there_are_very_many_requests() -> None:
    requests = [ArenaRequest(64, 0, 1) for _ in range(5000)]
    made = plan(requests, {1: 100})
    assert min(made.offsets) >= 100
