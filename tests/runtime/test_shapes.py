"""Ops with producers and consumers at extents by chance, compiled and run, against the interpreter.

What fails is printed as small as may be, with the command that runs it again. Put its text into
tests/regressions, where every file is run for every target.
"""

from __future__ import annotations

import os
import random
import time
from itertools import count

import pytest

from tests.support import shape_cases
from tests.support.samples_module import NATIVE
from tests.support.shape_cases import WASM, Case, case_of, problem_of, reduced, report

TINY = "tiny-x86-64-v3"
TARGETS = [t for t in (*NATIVE[:2], "host", TINY) if t.removeprefix("tiny-") in (*NATIVE, "host")]
ELSEWHERE = [
    pytest.param("aarch64-generic", marks=pytest.mark.qemu),
    pytest.param("vulkan-1.1", marks=pytest.mark.vulkan),
    WASM,
]
SEED = int(os.environ.get("AOT_SHAPE_SEED") or random.SystemRandom().randrange(1 << 31))
FEW, GATE_SECONDS = 40, 60
BLOCK, BLOCKS, BLOCKS_ELSEWHERE = 250, 60, 6  # two in three have a case


def check(numbers: range, target: str) -> None:
    """Fails with all that is wrong with cases, and where there are hardly any."""
    found = [report(number, target) for number in numbers]
    assert not any(found), "\n\n".join(filter(None, found))
    assert found.count("") > len(numbers) // 3


@pytest.mark.parametrize("target", TARGETS)
def test_shapes(target: str) -> None:
    """The same few each time."""
    first = TARGETS.index(target) * FEW
    check(range(first, first + FEW), target)


@pytest.mark.gate
def test_shapes_of_a_new_seed(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nshapes: AOT_SHAPE_SEED={SEED}")
    end = time.monotonic() + GATE_SECONDS
    for number in count(SEED):
        check_one(number, TARGETS[number % len(TARGETS)])
        if time.monotonic() > end:
            break


def check_one(number: int, target: str) -> None:
    text = report(number, target)
    assert not text, text


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_shapes(block: int, target: str) -> None:
    first = 1_000_000 + block * BLOCK
    check(range(first, first + BLOCK), target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.parametrize("block", range(BLOCKS_ELSEWHERE))
def test_many_shapes_elsewhere(block: int, target: str) -> None:
    first = 2_000_000 + block * BLOCK
    check(range(first, first + BLOCK), target)


def test_what_is_wrong_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target whose results are off wherever an extent is above 8."""
    number = next(n for n in count() if max(dict(case_of(n).extents).values(), default=0) > 16)

    def wrong(case: Case, target: str) -> str:
        return "off" if max(dict(case.extents).values(), default=0) > 8 else ""

    monkeypatch.setattr(shape_cases, "problem_of", wrong)
    case = reduced(case_of(number), "host", tries=500)
    assert wrong(case, "host") and not any(
        wrong(less, "host") for less in shape_cases.smaller(case)
    )
    assert not case.consumers and not case.is_open


def test_a_wrong_result_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(n for n in count() if problem_of(case_of(n), "host") == "")
    run = shape_cases._found
    monkeypatch.setattr(shape_cases, "_found", lambda *given: [r + 1 for r in run(*given)])
    assert "expected" in str(problem_of(case_of(number), "host"))
