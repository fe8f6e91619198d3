"""Large arrays: which are in files, that files hold what was stored, and that they leave memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.ir import large_arrays
from aot.ir.graph import ConstantData
from aot.ir.large_arrays import empty, forget, frozen, given, is_same, kept, parts

MANY = 1 << 19  # elements, of 4 bytes


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Room for one large array in memory beyond those that are there."""
    most = large_arrays._Memory.taken + 6 * MANY
    monkeypatch.setattr(large_arrays, "KEPT_BYTES", most)
    monkeypatch.setattr(large_arrays, "LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(large_arrays, "PART_BYTES", 3 << 16)
    yield


def is_in_file(array: Any) -> bool:
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_arrays_beyond_the_bound_are_in_files() -> None:
    first = empty((MANY,), np.float32)
    second = empty((2, MANY // 2), np.float32)
    small = empty((8,), np.float32)
    assert [is_in_file(a) for a in (first, second, small)] == [False, True, False]
    del first
    assert not is_in_file(empty((MANY,), np.float32))  # there is room again


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, ml_dtypes.bfloat16, np.int64])
def test_constants_in_files_are_what_they_were(dtype: Any) -> None:
    elements = np.arange(4 * MANY).astype(np.uint8).view(dtype).reshape(2, -1)
    inside, outside = ConstantData(elements), ConstantData(elements[:, ::-1])
    assert (is_in_file(inside.array), is_in_file(outside.array)) == (False, True)
    assert not outside.array.flags.writeable
    again = ConstantData(np.ascontiguousarray(elements[:, ::-1]))
    assert again.array is not outside.array
    assert (again, hash(again), again.digest) == (outside, hash(outside), outside.digest)
    assert bytes(outside.bytes) == elements[:, ::-1].tobytes()
    assert outside != inside
    assert kept(outside.array) is outside.array
    assert is_in_file(kept(outside.array[1:]))


def test_bytes_that_a_model_was_read_to_count() -> None:
    raw = bytes(4 * MANY)
    first, second = (kept(np.frombuffer(raw, np.uint8)) for _ in range(2))
    assert (is_in_file(first), is_in_file(second)) == (False, True)
    assert is_same(first.data, second.data)


def test_an_array_that_is_given_away_is_kept_where_there_is_room() -> None:
    arrays = [np.arange(MANY, dtype=np.float32) for _ in range(2)]
    first, second = map(given, arrays)
    assert first is arrays[0] and kept(first) is first
    assert (is_in_file(first), is_in_file(second)) == (False, True)
    assert not first.flags.writeable and not second.flags.writeable
    assert (first == second).all()
    del first, arrays
    assert not is_in_file(empty((MANY,), np.float32))  # it was counted, and there is room again


def test_parts_of_what_others_have_are_copied_though_they_are_given_away() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for part in (whole[1:], whole.T, whole[:, ::2]):
        copy = given(part)
        assert not np.shares_memory(copy, whole)
        assert (copy == part).all() and whole.flags.writeable


def test_parts_are_the_whole() -> None:
    data = np.arange(MANY, dtype=np.uint32).view(np.uint8).data
    assert b"".join(parts(data)) == bytes(data)
    assert list(parts(b"")) == []
    assert not is_same(data, data[1:])
    assert not is_same(data, b"\1" + bytes(data)[1:])
    assert is_same(data, bytes(data))


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="memory cannot be let go of")
def test_what_is_forgotten_leaves_memory_and_comes_back() -> None:
    held = empty((MANY,), np.float32)
    array = empty((16 * MANY,), np.float32)
    assert is_in_file(array)
    array[...] = 3
    full = resident_bytes()
    array = frozen(array)
    assert resident_bytes() < full - array.nbytes // 2
    assert (array == 3).all()
    forget(array[1:].data)
    assert resident_bytes() < full - array.nbytes // 2
    del held


def test_without_room_on_the_disk_arrays_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    arrays = [empty((MANY,), np.float32) for _ in range(2)]
    assert not any(map(is_in_file, arrays))
