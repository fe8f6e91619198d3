"""ONNX models damaged in every way (onnx_mutator.py): refused or taken, whatever is in them.

Each in a process of its own, under limits of memory and time: imported here, compiled and loaded as
a sweep.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SUPPORT


@pytest.mark.parametrize("count", [60, pytest.param(20_000, marks=pytest.mark.sweep)])
def test_a_damaged_model_is_refused_or_taken(count: int) -> None:
    script = SUPPORT / "onnx_mutator.py"
    more = ["--compile"] if count > 1000 else []
    command = [sys.executable, script, str(count), str(count), *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert result.stdout.endswith(f"{count} models, 0 findings\n")


def test_a_finding_is_told(tmp_path: Path) -> None:
    """What ends in another error than the compiler's is found, and a process that dies."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.support import onnx_mutator
import aot.frontends.onnx
def wrong(path):
    if "dies" in path:
        import os
        os.abort()
    raise KeyError("wrong")
aot.frontends.onnx.import_onnx = wrong
for name in ("fails", "dies"):
    print(onnx_mutator.attempt_apart(Path(name), {}, False))
"""
    result = subprocess.run(
        [sys.executable, "-c", code, ROOT], capture_output=True, text=True, check=False
    )
    fails, dies = result.stdout.splitlines()
    assert fails == "{'error': 'KeyError', 'message': \"'wrong'\", 'where': '<string>:11'}"
    assert dies == "{'error': 'killed', 'message': 'exit status -6'}"
