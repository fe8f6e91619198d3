"""The rodata pool: equal bytes once, offsets by insertion order, gaps zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import InternalError
from aot.link import rodata
from aot.link.rodata import RodataPool, RodataSegment


def test_equal_bytes_are_stored_once() -> None:
    pool = RodataPool()
    weights, bias = b"\x01" * 100, b"\x02" * 8
    assert [pool.add(weights), pool.add(bias), pool.add(bytearray(weights))] == [0, 128, 0]
    assert (pool.bytes_met, pool.bytes_kept) == (208, 108)
    data, segments = pool.finish()
    assert data == weights + bytes(28) + bias
    assert segments == (RodataSegment(0, 100, 64), RodataSegment(128, 8, 64))


def test_a_prefix_is_not_equal() -> None:
    pool = RodataPool()
    assert pool.add(b"abc") != pool.add(b"abcd")
    assert pool.bytes_kept == 7


def test_small_alignment_packs_tightly_and_is_not_reused_where_more_is_asked() -> None:
    pool = RodataPool()
    assert [pool.add(b"abcd", 4), pool.add(b"efgh", 4)] == [0, 4]
    assert pool.add(b"efgh", 64) == 64  # at 4 it is not aligned
    assert pool.add(b"efgh", 4) == 4
    assert pool.add(b"abcd", 64) == 0  # it happens to be


def test_empty_bytes_take_no_room() -> None:
    pool = RodataPool()
    assert pool.add(b"") == 0
    assert pool.finish() == (b"", ())


def test_equal_digests_do_not_make_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Colliding:
        def __init__(self, data: bytes, digest_size: int) -> None:
            del data, digest_size

        def digest(self) -> bytes:
            return b"same"

    monkeypatch.setattr(rodata.hashlib, "blake2b", Colliding)
    pool = RodataPool()
    assert pool.add(b"one") != pool.add(b"two")
    assert pool.add(b"two") == 64


def test_bad_alignment_is_refused() -> None:
    for alignment in (0, 3, 128):
        with pytest.raises(InternalError, match=f"rodata alignment {alignment} is not a power"):
            RodataPool().add(b"a", alignment)


@given(st.lists(st.tuples(st.binary(max_size=200), st.sampled_from([1, 4, 16, 64]))))
def test_every_constant_is_found_where_add_said(items: list[tuple[bytes, int]]) -> None:
    pool = RodataPool()
    offsets = [pool.add(data, alignment) for data, alignment in items]
    image, segments = pool.finish()
    for (data, alignment), offset in zip(items, offsets, strict=True):
        assert image[offset : offset + len(data)] == data
        assert offset % alignment == 0
    assert pool.bytes_met == sum(len(data) for data, _ in items)
    assert pool.bytes_kept == sum(s.length for s in segments)
    end = 0
    for segment in segments:
        assert segment.offset >= end
        assert not any(image[end : segment.offset])
        end = segment.offset + segment.length
    assert end == len(image)
