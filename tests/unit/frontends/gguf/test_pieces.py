"""Prompts in pieces: the logits of a language model have the same bits however its tokens are cut
into runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import aot
from aot.runtime.loader import Program
from tests.support.gguf_files import data
from tests.support.gguf_models import MODELS

Array = np.ndarray[Any, Any]

COUNT = 80
WIDE = replace(MODELS["llama"], width=256, depth=64, hidden=512, vocabulary=300, context=128)
# the shapes at which kernels change: single rows, few rows, a block's tail
FIXED = ((1,) * COUNT, (2,) * 40, (4,) * 20, (79, 1), (1, 79), (78, 2), (64, 16), (61, 3, 16))


def last_logits(program: Program, tokens: Array, pieces: tuple[int, ...]) -> Array:
    program.reset()
    first = 0
    logits = np.empty(0, np.float32)
    for count in pieces:
        (logits,) = program.run([tokens[first : first + count]])
        first += count
    assert first == len(tokens)
    return logits[-1]


def random_pieces(random: np.random.Generator) -> tuple[int, ...]:
    cuts = np.sort(random.choice(np.arange(1, COUNT), int(random.integers(1, 12)), replace=False))
    return tuple(np.diff([0, *cuts, COUNT]).tolist())


CASES = [
    *((kind, {"activations": "f32"}) for kind in ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K")),
    ("Q4_0", {}),
    ("Q6_K", {}),
    ("Q4_0", {"activations": "f32", "cache_type": "int8"}),
    ("Q4_K", {"activations": "f32", "targets": ["x86-64-v2"]}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_logits_are_the_same_however_a_prompt_is_cut(kind: str, options: dict[str, Any]) -> None:
    shape = replace(WIDE, kind=Kind[kind], head_kind=Kind[kind])
    check(shape, options)


@pytest.mark.parametrize("name", ["llama_odd", "gemma2", "gemma3", "phi3"])
def test_so_they_are_of_windows_caps_and_odd_extents(name: str) -> None:
    check(replace(MODELS[name], context=128), {"activations": "f32"})


def check(shape: Any, options: dict[str, Any]) -> None:
    random = np.random.default_rng(len(shape.arch))
    tokens = random.integers(0, shape.vocabulary, COUNT).astype(np.int32)
    with aot.load(aot.compile(data(shape), jobs=1, **options)) as program:
        wanted = last_logits(program, tokens, (COUNT,))
        assert np.ptp(wanted) > 0
        for pieces in (*FIXED, *(random_pieces(random) for _ in range(8))):
            found = last_logits(program, tokens, pieces)
            assert np.array_equal(found, wanted), pieces
