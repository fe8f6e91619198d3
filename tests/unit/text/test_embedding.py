"""Embeddings of texts, in Python and in the command: what the program gives of their tokens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.text import Tokeniser
from tests.support.examples import examples_of
from tests.support.gguf_files import data
from tests.support.gguf_models import ENCODERS, MODELS, TOKENS
from tests.support.paths import ROOT
from tests.support.runtime_build import build, library_sources
from tests.support.vocabularies import GPT2_METADATA, trained_metadata

SPOKEN = replace(ENCODERS["modern-bert"], vocabulary=260, keys=GPT2_METADATA)
TEXTS = ["ab a b", "b"]


@cache
def module(name: str = "") -> bytes:
    """A compiled encoder by its name, or one with a vocabulary."""
    shape = ENCODERS[name] if name else SPOKEN
    return aot.compile(data(shape), context=16, jobs=1).to_bytes()


@pytest.fixture
def loaded() -> Iterator[Program]:
    with aot.load(module()) as found:
        yield found


def expected(program: Program, text: str, *, scaled: bool = True) -> np.ndarray:
    (row,) = program.run([Tokeniser(program).encode(text)])
    row = np.array(row[0], np.float64)
    return row / np.linalg.norm(row) if scaled else row


def test_texts_are_embedded_by_their_tokens(loaded: Program) -> None:
    found = aot.embed(loaded, TEXTS)
    assert found.dtype == np.float32 and found.shape == (2, SPOKEN.width)
    for row, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(row, expected(loaded, text), rtol=0, atol=1e-6)
    assert abs(found[0] @ found[1]) < 0.999  # they are told apart
    np.testing.assert_array_equal(aot.embed(loaded, TEXTS[0]), found[:1])
    np.testing.assert_array_equal(aot.embed(loaded, [TEXTS[1].encode()]), found[1:])
    raw = aot.embed(loaded, TEXTS, is_scaled=False)
    np.testing.assert_allclose(raw[0], expected(loaded, TEXTS[0], scaled=False), rtol=1e-6)
    assert aot.embed(loaded, []).shape == (0, SPOKEN.width)


def test_the_c_of_the_page_embeds(loaded: Program, tmp_path: Path) -> None:
    """docs/use/gguf.md's program, which scales nothing."""
    (example,) = (e for e in examples_of(ROOT / "docs/use/gguf.md") if e.language == "c")
    source, path = tmp_path / "embed.c", tmp_path / "embed.aotm"
    source.write_text(example.code)
    path.write_bytes(module())
    sources = [source, *library_sources()]
    tool = build("embed", sources, ["-O1", "-Wall", "-Werror"], libraries=["-lpthread", "-lm"])
    if tool is None:
        pytest.skip("gcc is not installed")
    found = subprocess.run([tool, path, TEXTS[0]], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    wanted = aot.embed(loaded, TEXTS[0], is_scaled=False)[0]
    np.testing.assert_array_equal(np.asarray(found.stdout.split(), np.float32), wanted)
    found = subprocess.run([tool, path, "a " * 20], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert "at most 16" in found.stderr


def test_tokens_need_no_vocabulary() -> None:
    with aot.load(module("bert")) as program:
        rows = aot.embed(program, [TOKENS[:9], np.asarray(TOKENS[:3], np.int32)])
        np.testing.assert_array_equal(aot.embed(program, TOKENS[:9]), rows[:1])
        np.testing.assert_array_equal(aot.embed(program, np.asarray(TOKENS[:3])), rows[1:])
        np.testing.assert_allclose((rows * rows).sum(-1), 1, rtol=1e-5)
        with pytest.raises(RuntimeFailure, match="vocabulary"):
            aot.embed(program, "a")


def test_words_are_embedded_by_their_pieces(tmp_path: Path) -> None:
    """A text of BERT's words is what its tokens are, between the first one and the separator."""
    metadata = trained_metadata("bert")
    count = len(metadata["tokenizer.ggml.tokens"])
    shape = replace(ENCODERS["bert"], vocabulary=count, keys=metadata)
    path = tmp_path / "m.aotm"
    path.write_bytes(aot.compile(data(shape), context=16, jobs=1).to_bytes())
    with aot.load(path) as program:
        tokens = Tokeniser(program).encode("The Quick, caf\u00e9!").tolist()
        assert (tokens[0], tokens[-1]) == (0, 1) and len(tokens) > 6
        rows = aot.embed(program, ["The Quick, caf\u00e9!", "the quick , cafe !", tokens, "a"])
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])
    assert abs(rows[0] @ rows[3]) < 0.999
    found = CliRunner().invoke(cli, ["embed", str(path), "The Quick, caf\u00e9!"])
    np.testing.assert_array_equal(np.asarray(json.loads(found.output), np.float32), rows[0])


def test_texts_that_are_too_long_or_empty(loaded: Program) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        aot.embed(loaded, ["a", "a" * 17])
    assert str(caught.value) == (
        "text 2 has 17 tokens, expected 1 to 16; shorten it, or compile the model with a longer "
        "--context"
    )
    with pytest.raises(RuntimeFailure) as caught:
        aot.embed(loaded, "")
    assert str(caught.value) == "text 1 has 0 tokens, expected 1 to 16"
    with pytest.raises(RuntimeFailure, match="UTF-8"):
        aot.embed(loaded, b"\xff")


def test_programs_that_embed_no_texts() -> None:
    begin = 'entry point "main" embeds no texts: it '
    with aot.load(aot.compile(data(MODELS["llama"]), jobs=1)) as program:
        with pytest.raises(RuntimeFailure) as caught:
            aot.embed(program, [TOKENS])
        assert str(caught.value) == begin + "continues a text: `aotc generate` does that"
    with aot.load(module("bert_none")) as program:
        with pytest.raises(RuntimeFailure) as caught:
            aot.embed(program, [TOKENS])
        assert str(caught.value) == (
            begin + "gives a row for each token, and its model names no pooling of them"
        )


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    path.write_bytes(module())
    run = CliRunner()
    with aot.load(module()) as program:
        rows = aot.embed(program, TEXTS)
        raw = aot.embed(program, [[1, 2, 3]], is_scaled=False)
    found = run.invoke(cli, ["embed", str(path), *TEXTS])
    assert found.exit_code == 0
    printed = [json.loads(line) for line in found.output.splitlines()]
    np.testing.assert_array_equal(np.asarray(printed, np.float32), rows)
    lines = run.invoke(cli, ["embed", str(path)], input="\n".join(TEXTS) + "\n")
    assert lines.output == found.output
    out = tmp_path / "rows.npy"
    found = run.invoke(cli, ["embed", str(path), "--raw", "--tokens", "1, 2 3", "-o", str(out)])
    assert (found.exit_code, found.output) == (0, "")
    np.testing.assert_array_equal(np.load(out), raw)
    found = run.invoke(cli, ["embed", str(path), "--tokens", "1, x"])
    assert found.exit_code == 2 and "'x' is no number of a token" in found.output
    found = run.invoke(cli, ["embed", str(path), "a", "-o", str(tmp_path / "no" / "rows.npy")])
    assert found.exit_code == 1 and "no/rows.npy" in str(found.exception)
