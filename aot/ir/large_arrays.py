"""Storage of large arrays: in memory up to a bound, and beyond it in temporary files.

The constants of a language model may be larger than memory. What is in a file leaves memory with
`forget` and comes back when it is read. A file has no name, so that it is gone with its array.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aot.ir.types import Array

LARGE_BYTES = 1 << 20  # of an array that may be in a file
KEPT_BYTES = 256 << 20  # of all large arrays that are in memory
PART_BYTES = 16 << 20  # that are read at a time

Data = bytes | memoryview


class _Memory:
    """The number of bytes that large arrays take in memory."""

    taken = 0

    @classmethod
    def has_room(cls, size: int) -> bool:
        return size < LARGE_BYTES or cls.taken + size <= KEPT_BYTES

    @classmethod
    def take(cls, array: Array) -> None:
        """Counts an array for its lifetime."""
        if array.nbytes >= LARGE_BYTES:
            cls._add(array.nbytes)
            weakref.finalize(array, cls._add, -array.nbytes).atexit = False

    @classmethod
    def _add(cls, size: int) -> None:
        cls.taken += size


class _File(mmap.mmap):
    """A temporary file that holds one array."""


def empty(shape: Sequence[int], dtype: Any) -> Array:
    """An uninitialised dense array; in a temporary file if large arrays in memory exceed the bound
    and the disk has room."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    file = None if _Memory.has_room(size) else _file(size)
    if file is not None:
        return np.ndarray(shape, dtype, file)
    array = np.empty(shape, dtype)
    _Memory.take(array)
    return array


def frozen(array: Array) -> Array:
    """An array from `empty`, made immutable."""
    array.flags.writeable = False
    forget(array)
    return array


def kept(array: Array) -> Array:
    """An immutable dense array with the same elements: the array itself if it is one,
    else a copy.
    """
    base = _base(array)
    is_frozen = isinstance(base, bytes | _File) or (
        isinstance(base, np.ndarray) and not base.flags.writeable
    )
    if is_frozen and array.flags.c_contiguous and array.flags.aligned:
        if not isinstance(base, bytes):
            return array
        if _Memory.has_room(array.nbytes):
            _Memory.take(array)
            return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return frozen(copy)


def given(array: Array) -> Array:
    """An immutable dense array with the elements of one that the caller owns: the array itself,
    frozen, if it is dense and memory has room for it; else a copy.
    """
    flags = array.flags
    is_own = array.base is None and flags.writeable and flags.c_contiguous and flags.aligned
    if not is_own or not _Memory.has_room(array.nbytes):
        return kept(array)
    flags.writeable = False
    _Memory.take(array)
    return array


def parts(data: Data) -> Iterator[memoryview]:
    """The bytes in parts; of a file, only one part is in memory at a time."""
    view = memoryview(data)
    for start in range(0, len(view), PART_BYTES):
        yield view[start : start + PART_BYTES]
        forget(view)


def is_same(one: Data, other: Data) -> bool:
    """Whether two byte buffers are equal."""
    if one is other or len(one) != len(other):
        return one is other
    pairs = zip(parts(one), parts(other), strict=True)
    return all(bytes(a) == bytes(b) for a, b in pairs)


def forget(data: Any) -> None:
    """Drops the pages of a file-backed array or memoryview from memory."""
    while isinstance(data, np.ndarray | memoryview):
        data = data.base if isinstance(data, np.ndarray) else data.obj
    if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED)


def _file(size: int) -> _File | None:
    """A new temporary file of `size` bytes; None where the disk has no room."""
    try:
        with tempfile.TemporaryFile(prefix="aotc-") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is known now, not at a store
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return _File(file.fileno(), size)
    except OSError:
        return None


def _base(data: Any) -> Any:
    """The object that owns the memory of an immutable array; a writable array itself."""
    while True:
        if isinstance(data, np.ndarray) and data.base is not None and not data.flags.writeable:
            data = data.base
        elif isinstance(data, memoryview):
            data = data.obj
        else:
            return data
