"""Wrong and malicious models: one clear error each, in bounded time and memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.hostile_models import KINDS
from tests.support.paths import SUPPORT

MEGABYTES = 512  # beyond what Python, onnx and LLVM take
SECONDS = 20  # of CPU


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What compiling each kind ended in."""
    root = tmp_path_factory.mktemp("hostile")
    paths = {}
    for name, (write, _) in KINDS.items():
        folder = root / name / "models"
        folder.mkdir(parents=True)
        paths[name] = write(folder)
    runner = SUPPORT / "hostile_runner.py"
    done = subprocess.run(
        [sys.executable, runner, str(MEGABYTES), str(SECONDS)],
        input="".join(f"{p}\n" for p in paths.values()),
        text=True,
        capture_output=True,
        check=False,
    )
    found = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert len(found) == len(paths), done.stderr
    return {name: found[str(path)] | {"path": str(path)} for name, path in paths.items()}


@pytest.mark.parametrize("name", KINDS)
def test_one_clear_error(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    outcome = outcomes[name]
    assert outcome["error"] in ("CompileError", "UnsupportedError"), outcome
    where, _, message = outcome["message"].partition(": ")
    assert where == outcome["path"]
    assert re.fullmatch(KINDS[name][1], message), message
    assert len(message) < 2000
