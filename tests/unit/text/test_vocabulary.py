"""Vocabularies that contradict themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aot.errors import CompileError
from aot.text import vocabulary
from aot.text.vocabulary import (
    ALPHABET,
    Scheme,
    TokenType,
    alphabet_bytes,
    byte_alphabet,
    is_replacement_table,
)
from tests.support.vocabularies import byte_vocabulary


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": (), "types": ()}, "the vocabulary has no tokens"),
        ({"types": (TokenType.NORMAL,)}, "the vocabulary has 258 tokens and 1 types"),
        ({"scores": (0.0,)}, "the vocabulary has 258 tokens and 1 scores"),
        (
            {"scheme": Scheme.UNIGRAM, "scores": ()},
            "the vocabulary has no scores, which its scheme needs",
        ),
        ({"bos": 258}, "the vocabulary's bos is token 258 of 258"),
        ({"unknown": -1}, "the vocabulary's unknown is token -1 of 258"),
        (
            {"end_tokens": frozenset({3, 999})},
            "the vocabulary's end token 1 is token 999 of 258",
        ),
        (
            {"tokens": ("\ud800", *ALPHABET, "x")},
            "the vocabulary's token 0 is not UTF-8: '\\ud800'",
        ),
        (
            {"merges": (("a", "b"), ("c", "\udc80"))},
            "the vocabulary's merge 1 is not UTF-8: 'c\\udc80'",
        ),
        ({"chat_template": "\udfff"}, "the vocabulary's chat template is not UTF-8: '\\udfff'"),
        ({"scores": (0.0,) * 257 + (-math.inf,)}, "the vocabulary's token 257 has the score -inf"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        byte_vocabulary(**fields)
    assert str(caught.value) == message


def test_there_are_not_too_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MOST_SYMBOLS", 258)
    with pytest.raises(CompileError, match=r"^the vocabulary has 258 tokens, expected at most"):
        byte_vocabulary()


def test_bytes_by_their_characters() -> None:
    every = bytes(range(256))
    assert alphabet_bytes(byte_alphabet(every)) == every
    assert alphabet_bytes("日") is None


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"", True),
        (b"\0\0\0\0\0", True),
        (b"\4\0\0\0abcd\xc3\xa9\0", True),
        (b"\0", False),
        (b"\0\0\0\0", False),
        (b"\4\0\0\0abcd", False),
        (b"\3\0\0\0abc\0", False),
        (b"\4\0\0\0abcda", False),
        (b"\4\0\0\0abcd\xc3\0", False),
    ],
)
def test_replacement_tables(data: bytes, is_one: bool) -> None:
    assert is_replacement_table(data) == is_one
