"""Placement of arena buffers: no overlap in time and space, and what greedy-by-size promises."""

from __future__ import annotations

import ctypes

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aot.runtime import loader
from tests.support.runtime_api import library


class Buffer(ctypes.Structure):
    """aot_arena_buffer_t."""

    _fields_ = (
        ("first", ctypes.c_uint32),
        ("last", ctypes.c_uint32),
        ("offset_register", ctypes.c_uint32),
        ("alignment", ctypes.c_uint32),
        ("bound_offset", ctypes.c_uint64),
    )


class Placement(ctypes.Structure):
    """aot_placement_t."""

    _fields_ = (
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("order", ctypes.c_uint32),
        ("placed", ctypes.c_uint32),
    )


Request = tuple[int, int, int, int]  # bytes, first, last, alignment


def place(
    requests: list[Request], begin: int = 0, work: int = (1 << 64) - 1
) -> tuple[list[int], int] | str:
    """Offsets and the end, or the error's message."""
    count = len(requests)
    buffers = (Buffer * count)(*[(first, last, 0, align) for _, first, last, align in requests])
    placements = (Placement * count)(*[(request[0], 1 << 63, 0, 0) for request in requests])
    end = ctypes.c_uint64()
    left = ctypes.c_uint64(work)
    error = loader._Error()
    status = library().aot_arena_place(
        *(buffers, count, ctypes.c_uint64(begin), placements, ctypes.byref(left)),
        *(ctypes.byref(error), ctypes.byref(end)),
    )
    if status != 0:
        return str(error.message.decode())
    return [p.offset for p in placements], end.value


def place_by_brute_force(requests: list[Request], begin: int) -> list[int]:
    """The same rule, by trying every candidate offset."""
    offsets: dict[int, int] = {}
    for index in sorted(range(len(requests)), key=lambda i: (-requests[i][0], i)):
        size, first, last, alignment = requests[index]
        rivals = [
            (offsets[other], offsets[other] + requests[other][0])
            for other in offsets
            if requests[other][0] > 0 and requests[other][1] <= last and first <= requests[other][2]
        ]
        candidates = [-(-at // alignment) * alignment for at in [begin, *(e for _, e in rivals)]]
        offsets[index] = min(
            at for at in candidates if all(at + size <= b or e <= at for b, e in rivals)
        )
    return [offsets[index] for index in range(len(requests))]


LIFETIMES = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
REQUESTS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 300), st.sampled_from([0, 64, 128])),
        LIFETIMES,
        st.sampled_from([1, 4, 16, 64]),
    ).map(lambda r: (r[0], r[1][0], r[1][1], r[2])),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(REQUESTS, st.integers(0, 200))
@example([(64, 0, 1, 64), (64, 1, 2, 64)], 0)  # lifetimes are inclusive: these meet at 1
def test_placement(requests: list[Request], begin: int) -> None:
    found = place(requests, begin)
    assert not isinstance(found, str)
    offsets, end = found
    for i, (size, first, last, alignment) in enumerate(requests):
        assert offsets[i] >= begin
        assert offsets[i] % alignment == 0
        assert size == 0 or offsets[i] + size <= end
        for j, (other_size, other_first, other_last, _) in enumerate(requests[:i]):
            if size and other_size and first <= other_last and other_first <= last:
                assert offsets[i] + size <= offsets[j] or offsets[j] + other_size <= offsets[i]
    assert [o for o, r in zip(offsets, requests, strict=True) if r[0]] == [
        o for o, r in zip(place_by_brute_force(requests, begin), requests, strict=True) if r[0]
    ]
    ends = [o + r[0] for o, r in zip(offsets, requests, strict=True) if r[0]]
    assert end == max(ends, default=begin)


def test_memory_is_shared_over_time() -> None:
    # Positions 0-1, 1-2, 2-3: the first and the third don't meet.
    #   100 at 0; 60 meets both, so behind 100: 104 (8-aligned); 50 below it again at 0.
    requests = [(100, 0, 1, 8), (60, 1, 2, 8), (50, 2, 3, 8)]
    assert place(requests) == ([0, 104, 0], 164)


def test_many_buffers() -> None:
    # Every one meets the next only: two rows are enough, whatever the order of sizes.
    requests = [(64 * (1 + i * 7919 % 97), i, i + 1, 64) for i in range(3000)]
    found = place(requests)
    assert not isinstance(found, str)
    assert found[1] < 3 * 64 * 97


def test_placing_takes_work() -> None:
    # Of 200 buffers, 64 look at fewer than 64 others, 64 at fewer than 128, 64 at fewer than 192:
    # 64 + 2 * 64 + 3 * 64 + 4 * 8 units. Empty ones take none.
    requests = [(64, 0, 0, 64)] * 200 + [(0, 0, 0, 64)] * 1000
    assert place(requests, work=416) == place(requests)
    message = "the work budget is used up: arena buffer 200 of 1200 to be placed"
    assert place(requests, work=415) == message


def test_sums_that_overflow() -> None:
    message = "out of memory: the arena does not fit 62 bits"
    assert place([(1 << 62, 0, 0, 64)]) == message
    assert place([(1 << 61, 0, 0, 64)] * 3) == message
    assert place([((1 << 64) - 1, 0, 0, 64)] * 3) == message
    assert place([(1, 0, 0, 64)], (1 << 64) - 1) == message
    assert place([(1 << 60, 0, 0, 64)] * 3) == ([0, 1 << 60, 2 << 60], 3 << 60)
