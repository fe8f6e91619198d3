"""Chat templates' bytecode with changed words, run by the fuzzer in runtime/tests/fuzz/template
under ASan and UBSan. It is refused, or runs within its budget and inside of its memory."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.support.fuzz_seeds import template_cases, template_input
from tests.support.fuzzers import fuzzer_path


def _damaged(words: list[int], chance: random.Random) -> list[int]:
    """Code of which some words are others: of other places, changed by a little, or any."""
    own = list(words)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(own))
        own[at] = chance.choice(
            (
                chance.choice(own),
                own[at] ^ 1 << chance.randrange(32),
                own[at] & ~0xFF | chance.randrange(64),
                own[at] & 0xFF | chance.randrange(12) << 8,
                (own[at] + chance.choice((-1, 1))) & 0xFFFFFFFF,
                chance.randrange(1 << 32),
            )
        )
    return own


def _run(*words: object) -> str:
    command = list(map(str, words))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=pytest.mark.sweep)])
def test_code_with_other_words(count: int, tmp_path: Path) -> None:
    """Each is whole but for a few words, so that much of it passes the checks and is run."""
    cases, chance = template_cases(), random.Random(1)
    for number in range(count):
        words, texts, variables = cases[number % len(cases)]
        data = template_input(_damaged(words, chance), texts, variables)
        (tmp_path / str(number)).write_bytes(data)
    assert f"Done {count + 1} runs" in _run(fuzzer_path("template"), "-runs=0", tmp_path)
