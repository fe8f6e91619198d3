"""What reads damaged files: a result or one error each, in bounded time and memory.

An input that fails is made again by its numbers: `python tests/support/importer_fuzz.py FORMAT SEED
NUMBER 1`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.support.importer_fuzz import FORMATS
from tests.support.paths import ROOT, SUPPORT

SEED = int(os.environ.get("AOT_FUZZ_SEED") or random.SystemRandom().randrange(1 << 31))
GATE_SECONDS = 5
SWEEP_INPUTS = 100_000


def fuzzed(name: str, seed: int, count: int, seconds: int = 0) -> list[dict[str, Any]]:
    """What failed of the inputs of a seed, and last how many there were."""
    command = [sys.executable, SUPPORT / "importer_fuzz.py", name, str(seed), "0", str(count)]
    done = subprocess.run(
        [*command, str(seconds)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("onnx", 150), ("tflite", 150), ("gguf", 150), ("pt2", 20), ("text", 150)),
        *((name, 300) for name in ("tokeniser", "target", "batch", "tuning", "entry", "array")),
    ],
)
def test_damaged_files_are_refused(name: str, count: int) -> None:
    """The same few each time."""
    assert fuzzed(name, 1, count) == [{"inputs": count}]


@pytest.mark.gate
@pytest.mark.parametrize("name", FORMATS)
def test_a_new_seed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{name}: AOT_FUZZ_SEED={SEED}")
    *failures, last = fuzzed(name, SEED, 1 << 30, GATE_SECONDS)
    assert last["inputs"] > 0 and not failures


@pytest.mark.sweep
@pytest.mark.parametrize("name", FORMATS)
def test_many_inputs(name: str) -> None:
    assert fuzzed(name, SEED, SWEEP_INPUTS) == [{"inputs": SWEEP_INPUTS}]


def test_what_fails_is_found() -> None:
    """Exceptions that are no errors of ours, work without end, and memory beyond the bound."""
    code = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from aot.errors import CompileError
from tests.support import importer_fuzz
import aot.driver.pipeline

def wrong(data, options):
    if data == b"refused":
        raise CompileError("refused")
    if data == b"slow":
        while True:
            pass
    if data == b"large":
        assert bytearray(b"x") * (400 << 20)
    if data == b"wrong":
        raise KeyError("wrong")

aot.driver.pipeline.read_model = wrong
signal.signal(signal.SIGPROF, importer_fuzz._stop)
for data in (b"refused", b"taken", b"slow", b"large", b"wrong"):
    importer_fuzz.MOST_SECONDS = 0.2 if data == b"slow" else 5.0
    found = importer_fuzz.attempt("onnx", data)
    print(found and found["error"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None", "None", "HangError", "memory", "KeyError"]
