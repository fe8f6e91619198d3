"""Sets of memory locations: a single one is its number, several are sparse words of bits.

Most values are in one location, and those of the others lie close together, since locations are
numbered as they are met; dense masks over a whole function would be quadratic. Sets are immutable,
equal sets compare equal. Knows nothing of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Union

WORD_BITS = 256

# A number, or (number of the word, bits) pairs by number; no pair has no bits, and a set of one is
# always a number.
Locations = Union[int, tuple[tuple[int, int], ...]]

EMPTY: Locations = ()


def _words(locations: Locations) -> tuple[tuple[int, int], ...]:
    if isinstance(locations, int):
        word, bit = divmod(locations, WORD_BITS)
        return ((word, 1 << bit),)
    return locations


def _canonical(words: dict[int, int]) -> Locations:
    if len(words) == 1:
        ((word, bits),) = words.items()
        if bits & (bits - 1) == 0:
            return word * WORD_BITS + bits.bit_length() - 1
    return tuple(sorted(words.items()))


def union(sets: Iterable[Locations]) -> Locations:
    """The union of `sets`."""
    distinct = list(dict.fromkeys(s for s in sets if s != EMPTY))
    if not distinct:
        return EMPTY
    if len(distinct) == 1:
        return distinct[0]
    words: dict[int, int] = {}
    for locations in distinct:
        for word, bits in _words(locations):
            words[word] = words.get(word, 0) | bits
    return _canonical(words)


def intersect(a: Locations, b: Locations) -> bool:
    """Whether two sets have a location in common."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) > len(b):
            a, b = b, a
        known = dict(b)
        return any(known.get(word, 0) & bits for word, bits in a)
    single, several = (a, b) if isinstance(a, int) else (b, a)
    assert isinstance(single, int) and isinstance(several, tuple)
    wanted, bit = divmod(single, WORD_BITS)
    return any(word == wanted and bits >> bit & 1 for word, bits in several)


def is_subset(a: Locations, b: Locations) -> bool:
    """Whether every location of `a` is in `b`."""
    if a in (b, EMPTY):
        return True
    known = dict(_words(b))
    return all(known.get(word, 0) & bits == bits for word, bits in _words(a))


def members(locations: Locations) -> Iterator[int]:
    """The locations of a set, ascending."""
    if isinstance(locations, int):
        yield locations
        return
    for word, bits in locations:
        while bits:
            low = bits & -bits
            yield word * WORD_BITS + low.bit_length() - 1
            bits ^= low
