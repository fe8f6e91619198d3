"""libFuzzer on vocabularies and text (runtime/tests/fuzz/text), under ASan and UBSan: a damaged
vocabulary gives wrong tokens or an error, and never a crash."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from aot.link.flatbuffer import read_structure
from aot.link.vocabulary import IDENTIFIER, encode_vocabulary
from aot.text.gguf import read_vocabulary
from aot.text.vocabulary import Vocabulary
from tests.support.runtime_build import RUNTIME, build_fuzzer, library_sources
from tests.support.vocabularies import (
    CORPUS,
    TRAINED,
    byte_vocabulary,
    replacements,
    trained_metadata,
)

TEXTS = ((0, CORPUS[:150]), (7, "a <|im_end|> <think>x  \n\nthe 123 été"), (31, "the " * 30))


def _fuzzer() -> Path:
    sources = [*library_sources(), *sorted(RUNTIME.glob("tests/fuzz/text/*.c"))]
    return build_fuzzer("aot-fuzz-text", sources, libraries=["-lpthread"])


def _trained(name: str) -> Vocabulary:
    found = read_vocabulary(trained_metadata(name))
    assert found is not None
    return found


def _input(options: int, text: bytes, segment: bytes) -> bytes:
    return bytes([options, *len(text).to_bytes(2, "little")]) + text + segment


def _write_seeds(folder: Path) -> None:
    segments = [encode_vocabulary(byte_vocabulary())]
    segments += [encode_vocabulary(_trained(name)) for name in TRAINED]
    table = replacements({b"T": 2, "é".encode(): 0, b"over": 5}, "b\0é€\0".encode())
    segments.append(encode_vocabulary(replace(_trained("t5"), replacements=table)))
    for number, segment in enumerate(segments):
        for options, text in TEXTS:
            data = _input(options, text.encode(), segment)
            (folder / f"{number}-{options}").write_bytes(data)


def _hostile(name: str, **fields: Any) -> bytes:
    """A vocabulary with fields that no compile writes."""
    found = _trained(name)
    for field, value in fields.items():
        object.__setattr__(found, field, value)
    return encode_vocabulary(found)


def _inside_of_a_character() -> bytes:
    """A special token whose text begins and ends inside of a character."""
    own = _trained("llama")
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
    path.write_bytes(_input(0, text.encode(), segment()))
    result = subprocess.run([_fuzzer(), path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("runs", [20_000, pytest.param(5_000_000, marks=pytest.mark.sweep)])
def test_damage_never_crashes(runs: int, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    _write_seeds(seeds)
    words = [_fuzzer(), f"-artifact_prefix={tmp_path}/", "-max_len=40000", "-seed=1"]
    command = [*map(str, words), f"-runs={runs}", str(seeds)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"Done {runs} runs" in result.stderr
