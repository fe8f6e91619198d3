"""Control flow and state on other CPUs, one of 32 bits among them, under QEMU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.frontends.text import import_text
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from tests.support.control_lowering import assert_equal, compiled
from tests.support.control_sources import CACHE, FIBONACCI, KINDS, LOOP_IN_IF, NESTED, SUM, TOTAL
from tests.support.cross import run_module

F = np.float32
CPUS = [("aarch64", "aarch64-generic"), ("arm", "armv7-neon"), ("riscv64", "riscv64")]
X = np.array([1, -2, 3], F)
ONE = np.array([1], np.int64)

pytestmark = pytest.mark.qemu


@pytest.mark.parametrize(("arch", "target"), CPUS)
@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        (FIBONACCI, [np.array(4, np.int64), ONE, ONE]),
        (NESTED, [np.array(False), np.array(True), X]),
        (KINDS, [np.array(3, np.int64), X]),
        (LOOP_IN_IF, [np.array(True), np.array(0, np.int64), np.arange(6, dtype=F).reshape(3, 2)]),
        (SUM, [np.arange(6, dtype=F).reshape(2, 3)]),
        (TOTAL, [np.arange(6, dtype=F).reshape(2, 3)]),
        (CACHE, [np.arange(2, dtype=F).reshape(1, 1, 2), np.array([2, 3], F)]),
    ],
    ids=["fibonacci", "nested", "kinds", "loop-in-if", "sum", "total", "cache"],
)
def test_six_runs(
    arch: str, target: str, source: str, inputs: list[np.ndarray], tmp_path: Path
) -> None:
    """The first run and those to warm up count: a state has seen them all."""
    module, states = import_text(source), States()
    names = [v.name for v in module.main.inputs]
    data = compiled(source, target=target).to_bytes()
    given = dict(zip(names, inputs, strict=True))
    outputs, _ = run_module(arch, tmp_path, data, given, "--warmup", "2", "--runs", "3")
    for _ in range(6):
        expected = run(module.main, inputs, module=module, states=states)
    assert_equal([outputs[name] for name in module.main.result_names], expected)
