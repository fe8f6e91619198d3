"""What BERT's WordPiece does to text before it becomes pieces, as llama.cpp does it: characters are
replaced or removed, and words and single characters of punctuation are parts.

Owns the map of characters and the pattern. Without its accent a character is the first one of its
canonical decomposition (NFD). Characters that the version of Unicode of `characters` does not have
are not replaced, whatever Python runs.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

from aot.text import characters
from aot.text.vocabulary import Cut

REMOVED = (1 << 32) - 1
# Ideographs that are words of their own, as the tokenisers of Hugging Face have them.
_IDEOGRAPHS = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_SINGLE = rf"\p{{P}}$+<=>^`|~{_IDEOGRAPHS}"
CUTS = (Cut(rf"[{_SINGLE}]|[^\s{_SINGLE}]+", drops_rest=True),)


@cache
def character_map(*, lowers: bool, strips: bool) -> tuple[tuple[int, int, int], ...]:
    """(first, last, what the first becomes) of characters that become others as far apart as these
    are, ascending; REMOVED where they become none.

    Args:
        lowers: letters become small ones.
        strips: accents and other marks are removed, of composed characters too.
    """
    of_each = np.arange(characters.COUNT, dtype=np.int64)
    assigned = ~_members("Cn", "Cs")
    changed = np.zeros(characters.COUNT, bool)
    for c in np.flatnonzero(assigned).tolist():
        own = chr(c)
        if own.isascii():
            changed[c] = lowers and own.isupper()
        else:
            has_case = lowers and own.lower() != own
            changed[c] = has_case or (strips and bool(unicodedata.decomposition(own)))
    changed |= _members("Lo") & (of_each >= 0xAC00) & (of_each <= 0xD7A3) & strips
    for c in np.flatnonzero(changed).tolist():
        own = unicodedata.normalize("NFD", chr(c))[0] if strips else chr(c)
        of_each[c] = ord(own.lower()[0] if lowers else own)
    removed = _members("Cc", "Cf", "Co") | (_members("M") if strips else False)
    points = np.arange(characters.COUNT, dtype=np.int32)
    removed &= ~characters.spaces().has(points)
    removed[[0, 0xFFFD]] = True
    bases = of_each.copy()
    of_each[removed[np.minimum(bases, characters.COUNT - 1)]] = REMOVED
    return _runs(of_each)


def _members(*names: str) -> NDArray[np.bool_]:
    points = np.arange(characters.COUNT, dtype=np.int32)
    found = np.zeros(characters.COUNT, bool)
    for name in names:
        own = characters.of_property(name)
        assert own is not None
        found |= own.has(points)
    return found


def _runs(of_each: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    places = np.flatnonzero(of_each != np.arange(characters.COUNT))
    distances = np.where(of_each[places] == REMOVED, REMOVED, of_each[places] - places)
    begins = np.flatnonzero(
        (np.diff(places, prepend=-2) != 1) | (np.diff(distances, prepend=distances[:1] - 1) != 0)
    )
    ends = np.append(begins[1:], len(places)) - 1
    firsts, lasts = places[begins], places[ends]
    return tuple(zip(firsts.tolist(), lasts.tolist(), of_each[firsts].tolist(), strict=True))
