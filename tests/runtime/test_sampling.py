"""Choosing tokens in C (aot/text.h): by the definitions, in numpy; and the same on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import RuntimeFailure
from aot.runtime.text import Sampler
from tests.support.text_runtime import own_library

STORED = [18, 42, 42, 13, 21, 2, 42, 10, 13, 26, 42, 5]

DRAW = np.random.default_rng(7)


def sampler(**options: Any) -> Sampler:
    with own_library():
        return Sampler(**options)


def logits_of(count: int) -> np.ndarray[Any, Any]:
    return (DRAW.standard_normal(count) * 4).astype(np.float32)


def left(logits: np.ndarray[Any, Any], **options: float) -> np.ndarray[Any, Any]:
    """The probabilities of tokens after top_k, top_p, min_p and the temperature, in f64."""
    wide = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(wide)), -wide))
    if options.get("top_k"):
        order = order[: int(options["top_k"])]
    weights = np.exp(wide[order] - wide[order[0]])
    if options.get("top_p"):
        sums = np.cumsum(weights) / weights.sum()
        keep = 1 + int(np.searchsorted(sums, options["top_p"]))
        order, weights = order[:keep], weights[:keep]
    if options.get("min_p"):
        order = order[weights >= options["min_p"]]
    found = np.zeros(len(wide))
    found[order] = np.exp((wide[order] - wide[order[0]]) / options["temperature"])
    return found / found.sum()


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_greedy_takes_the_largest(count: int) -> None:
    logits = logits_of(count)
    assert sampler().next(logits) == logits.argmax()
    # Of equal ones the first; what is no number is never taken.
    assert sampler().next(np.zeros(count, np.float32)) == 0
    logits[0] = np.nan
    if count > 1:
        assert sampler().next(logits) == np.nanargmax(logits)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1e-4},
    ],
)
@pytest.mark.parametrize("count", [5, 40])
def test_tokens_come_as_often_as_they_are_probable(count: int, options: dict[str, float]) -> None:
    logits = logits_of(count)
    expected = left(logits, **options)
    own, draws = sampler(seed=3, **options), 4000
    found = np.bincount([own.next(logits) for _ in range(draws)], minlength=count) / draws
    assert not np.any(found[expected == 0])
    # Five standard deviations of a count.
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected / draws) + 1e-3)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.7])
def test_repetition(penalty: float) -> None:
    """Once a token, however often it came; positive logits are divided, others multiplied."""
    logits = np.array([2.0, -2.0, 1.5, -1.0], np.float32)
    own = sampler(repetition_penalty=penalty)
    own.accept([0, 1, 0, 99])
    expected = logits.copy()
    expected[0] /= np.float32(penalty)
    expected[1] *= np.float32(penalty)
    assert own.next(logits) == expected.argmax()


def test_the_window_of_the_penalty() -> None:
    logits = np.array([2.0, 1.5, 1.0], np.float32)
    own = sampler(repetition_penalty=10.0, penalty_window=2)
    assert [own.next(logits) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    own.reset()
    assert own.next(logits) == 0


def test_the_same_seed_gives_the_same_tokens() -> None:
    """On any machine: these are stored."""
    logits = (np.arange(50, dtype=np.float32) * 7919 % 50) / np.float32(8)
    own = sampler(temperature=0.8, top_p=0.9, seed=42)
    found = [own.next(logits) for _ in range(12)]
    own.reset()
    assert [own.next(logits) for _ in range(12)] == found
    other = sampler(temperature=0.8, top_p=0.9, seed=43)
    assert [other.next(logits) for _ in range(12)] != found
    assert found == STORED


def test_many_logits() -> None:
    logits = logits_of(150_000)
    own = sampler(temperature=1.0, top_p=0.9, seed=1)
    expected = left(logits, temperature=1.0, top_p=0.9)
    assert all(expected[own.next(logits)] > 0 for _ in range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1, expected 0 to 1e+06"),
        ({"temperature": float("nan")}, "temperature is nan, expected 0 to 1e+06"),
        ({"top_p": 1.5}, "top_p is 1.5, expected 0 to 1"),
        ({"min_p": float("inf")}, "min_p is inf, expected 0 to 1"),
        ({"repetition_penalty": -0.5}, "repetition_penalty is -0.5, expected 0 to 1e+06"),
        ({"penalty_window": 65537}, "penalty_window is 65537, expected 0 to 65536"),
        ({"top_k": -1}, "top_k is -1, expected 0 to 2^32 - 1"),
    ],
)
def test_numbers_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        sampler(**options)
    assert str(failure.value) == message


def test_logits_that_say_nothing() -> None:
    own = sampler(temperature=1.0)
    with pytest.raises(RuntimeFailure, match="^none of the 3 logits is a finite number$"):
        own.next(np.full(3, np.nan, np.float32))
    with pytest.raises(RuntimeFailure, match="^there are no logits, or too many: 0$"):
        own.next(np.zeros(0, np.float32))
    assert own.next(np.array([1, np.inf, 2], np.float32)) == 1
