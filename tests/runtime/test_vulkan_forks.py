"""Vulkan in the child of a fork: a program of before gives a status there, or goes on on a CPU; a
new one runs; the parent goes on whatever the child does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aot
from tests.support import vulkan_runtime
from tests.support.growing_graph import growing_graph

pytestmark = pytest.mark.vulkan

SCRIPT = """
import os, signal, sys
import numpy as np
import aot
from aot.errors import RuntimeFailure

def right(program, count=9):
    x = np.linspace(-1, 1, count * 24, dtype=np.float32).reshape(count, 24)
    return program({"x": x})["y"]

path, device, stage = sys.argv[1:]
program = aot.load(path, device)
assert program.device == "vulkan"
if stage == "run":
    expected = right(program)
child = os.fork()
if child == 0:
    signal.alarm(50)
    code = 0
    try:
        found = right(program), right(program, 30)
        print(program.device, found[0].shape, found[1].shape, program.skipped, flush=True)
    except RuntimeFailure as failure:
        print(failure.status, failure, flush=True)
    program.close()
    with aot.load(path, "vulkan") as own:
        print(own.device, right(own).shape, flush=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
if stage == "run":
    assert np.array_equal(right(program), expected)
with aot.load(path, "cpu") as other:
    assert np.allclose(right(program), right(other), atol=1e-6)
program.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
NOT_THERE = "vulkan: the device of a program is not in the child of a fork: make the program there"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "m.aotm"
    aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).save(found)
    return found


@pytest.mark.parametrize("memory", ["unified", "staged"])
@pytest.mark.parametrize("stage", ["load", "run"])
@pytest.mark.parametrize("device", ["vulkan", "auto"])
def test_a_fork_after_loading(path: Path, device: str, stage: str, memory: str) -> None:
    variables = vulkan_runtime.environment("lavapipe", path.parent)
    variables |= {"AOT_VULKAN_DEVICE": "llvmpipe", "AOT_VULKAN_MEMORY": memory}
    variables.pop("VK_INSTANCE_LAYERS", None)  # whose own locks a fork may leave held
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), device, stage],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    if device == "vulkan":
        assert first == f"device {NOT_THERE}"
    else:
        assert first == f"cpu (9, 40) (30, 40) vulkan-1.1: {NOT_THERE}"
    assert second == "vulkan (9, 40)"
