"""The pool of constants that all variants of a module share.

Owns placement and deduplication by content: equal bytes are stored once, whatever their type.
Knows nothing of tensors; layouts are folded before bytes come here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from aot.errors import InternalError

ALIGNMENT = 64


@dataclass(frozen=True)
class RodataSegment:
    """A part of the pool: byte offset in the pool, length in bytes, alignment of the offset."""

    offset: int
    length: int
    alignment: int


class RodataPool:
    """Collects constants; offsets are final at once and follow from the order of `add` alone.

    Attributes:
        bytes_met: what `add` was given in all.
        bytes_kept: what of it is stored, padding not counted.
    """

    def __init__(self) -> None:
        self.bytes_met = 0
        self.bytes_kept = 0
        self._segments: list[RodataSegment] = []
        self._chunks: list[bytes] = []
        self._by_digest: dict[bytes, list[int]] = {}
        self._end = 0

    def add(self, data: bytes, alignment: int = ALIGNMENT) -> int:
        """The byte offset of `data` in the pool, a multiple of `alignment`.

        Bytes that are in the pool already are not stored again, unless they lie at an offset that
        is not aligned as asked. Empty data takes no room and lies at 0.

        Raises:
            InternalError: the alignment is not a power of two of at most 64, the pool's own.
        """
        if alignment < 1 or alignment & (alignment - 1) or alignment > ALIGNMENT:
            raise InternalError(f"rodata alignment {alignment} is not a power of two up to 64")
        self.bytes_met += len(data)
        if not data:
            return 0
        digest = hashlib.blake2b(data, digest_size=16).digest()
        same = self._by_digest.setdefault(digest, [])
        for number in same:
            offset = self._segments[number].offset
            if offset % alignment == 0 and self._chunks[number] == data:
                return offset
        offset = -(-self._end // alignment) * alignment
        same.append(len(self._segments))
        self._segments.append(RodataSegment(offset, len(data), alignment))
        self._chunks.append(bytes(data))
        self._end = offset + len(data)
        self.bytes_kept += len(data)
        return offset

    def finish(self) -> tuple[bytes, tuple[RodataSegment, ...]]:
        """The pool's bytes, gaps zero, and its parts in address order."""
        pieces: list[bytes] = []
        end = 0
        for segment, chunk in zip(self._segments, self._chunks, strict=True):
            pieces += [bytes(segment.offset - end), chunk]
            end = segment.offset + segment.length
        return b"".join(pieces), tuple(self._segments)
