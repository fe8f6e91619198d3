"""The rodata pool: equal bytes once, bytes inside others there, offsets by insertion order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import InternalError
from aot.link import rodata
from aot.link.rodata import ADDRESSES, RodataBytes, RodataPool, RodataSegment
from tests.support.scaling import lines_run


def offsets(pool: RodataPool, *addresses: int) -> list[int]:
    placed = pool.place()
    return [placed.offset(address) for address in addresses]


def test_equal_bytes_are_stored_once() -> None:
    pool = RodataPool()
    weights, bias = b"\x01" * 100, b"\x02" * 8
    made = [pool.add(weights), pool.add(bias), pool.add(bytearray(weights))]
    assert min(made) >= ADDRESSES
    placed = pool.place()
    assert [placed.offset(a) for a in made] == [0, 128, 0]
    assert placed.data == weights + bytes(28) + bias
    assert placed.segments == (RodataSegment(0, 100, 64), RodataSegment(128, 8, 64))
    assert placed.bytes == RodataBytes(208, 108, 100, 0, 0)


def test_the_largest_alignment_of_equal_bytes_wins() -> None:
    pool = RodataPool()
    made = [pool.add(b"abcdefgh", 4), pool.add(b"ijklmnop", 4), pool.add(b"ijklmnop", 64)]
    placed = pool.place()
    assert [placed.offset(a) for a in made] == [0, 64, 64]
    assert [s.alignment for s in placed.segments] == [4, 64]
    assert placed.bytes.kept == 16


def test_small_alignment_packs_tightly() -> None:
    pool = RodataPool()
    assert offsets(pool, pool.add(b"abcd", 4), pool.add(b"efgh", 4)) == [0, 4]


def test_bytes_inside_others_are_an_offset_into_them() -> None:
    """Whichever came first; at a place that is aligned as the pool is."""
    blocks = [bytes([n]) * 64 for n in range(1, 6)]
    pool = RodataPool()
    made = [
        pool.add(blocks[2]),  # in the middle
        pool.add(b"".join(blocks)),
        pool.add(b"".join(blocks[3:])),  # a suffix
        pool.add(b"".join(blocks[:2])[:100]),  # a prefix that ends anywhere
        pool.add(blocks[4][:4]),  # less than a word
        pool.add(blocks[0][1:] + blocks[1]),  # there, but not at an aligned place
        pool.add(blocks[0] + blocks[2]),  # its parts are there, but it isn't
    ]
    placed = pool.place()
    assert [placed.offset(a) for a in made[:5]] == [128, 0, 192, 0, 256]
    assert [(s.offset, s.length) for s in placed.segments] == [(0, 320), (320, 127), (448, 128)]
    assert placed.bytes == RodataBytes(64 + 320 + 128 + 100 + 4 + 127 + 128, 575, 0, 296, 0)
    assert placed.offset(made[2] + 5) == 197  # a place inside a constant


def test_what_contains_is_aligned_as_what_it_contains() -> None:
    pool = RodataPool()
    pool.add(b"x", 1)
    whole, part = pool.add(bytes(range(100)), 4), pool.add(bytes(range(64, 90)), 64)
    assert offsets(pool, whole, part) == [64, 128]


def test_a_chain_of_containment_ends_in_what_is_stored() -> None:
    data = bytes(random.Random(1).randbytes(64 * 64))
    pool = RodataPool()
    made = [pool.add(data[64 * n :]) for n in range(63, -1, -1)]
    placed = pool.place()
    assert [placed.offset(a) for a in made] == [64 * n for n in range(63, -1, -1)]
    assert placed.data == data


def test_shorter_zeros_are_in_longer_ones() -> None:
    pool = RodataPool()
    made = [pool.add(bytes(n)) for n in (4, 8, 12, 640, 1000, 64)]
    placed = pool.place()
    assert placed.data == bytes(1000)
    assert {placed.offset(a) for a in made} == {0}


def test_copies_are_kept_where_the_policy_says_so() -> None:
    pool = RodataPool(shares=False)
    made = [pool.add(bytes(128)), pool.add(bytes(64)), pool.add(bytes(128))]
    placed = pool.place()
    assert [placed.offset(a) for a in made] == [0, 128, 192]
    assert placed.bytes == RodataBytes(320, 320, 0, 0, 0)


def test_what_nothing_uses_is_not_stored() -> None:
    pool = RodataPool()
    first, second = pool.add(b"a" * 64), pool.add(b"b" * 64)
    pool.add(b"a" * 64)
    placed = pool.place(used=[second + 8])
    assert placed.data == b"b" * 64
    assert placed.offset(second) == 0
    assert placed.bytes == RodataBytes(192, 64, 0, 0, 128)
    with pytest.raises(InternalError, match="is of no constant in the pool"):
        placed.offset(first)


def test_empty_bytes_take_no_room() -> None:
    pool = RodataPool()
    address = pool.add(b"")
    placed = pool.place()
    assert (placed.data, placed.segments, placed.offset(address)) == (b"", (), 0)


def test_an_address_leads_to_its_constant_alone() -> None:
    pool = RodataPool()
    address, other = pool.add(b"a" * 64), pool.add(b"b" * 64)
    assert pool.bytes_at(address + 64) == (b"a" * 64, 64)  # just behind it
    assert pool.bytes_at(other) == (b"b" * 64, 0)
    for wrong in (0, ADDRESSES - 1):
        with pytest.raises(InternalError, match="is of no constant in the pool"):
            pool.bytes_at(wrong)


def test_equal_digests_do_not_make_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rodata.xxhash, "xxh3_128_digest", lambda data: b"same")
    pool = RodataPool()
    one, two = pool.add(b"one!"), pool.add(b"two!")
    assert pool.add(b"two!") == two
    assert offsets(pool, one, two) == [0, 64]


def test_bad_alignment_is_refused() -> None:
    for alignment in (0, 3, 128):
        with pytest.raises(InternalError, match=f"rodata alignment {alignment} is not a power"):
            RodataPool().add(b"a", alignment)


# Of few values and lengths, so that many are equal, and many lie inside others.
REPETITIVE = st.lists(st.sampled_from([bytes(64), b"\x01" * 64, bytes(63) + b"\x02", b"\x01" * 4]))


@given(
    st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=200), REPETITIVE.map(b"".join)),
            st.sampled_from([1, 4, 16, 64]),
        )
    ),
    st.booleans(),
)
def test_every_constant_is_found_where_its_address_says(
    items: list[tuple[bytes, int]], shares: bool
) -> None:
    pool = RodataPool(shares=shares)
    made = [pool.add(data, alignment) for data, alignment in items]
    placed = pool.place()
    for (data, alignment), address in zip(items, made, strict=True):
        offset = placed.offset(address)
        assert placed.data[offset : offset + len(data)] == data
        assert offset % alignment == 0
    counts = placed.bytes
    assert counts.met == sum(len(data) for data, _ in items)
    assert counts.kept == sum(s.length for s in placed.segments)
    assert counts.met == counts.kept + counts.equal + counts.contained
    end = 0
    for segment in placed.segments:
        assert segment.offset >= end and segment.offset % segment.alignment == 0
        assert not any(placed.data[end : segment.offset])
        end = segment.offset + segment.length
    assert end == len(placed.data)


def test_no_constant_that_is_stored_lies_in_another() -> None:
    """On random cuts of a few sources, against the search of everything in everything."""
    draw = random.Random(7)
    sources = [draw.randbytes(64 * 40) for _ in range(3)]
    pool = RodataPool()
    for _ in range(200):
        begin = draw.randrange(40)
        pool.add(draw.choice(sources)[64 * begin : 64 * begin + draw.randrange(4, 1500)])
    placed = pool.place()
    stored = [placed.data[s.offset : s.offset + s.length] for s in placed.segments]
    assert placed.bytes.contained > 0
    for n, data in enumerate(stored):
        for m, whole in enumerate(stored):
            places = range(0, len(whole) - len(data) + 1, 64)
            assert n == m or not any(whole.startswith(data, at) for at in places)


def test_placing_takes_time_linear_in_the_constants() -> None:
    """Where nothing is inside anything, where much is, and where all begin alike."""
    draw = random.Random(3)

    def pool(count: int) -> RodataPool:
        made = RodataPool()
        for n in range(count):
            block = draw.randbytes(64)
            for data in (block * 3, block, bytes(60) + n.to_bytes(8, "little")):
                made.add(data)
        return made

    small, medium, large = (lines_run(pool(count).place) for count in (300, 600, 1200))
    assert (large - medium) / 2 / (medium - small) < 1.3


def test_the_search_ends_on_what_begins_alike() -> None:
    """1,000 constants that all begin as 40,000 places of a large one do: each looks at few places,
    else this would take hours."""
    zeros = bytes(64 * 40_000)
    pool = RodataPool()
    pool.add(zeros)
    for n in range(1, 1_001):
        pool.add(bytes(64 * (n % 500) + 32) + n.to_bytes(4, "little"))
    placed = pool.place()
    assert len(placed.segments) == 1_001


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_pieces_are_one_after_another(pieces: list[bytes], start: int, stop: int) -> None:
    made, whole = rodata.Pieces(map(memoryview, pieces)), b"".join(pieces)
    assert (bytes(made), len(made), b"".join(made)) == (whole, len(whole), whole)
    assert bytes(made[start:stop]) == whole[start:stop]
    assert made == whole
    assert made != whole + b"x"
    assert rodata.checksum(made) == rodata.checksum(whole)


def test_a_large_pool_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = RodataPool()
    blocks = [bytes([n]) * 100 for n in range(1, 5)]
    for data in (*blocks, blocks[1][:64]):
        pool.add(memoryview(data))
    joined = pool.place()
    monkeypatch.setattr(rodata, "JOINED_BYTES", 0)
    apart = pool.place()
    assert isinstance(apart.data, rodata.Pieces)
    assert apart.data == joined.data
    assert (apart.segments, apart.bytes) == (joined.segments, joined.bytes)
