"""Single ONNX ops on special values and other extents, known and open, joined with others or not,
beside ONNX Runtime; in the reference interpreter and compiled.

What fails is printed with the number that it follows from; put it into the cases of
tests/support/onnx_cases.py. What is not asked, and why, is `EXCLUSIONS`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from tests.support import onnx_properties
from tests.support.onnx_cases import CASES
from tests.support.onnx_properties import EXCLUSIONS, Oracle, problem_of, variation_of

SEED = int(os.environ.get("AOT_PROPERTY_SEED") or random.SystemRandom().randrange(1 << 31))
FEW, FEW_COMPILED, GATE_SECONDS = 400, 24, 30
BLOCK, BLOCKS, BLOCKS_COMPILED = 2_000, 50, 5


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


def check(numbers: range, oracle: Oracle, target: str = "") -> None:
    """Fails with all variations that differ, and where hardly any is compared."""
    found = {n: problem_of(variation_of(n), oracle, target) for n in numbers}
    wrong = [f"{n}: {variation_of(n)}\n  {p}" for n, p in found.items() if p]
    assert not wrong, "\n".join(wrong)
    assert list(found.values()).count("") > len(numbers) // 2


def test_variations_mean_what_onnx_runtime_computes(oracle: Oracle) -> None:
    check(range(FEW), oracle)


def test_variations_compute_it_when_compiled(oracle: Oracle) -> None:
    check(range(FEW, FEW + FEW_COMPILED), oracle, "host")


@pytest.mark.gate
@pytest.mark.parametrize("target", ["", "host"])
def test_variations_of_a_new_seed(
    target: str, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nproperties: AOT_PROPERTY_SEED={SEED}")
    end = time.monotonic() + GATE_SECONDS
    for number in count(SEED):
        variation = variation_of(number)
        problem = problem_of(variation, oracle, target)
        assert not problem, f"{number}: {variation}\n  {problem}"
        if time.monotonic() > end:
            break


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_variations(block: int, oracle: Oracle) -> None:
    first = 1_000_000 + block * BLOCK
    check(range(first, first + BLOCK), oracle)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(BLOCKS_COMPILED))
def test_many_variations_compiled(block: int, oracle: Oracle) -> None:
    first = 2_000_000 + block * BLOCK
    check(range(first, first + BLOCK), oracle, "host")


def test_a_wrong_value_is_found(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the sign of zero's neighbours, of NaN or of infinity another."""
    variation = next(
        v
        for v in (variation_of(n) for n in count())
        if v.case.op == "Abs" and np.isnan(v.case.feeds()["x0"].astype(np.float64)).any()
    )
    assert problem_of(variation, oracle) == ""
    right = onnx_properties.our_run
    monkeypatch.setattr(
        onnx_properties, "our_run", lambda *given: [np.nan_to_num(a) for a in right(*given)]
    )
    assert "ONNX Runtime nan" in (problem_of(variation, oracle) or "")


def test_what_is_left_out_has_a_reason() -> None:
    known = {case.op for case in CASES}
    for exclusion in EXCLUSIONS:
        assert exclusion.why and exclusion.values in ("all", "special", "large")
        assert set(exclusion.ops.split()) & known, exclusion
