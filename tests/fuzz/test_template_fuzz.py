"""libFuzzer on the code of chat templates and their variables (runtime/tests/fuzz/template), under
ASan and UBSan: damaged code is refused, or runs within its budget and inside of its memory."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aot.link.template_compiler import compile_template
from tests.support.chat_templates import CONVERSATIONS, TEMPLATES
from tests.support.jinja_snippets import SNIPPETS, VARIABLES
from tests.support.runtime_build import RUNTIME, build_fuzzer, library_sources


def _fuzzer() -> Path:
    sources = [*library_sources(), *sorted(RUNTIME.glob("tests/fuzz/template/*.c"))]
    flags = [f"-I{RUNTIME / 'text'}"]
    return build_fuzzer("aot-fuzz-template", sources, flags, libraries=["-lpthread"])


def _input(words: list[int], texts: tuple[bytes, ...], variables: dict[str, Any]) -> bytes:
    ends, end = [], 0
    for text in texts:
        end += len(text)
        ends.append(end)
    head = struct.pack("<HB", len(words), len(texts))
    numbers = struct.pack(f"<{len(words) + len(ends)}I", *words, *ends)
    return head + numbers + b"".join(texts) + b"\0" + json.dumps(variables).encode()


def _cases() -> list[tuple[list[int], tuple[bytes, ...], dict[str, Any]]]:
    """Code that a harness's input holds, and variables that take it far."""
    conversation = CONVERSATIONS["a tool is called"]
    own = [(template, conversation) for template in TEMPLATES.values()]
    own += [(snippet, VARIABLES) for snippet in SNIPPETS]
    made = [(compile_template(template), variables) for template, variables in own]
    return [
        (list(code.words), code.texts, variables)
        for code, variables in made
        if len(code.texts) < 256 and b"\0" not in b"".join(code.texts)
    ]


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
    cases, chance = _cases(), random.Random(1)
    for number in range(count):
        words, texts, variables = cases[number % len(cases)]
        data = _input(_damaged(words, chance), texts, variables)
        (tmp_path / str(number)).write_bytes(data)
    assert f"Done {count + 1} runs" in _run(_fuzzer(), "-runs=0", tmp_path)


@pytest.mark.parametrize("runs", [20_000, pytest.param(5_000_000, marks=pytest.mark.sweep)])
def test_damage_never_crashes(runs: int, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, case in enumerate(_cases()):
        (seeds / str(number)).write_bytes(_input(*case))
    options = (f"-artifact_prefix={tmp_path}/", "-max_len=20000", "-seed=1", f"-runs={runs}")
    assert f"Done {runs} runs" in _run(_fuzzer(), *options, seeds)
