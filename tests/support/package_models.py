"""Small modules for packages, and what they give: weights, an open shape, and kept state.

    save_module(path, ["x86-64-v2", "aarch64-generic"])
    steps()                                   inputs of a few runs, by name
    expected(path)                            outputs of these runs, by aot.load

Owns no test.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.main import main

Array = np.ndarray[Any, Any]
MOST_ROWS = 6
HOST_TARGET = {"x86_64": "x86-64-v2", "aarch64": "aarch64-generic"}[platform.machine()]


def save_module(path: Path, targets: Sequence[str], **options: Any) -> Path:
    """y = tanh(x k) + a sum over all runs so far; x is f32[N, 8], N at most 6."""
    b = Builder()
    x, past = b.input("x", "f32[N, 8]"), b.input("past", "f32[4]")
    weights = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)
    y = b.op("tanh", b.op("matmul", x, b.constant(weights)))
    present = b.op("add", past, b.op("reduce_sum", y, axes=(0,), keepdims=False))
    b.output("the sum", b.op("add", y, present))
    b.output("present", present)
    shapes = {"x": (f"N<={MOST_ROWS}", 8)}
    given = {"input_shapes": shapes, "states": {"past": "present"}, **options}
    aot.compile(b.module(), targets=targets, **given).save(path)
    return path


def steps() -> list[Array]:
    """x of three runs."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal((rows, 8)).astype(np.float32) for rows in (2, MOST_ROWS, 1)]


def expected(path: Path) -> list[Array]:
    """The output of each step on this machine, one after the other."""
    with aot.load(path) as program:
        return [program({"x": x})["the sum"].copy() for x in steps()]


def run(*command: object, cwd: Path | None = None) -> str:
    """The standard output of a command that must succeed."""
    result = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, cwd=cwd
    )
    assert result.returncode == 0, f"{result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout


def failing(*command: object) -> str:
    """What a command that must fail says on standard error."""
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    return result.stderr


def error_of(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says, in one line, where it fails."""
    assert main([str(a) for a in arguments]) == 1
    text = capsys.readouterr().err
    assert text.startswith("aotc: error: ") and text.count("\n") == 1
    return text.removeprefix("aotc: error: ").rstrip("\n")
