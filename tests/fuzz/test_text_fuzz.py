"""Vocabularies that no compile writes, in the fuzzer of text (runtime/tests/fuzz/text): they give
wrong tokens or an error, and never a crash."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from aot.link.flatbuffer import read_structure
from aot.link.vocabulary import IDENTIFIER, encode_vocabulary
from tests.support.fuzz_seeds import text_input, trained
from tests.support.fuzzers import fuzzer_path
from tests.support.vocabularies import replacements


def _hostile(name: str, **fields: Any) -> bytes:
    """A vocabulary with fields that no compile writes."""
    found = trained(name)
    for field, value in fields.items():
        object.__setattr__(found, field, value)
    return encode_vocabulary(found)


def _inside_of_a_character() -> bytes:
    """A special token whose text begins and ends inside of a character."""
    own = trained("llama")
    special = own.tokens.index("  ")
    table = read_structure(encode_vocabulary(own), IDENTIFIER, "Vocabulary")
    text, end = bytearray(table.symbolText), table.symbolEnds[special]
    text[end - 2 : end] = b"\x9f\x98"
    table.symbolText, table.specials = bytes(text), [special]
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(table.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        # A replacement that is no UTF-8 was taken for a longer one.
        ("a", lambda: _hostile("t5", replacements=replacements({b"a": 0}, b"\xf0\0"))),
        ("é", lambda: _hostile("t5", replacements=replacements({b"\xc3": 0}, b"a\0"))),
        ("a€", lambda: _hostile("t5", replacements=replacements({b"a\xe2\x82": 0}, b"a\0"))),
        ("   \U0001f600", _inside_of_a_character),
    ],
)
def test_a_text_that_is_cut(text: str, segment: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(text_input(0, text.encode(), segment()))
    result = subprocess.run(
        [fuzzer_path("text"), path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
