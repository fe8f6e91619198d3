"""Layout of the tables of a vocabulary by which the runtime cuts text (runtime/text/cut.c).

Owns their bytes: u16 in little-endian order, one after the other,

    stages, classes, blocks, different blocks, the class of characters behind the blocks, 0
    of each block of 128 characters, which of the different ones it is
    the different blocks: a byte for each character, its class
    of each stage: states, looks, states backward, flags, the place of its bits, 0
        forward: of each state its symbols
        backward: of each state its classes, and its bits

with what states, symbols and bits are in `pattern_automaton`; `pattern_tables` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.text.characters import COUNT

MOST_STAGES = 8
HAS_START, DROPS_REST = 1, 2
BLOCK = 128
BITS = 8  # of all stages, of a character


def are_cuts(data: bytes) -> bool:
    """Whether this is b"", or tables whose parts have the lengths that they say; aot_are_cuts of
    runtime/text/cut.c is the same."""
    if not len(data):
        return True
    words = np.frombuffer(bytes(data[: len(data) // 2 * 2]), "<u2").tolist()
    if len(data) % 2 or len(words) < 6:
        return False
    stages, classes, blocks, different, rest, _ = words[:6]
    at = 6 + blocks + different * (BLOCK // 2)
    is_one = 0 < stages <= MOST_STAGES and 0 < classes < 256 and blocks > 0 and rest < classes
    for _ in range(stages if is_one and different else 0):
        if len(words) - min(at, len(words)) < 6:
            return False
        states, looks, backward, flags, place, _ = words[at : at + 6]
        bits = looks + (flags & HAS_START)
        if (
            states < 2
            or looks > 3
            or flags > 3
            or place + bits > BITS
            or (bits > 0) != (backward > 0)
        ):
            return False
        at += 6 + states * ((classes + 1) << looks) + backward * (classes + 1)
    return bool(is_one and different and at == len(words))


def is_character_map(words: Sequence[int]) -> bool:
    """Whether words are runs of characters that become others, in threes, ascending: the first,
    the last, and what the first becomes or 2^32 - 1 for none; aot_is_character_map of
    runtime/text/longest.c is the same."""
    before = -1
    for at in range(0, len(words), 3):
        first, last, to = map(int, words[at : at + 3]) if at + 3 <= len(words) else (1, 0, 0)
        if not before < first <= last < COUNT:
            return False
        ends = (to, (to + last - first) % (1 << 32))
        if to != (1 << 32) - 1 and any(c >= COUNT or 0xD800 <= c < 0xE000 for c in ends):
            return False
        before = last
    return True


def cut_count(data: bytes) -> int:
    """The number of patterns of tables."""
    return int.from_bytes(data[:2], "little")
