"""Reader of GGUF files, versions 2 and 3: metadata, and the places of tensors.

Owns the file's structure. Everything that a file says is checked before it is used: lengths against
what is left of the file, offsets against its end. Tensors stay in the mapped file.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.gguf.block_types import BLOCK_TYPES, BlockType, type_name
from aot.ir import input_files
from aot.ir.types import Array

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_RANK = 4
MAX_NAME = 1 << 16
MAX_NESTING = 4  # of lists in lists
ALIGNMENT = 32  # of tensors, where the file says nothing

_STRING, _LIST, _BOOL = 8, 9, 7
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Attributes:
        dims: the outermost first, as numpy has them; elements along the last are in blocks.
        type: unknown where there is none of the file's number; the data are empty then.
        data: its bytes, u8[rows, bytes of a row], in the file.
    """

    name: str
    dims: tuple[int, ...]
    type: BlockType
    data: Array


@dataclass(frozen=True)
class GgufFile:
    """The contents of a GGUF file.

    Attributes:
        where: what messages call it.
        metadata: its keys and values: numbers, texts, and lists of these.
        tensors: by name.
        memories: the file as it is mapped, and others that its tensors are in; none of bytes.
    """

    where: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    memories: tuple[mmap.mmap, ...] = ()

    def forget(self) -> None:
        """Releases the pages of mapped files that were read; they are read again when used."""
        for memory in self.memories if hasattr(mmap, "MADV_DONTNEED") else ():
            memory.madvise(mmap.MADV_DONTNEED)


def read_file(source: str | os.PathLike[str] | bytes) -> GgufFile:
    """The contents of one file, which stays mapped as long as a tensor is used.

    Raises:
        CompileError: it cannot be read, or is no GGUF file of a version that is known.
    """
    if isinstance(source, bytes):
        return _Reader("model", np.frombuffer(source, np.uint8)).file()
    where = os.fspath(source)
    memory = _mapped(where)
    data = np.zeros(0, np.uint8) if memory is None else np.frombuffer(memory, np.uint8)
    return replace(_Reader(where, data).file(), memories=() if memory is None else (memory,))


def _mapped(where: str) -> mmap.mmap | None:
    """A file's bytes; None of an empty one, which cannot be mapped."""
    try:
        with input_files.opened(where) as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                return None
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {where}: {reason}") from error


@dataclass(frozen=True)
class _Entry:
    """A tensor as the file declares it."""

    name: str
    dims: tuple[int, ...]
    number: int
    offset: int


class _Reader:
    """Reads from the front to the back of the part before the tensors."""

    def __init__(self, where: str, data: Array) -> None:
        self.where = where
        self.data = data
        self.view = data.data
        self.at = 0

    def error(self, message: str) -> CompileError:
        return CompileError(f"{self.where}: {message}")

    def file(self) -> GgufFile:
        if bytes(self.view[:4]) != MAGIC:
            raise self.error("is no GGUF file: it does not begin with GGUF")
        self.at = 4
        version = self.number("I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = " in big-endian order" if swapped in VERSIONS else ""
            shown = swapped if order else version
            raise self.error(
                f"is a GGUF file of version {shown}{order}, expected version 2 or 3 in "
                "little-endian order: convert the model again with a current converter"
            )
        tensors = self.count("tensors", 24)
        keys = self.count("keys", 12)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.name("a key")
            if key in metadata:
                raise self.error(f"has key {key!r} twice")
            metadata[key] = self.value(self.number("I", f"key {key!r}"), f"key {key!r}", 0)
        entries = [self.entry() for _ in range(tensors)]
        return GgufFile(self.where, metadata, self.tensors(entries, metadata))

    # numbers and texts

    def take(self, size: int, what: str) -> memoryview:
        """The next `size` bytes of the file, which it advances past."""
        end = self.at + size
        if end > len(self.view):
            raise self.error(
                f"is truncated: {what} ends at byte {end}, the file at byte {len(self.view)}"
            )
        found = self.view[self.at : end]
        self.at = end
        return found

    def number(self, code: str, what: str) -> Any:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))
        return value

    def count(self, what: str, least: int) -> int:
        """How many there are of what takes `least` bytes or more."""
        found = int(self.number("Q", f"the number of {what}"))
        left = len(self.view) - self.at
        if found > left // least:
            raise self.error(
                f"is truncated: it declares {found} {what}, and {left} bytes are left for them"
            )
        return found

    def text(self, what: str) -> bytes:
        length = int(self.number("Q", what))
        return bytes(self.take(length, what))

    def name(self, what: str) -> str:
        raw = self.text(what)
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is no UTF-8 text: {raw[:64]!r}") from None
        if not name or len(name) > MAX_NAME:
            raise self.error(f"{what} has a name of {len(name)} characters")
        return name

    def value(self, kind: int, what: str, depth: int) -> Any:
        """A value of metadata; texts that are not UTF-8 keep their bytes as surrogates."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], what)
        if kind == _STRING:
            return self.text(what).decode(errors="surrogateescape")
        if kind == _LIST and depth < MAX_NESTING:
            return self.elements(what, depth)
        expected = "nested too deeply" if kind == _LIST else f"of the unknown type {kind}"
        raise self.error(f"{what} is {expected}")

    def elements(self, what: str, depth: int) -> list[Any]:
        kind = int(self.number("I", what))
        if kind in _NUMBERS:
            dtype = np.dtype("<u1" if kind == _BOOL else f"<{_NUMBERS[kind]}")
            length = self.count(f"elements of {what}", dtype.itemsize)
            found = np.frombuffer(self.take(length * dtype.itemsize, what), dtype)
            return list((found != 0 if kind == _BOOL else found).tolist())
        length = self.count(f"elements of {what}", 8)
        if kind == _STRING:
            return self.texts(length, what)
        return [self.value(kind, what, depth + 1) for _ in range(length)]

    def texts(self, count: int, what: str) -> list[str]:
        """`count` texts, read by a loop that is fast enough for the several hundred thousand of a
        vocabulary.
        """
        found = []
        view, at, end = self.view, self.at, len(self.view)
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            if start > end or (at := start + unpack(view, start - 8)[0]) > end:
                raise self.error(f"is truncated: {what} ends after the end of the file")
            found.append(str(view[start:at], "utf-8", "surrogateescape"))
        self.at = at
        return found

    # tensors

    def entry(self) -> _Entry:
        name = self.name("a tensor")
        what = f"tensor {name!r}"
        rank = int(self.number("I", what))
        if not 1 <= rank <= MAX_RANK:
            raise self.error(f"{what} has {rank} dims, expected 1 to {MAX_RANK}")
        dims = struct.unpack(f"<{rank}Q", self.take(8 * rank, what))
        number = int(self.number("I", what))
        return _Entry(name, tuple(reversed(dims)), number, int(self.number("Q", what)))

    def tensors(self, entries: list[_Entry], metadata: Mapping[str, Any]) -> dict[str, Tensor]:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.error(f"general.alignment is {alignment!r}, expected a power of two")
        start = -(-self.at // alignment) * alignment
        found: dict[str, Tensor] = {}
        for entry in entries:
            if entry.name in found:
                raise self.error(f"has tensor {entry.name!r} twice")
            found[entry.name] = self.tensor(entry, start, alignment)
        return found

    def tensor(self, entry: _Entry, start: int, alignment: int) -> Tensor:
        what, type = f"tensor {entry.name!r}", BLOCK_TYPES.get(entry.number)
        if 0 in entry.dims:
            raise self.error(f"{what} has dims {list(entry.dims)}: one is 0")
        if type is None:
            unknown = BlockType(type_name(entry.number), 1, 0)
            return Tensor(entry.name, entry.dims, unknown, self.data[:0].reshape(1, 0))
        if entry.dims[-1] % type.elements:
            raise self.error(
                f"{what} has rows of {entry.dims[-1]} elements, expected a multiple of "
                f"{type.elements}, the block of {type.name}"
            )
        if entry.offset % alignment:
            raise self.error(f"{what} is at offset {entry.offset}, no multiple of {alignment}")
        rows = math.prod(entry.dims[:-1])
        row_bytes = entry.dims[-1] // type.elements * type.bytes
        first, size = start + entry.offset, rows * row_bytes
        if first + size > len(self.data):
            raise self.error(
                f"is truncated or its offsets are wrong: {what} ends at byte {first + size}, the "
                f"file at byte {len(self.data)}"
            )
        data = self.data[first : first + size].reshape(rows, row_bytes)
        return Tensor(entry.name, entry.dims, type, data)
