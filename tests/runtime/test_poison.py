"""No kernel reads what nobody wrote, and none writes where nothing of its own is: runs of a runtime
that poisons memory, under two patterns.

A case that fails is run again by its numbers: `python tests/support/poison.py KIND TARGET SEED`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aot.packaging.runtime_sources import runtime_sources
from aot.runtime.loader import load_library
from tests.support.paths import ROOT, RUNTIME, SUPPORT
from tests.support.poison import FLAGS, poison_library
from tests.support.poison_faults import FAULTS, SOUND
from tests.support.runtime_build import build, library_sources

SEED = int(os.environ.get("AOT_FUZZ_SEED") or random.SystemRandom().randrange(1 << 31))
GATE_SECONDS = 40


def run(script: str, *arguments: object) -> list[str]:
    """The lines that a script prints, in a process of its own with the runtime that poisons."""
    if poison_library() is None:
        pytest.skip("gcc is not installed")
    command = [sys.executable, SUPPORT / script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def faults(*arguments: object, least: int) -> list[dict[str, Any]]:
    *found, last = map(json.loads, run("poison.py", *arguments))
    assert last["planned"] == last["runs"] >= least
    return found


@cache
def found() -> dict[str, str]:
    (line,) = run("poison_faults.py")
    return json.loads(line)  # type: ignore[no-any-return]


BEHIND = 'executable "stray" wrote behind its scratch of 128 bytes, up to byte {} of the zone there'
MESSAGES = {
    "scratch that nobody wrote": "output 'y0' of run 0 differs between patterns",
    "scratch that the dispatch before wrote": "output 'y1' of run 0 differs between patterns",
    "the first byte behind scratch": BEHIND.format(1),
    "the last byte of the zone behind scratch": BEHIND.format(4096),
    "before scratch": BEHIND.format(4096).replace("behind", "before"),
    "behind scratch, one of several threads": BEHIND.format(1),
    "arena that nobody wrote": "output 'y0' of run 0 differs between patterns",
    "behind the arena": (
        'executable "stray" wrote behind the arena of 256 bytes, up to byte 1 of the zone there'
    ),
    "before the arena": (
        'executable "stray" wrote before the arena of 256 bytes, up to byte 1 of the zone there'
    ),
    "a gap between buffers": (
        'executable "stray" wrote to byte 100 of the arena, which no buffer has, word 13'
    ),
    "a buffer that is dead": "output 'y1' of run 0 differs between patterns",
    "a buffer that is dead, of a size that a run gives": (
        "output 'y' of run 0 differs between patterns"
    ),
    "an output that nobody wrote": "output 'y' of run 0 differs between patterns",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_kernel_is_found(name: str) -> None:
    assert found()[name] == MESSAGES[name]


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_is_not(name: str) -> None:
    assert found()[name] == ""


def test_some_samples_of_ops() -> None:
    assert faults("samples", "host", 40, 30, least=30) == []


def test_some_random_graphs() -> None:
    assert faults("graphs", "host", 1, 3, least=4) == []


@pytest.mark.gate
@pytest.mark.parametrize("target", ["host", "x86-64-v2"])
def test_samples_of_ops(target: str) -> None:
    assert faults("samples", target, 0, least=300) == []


@pytest.mark.gate
def test_random_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nAOT_FUZZ_SEED={SEED}")
    assert faults("graphs", "host", SEED, GATE_SECONDS, least=20) == []


@pytest.mark.gate
def test_models() -> None:
    """Of tests, on one thread and on several; with branches, loops and states that grow."""
    assert faults("models", "host", SEED, least=30) == []


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["host", "x86-64-v2", "x86-64-v3"])
def test_many_random_graphs(target: str) -> None:
    assert faults("graphs", target, SEED, 600, least=300) == []


# ---- it is in no package ----


def test_no_package_can_poison() -> None:
    """Neither the installed library nor the sources that packages are made of have it."""
    installed = load_library()
    assert hasattr(installed, "aot_program_run")
    assert not hasattr(installed, "aot_poison_set_plan")
    sources = runtime_sources()
    shipped = {
        name
        for part in ("library", "text", "vulkan", "tool", "threads", "no_os", "embedding")
        for name in getattr(sources, part, ())
    }
    assert shipped and not any("tests/" in name for name in shipped)


def test_a_release_that_poisons_does_not_build(tmp_path: Path) -> None:
    sources = [RUNTIME / "tests" / "poison.c"]
    with pytest.raises(RuntimeError, match="AOT_POISON is for tests: a build for release has none"):
        if build("poison.o", sources, [*FLAGS, "-DNDEBUG", "-c"]) is None:
            pytest.skip("gcc is not installed")
    with pytest.raises(RuntimeError, match="undefined reference|undefined symbol"):
        # as a package would be, which has no file of the tests
        build("libaot_runtime_packed.so", library_sources(), [*FLAGS, "-Wl,-z,defs"])


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        (["-DCMAKE_BUILD_TYPE=Release"], True),
        (["-DCMAKE_BUILD_TYPE=RelWithDebInfo"], True),
        (["-DCMAKE_BUILD_TYPE=Debug", "-DSKBUILD_PROJECT_VERSION=1.0"], True),
        ([], True),
        (["-DCMAKE_BUILD_TYPE=Debug"], False),
    ],
)
def test_only_a_debug_build_poisons(options: list[str], is_refused: bool, tmp_path: Path) -> None:
    command = ["cmake", "-S", RUNTIME, "-B", tmp_path, "-DAOT_POISON=ON", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("cmake is not installed")
    assert (done.returncode != 0) is is_refused
    assert ("AOT_POISON is for tests, not for packages" in done.stderr) is is_refused
