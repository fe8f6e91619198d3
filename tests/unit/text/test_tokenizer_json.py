"""Vocabularies of Hugging Face's tokenizer.json."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from aot.errors import CompileError, UnsupportedError
from aot.text.tokenizer_json import PATTERNS, read_vocabulary
from aot.text.vocabulary import ALPHABET, PreTokeniser, Scheme, Strip, TokenType

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1]]}


def _bpe(**changes: Any) -> dict[str, Any]:
    vocab = {character: i for i, character in enumerate([*ALPHABET, "ab"])}
    return {
        "added_tokens": [
            {"id": 257, "content": "<|im_end|>", "special": True, "rstrip": True},
            {"id": 258, "content": "<think>", "special": False},
        ],
        "pre_tokenizer": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"], "unk_token": None},
    } | changes


def test_merges_of_bytes() -> None:
    found = read_vocabulary(_bpe(), {"eos_token": {"content": "<|im_end|>"}})
    assert found.scheme is Scheme.BYTE_MERGES and found.pre_tokeniser is PreTokeniser.GPT2
    assert found.merges == (("a", "b"),)
    assert found.types[257:] == (TokenType.CONTROL, TokenType.USER_DEFINED)
    assert found.strips == {257: Strip.RIGHT}
    assert (found.bos, found.eos, found.end_tokens) == (None, 257, {257})
    assert not found.adds_bos and not found.adds_eos


@pytest.mark.parametrize(("pattern", "kind"), PATTERNS.items())
def test_patterns(pattern: str, kind: PreTokeniser) -> None:
    assert read_vocabulary(_bpe(pre_tokenizer=_split(pattern))).pre_tokeniser is kind


def test_single_digits() -> None:
    digits = {"type": "Digits", "individual_digits": True}
    both = {"type": "Sequence", "pretokenizers": [digits, BYTE_LEVEL]}
    found = read_vocabulary(_bpe(pre_tokenizer=both))
    assert found.pre_tokeniser is PreTokeniser.SMOLLM


def test_templates_say_what_begins_and_ends_text() -> None:
    begin, text = {"SpecialToken": {"id": "<think>"}}, {"Sequence": {"id": "A"}}
    template = {"type": "TemplateProcessing", "single": [begin, text]}
    found = read_vocabulary(_bpe(post_processor=template))
    assert (found.adds_bos, found.bos, found.adds_eos) == (True, 258, False)


def test_merges_of_characters() -> None:
    model = {
        "type": "BPE",
        "vocab": {"<unk>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "▁a": 4},
        "merges": [["▁", "a"]],
        "byte_fallback": True,
        "unk_token": "<unk>",
    }
    normalizers = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    found = read_vocabulary(
        {"model": model, "normalizer": {"type": "Sequence", "normalizers": normalizers}}
    )
    assert found.scheme is Scheme.CHARACTER_MERGES
    assert found.adds_space and found.escapes_spaces
    assert found.types[1] is TokenType.BYTE and found.unknown == 0


def test_unigram() -> None:
    data = {
        "model": {"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", 0], ["<unk>", 0], ["a", -1]]},
        "normalizer": {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(b"abcd").decode(),
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
    }
    found = read_vocabulary(data)
    assert found.scheme is Scheme.UNIGRAM and found.scores == (0.0, 0.0, -1.0)
    assert found.types[1] is TokenType.UNKNOWN and found.unknown == 1
    assert found.replacements == b"abcd" and found.adds_space


@pytest.mark.parametrize(
    ("changes", "items"),
    [
        ({"normalizer": {"type": "Lowercase"}}, ["the normalizer Lowercase"]),
        ({"pre_tokenizer": _split("a+")}, ["the pre-tokenizer Split of 'a+'"]),
        ({"pre_tokenizer": {"type": "Whitespace"}}, ["the pre-tokenizer Whitespace"]),
        (
            {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}},
            ["the pre-tokenizer ByteLevel with add_prefix_space"],
        ),
        (
            {"pre_tokenizer": _sequence({"type": "Digits"}, BYTE_LEVEL)},
            ["the pre-tokenizer Digits"],
        ),
        ({"model": UNIGRAM}, ["Unigram of bytes"]),
    ],
)
def test_what_is_not_supported(changes: dict[str, Any], items: list[str]) -> None:
    with pytest.raises(UnsupportedError) as failure:
        read_vocabulary(_bpe(**changes))
    assert list(failure.value.items)[:1] == items


def test_what_is_wrong() -> None:
    with pytest.raises(CompileError) as failure:
        read_vocabulary({})
    assert str(failure.value) == "tokenizer.json has no model"
    with pytest.raises(UnsupportedError, match="^the tokeniser 'WordPiece' is not supported"):
        read_vocabulary({"model": {"type": "WordPiece"}})
    with pytest.raises(CompileError) as failure:
        read_vocabulary(_bpe(model={**_bpe()["model"], "merges": ["a b c"]}))
    assert str(failure.value) == "tokenizer.json: merge 0 is 'a b c', which is no pair"


@pytest.mark.parametrize(
    ("part", "trims"),
    [
        ({"normalizer": {"type": "NFC"}}, False),
        ({"normalizer": {"type": "Strip"}}, True),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}}, True),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, True),
    ],
)
def test_what_is_taken_off_text(part: dict[str, Any], trims: bool) -> None:
    plain: dict[str, Any] = {"model": UNIGRAM, "pre_tokenizer": {"type": "Metaspace"}}
    assert read_vocabulary(plain | part).trims_spaces is trims


def test_templates_may_end_text_too() -> None:
    end, text = {"SpecialToken": {"id": "<|im_end|>"}}, {"Sequence": {"id": "A"}}
    template = {"type": "TemplateProcessing", "single": [text, end]}
    found = read_vocabulary(_bpe(post_processor=template))
    assert (found.adds_bos, found.adds_eos, found.eos) == (False, True, 257)


@pytest.mark.parametrize(
    ("templates", "chosen"),
    [
        ([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "r"}], "r"),
        ([], ""),
    ],
)
def test_of_several_chat_templates_the_default(
    templates: list[dict[str, str]], chosen: str
) -> None:
    config = {"chat_template": templates}
    assert read_vocabulary(_bpe(), config).chat_template == chosen
