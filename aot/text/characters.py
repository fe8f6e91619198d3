"""Sets of characters, by Unicode's categories.

Owns the names of properties that patterns may use. The categories are of one version of Unicode,
whatever Python runs (`unicode_categories`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.text.unicode_categories import RUNS

COUNT = 0x110000  # of code points

Edges = NDArray[np.int32]


class CharSet:
    """A set of code points.

    Attributes:
        edges: i32[n], ascending: where members and others begin by turns, members first.
    """

    def __init__(self, edges: Edges) -> None:
        self.edges = edges

    def has(self, points: Edges) -> NDArray[np.bool_]:
        """Whether each of some code points is a member."""
        return (np.searchsorted(self.edges, points, side="right") & 1).astype(bool)

    def __and__(self, other: CharSet) -> CharSet:
        return self._combined(other, np.logical_and)

    def __or__(self, other: CharSet) -> CharSet:
        return self._combined(other, np.logical_or)

    def __invert__(self) -> CharSet:
        has_first = len(self.edges) > 0 and self.edges[0] == 0
        edges = self.edges[1:] if has_first else np.insert(self.edges, 0, 0)
        return CharSet(edges[edges < COUNT])

    def __bool__(self) -> bool:
        return len(self.edges) > 0

    def single(self) -> int | None:
        """The code point of a set that has one; None of any other."""
        edges = [*self.edges.tolist(), COUNT]
        return edges[0] if self and edges[1] == edges[0] + 1 and len(self.edges) < 3 else None

    def _combined(self, other: CharSet, how: Callable[..., Any]) -> CharSet:
        points = np.union1d(self.edges, other.edges)
        members = how(self.has(points), other.has(points))
        return CharSet(points[np.diff(members, prepend=False)])


# The property White_Space; category Z and controls are not quite it.
_SPACES = (
    *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
# The script Han.
_HAN = (
    *((0x2E80, 0x2E99), (0x2E9B, 0x2EF3), (0x2F00, 0x2FD5), (0x3005, 0x3005), (0x3007, 0x3007)),
    *((0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFA6D)),
    *((0xFA70, 0xFAD9), (0x16FE2, 0x16FE3), (0x16FF0, 0x16FF1), (0x20000, 0x2A6DF)),
    *((0x2A700, 0x2B739), (0x2B740, 0x2B81D), (0x2B820, 0x2CEA1), (0x2CEB0, 0x2EBE0)),
    *((0x2EBF0, 0x2EE5D), (0x2F800, 0x2FA1D), (0x30000, 0x3134A), (0x31350, 0x323AF)),
)
# Letters of ASCII that a character outside it is another case of.
_FOLDED = {"s": 0x17F, "k": 0x212A}


@cache
def _categories() -> tuple[Edges, NDArray[np.str_]]:
    """(where each run of characters of one category begins, their categories)."""
    runs = re.findall(r"([A-Z][a-z])(\d*)", "".join(RUNS))
    ends = np.cumsum([int(count or 1) for _, count in runs])
    return np.insert(ends[:-1], 0, 0).astype(np.int32), np.array([name for name, _ in runs])


def of_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The characters from each first to each last, ascending and apart."""
    edges = [edge for first, last in ranges for edge in (first, last + 1)]
    return CharSet(np.array([edge for edge in edges if edge < COUNT], np.int32))


def of_character(character: str) -> CharSet:
    """A character alone."""
    return of_ranges([(ord(character), ord(character))])


def union(sets: Iterable[CharSet]) -> CharSet:
    """The characters of any of some sets, in time of n log n in their edges."""
    edges = [nothing().edges, *(own.edges for own in sets)]
    points, places = np.unique(np.concatenate(edges), return_inverse=True)
    changes = np.concatenate([1 - 2 * (np.arange(len(own)) & 1) for own in edges])
    members = np.cumsum(np.bincount(places.reshape(-1), changes, len(points))) > 0
    return CharSet(points[np.diff(members, prepend=False)])


@cache
def everything() -> CharSet:
    """All characters."""
    return CharSet(np.zeros(1, np.int32))


@cache
def nothing() -> CharSet:
    """No character."""
    return CharSet(np.zeros(0, np.int32))


@cache
def of_property(name: str) -> CharSet | None:
    """The characters of a general category, such as L or Lu, or of the script Han; None where the
    name is none of these."""
    if name in ("Han", "Script=Han", "sc=Han"):
        return of_ranges(_HAN)
    begins, names = _categories()
    has = names == name if len(name) > 1 else np.char.startswith(names, name)
    if not name or not has.any():
        return None
    return CharSet(begins[np.diff(has, prepend=False)])


@cache
def spaces() -> CharSet:
    """White space: `\\s` of a pattern."""
    return of_ranges(_SPACES)


@cache
def of_words() -> CharSet:
    """Letters, marks, decimal digits and connectors: `\\w` of a pattern (UTS 18)."""
    found = of_ranges([(0x200C, 0x200D)])
    for name in ("L", "M", "Nd", "Nl", "Pc"):
        own = of_property(name)
        assert own is not None
        found |= own
    return found


def with_cases(characters: CharSet) -> CharSet:
    """A set, with the other cases of its letters of ASCII."""
    found = characters
    for small in range(ord("a"), ord("z") + 1):
        forms = [small - 0x20, small, *([_FOLDED[chr(small)]] if chr(small) in _FOLDED else [])]
        if characters.has(np.array(forms, np.int32)).any():
            found |= of_ranges((form, form) for form in forms)
    return found
