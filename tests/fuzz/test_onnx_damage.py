"""ONNX models damaged in every way (onnx_mutator.py): refused or taken, whatever is in them.

In processes of their own, under limits of memory and time: imported here, compiled and loaded as a
sweep.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SUPPORT

SWEEP = pytest.mark.sweep


@pytest.mark.parametrize(
    ("count", "more"),
    [
        pytest.param(200, [], id="imported"),
        pytest.param(60_000, [], id="imported, long", marks=SWEEP),
        pytest.param(20_000, ["--compile"], id="compiled", marks=SWEEP),
    ],
)
def test_a_damaged_model_is_refused_or_taken(count: int, more: list[str]) -> None:
    script = SUPPORT / "onnx_mutator.py"
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
from aot.errors import CompileError
def wrong(path):
    if "dies" in path:
        import os
        os.abort()
    if "is refused" in path:
        raise CompileError("refused")
    if "forgets" in path:
        raise MemoryError
    raise KeyError("wrong")
aot.frontends.onnx.import_onnx = wrong
names = ("is refused", "fails", "dies", "forgets", "dies too", "is refused as well")
for found in onnx_mutator.attempt_apart([(Path(name), {}) for name in names], False):
    print(found)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, ROOT], capture_output=True, text=True, check=False
    )
    first, fails, dies, forgets, too, last = result.stdout.splitlines()
    assert fails == "{'error': 'KeyError', 'message': \"'wrong'\", 'where': '<string>:16'}"
    assert dies == too == "{'error': 'killed', 'message': 'exit status -6'}"
    assert forgets == "{'error': 'MemoryError', 'message': '', 'where': '<string>:15'}"
    assert first == last == "None"
