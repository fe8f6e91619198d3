"""The pool of constants that all variants of a module share.

Owns placement and deduplication by content: equal bytes are stored once, whatever their type, and
bytes that lie inside others are where those are. Knows nothing of tensors; layouts are folded
before bytes come here. Offsets are known when all constants are: until then an *address* stands
for a constant, a number that nothing else in a program reaches.
"""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.large_arrays import Data, forget, is_same, parts

ALIGNMENT = 64
# The first address. No dim, size or offset comes near, and a distance added to one stays above.
ADDRESSES = 1 << 60
# Where constants begin with the same bytes, so many places are looked at for each before it is
# stored by itself: keeps the search linear, whatever the constants are.
MAX_TRIES = 64
JOINED_BYTES = 64 << 20  # of a pool that is made of its constants, rather than to be written so


class Pieces:
    """A sequence of bytes made of pieces, which need not be in memory together.

    A slice is within one piece, or is made of several.
    """

    def __init__(self, pieces: Iterable[Data]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._ends = list(accumulate(map(len, self._pieces)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Data]:
        return iter(self._pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pieces | bytes):
            return NotImplemented
        return len(self) == len(other) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Pieces, ([bytes(piece) for piece in self._pieces],)  # views can't be pickled

    def __getitem__(self, at: slice) -> Data:
        start, stop, _ = at.indices(len(self))
        found: list[Data] = []
        number = bisect_right(self._ends, start)
        while start < stop:
            piece = memoryview(self._pieces[number])
            begin = start - (self._ends[number] - len(piece))
            found.append(piece[begin : begin + stop - start])
            start += len(found[-1])
            number += 1
        return found[0] if len(found) == 1 else b"".join(found)


def pieces_of(data: Data | Pieces) -> Iterator[memoryview]:
    """All bytes in order, as parts that are in memory one at a time."""
    for piece in data if isinstance(data, Pieces) else (data,):
        yield from parts(piece)


def checksum(data: Data | Pieces) -> int:
    """The XXH64 hash of bytes, as stored in module files."""
    found = xxhash.xxh64(seed=0)
    for part in pieces_of(data):
        found.update(part)
    return found.intdigest()


@dataclass(frozen=True)
class RodataSegment:
    """A segment of the pool: byte offset in the pool, length in bytes, alignment of the offset."""

    offset: int
    length: int
    alignment: int


@dataclass(frozen=True)
class RodataBytes:
    """Statistics of the bytes of all constants; the last four add up to the first.

    Attributes:
        met: what `add` was given in all.
        kept: what is stored, padding not counted.
        equal: not stored, because equal bytes are.
        contained: not stored, because they lie inside others.
        filled: not stored, because nothing reads them: a fill writes what was copied from them.
    """

    met: int
    kept: int
    equal: int
    contained: int
    filled: int

    @property
    def stats(self) -> dict[str, int]:
        """The sizes by their keys in a compile's statistics."""
        return {f"bytes_{name}": value for name, value in vars(self).items()}


@dataclass(frozen=True)
class PlacedRodata:
    """The pool with all its constants placed.

    Attributes:
        data: its bytes, gaps zero.
        segments: its parts in address order.
    """

    data: builtins.bytes | Pieces
    segments: tuple[RodataSegment, ...]
    bytes: RodataBytes
    _starts: Sequence[int] = field(repr=False)
    _offsets: Sequence[int | None] = field(repr=False)

    def offset(self, address: int) -> int:
        """The offset in the pool of an address of a constant, or of a place inside one.

        Raises:
            InternalError: there is nothing at the address, or it was said to be unused.
        """
        number = bisect_right(self._starts, address) - 1
        found = self._offsets[number] if number >= 0 else None
        if found is None:
            raise InternalError(f"address {address:#x} is of no constant in the pool")
        return found + address - self._starts[number]


@dataclass
class _Content:
    """The distinct contents of constants: `address` is their symbolic address, `met` counts their
    uses."""

    data: Data
    alignment: int
    address: int
    met: int = 1


class RodataPool:
    """The pool of a module's constants; their positions depend only on the order of `add`.

    Args:
        shares: whether equal bytes are one; without, each constant is stored where it was found,
            for locality or for comparison.
    """

    def __init__(self, *, shares: bool = True) -> None:
        self.shares = shares
        self._contents: list[_Content] = []
        self._by_digest: dict[bytes, list[_Content]] = {}
        self._next = ADDRESSES

    @property
    def total_bytes(self) -> int:
        """Bytes of all constants so far, with room to align each."""
        return sum(-(-len(c.data) // ALIGNMENT) * ALIGNMENT for c in self._contents)

    def add(self, data: Data, alignment: int = ALIGNMENT) -> int:
        """Adds a constant, and returns its address; its offset will be a multiple of `alignment`.
        The caller must not change `data` afterwards.

        Raises:
            InternalError: the alignment is not a power of two of at most 64, the pool's own.
        """
        if alignment < 1 or alignment & (alignment - 1) or alignment > ALIGNMENT:
            raise InternalError(f"rodata alignment {alignment} is not a power of two up to 64")
        same: list[_Content] = []
        if self.shares:
            found = xxhash.xxh3_128()  # equality is checked below
            for part in parts(data):
                found.update(part)
            same = self._by_digest.setdefault(found.digest(), [])
            for content in same:
                if is_same(content.data, data):
                    content.alignment = max(content.alignment, alignment)
                    content.met += 1
                    return content.address
        content = _Content(data, alignment, self._next)
        same.append(content)
        self._contents.append(content)
        # a gap, so that the address just behind a constant is not the next one's
        self._next += -(-(len(data) + 1) // ALIGNMENT) * ALIGNMENT
        return content.address

    def bytes_at(self, address: int) -> tuple[Data, int]:
        """(constant, distance into it) of an address.

        Raises:
            InternalError: there is none.
        """
        number = bisect_right(self._contents, address, key=lambda c: c.address) - 1
        if number < 0:
            raise InternalError(f"address {address:#x} is of no constant in the pool")
        content = self._contents[number]
        return content.data, address - content.address

    def place(self, used: Iterable[int] | None = None) -> PlacedRodata:
        """Places all constants, or only those at the addresses `used`."""
        kept = [c for c in self._contents if c.data]
        if used is not None:
            starts = [c.address for c in self._contents]
            numbers = {bisect_right(starts, address) - 1 for address in used}
            kept = [c for n, c in enumerate(self._contents) if n in numbers and c.data]
        inside = _contained([c.data for c in kept]) if self.shares else {}
        alignments = [c.alignment for c in kept]
        for child, (parent, _) in inside.items():
            alignments[parent] = max(alignments[parent], alignments[child])
        offsets: dict[int, int] = {}
        segments: list[RodataSegment] = []
        pieces: list[Data] = []
        end = 0
        for number, content in enumerate(kept):
            if number in inside:
                continue
            alignment = alignments[number]
            offset = -(-end // alignment) * alignment
            segments.append(RodataSegment(offset, len(content.data), alignment))
            pieces += [bytes(offset - end), content.data]
            offsets[content.address] = offset
            end = offset + len(content.data)
        for child, (parent, distance) in inside.items():
            offsets[kept[child].address] = offsets[kept[parent].address] + distance
        return PlacedRodata(
            b"".join(pieces) if end <= JOINED_BYTES else Pieces(pieces),
            tuple(segments),
            self._bytes(kept, inside),
            [c.address for c in self._contents],
            [offsets.get(c.address, None if c.data else 0) for c in self._contents],
        )

    def _bytes(
        self, kept: Sequence[_Content], inside: Mapping[int, tuple[int, int]]
    ) -> RodataBytes:
        met = sum(len(c.data) * c.met for c in self._contents)
        equal = sum(len(c.data) * (c.met - 1) for c in kept)
        contained = sum(len(kept[child].data) for child in inside)
        stored = sum(len(c.data) for c in kept) - contained
        return RodataBytes(met, stored, equal, contained, met - stored - equal - contained)


def _contained(contents: Sequence[Data]) -> dict[int, tuple[int, int]]:
    """(number of the larger one, distance in it) of each content that is inside another one, by
    number.

    Distances are multiples of the pool's alignment, so that a content may be placed there
    whatever its alignment. Others are the largest first, then the first met; those are inside none
    themselves.
    Candidates are found by their first bytes: it takes time linear in all bytes, may miss what
    begins as very many places do, and is never wrong.
    """
    # by width and value of the start
    waiting: dict[int, dict[int, dict[int, None]]] = {8: {}, 4: {}}
    by_length: dict[int, list[int]] = {}
    for number, data in enumerate(contents):
        by_length.setdefault(len(data), []).append(number)
        width = _width(data)
        if len(data) >= width:
            waiting[width].setdefault(_start(data), {})[number] = None
    starts = {
        width: np.array(sorted(by_start), f"<u{width}") for width, by_start in waiting.items()
    }
    tries = [MAX_TRIES] * len(contents)
    found: dict[int, tuple[int, int]] = {}
    for length in sorted(by_length, reverse=True):
        parents = [n for n in by_length[length] if n not in found]
        for parent in parents:  # nothing that is left contains it
            same = waiting[_width(contents[parent])].get(_start(contents[parent]), {})
            same.pop(parent, None)
        for parent in parents:
            for width, by_start in waiting.items():
                for place, start in _candidates(contents[parent], starts[width]):
                    for child in list(by_start[start]):
                        tries[child] -= 1
                        data = contents[child]
                        whole = memoryview(contents[parent])
                        if is_same(whole[place : place + len(data)], data):
                            found[child] = parent, place
                        if child in found or not tries[child]:
                            del by_start[start][child]
            forget(contents[parent])
    return found


def _width(data: Data) -> int:
    return 8 if len(data) >= 8 else 4


def _start(data: Data) -> int:
    return int.from_bytes(data[: _width(data)], "little")


def _candidates(whole: Data, starts: NDArray[np.unsignedinteger]) -> Iterator[tuple[int, int]]:
    """(position, start) of each aligned position in `whole` with one of the sorted `starts`."""
    width = starts.dtype.itemsize
    count = len(whole) // width
    if not len(starts) or not count:
        return
    words = np.frombuffer(whole, starts.dtype, count)[:: ALIGNMENT // width]
    # Nearly all places are out by 16 of their bits, which a table finds sooner than a search.
    is_low = np.zeros(1 << 16, np.bool_)
    is_low[starts.astype(np.uint16)] = True
    places = np.flatnonzero(is_low[words.astype(np.uint16)])
    found = words[places]
    nearest = np.minimum(np.searchsorted(starts, found), len(starts) - 1)
    is_start = starts[nearest] == found
    for place, start in zip(places[is_start].tolist(), found[is_start].tolist(), strict=True):
        yield place * ALIGNMENT, start
