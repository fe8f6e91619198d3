"""The vocabulary in a module file: its bytes, its rules, and its way through a compile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.link.flatbuffer import Malformed
from aot.link.merge import MergeInput, merge_modules
from aot.link.module_schema import RULES
from aot.link.reader import read_module
from aot.link.vocabulary import (
    describe_vocabulary,
    encode_vocabulary,
    hash_pairs,
    hash_texts,
    read_vocabulary,
)
from aot.text import gguf
from aot.text.vocabulary import Scheme, TokenType, Vocabulary
from aot.tools.inspection import format_inspection, inspect
from tests.support.vocabularies import GPT2_METADATA, byte_vocabulary
from tests.support.vocabulary_rules import BREAKS, with_table


def test_hashes() -> None:
    """FNV-1a is known by its test vectors; what is mixed in behind it, by hand."""
    found = hash_texts([b"", b"a", b"foobar"])
    expected = []
    for value in (0x811C9DC5, 0xE40C292C, 0xBF9CF968):
        value ^= value >> 15
        value = value * 0x2C1B3C6D & 0xFFFFFFFF
        expected.append(value ^ value >> 12)
    assert found.tolist() == expected
    key = 3 | 5 << 21
    expected_pair = (key * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 32
    assert hash_pairs(np.array([key], np.uint64)).tolist() == [expected_pair]


def test_tables() -> None:
    vocabulary = gguf.read_vocabulary(GPT2_METADATA)
    assert vocabulary is not None
    table: Any = read_vocabulary(encode_vocabulary(vocabulary))
    ends = [0, *table.symbolEnds]
    texts = [bytes(table.symbolText[a:b]) for a, b in itertools.pairwise(ends)]
    assert texts[256:] == [b"ab", b" ab", b"<|im_end|>", b"<|im_start|>"]
    assert table.byteSymbols == list(np.argsort([t[0] for t in texts[:256]]))
    slots = np.array(table.lookup)
    hashes = hash_texts(texts)
    for symbol, text in enumerate(texts):
        place = int(hashes[symbol]) % len(slots)
        while slots[place] != symbol + 1:
            assert slots[place] != 0, text
            place = (place + 1) % len(slots)
    merges = np.array(table.merges, np.uint32).view(np.uint64)
    used = sorted(int(m) for m in merges if m != np.uint64((1 << 64) - 1))
    a, b, space = (table.byteSymbols[ord(c)] for c in "ab ")
    assert used == sorted([a | b << 21, space | 256 << 21 | 1 << 42])
    assert table.mergeResults == [256, 257]
    assert table.specials == [258, 259]


def test_merges_through_what_is_no_token() -> None:
    """Symbols stand behind the tokens; they have texts, and no slot of `lookup`."""
    vocabulary = byte_vocabulary(merges=(("b", "c"), ("a", "bc"), ("b", "c")))
    table: Any = read_vocabulary(encode_vocabulary(vocabulary))
    assert len(table.symbolEnds) == 260
    assert bytes(table.symbolText).endswith(b"bcabc")
    assert table.mergeResults == [258, 259]
    assert not {259, 260} & set(table.lookup)


def test_of_tokens_with_one_text_the_last_counts() -> None:
    kind = {"scheme": Scheme.UNIGRAM, "types": (TokenType.NORMAL,) * 3, "scores": (0.0,) * 3}
    vocabulary = Vocabulary(tokens=("a", "b", "a"), **kind)
    table: Any = read_vocabulary(encode_vocabulary(vocabulary))
    assert table.sortedTokens == [2, 1]
    assert sorted(n for n in table.lookup if n) == [2, 3]


def test_the_same_bytes() -> None:
    first, second = (encode_vocabulary(byte_vocabulary()) for _ in range(2))
    assert first == second


def test_every_rule_is_broken_here() -> None:
    assert sorted(BREAKS) == sorted(rule.message for rule in RULES["Vocabulary"])


@pytest.mark.parametrize(
    ("message", "change"), [(m, change) for m, changes in BREAKS.items() for change in changes]
)
def test_what_breaks_a_rule_is_refused(message: str, change: Callable[[Any], None]) -> None:
    with pytest.raises(Malformed) as failure:
        read_vocabulary(with_table(change))
    assert str(failure.value) == f"the vocabulary: {message}"


def test_another_version_is_refused() -> None:
    with pytest.raises(Malformed) as failure:
        read_vocabulary(with_table(lambda table: setattr(table, "version", 2)))
    assert str(failure.value) == "the vocabulary has version 2, this aotc reads up to 1"


def _model(vocabulary: Vocabulary | None) -> Module:
    builder = aot.builder.Builder()
    builder.output("y", builder.op("relu", builder.input("x", "f32[4]")))
    module = builder.module()
    module.vocabulary = vocabulary
    return module


def _compiled(vocabulary: Vocabulary | None, name: str = "main") -> aot.CompiledModule:
    return aot.compile(_model(vocabulary), entry_name=name)


def test_from_the_frontend_to_the_file() -> None:
    vocabulary = byte_vocabulary()
    data = _compiled(vocabulary).to_bytes()
    assert read_module(data).vocabulary == encode_vocabulary(vocabulary)
    facts = inspect(data)
    assert facts["vocabulary"] == describe_vocabulary(encode_vocabulary(vocabulary))
    assert [s["alignment"] for s in facts["segments"] if s["what"] == "vocabulary"] == [64]
    lines = format_inspection(facts).splitlines()
    assert "vocabulary: 258 tokens, byte merges, cut by 1 pattern, bos 257" in lines
    assert "  1 merges, end tokens 257, a chat template of 14 characters" in lines
    assert "vocabulary" not in inspect(_compiled(None).to_bytes())


def test_damage_is_found() -> None:
    data = bytearray(_compiled(byte_vocabulary()).to_bytes())
    (place,) = (s["offset"] for s in inspect(bytes(data))["segments"] if s["what"] == "vocabulary")
    data[place + 100] ^= 1
    with pytest.raises(CompileError, match="the checksum of vocabulary is wrong$"):
        read_module(bytes(data))


def test_merged_modules_have_one() -> None:
    first, second = byte_vocabulary(), byte_vocabulary(bos=None)
    images = [
        MergeInput(name, _compiled(vocabulary, name).image)
        for name, vocabulary in (("a", first), ("b", None), ("c", second))
    ]
    assert merge_modules(images[:2]).image.vocabulary == encode_vocabulary(first)
    with pytest.raises(CompileError) as failure:
        merge_modules(images)
    assert str(failure.value) == (
        "a and c have different vocabularies, and a module has one; keep them in files of their own"
    )


def test_several_models_have_one() -> None:
    models = {"a": _model(None), "b": _model(byte_vocabulary())}
    image = aot.compile(models).image
    assert image.vocabulary == encode_vocabulary(byte_vocabulary())
    models["a"].vocabulary = byte_vocabulary(bos=None)
    with pytest.raises(CompileError, match="^models have different vocabularies"):
        aot.compile(models)
