"""Bounds of the tables by which text is cut: patterns of a model's file may be anything."""

from __future__ import annotations

import pytest

from aot.errors import UnsupportedError
from aot.link.cut_layout import are_cuts
from aot.link.pattern_tables import encode_cuts
from aot.text.vocabulary import Cut

TOO_LARGE = "the pattern is not supported:\n  it is too large"
IDEOGRAPHS = "|".join(chr(0x4E00 + i) for i in range(100))
POSSESSIVE = "".join(chr(0x4E00 + i) + "*+" for i in range(1500))


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("[ab]*a[ab]{14}", TOO_LARGE),
        ("(?:(?:a{999}){999}){999}", TOO_LARGE),
        # Few states, of many nodes each, beside many classes.
        (f"(?:[ab]?){{1000}}c|{IDEOGRAPHS}", TOO_LARGE),
        (f"(?!(?:[ab]?){{999}}c)a|{IDEOGRAPHS}", TOO_LARGE),
        (POSSESSIVE, "the patterns are not supported:\n  more than 255 classes"),
    ],
)
def test_work_is_bounded(pattern: str, what: str) -> None:
    with pytest.raises(UnsupportedError) as failure:
        encode_cuts((Cut(pattern),))
    assert str(failure.value) == what


@pytest.mark.parametrize(
    "pattern", ["", "(?:(?:(?:(?:){1024}){1024}){1024}){1024}", "(?:" * 32 + "a" + "*+?*)" * 32]
)
def test_repetitions_of_little(pattern: str) -> None:
    """Repetitions of the empty text, however often, and of other repetitions."""
    assert are_cuts(encode_cuts((Cut(pattern),)))
