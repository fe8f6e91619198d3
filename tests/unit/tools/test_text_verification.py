"""A language module's predictions of a text beside those in f32, in Python and in the command."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGMLQuantizationType as Kind

import aot
from aot.cli.main import cli
from aot.errors import RuntimeFailure
from aot.runtime.text import Tokeniser
from aot.tools import oracles, text_verification
from aot.tools.text_verification import SAMPLE
from tests.support.gguf_files import data
from tests.support.gguf_models import ENCODERS, MODELS
from tests.support.vocabularies import GPT2_METADATA

SHAPE = replace(
    MODELS["llama"],
    layers=1,
    width=64,
    hidden=64,
    vocabulary=260,
    context=256,
    kind=Kind.Q8_0,
    spread=0.5,
    keys=GPT2_METADATA,
)
TEXT = "a bab, abba: ab and b " * 8


@cache
def model_data(seeded: float = 0.5) -> bytes:
    return data(replace(SHAPE, spread=seeded))


@cache
def module(**options: object) -> bytes:
    return aot.compile(model_data(), jobs=1, activations="int8", **options).to_bytes()  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_data())
    return path


@pytest.fixture(autouse=True)
def _without_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests are about does not depend on whether it is installed."""
    monkeypatch.setattr(oracles.Oracle, "is_installed", property(lambda oracle: False))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    found: np.ndarray = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return found


@pytest.mark.parametrize("all_logits", [True, False])
def test_the_divergence_is_that_of_two_whole_runs(model: Path, all_logits: bool) -> None:
    """By the definitions, of all logits at once: pieces and states change nothing."""
    compiled = module(all_logits=all_logits)
    found = aot.verify_text(compiled, model, text=TEXT)
    with aot.load(module(all_logits=True)) as program:
        ids = Tokeniser(program).encode(TEXT)
        ours = log_probabilities(np.asarray(program.run([ids])[0]))
    exact = aot.compile(model_data(), jobs=1, activations="f32", all_logits=True)
    with aot.load(exact) as program:
        expected = log_probabilities(np.asarray(program.run([ids])[0]))
    first = 0 if all_logits else text_verification.PIECE - 1
    divergence = (np.exp(expected) * (expected - ours)).sum(-1)[first:]
    same = (expected.argmax(-1) == ours.argmax(-1))[first:]
    surprise = -expected[np.arange(first, len(ids) - 1), ids[first + 1 :]]
    assert (found.tokens, found.judged) == (len(ids), len(ids) - first)
    assert divergence.mean() > 1e-6, "nothing was rounded"
    assert found.found.divergence == pytest.approx(divergence.mean(), rel=0.1)
    assert found.found.tail == pytest.approx(np.quantile(divergence, 0.99), rel=0.2)
    assert found.found.same == pytest.approx(same.mean(), abs=0.02)
    assert found.perplexity == pytest.approx(np.exp(surprise.mean()), rel=1e-3)
    assert found.agrees and not aot.verify_text(compiled, model, text=TEXT, tolerance=1e-9).agrees


def test_a_module_of_another_model_is_told(model: Path) -> None:
    other = aot.compile(model_data(0.6), jobs=1).to_bytes()
    found = aot.verify_text(other, model, text=TEXT)
    assert not found.agrees and "does not agree" in repr(found)


def test_the_sample_is_read_where_no_text_is_given(model: Path) -> None:
    found = aot.verify_text(module(), model, tokens=100)
    assert (found.tokens, found.judged) == (100, 37)
    assert len(SAMPLE.read_text()) > 3000
    with aot.load(module()) as program:
        capacity = program.state_capacity
    assert aot.verify_text(module(), model, tokens=10**6).tokens == capacity


def test_what_has_no_text_to_read_is_refused(model: Path) -> None:
    with pytest.raises(RuntimeFailure, match="1 token of the text is read, expected 2"):
        aot.verify_text(module(), model, text="a")
    with pytest.raises(RuntimeFailure, match="2: compile the model without --sequences"):
        aot.verify_text(module(sequences=2), model)
    encoder = data(replace(ENCODERS["modern-bert"], vocabulary=260, keys=GPT2_METADATA))
    with pytest.raises(RuntimeFailure, match="no language model"):
        aot.verify_text(aot.compile(encoder, context=16, jobs=1).to_bytes(), model)


def command(*arguments: str | Path) -> tuple[int, str]:
    found = CliRunner().invoke(cli, ["verify", *map(str, arguments)])
    return (1 if found.exception else 0), found.output + str(found.exception or "")


def test_the_command_reads_a_text(model: Path, tmp_path: Path) -> None:
    status, said = command(model, "--activations", "int8")
    assert status == 0 and "KL" in said and "agrees with the model in f32" in said
    assert "llama.cpp is not installed" in said
    (tmp_path / "m.aotm").write_bytes(module())
    (tmp_path / "t.txt").write_text(TEXT)
    given = (tmp_path / "m.aotm", "--model", model, "--text", tmp_path / "t.txt")
    status, said = command(*given, "--tokens", "80")
    assert status == 0 and "17 of 80 tokens" in said
    status, said = command(*given, "--tolerance", "1e-9")
    assert status == 1 and "does not agree with the model in f32 within 1e-09 nats" in said


def test_logits_are_compared_where_inputs_are_asked_for(model: Path) -> None:
    status, said = command(model, "--context", "16", "--shape", "tokens=3")
    assert status == 0 and "logits" in said and "KL" not in said


def test_wrong_texts_are_one_line(model: Path, tmp_path: Path) -> None:
    status, said = command(model, "--text", tmp_path / "no.txt")
    assert status and f"cannot read {tmp_path / 'no.txt'}: No such file" in said
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    status, said = command(model, "--text", tmp_path / "bad.txt")
    assert status and "is not UTF-8: byte 2 is wrong" in said
    status, said = command(model, "--text", tmp_path / "bad.txt", "--steps", "2")
    assert status and "--text compares predictions" in said
