"""Vocabularies of GGUF metadata, by key."""

from __future__ import annotations

from typing import Any

import pytest

from aot.errors import CompileError, UnsupportedError
from aot.text.gguf import read_vocabulary
from aot.text.pre_tokenisers import CUTS
from aot.text.vocabulary import Scheme, Strip, TokenType, Vocabulary, WholeParts
from tests.support.vocabularies import GPT2_METADATA, replacements


def _read(**changes: Any) -> Vocabulary:
    data = dict(GPT2_METADATA)
    for key, value in changes.items():
        data[f"tokenizer.ggml.{key}"] = value
    found = read_vocabulary({k: v for k, v in data.items() if v is not None})
    assert found is not None
    return found


def test_what_the_keys_say() -> None:
    found = _read()
    assert found.scheme is Scheme.BYTE_MERGES
    assert found.cuts == CUTS["smollm"]
    assert len(found) == 260
    assert found.merges == (("a", "b"), ("Ġ", "ab"))
    assert (found.bos, found.eos, found.unknown) == (259, 258, None)
    assert found.chat_template == "{{ messages }}"
    assert not found.adds_bos and not found.adds_eos and not found.whole_parts
    assert found.text(257) == b" ab"


def test_a_file_without_a_vocabulary() -> None:
    assert read_vocabulary({"general.name": "x"}) is None
    assert read_vocabulary({"tokenizer.ggml.model": "no_vocab"}) is None


def test_what_ends_a_reply_is_a_control_token() -> None:
    """Whatever type and key the file gives it."""
    found = _read(eos_token_id=3)
    assert found.end_tokens == {3, 258}
    assert found.types[258] is TokenType.CONTROL


def test_minimax_ends_replies_by_a_text() -> None:
    letters = GPT2_METADATA["tokenizer.ggml.tokens"][:256]
    found = _read(tokens=[*letters, "[e~[", "[PAD]", "x"], token_type=None, merges=[])
    assert {256, 257} <= found.end_tokens and found.types[256] is TokenType.CONTROL


def test_harmony_ends_messages_and_replies() -> None:
    tokens = [*GPT2_METADATA["tokenizer.ggml.tokens"][:256], "<|end|>", "<|return|>", "<|call|>"]
    found = _read(tokens=tokens, token_type=None, eos_token_id=257, merges=[])
    assert found.end_tokens == {257, 258}


def test_a_text_that_may_be_a_tag_ends_replies_where_nothing_else_does() -> None:
    letters = GPT2_METADATA["tokenizer.ggml.tokens"][:256]
    plain = {"token_type": None, "merges": [], "eos_token_id": None, "bos_token_id": None}
    tokens = [*letters, "<\uff5cend\u2581of\u2581sentence\uff5c>", "x", "y"]
    found = _read(tokens=tokens, **plain)
    assert 256 in found.end_tokens and found.types[256] is TokenType.CONTROL
    found = _read(tokens=[*tokens[:-1], "<|im_end|>"], **plain)
    assert 256 not in found.end_tokens and 258 in found.end_tokens
    found = _read(tokens=[*letters, "<|tool_response>", "</s>", "<turn|>"], **plain)
    assert 257 not in found.end_tokens


def test_llama3_takes_whole_parts_and_begins_with_bos() -> None:
    found = _read(pre="llama-bpe", add_bos_token=None)
    assert found.cuts == CUTS["llama3"]
    assert found.whole_parts is WholeParts.ALL and found.adds_bos
    assert not _read(pre="llama-bpe", add_bos_token=False).adds_bos
    assert not _read(pre="qwen2", add_bos_token=None).adds_bos


@pytest.mark.parametrize(
    ("model", "scheme", "flags"),
    [
        ("llama", Scheme.SCORED_MERGES, (True, False, True)),
        ("t5", Scheme.UNIGRAM, (False, True, False)),
    ],
)
def test_sentencepiece(model: str, scheme: Scheme, flags: tuple[bool, ...]) -> None:
    found = _read(model=model, pre="default", scores=[0.0] * 260, add_bos_token=None, merges=None)
    assert found.scheme is scheme and found.escapes_spaces
    assert (found.adds_bos, found.adds_eos, found.adds_space) == flags
    assert found.cuts == ()


def test_phi3_takes_white_space_along() -> None:
    data = {**GPT2_METADATA, "general.name": "Phi-3 mini"}
    found = read_vocabulary(data)
    assert found is not None
    assert found.strips == {258: Strip.RIGHT, 259: Strip.RIGHT}


def test_masks_take_white_space_along() -> None:
    masks = [*GPT2_METADATA["tokenizer.ggml.tokens"][:-2], "<mask>", "[MASK]"]
    assert _read(tokens=masks, pre="jina-v2-de").strips == {258: Strip.LEFT}
    assert _read(tokens=masks, pre="gpt-2").strips == {}
    named = {"general.name": "ModernBERT: modern-bert base", "tokenizer.ggml.tokens": masks}
    found = read_vocabulary({**GPT2_METADATA, **named})
    assert found is not None and found.strips == {259: Strip.LEFT}


def test_schemes_that_are_not_known() -> None:
    with pytest.raises(UnsupportedError) as failure:
        _read(model="plamo2")
    assert str(failure.value) == (
        "the tokeniser 'plamo2' is not supported, there are\n"
        "  bert\n  gemma4\n  gpt2\n  llama\n  rwkv\n  t5"
    )
    with pytest.raises(UnsupportedError) as failure:
        _read(pre="superb")
    assert str(failure.value).startswith("the pre-tokeniser 'superb' is not supported, there are\n")
    assert {"gpt-2", "llama-bpe", "qwen2", "smollm"} <= set(failure.value.items)


def test_a_file_that_names_no_pre_tokeniser() -> None:
    """As llama.cpp reads it."""
    assert _read(pre=None).cuts == _read(pre="default").cuts != _read(pre="gpt-2").cuts


def test_words_become_pieces() -> None:
    plain = {"pre": None, "merges": None, "add_bos_token": False, "add_eos_token": False}
    found = _read(model="bert", seperator_token_id=3, **plain)
    assert found.scheme is Scheme.WORD_PIECES and found.cuts[0].drops_rest
    assert (found.bos, found.eos, found.unknown) == (259, 3, 100)
    assert found.adds_bos and found.adds_eos
    small = {first: to for first, _, to in found.character_map}
    assert small[ord("A")] == ord("a") and small[ord("\u00e9")] == ord("e")
    found = _read(model="bert", **plain, **{"normalizer.lowercase": False})
    assert found.eos == 102 and {to for *_, to in found.character_map} == {2**32 - 1}
    both = {"normalizer.lowercase": True, "normalizer.strip_accents": False}
    small = {first: to for first, _, to in _read(model="bert", **plain, **both).character_map}
    assert small[ord("A")] == ord("a") and ord("\u00e9") not in small


def test_rwkv_writes_bytes_behind_backslashes() -> None:
    tokens = ["a", "\\n", "\\xff\\x0A", "\\\\n", "\\'\\t", "\u00e9"]
    found = _read(model="rwkv", tokens=tokens, token_type=None, merges=None)
    assert found.scheme is Scheme.LONGEST and not (found.adds_bos or found.adds_eos)
    expected = [b"a", b"\n", b"\xff\n", b"\\n", b"'\t", b"\xc3\xa9"]
    assert [found.text(i) for i in range(len(tokens))] == expected


def test_gemma4_merges_characters() -> None:
    found = _read(model="gemma4", pre=None, add_bos_token=False)
    assert found.scheme is Scheme.CHARACTER_MERGES and found.escapes_spaces and found.adds_bos
    assert found.whole_parts is WholeParts.OF_LINE_ENDS and not found.adds_space
    assert found.cuts == CUTS["gemma4"] and not found.scores


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "the file has no tokenizer.ggml.tokens, which its tokeniser needs"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is 'abc', expected an array"),
        ({"merges": None}, "the file has no tokenizer.ggml.merges, which its tokeniser needs"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges: 0 is 'ab', which is no pair"),
        ({"merges": ["a b", "a "]}, "tokenizer.ggml.merges: 1 is 'a ', which is no pair"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 elements for 260 tokens"),
        ({"model": "llama"}, "the file has no tokenizer.ggml.scores, which its tokeniser needs"),
        ({"tokens": [b"\xff"] * 260}, "tokenizer.ggml.tokens: b'\\xff' is not UTF-8"),
        ({"tokens": [], "token_type": []}, "the vocabulary has no tokens"),
        ({"tokens": ["\udcff"] * 260}, "tokenizer.ggml.tokens: b'\\xff' is not UTF-8"),
        ({"tokens": [1] * 260}, "tokenizer.ggml.tokens is 1, expected a text"),
        ({"model": ["gpt2"]}, "tokenizer.ggml.model is an array of 1 elements, expected a text"),
        ({"pre": 7}, "tokenizer.ggml.pre is 7, expected a text"),
        (
            {"token_type": ["x"] * 260},
            "tokenizer.ggml.token_type: element 0 is 'x', expected an integer",
        ),
        (
            {"model": "t5", "scores": [1, 2.5, "x", *[0] * 257]},
            "tokenizer.ggml.scores: element 2 is 'x', expected a number",
        ),
        (
            {"model": "t5", "scores": [0.0, float("nan"), *[0.0] * 258]},
            "the vocabulary's token 1 has the score nan",
        ),
        (
            {"model": "llama", "scores": [1e39, *[0.0] * 259]},
            "the vocabulary's token 0 has the score 1e+39",
        ),
        ({"bos_token_id": "<s>"}, "tokenizer.ggml.bos_token_id is '<s>', expected a token"),
        ({"bos_token_id": 2.0}, "tokenizer.ggml.bos_token_id is 2.0, expected a token"),
        (
            {"add_bos_token": "no"},
            "tokenizer.ggml.add_bos_token is 'no', expected true or false",
        ),
        (
            {"precompiled_charsmap": 5},
            "tokenizer.ggml.precompiled_charsmap is 5, expected an array",
        ),
        (
            {"precompiled_charsmap": [1, 256]},
            "tokenizer.ggml.precompiled_charsmap is no array of bytes",
        ),
        (
            {"precompiled_charsmap": [0, 0, 0, 0, -16, 0]},
            "the vocabulary's replacements of characters are not a table of SentencePiece's whose "
            "texts are UTF-8 of at most 1024 bytes",
        ),
    ],
)
def test_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError) as failure:
        _read(**changes)
    assert str(failure.value) == message


def test_replacements() -> None:
    """Bytes, as any of GGUF's types of integers has them."""
    table = replacements({b"a": 0}, "é\0".encode())
    kind = {"model": "t5", "scores": [0.0] * 260}
    for found in (table, list(table), [b - 256 * (b > 127) for b in table]):
        assert _read(**kind, precompiled_charsmap=found).replacements == table
    assert _read(**kind).replacements == b""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("\udc80x", "tokenizer.chat_template: b'\\x80x' is not UTF-8"),
        ("a\0b", "the vocabulary's chat template has a zero character"),
        (["a", "b"], "tokenizer.chat_template is an array of 2 elements, expected a text"),
    ],
)
def test_a_chat_template_is_text(template: Any, message: str) -> None:
    with pytest.raises(CompileError) as failure:
        read_vocabulary({**GPT2_METADATA, "tokenizer.chat_template": template})
    assert str(failure.value) == message
