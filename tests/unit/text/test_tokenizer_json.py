"""Vocabularies of Hugging Face's tokenizer.json."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from aot.errors import CompileError, UnsupportedError
from aot.text.pre_tokenisers import CUTS
from aot.text.tokenizer_json import read_vocabulary
from aot.text.vocabulary import ALPHABET, Cut, Scheme, SpacePrefix, Strip, TokenType
from tests.support.vocabularies import replacements

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


SPLIT = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"}


def _split(pattern: str) -> dict[str, Any]:
    split = {**SPLIT, "pattern": {"Regex": pattern}}
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
    assert found.scheme is Scheme.BYTE_MERGES and found.cuts == CUTS["gpt-2"]
    assert found.merges == (("a", "b"),)
    assert found.types[257:] == (TokenType.CONTROL, TokenType.USER_DEFINED)
    assert found.strips == {257: Strip.RIGHT}
    assert (found.bos, found.eos, found.end_tokens) == (None, 257, {257})
    assert not found.adds_bos and not found.adds_eos


def test_patterns() -> None:
    pattern = r"\p{N}{1,3}|[^\r\n]+"
    assert read_vocabulary(_bpe(pre_tokenizer=_split(pattern))).cuts == (Cut(pattern),)
    split = _split(pattern)["pretokenizers"][0] | {"behavior": "Removed", "invert": True}
    found = read_vocabulary(
        _bpe(pre_tokenizer=_sequence(split, {**BYTE_LEVEL, "use_regex": False}))
    )
    assert found.cuts == (Cut(pattern, drops_rest=True),)
    split |= {"pattern": {"String": "a.b"}, "behavior": "Isolated"}
    found = read_vocabulary(_bpe(pre_tokenizer=_sequence(split, BYTE_LEVEL)))
    assert found.cuts == (Cut(r"a\.b"), *CUTS["gpt-2"])


def test_single_digits() -> None:
    digits = {"type": "Digits", "individual_digits": True}
    both = {"type": "Sequence", "pretokenizers": [digits, BYTE_LEVEL]}
    found = read_vocabulary(_bpe(pre_tokenizer=both))
    assert found.cuts == CUTS["smollm"]


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
            "precompiled_charsmap": base64.b64encode(replacements({}, b"\0")).decode(),
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
    }
    found = read_vocabulary(data)
    assert found.scheme is Scheme.UNIGRAM and found.scores == (0.0, 0.0, -1.0)
    assert found.types[1] is TokenType.UNKNOWN and found.unknown == 1
    assert found.replacements == replacements({}, b"\0") and found.adds_space


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SpacePrefix.EACH_WORD),
        ({"prepend_scheme": "always"}, SpacePrefix.EACH_WORD),
        ({"prepend_scheme": "first"}, SpacePrefix.FIRST_WORD),
        ({"prepend_scheme": "never"}, SpacePrefix.NONE),
        ({"prepend_scheme": "first", "add_prefix_space": False}, SpacePrefix.NONE),
    ],
)
def test_where_a_space_is_put(fields: dict[str, Any], expected: SpacePrefix) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1]]}
    space = {"type": "Metaspace", "replacement": "▁", **fields}
    assert read_vocabulary({"model": model, "pre_tokenizer": space}).adds_space is expected
    both = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]}
    found = read_vocabulary({"model": model, "pre_tokenizer": both})
    assert found.trims_spaces and found.adds_space is (expected and SpacePrefix.EACH)
    with pytest.raises(CompileError) as failure:
        read_vocabulary({"model": model, "pre_tokenizer": space | {"prepend_scheme": "last"}})
    assert str(failure.value) == (
        "tokenizer.json: pre_tokenizer: prepend_scheme: expected always, first or never, found "
        "'last'"
    )


@pytest.mark.parametrize(
    ("changes", "items"),
    [
        ({"normalizer": {"type": "Lowercase"}}, ["the normalizer Lowercase"]),
        (
            {"pre_tokenizer": _split("(?<!b)a+")},
            ["the pre-tokenizer Split: a group of this kind, at 1 of '(?<!b)a+'"],
        ),
        (
            {"pre_tokenizer": _sequence({**SPLIT, "behavior": "Contiguous"}, BYTE_LEVEL)},
            ["the pre-tokenizer Split with the behavior 'Contiguous'"],
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, ["the pre-tokenizer Whitespace"]),
        (
            {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}},
            ["the pre-tokenizer ByteLevel with add_prefix_space"],
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
    assert str(failure.value) == (
        "tokenizer.json: model: merges[0]: expected a pair of texts, found 'a b c'"
    )


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


def _changed(change: dict[str, Any]) -> dict[str, Any]:
    return _bpe(model={**_bpe()["model"], **change})


DEEP: dict[str, Any] = BYTE_LEVEL
for _ in range(40):
    DEEP = _sequence(DEEP)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "tokenizer.json: expected an object, found []"),
        ({"model": "BPE"}, "tokenizer.json: model: expected an object, found 'BPE'"),
        (_changed({"type": 3}), "tokenizer.json: model: type: expected a string, found 3"),
        (_changed({"vocab": ["a"]}), "tokenizer.json: model: vocab: expected an object, found"),
        (
            _changed({"vocab": {"a": "0"}}),
            "tokenizer.json: model: vocab: 'a': expected a token's id, 0 to 2097151, found '0'",
        ),
        (_changed({"vocab": {"a": 1 << 40}}), "found 1099511627776"),
        (_changed({"vocab": {"a": True}}), "found True"),
        (_changed({"merges": {"a": "b"}}), "model: merges: expected an array, found {'a': 'b'}"),
        (_changed({"merges": [["a", 1]]}), "model: merges[0]: expected a pair of texts, found"),
        (_changed({"merges": [7]}), "model: merges[0]: expected a pair of texts, found 7"),
        (_changed({"byte_fallback": "yes"}), "byte_fallback: expected true or false, found 'yes'"),
        (_changed({"unk_token": 0}), "model: unk_token: expected a string, found 0"),
        ({"model": {**UNIGRAM, "vocab": {"a": 0}}}, "model: vocab: expected an array, found"),
        (
            {"model": {**UNIGRAM, "vocab": [["a", float("nan")]]}},
            "tokenizer.json: model: vocab[0]: expected a text and a score, found ['a', nan]",
        ),
        ({"model": {**UNIGRAM, "vocab": [["a"]]}}, "expected a text and a score, found ['a']"),
        ({"model": {**UNIGRAM, "vocab": [["a", "1"]]}}, "expected a text and a score, found"),
        ({"model": {**UNIGRAM, "unk_id": -1}}, "model: unk_id: expected a token's id, 0 to"),
        ({"model": {**UNIGRAM, "unk_id": 9}}, "the vocabulary's unknown is token 9 of 2"),
        (_bpe(added_tokens={"id": 0}), "tokenizer.json: added_tokens: expected an array, found"),
        (_bpe(added_tokens=["a"]), "added_tokens[0]: expected an object, found 'a'"),
        (_bpe(added_tokens=[{"content": "a"}]), "added_tokens[0]: id: expected a token's id"),
        (_bpe(added_tokens=[{"id": 0, "content": 1}]), "content: expected a string, found 1"),
        (_bpe(added_tokens=[{"id": 0, "special": 1}]), "special: expected true or false, found 1"),
        (_bpe(normalizer=["NFC"]), "tokenizer.json: normalizer: expected an object, found"),
        (_bpe(normalizer={"a": 1}), "normalizer: type: expected a string, found None"),
        (
            _bpe(normalizer={"type": "Sequence", "normalizers": [3]}),
            "tokenizer.json: normalizer: normalizers[0]: expected an object, found 3",
        ),
        (
            _bpe(normalizer={"type": "Precompiled", "precompiled_charsmap": "a"}),
            "normalizer: precompiled_charsmap: expected base64, found 'a'",
        ),
        (_bpe(normalizer={"type": "Replace"}), "normalizer: pattern: expected an object, found"),
        (
            _bpe(pre_tokenizer=_sequence(BYTE_LEVEL, {"type": "Split", "pattern": {"Regex": 1}})),
            "pre_tokenizer: pretokenizers[1]: pattern: Regex: expected a string, found 1",
        ),
        (_bpe(pre_tokenizer=DEEP), "sequences are nested deeper than 16"),
        (
            _bpe(post_processor={"type": "TemplateProcessing", "single": [3]}),
            "tokenizer.json: post_processor: single[0]: expected an object, found 3",
        ),
    ],
)
def test_each_field_has_a_rule(data: Any, message: str) -> None:
    with pytest.raises(CompileError) as failure:
        read_vocabulary(data)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (["a"], "tokenizer_config.json: expected an object, found ['a']"),
        ({"bos_token": 3}, "tokenizer_config.json: bos_token: expected a string, found 3"),
        ({"eos_token": {"content": 3}}, "eos_token: content: expected a string, found 3"),
        (
            {"eos_token": "<think>", "add_eos_token": "no"},
            "add_eos_token: expected true or false, found 'no'",
        ),
        ({"chat_template": 3}, "tokenizer_config.json: chat_template: expected a string, found 3"),
        ({"chat_template": ["a"]}, "chat_template[0]: expected an object, found 'a'"),
        ({"chat_template": [{"name": 1}]}, "chat_template[0]: name: expected a string, found 1"),
    ],
)
def test_each_field_of_the_config_has_a_rule(config: Any, message: str) -> None:
    with pytest.raises(CompileError) as failure:
        read_vocabulary(_bpe(), config)
    assert message in str(failure.value)


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(CompileError) as failure:
        read_vocabulary({"model": "x" * 100_000})
    assert len(str(failure.value)) < 200
