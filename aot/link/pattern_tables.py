"""The tables by which the runtime cuts text (runtime/text/cut.c), of a vocabulary's patterns.

Stages cut the parts of those before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aot.errors import UnsupportedError
from aot.link.cut_layout import BITS, BLOCK, DROPS_REST, HAS_START, MOST_STAGES
from aot.link.pattern_automaton import Automaton, Nodes, Sets, make_automaton
from aot.text.patterns import parse_pattern
from aot.text.vocabulary import Cut


@lru_cache(16)
def encode_cuts(cuts: tuple[Cut, ...]) -> bytes:
    """The tables of the patterns by which text is cut, in their order; b"" of none.

    Raises:
        UnsupportedError: a pattern is not supported, or there are too many.
    """
    if not cuts:
        return b""
    if len(cuts) > MOST_STAGES:
        raise UnsupportedError("patterns are not supported:", [f"more than {MOST_STAGES}"])
    sets = Sets()
    nodes = [Nodes(parse_pattern(cut.pattern), sets) for cut in cuts]
    of_each, members = sets.classes()
    count = len(members[0])
    parts = _class_blocks(of_each)
    header = [len(cuts), count, *parts[0], 0]
    stages: list[bytes] = []
    place = 0
    for cut, own in zip(cuts, nodes, strict=True):
        automaton = make_automaton(own, members, count)
        stages.append(_stage(automaton, place, drops_rest=cut.drops_rest))
        place += automaton.looks + automaton.has_start
    if place > BITS:
        raise UnsupportedError("patterns are not supported:", [f"more than {BITS} looks ahead"])
    return b"".join([_words(header), *parts[1], *stages])


def _words(values: Sequence[int] | NDArray[np.uint16]) -> bytes:
    return np.asarray(values, "<u2").tobytes()


def _class_blocks(of_each: NDArray[np.uint8]) -> tuple[tuple[int, int, int], list[bytes]]:
    """((blocks, different ones, the class behind them), their tables)."""
    rest = int(of_each[-1])
    end = int(np.flatnonzero(of_each != rest)[-1]) // BLOCK + 1 if (of_each != rest).any() else 1
    different: dict[bytes, int] = {}
    rows = of_each[: end * BLOCK].reshape(end, BLOCK)
    index = [different.setdefault(row.tobytes(), len(different)) for row in rows]
    return (end, len(different), rest), [_words(index), b"".join(different)]


def _stage(automaton: Automaton, place: int, *, drops_rest: bool) -> bytes:
    flags = HAS_START * automaton.has_start | DROPS_REST * drops_rest
    header = [len(automaton.forward), automaton.looks, len(automaton.backward), flags, place, 0]
    return _words(header) + _words(automaton.forward) + _words(automaton.backward)
