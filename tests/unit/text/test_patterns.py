"""The syntax of patterns, and sets of characters."""

from __future__ import annotations

import sys
import unicodedata

import numpy as np
import pytest

from aot.errors import UnsupportedError
from aot.text import characters
from aot.text.patterns import Ahead, Chars, Choice, Repeat, Sequence, parse_pattern

POINTS = np.arange(characters.COUNT, dtype=np.int32)


def _members(pattern: str) -> set[str]:
    node = parse_pattern(pattern)
    assert isinstance(node, Chars)
    return {chr(c) for c in POINTS[node.members.has(POINTS)]}


def test_categories() -> None:
    """The categories of all characters that this Python's Unicode has too."""
    kinds = np.array([unicodedata.category(chr(c)) for c in range(characters.COUNT)])
    known = kinds != "Cn"
    for name in ("L", "Lu", "Nd", "P", "M", "Sm", "Zs", "Cf"):
        own = characters.of_property(name)
        assert own is not None
        assert (own.has(POINTS) == np.char.startswith(kinds, name))[known].all()


def test_white_space_and_words() -> None:
    others = {"\x1c", "\x1d", "\x1e", "\x1f"}  # which Python takes for white space beside
    python = {chr(c) for c in range(sys.maxunicode + 1) if chr(c).isspace()}
    assert _members(r"\s") == python - others
    assert {"a", "_", "é", "1", "ʰ", "\u0301", "漢"} <= _members(r"\w")
    assert not {" ", "-", "½", "\u2014"} & _members(r"\w")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("[a-c]", "abc"),
        ("[a-]", "a-"),
        ("[]a]", "]a"),
        (r"[\]\-a]", "]-a"),
        ("[a-d&&[^bc]]", "ad"),
        ("[ab[cd]]", "abcd"),
        ("(?i:[sk])", "sSkK\u017f\u212a"),
        ("(?i:B)", "bB"),
        (r"\x41", "A"),
        (r"\u00e9", "é"),
        (r"[\x{1F600}-\x{1F601}]", "😀😁"),
        (r"[\p{Han}&&\x{3005}-\x{3007}]", "々〇"),
        (r"[^\P{Nd}[^0-9]]", "0123456789"),
        (r"\.", "."),
    ],
)
def test_sets(pattern: str, expected: str) -> None:
    assert _members(pattern) == set(expected)


def test_unions_of_sets() -> None:
    """Beside sets of Python, with neighbours, overlaps, and what has no end."""
    sets = [r"[^\x00-c]", "[a-d]", "[e]", "b", "[0-9]", "[5-8]", "[^\x00-\u00ff]"]
    for count in range(len(sets) + 1):
        own = [parse_pattern(pattern) for pattern in sets[-count:] if count]
        found = characters.union([one.members for one in own if isinstance(one, Chars)])
        expected = {ord(c) for pattern in sets[-count:] if count for c in _members(pattern)}
        assert set(POINTS[found.has(POINTS)].tolist()) == expected
        assert (np.diff(found.edges) > 0).all()


def test_trees() -> None:
    node = parse_pattern("(?:a|b){2,3}?c*(?!d)|")
    assert isinstance(node, Choice)
    sequence, empty = node.parts
    assert empty == Sequence(()) and isinstance(sequence, Sequence)
    repeat, star, ahead = sequence.parts
    assert isinstance(repeat, Repeat) and (repeat.least, repeat.most, repeat.is_lazy) == (
        2,
        3,
        True,
    )
    assert isinstance(star, Repeat) and (star.least, star.most, star.is_lazy) == (0, None, False)
    assert isinstance(ahead, Ahead) and ahead.is_negative


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(?<=a)b", "a group of this kind, at 1"),
        ("(a", "a group without its end, at 2"),
        ("a)", "a parenthesis that closes nothing, at 1"),
        ("[a", "an end inside a set, at 2"),
        ("a\\", "an end inside an escape, at 2"),
        (r"\b", "the escape \\b, at 2"),
        (r"\p{Greek}", "the property 'Greek', at 3"),
        ("[[:alpha:]]", "a set by name, at 1"),
        ("*a", "'*', at 1"),
        ("^a", "'^', at 1"),
        ("[b-a]", "such a range, at 4"),
        ("a{x}", "a brace that is no count, at 1"),
        ("a{3,2}", "such a count, at 1"),
        ("a{9999}", "such a count, at 1"),
        (f"a{{{'1' * 99}}}", "such a count, at 1"),
        ("a**{2}?++*", "repetitions that are nested too deep, at 10"),
        ("(?=a)*", "a repetition of nothing, at 6"),
        ("a++a", "a possessive repetition of what may be behind it too, at 4"),
        ("(a" * 40, "groups that are nested too deep, at 65"),
        (r"\x{110000}", "an escape of no character, at 10"),
    ],
)
def test_what_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(UnsupportedError) as failure:
        parse_pattern(pattern)
    assert failure.value.items == (f"{what} of {pattern!a}",)
    assert str(failure.value).startswith("the pattern is not supported:\n")
