"""Encoders of GGUF files: llama.cpp's embeddings by small models of every architecture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import CompileError
from aot.frontends.gguf import import_gguf
from aot.frontends.gguf.architectures import ARCHITECTURES
from aot.ir.interpreter.interpreter import run
from aot.ir.verifier import verify
from tests.support.gguf_files import Shape, data
from tests.support.gguf_models import ENCODERS, JUDGED, TOKENS
from tests.support.paths import ROOT

SAID = json.loads((ROOT / "tests/support/gguf_logits.json").read_text())
TOLERANCE = 1e-3  # of the embedding's range; llama.cpp's gelu is a table of f16

Array = np.ndarray[Any, Any]


def said(name: str) -> tuple[Array, float]:
    """Embeddings by llama.cpp, of the text or of its judged tokens, and the range of all."""
    found = SAID[f"embedding {name}"]
    return np.asarray(found["logits"]), TOLERANCE * found["range"]


@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_are_those_of_llama_cpp(name: str) -> None:
    shape = ENCODERS[name]
    module = import_gguf(data(shape))
    verify(module, error=CompileError, is_ruled=True)
    assert not module.states
    (found,) = run(module.main, {"tokens": np.asarray(TOKENS * shape.repeats, np.int32)})
    is_pooled = bool(shape.extra.get("pooling_type"))
    assert module.main.result_names == ["embedding" if is_pooled else "embeddings"]
    wanted, most = said(name)
    assert found.shape == (1 if is_pooled else len(TOKENS), shape.width)
    assert np.abs((found if is_pooled else found[list(JUDGED)]) - wanted).max() <= most


def test_every_encoder_has_a_model() -> None:
    archs = {name for name, row in ARCHITECTURES.items() if not row.pooling.is_causal}
    assert {shape.arch for shape in ENCODERS.values()} == {*archs, "qwen3", "gemma4"}


@pytest.mark.parametrize(
    "name", ["bert", "nomic-bert", "jina-bert-v2", "modern-bert", "gemma-embedding", "t5encoder"]
)
def test_compiled_encoders_agree(name: str) -> None:
    """For texts of any length, one token too; a run leaves nothing to the next."""
    model = data(ENCODERS[name])
    program = aot.load(aot.compile(model, jobs=1))
    module = import_gguf(model)
    for count in (24, 1, 7, 24):
        tokens = np.asarray(TOKENS[:count], np.int32)
        (wanted,) = run(module.main, {"tokens": tokens})
        found = np.array(next(iter(program(tokens).values())))
        assert np.abs(found - wanted).max() <= TOLERANCE * np.ptp(wanted)


def test_texts_are_as_long_as_is_asked_for() -> None:
    model = data(ENCODERS["bert"])
    assert aot.load(aot.compile(model, jobs=1)).inputs[0].bounds == ((1, 64),)
    assert aot.load(aot.compile(model, context=16, jobs=1)).inputs[0].bounds == ((1, 16),)
    with pytest.raises(CompileError) as caught:
        import_gguf(model, context=65)
    assert str(caught.value) == (
        "model: --context is 65, expected 64 at most, the positions that the model has"
    )
    long = data(replace(ENCODERS["t5encoder"], context=4096))
    assert aot.load(aot.compile(long, jobs=1)).inputs[0].bounds == ((1, 512),)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"all_logits": True}, "--all-logits"),
        ({"cache_type": "int8"}, "--cache-type"),
        ({"sequences": 2}, "--sequences"),
    ],
)
def test_options_of_models_that_continue_texts(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_gguf(data(ENCODERS["bert"]), **options)
    assert str(caught.value) == (
        f"model: {flag} is for models that continue texts, and this one embeds them"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            replace(ENCODERS["bert"], extra={"pooling_type": 4}),
            "key 'bert.pooling_type' is 4, expected a number up to 3",
        ),
        (
            Shape("llama", extra={"attention.causal": False}),
            "key 'llama.attention.causal' is False, expected a pooling_type beside it",
        ),
        (
            replace(
                ENCODERS["t5encoder"], extra={"attention.relative_buckets_count": 30}, matrices={}
            ),
            "key 't5encoder.attention.relative_buckets_count' is 30, expected a multiple of 4",
        ),
        (
            replace(ENCODERS["modern-bert"], extra={"hidden_activation": "mish"}),
            "key 'modern-bert.hidden_activation' is 'mish', expected gelu, geglu, relu, reglu, "
            "silu, swish or swiglu",
        ),
    ],
)
def test_keys_that_cannot_be(shape: Shape, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_gguf(data(shape))
    assert str(caught.value) == f"model: {message}"
