"""Choosing tokens in C (aot/text.h): by the definitions, in numpy; and the same on any machine."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import pytest

from aot.errors import RuntimeFailure
from aot.runtime.sampling import NativeReply, Sampler, token_logprobs
from aot.runtime.text_library import SamplerOptions
from tests.support.llama_samplers import CASES, GOLDEN, SEEDS, VOCABULARY, logits_of
from tests.support.text_runtime import own_library, trained_tokeniser

STORED = [18, 42, 42, 13, 21, 2, 42, 10, 13, 26, 42, 5]

DRAW = np.random.default_rng(7)


def sampler(**options: Any) -> Sampler:
    with own_library():
        return Sampler(**options)


def drawn(count: int) -> np.ndarray[Any, Any]:
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
    logits = drawn(count)
    assert sampler().next(logits) == logits.argmax()
    # Of equal ones the first.
    assert sampler().next(np.zeros(count, np.float32)) == 0


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
    logits = drawn(count)
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
    logits = drawn(150_000)
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
        ({"dry_window": 65537}, "dry_window is 65537, expected 0 to 65536"),
        ({"frequency_penalty": -101.0}, "frequency_penalty is -101, expected -100 to 100"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan, expected -100 to 100"),
        ({"typical_p": 1.1}, "typical_p is 1.1, expected 0 to 1"),
        ({"xtc_threshold": 0.6}, "xtc_threshold is 0.6, expected 0 to 0.5"),
        ({"dry_base": 0.5}, "dry_base is 0.5, expected 1 to 1e+06"),
        ({"mirostat_tau": 5.0}, "mirostat_tau needs a temperature"),
        (
            {"mirostat_tau": 5.0, "temperature": 1.0, "top_k": 40},
            "mirostat_tau takes the place of top_k, typical_p, top_p, min_p and xtc_probability: "
            "give one or the other",
        ),
        ({"seed": 1 << 64}, "seed is 18446744073709551616, expected 0 to 2^64 - 1"),
        ({"seed": -1}, "seed is -1, expected 0 to 2^64 - 1"),
        ({"logit_bias": {-1: 1.0}}, "a bias is of token -1, expected 0 or more"),
        (
            {"logit_bias": {2: float("nan")}},
            "the bias of token 2 is nan, expected -1e+06 to 1e+06, or -inf",
        ),
        ({"dry_breakers": ["x"]}, "dry_breakers need a tokeniser, whose tokens they end"),
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
        own.next(np.full(3, -np.inf, np.float32))
    message = "^the logit of token 1 of 3 is no number: the model computes NaN$"
    for call in (own.next, own.candidates, lambda x: token_logprobs(x, 0)):
        with own_library(), pytest.raises(RuntimeFailure, match=message):
            call(np.array([1, np.nan, 2], np.float32))
    with pytest.raises(RuntimeFailure, match="^there are no logits, or too many: 0$"):
        own.next(np.zeros(0, np.float32))
    assert own.next(np.array([1, np.inf, 2], np.float32)) == 1


# ---- llama.cpp's samplers ----


def as_llama(name: str) -> Sampler:
    """The sampler of a case of `CASES`, behind the case's tokens."""
    options = {key: value for key, value in CASES[name].items() if key != "text"}
    own = sampler(**options, tokeniser=trained_tokeniser(VOCABULARY))
    own.accept(json.loads(GOLDEN.read_text())[name]["history"])
    return own


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_is_what_llama_cpp_leaves(name: str) -> None:
    stored = json.loads(GOLDEN.read_text())[name]
    count = len(trained_tokeniser(VOCABULARY))
    for seed, expected in zip(SEEDS, stored["left"], strict=True):
        found = as_llama(name).candidates(logits_of(seed, count))
        kept = expected["count"]
        # Ours have no weight below 2^-32.
        assert len(found) == kept or kept == count or found[-1][1] < 1e-8
        shares = dict(found)
        for token, share in expected["told"]:
            assert shares.get(token, 0.0) == pytest.approx(share, rel=2e-4, abs=1e-8)
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["chain", "xtc", "all penalties", "typical"])
def test_candidates_are_those_that_are_drawn(name: str) -> None:
    logits = logits_of(0, len(trained_tokeniser(VOCABULARY)))
    options = {key: value for key, value in CASES[name].items() if key != "text"}
    history = json.loads(GOLDEN.read_text())[name]["history"]
    tokeniser, draws = trained_tokeniser(VOCABULARY), 1500
    with own_library():
        own = Sampler(**options, tokeniser=tokeniser, seed=5)
        own.accept(history)
        expected = dict(own.candidates(logits))
        assert dict(own.candidates(logits)) == expected  # asking changes nothing
        found: dict[int, int] = {}
        for seed in range(draws):
            own = Sampler(**options, tokeniser=tokeniser, seed=seed)
            own.accept(history)
            token = own.next(logits)
            found[token] = found.get(token, 0) + 1
    assert found.keys() <= expected.keys()
    for token, share in expected.items():
        deviation = 5 * np.sqrt(share / draws) + 1e-3
        assert abs(found.get(token, 0) / draws - share) <= deviation


def test_xtc_comes_as_often_as_it_is_asked_for() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    own = sampler(xtc_probability=0.25, xtc_threshold=0.2, temperature=1.0, seed=9)
    draws = 4000
    found = np.bincount([own.next(logits) for _ in range(draws)], minlength=4) / draws
    # A quarter of the time the first one is left out.
    expected = 0.75 * np.array([0.5, 0.3, 0.15, 0.05]) + 0.25 * np.array([0, 0.6, 0.3, 0.1])
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected / draws))


def test_xtc_leaves_what_is_forbidden_out() -> None:
    """Also where the threshold is less than any weight is."""
    logits = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    for threshold in (1e-3, 1e-12):
        own = sampler(xtc_probability=1.0, xtc_threshold=threshold, logit_bias={3: -np.inf})
        assert own.next(logits) == 2


def test_a_reply_after_its_parts_are_closed() -> None:
    """Is refused: the C library's reply only borrows them."""
    logits = np.zeros(len(trained_tokeniser(VOCABULARY)), np.float32)
    with own_library():
        own = Sampler()
        reply = NativeReply(trained_tokeniser(VOCABULARY), own)
        reply.next(logits)
        own.close()
        with pytest.raises(RuntimeFailure, match="^the sampler is closed$"):
            reply.next(logits)


def test_mirostat_follows_the_surprise() -> None:
    """The bound is twice tau at first, and moves by eta times the difference of the surprise."""
    rng, tau, eta, temperature = np.random.default_rng(3), 3.0, 0.2, 1.4
    own = sampler(mirostat_tau=tau, mirostat_eta=eta, temperature=temperature, seed=4)
    most, surprises = 2 * tau, []
    for _ in range(300):
        logits = (rng.standard_normal(400) * 2).astype(np.float32)
        wide = logits.astype(np.float64) / temperature
        shares = np.exp(wide - wide.max())
        shares /= shares.sum()
        kept = np.flatnonzero(-np.log2(shares) <= most)
        kept = kept if len(kept) else np.array([shares.argmax()])
        assert {token for token, _ in own.candidates(logits)} == set(kept.tolist())
        token = own.next(logits)
        surprise = -np.log2(shares[token] / shares[kept].sum())
        most -= eta * (surprise - tau)
        surprises.append(surprise)
    assert np.mean(surprises[100:]) == pytest.approx(tau, abs=0.2)
    own.reset()
    assert len(own.candidates(logits)) == np.sum(-np.log2(shares) <= 2 * tau)


def test_biases() -> None:
    logits = np.array([1.0, 2.0, 3.0, np.inf], np.float32)
    assert sampler(logit_bias={3: -np.inf}).next(logits) == 2
    assert sampler(logit_bias={3: -np.inf, 0: 2.5}).next(logits) == 0
    own = sampler(logit_bias={4: 1.0})
    with pytest.raises(RuntimeFailure, match="^a bias is of token 4, expected 0 to 3$"):
        own.next(logits)
    tokeniser = trained_tokeniser(VOCABULARY)
    count = len(tokeniser)
    message = f"^a bias is of token {count}, expected 0 to {count - 1}$"
    with pytest.raises(RuntimeFailure, match=message):
        sampler(logit_bias={count: 1.0}, tokeniser=tokeniser)


def test_breakers() -> None:
    tokeniser = trained_tokeniser(VOCABULARY)
    with pytest.raises(RuntimeFailure, match='^the DRY breaker "\u2620" is in no token$'):
        sampler(dry_multiplier=1.0, dry_breakers=["\u2620"], tokeniser=tokeniser)
    text = tokeniser.encode("the cat; the cat; the")  # of which " the" is one token
    logits = np.zeros(len(tokeniser), np.float32)
    then = int(text[6])
    for breakers, is_penalised in (([], True), ([";"], False)):
        own = sampler(dry_multiplier=1.0, dry_breakers=breakers, tokeniser=tokeniser, temperature=1)
        own.accept(text)
        shares = dict(own.candidates(logits))
        assert (shares[then] < 0.9 / len(tokeniser)) is is_penalised


def test_a_breaker_that_is_null() -> None:
    tokeniser, own = trained_tokeniser(VOCABULARY), sampler()
    breakers = (ctypes.c_char_p * 2)(b"a", None)
    options = SamplerOptions(dry_multiplier=1.0, dry_breakers=breakers, dry_breaker_count=2)
    options.vocabulary = tokeniser._handle
    with pytest.raises(RuntimeFailure, match="^a DRY breaker is NULL$"):
        own._call("aot_sampler_create", ctypes.byref(options), None, out=ctypes.c_void_p())


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_logprobs(count: int) -> None:
    logits = drawn(count)
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    order = np.argsort(-wide, kind="stable")
    top = min(count, 20)
    with own_library():
        for token in {0, count - 1, int(order[0])}:
            found = token_logprobs(logits, token, top)
            assert found.logprob == pytest.approx(expected[token], abs=1e-4)
            assert [t for t, _ in found.top] == order[:top].tolist()
            np.testing.assert_allclose([x for _, x in found.top], expected[order[:top]], atol=1e-4)
        with pytest.raises(RuntimeFailure, match=f"^logprobs of token {count} and the first 0: "):
            token_logprobs(logits, count)
