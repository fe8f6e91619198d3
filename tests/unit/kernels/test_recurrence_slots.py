"""Recurrent layers whose workgroups take several sequences, for each load of their weights."""

from __future__ import annotations

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.graph import Function
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import outlined
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check, on_interpreter

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
CELLS = [("lstm", {}), ("gru", {"linear_before_reset": True}), ("gru", {}), ("rnn", {})]
rng = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return rng.uniform(-0.5, 0.5, shape).astype(np.float32)


def layer(name: str, batch: object, hidden: int, directions: int, **attrs: object) -> Function:
    rows = GATES[name] * hidden
    b = Builder()
    x = b.input("x", f"f32[3, {batch}, 5]")
    attrs |= {"direction": "bidirectional" if directions == 2 else "reverse"}
    attrs |= {"hidden_size": hidden}
    weights = floats(directions, rows, 5), floats(directions, rows, hidden)
    states = [floats(directions, batch, hidden)] if isinstance(batch, int) else []
    made = b.op(name, x, *weights, floats(directions, 2 * rows), None, *states, **attrs)
    for n, y in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(f"y{n}", y)
    return b.function()


def slots(function: Function, target: str) -> int:
    kernel = lower(outlined(function), targets.load(target))
    return max(s.shape[0] for s in kernel.scratch if s.name == "h")


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("hidden", [16, 32, 5, 24])
def test_natively(cell: tuple[str, dict[str, object]], hidden: int) -> None:
    """Sequences that fill workgroups and do not, in one direction and both."""
    name, attrs = cell
    for target in native_targets():
        for batch, directions in ((1, 1), (2, 2), (4, 1), (5, 2), (13, 1), (16, 2)):
            function = layer(name, batch, hidden, directions, **attrs)
            check(function, [floats(3, batch, 5)], target, 1, 2e-5, engine=on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic"])
def test_interpreted(target: str) -> None:
    """A slot without a sequence does the last one's again, in the same workgroup."""
    function = layer("lstm", 7, 16, 2)
    check(function, [floats(3, 7, 5)], target, 1, 2e-5, engine=on_interpreter)


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("hidden", [16, 5])
def test_open_numbers_natively(cell: tuple[str, dict[str, object]], hidden: int) -> None:
    """One kernel, which takes one, two or four sequences at a time by how many there are."""
    name, attrs = cell
    for target in native_targets():
        for batch, directions in ((1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (9, 2)):
            function = layer(name, "n", hidden, directions, **attrs)
            check(function, [floats(3, batch, 5)], target, 1, 2e-5, engine=on_cpu(target))


@pytest.mark.parametrize("batch", [1, 2, 3, 6])
def test_open_numbers_interpreted(batch: int) -> None:
    function = layer("gru", "n", 16, 2)
    check(function, [floats(3, batch, 5)], "x86-64-v4", 1, 2e-5, engine=on_interpreter)


def test_how_many_sequences() -> None:
    assert slots(layer("lstm", "n", 16, 2), "x86-64-v4") == 4
    assert slots(layer("lstm", "n", 16, 2), "vulkan-1.1") == 1
    assert slots(layer("lstm", 16, 16, 2), "x86-64-v4") == 6
    assert slots(layer("lstm", 2, 16, 1), "x86-64-v4") == 2
    assert slots(layer("lstm", 4, 16, 1), "x86-64-v4") == 2  # there are two threads
    assert slots(layer("rnn", 4, 512, 1), "x86-64-v4") == 4  # a thread's cache holds no step
    assert slots(layer("lstm", 16, 16, 2), "vulkan-1.1") == 1
