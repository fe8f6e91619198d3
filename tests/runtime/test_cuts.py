"""Text that the runtime cuts by the tables of patterns, beside Python's `re`."""

from __future__ import annotations

import ctypes
import re
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aot.errors import RuntimeFailure
from aot.runtime.text import Tokeniser
from aot.text.patterns import may_be_empty, parse_pattern
from aot.text.vocabulary import Cut
from tests.support.text_runtime import native, opened
from tests.support.vocabularies import byte_vocabulary

few = settings(max_examples=60, deadline=None)


@cache
def _cutting(*cuts: Cut) -> Tokeniser:
    return opened(byte_vocabulary(cuts=cuts))


def cut(text: str, *cuts: Cut | str) -> list[str]:
    """The parts of a text, by the library's own functions; those that are dropped are left out."""
    library = native()
    library.aot_cut_next.restype = ctypes.c_size_t
    tokeniser = _cutting(*(Cut(own) if isinstance(own, str) else own for own in cuts))
    cutter = (ctypes.c_uint64 * 256)()  # no less than the structure's own
    data, is_dropped, parts, at = text.encode(), ctypes.c_bool(), [], 0
    size = ctypes.c_size_t(len(data))
    assert library.aot_cut_begin(tokeniser._handle, data, size, None, cutter) == 0
    while at < len(data):
        end = library.aot_cut_next(cutter, ctypes.byref(is_dropped))
        assert at < end <= len(data)
        if not is_dropped.value:
            parts.append(data[at:end].decode())
        at = end
    return parts


def cut_by_python(text: str, pattern: str) -> list[str]:
    """Each match, and what stands between."""
    parts, at = [], 0
    for match in re.finditer(pattern, text):
        parts += [text[at : match.start()]] * (match.start() > at) + [match[0]]
        at = match.end()
    return parts + [text[at:]] * (at < len(text))


SETS = st.sampled_from(["a", "b", "[ab]", "[^a]", r"\s", r"\d", "é", "[^b-é]", r"[a\s]", "."])
ENDS = st.sampled_from(["(?!a)", "(?=b)", r"(?!\S)", "(?=ab)", "(?!a+b)", "(?=(?:aa)*b)"])


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["", "?", "*", "+", "{2}", "{1,2}", "{2,}", "??", "*?", "+?"])
    repeated = st.tuples(inner, signs).map(lambda own: f"(?:{own[0]}){own[1]}")
    sequence = st.lists(repeated, min_size=1, max_size=3).map("".join)
    return st.one_of(
        sequence,
        st.lists(sequence, min_size=2, max_size=3).map(lambda own: f"(?:{'|'.join(own)})"),
        st.tuples(sequence, ENDS).map("".join),
    )


# Without repetitions of what looks ahead, of which engines do not agree.
PATTERNS = st.one_of(_joined(SETS), st.tuples(_joined(SETS), _joined(SETS)).map("|".join))


@few
@given(pattern=PATTERNS, texts=st.lists(st.text("aab é\n1", max_size=12), min_size=4, max_size=4))
def test_matches_are_those_of_python(pattern: str, texts: list[str]) -> None:
    assume(not may_be_empty(parse_pattern(pattern)))
    for text in texts:
        assert cut(text, pattern) == cut_by_python(text, pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"'s|[^\r\n\w]?[^\W\d_]+|\d{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+", "it's  12345!\n\n x "),
        (r"\d{1,3}(?=(?:\d{3})*(?!\d))", "1234567 12 12345x"),
        (r"\s+(?!\S)", "a   b  "),
        (r"(?:ab|a)(?:bc)?", "abc abbc"),
        (r"a++b|[^\s]+?", "aaab aac"),
        (r"\x61[\u00e9-\x{1F600}]\t?", "aé\ta\U0001f600a"),
        (r"(?=(?:aa)+(?!a))a", "aaaaa"),
    ],
)
def test_what_tokenisers_use(pattern: str, text: str) -> None:
    python = re.sub(r"\\x\{(\w+)\}", lambda m: chr(int(m[1], 16)), pattern)
    assert cut(text, pattern) == cut_by_python(text, python)


def test_each_pattern_cuts_the_parts_of_those_before() -> None:
    assert cut("ab1 b22", r"\d", "b.?") == ["a", "b", "1", " ", "b", "2", "2"]
    assert cut("x1y", "[^z]", "1y") == ["x", "1", "y"]


def test_what_stands_between_is_dropped() -> None:
    assert cut(" ab  c ", Cut(r"\S+", drops_rest=True)) == ["ab", "c"]
    tokeniser = _cutting(Cut("a+", drops_rest=True), Cut("aa"))
    assert tokeniser.encode("baab a").tolist() == [*_cutting(Cut("a")).encode("aaa").tolist()]


def test_the_end_of_a_part_and_of_a_line() -> None:
    assert cut("a  \nb  ", r"\s+\z") == ["a  \nb", "  "]
    assert cut("a \n b \n", "[^\n]$", "z") == ["a", " ", "\n b", " ", "\n"]


def test_groups_of_three_from_the_right() -> None:
    pattern = r"(?=(?:\d{3})+(?!\d))"
    assert cut("1234567", pattern) == ["1", "234", "567"]
    assert cut("123456 12", pattern) == ["123", "456 12"]


def test_time_is_in_the_length_of_the_text() -> None:
    """Where what is read in vain is known before; else steps run out."""
    spaces = " " * 200_000
    assert cut(spaces + "x", r"\s+\z") == [spaces + "x"]
    assert cut("1" * 200_000, r"\d{1,3}(?=(?:\d{3})*(?!\d))")[0] == "11"
    assert cut("aabaa", "a*b|a") == ["aab", "a", "a"]
    with pytest.raises(RuntimeFailure) as failure:
        _cutting(Cut("a*b|a")).encode("a" * 200_000)
    assert str(failure.value) == ("the vocabulary's patterns take too many steps to cut this text")
