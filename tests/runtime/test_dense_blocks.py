"""Blocks in which each step reads a concat of what came before: one memory, in which concats of
neighbours are parts of a larger one, and the same values as apart."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from tests.support.cpu_running import native_targets

OPS = ("relu", "neg", "abs")


def dense(shape: list[int], axis: int, runs: list[tuple[int, int]]) -> Module:
    """Each run (first, count) of the values so far is joined, changed and appended; in the end all
    are joined."""
    b = Builder()
    x = b.input("x", f"f32{shape}")
    values = [b.op("neg", x), b.op("relu", x)]
    for number, (first, count) in enumerate(runs):
        first %= len(values) - 1
        parts = values[first : first + max(2, count)]
        joined = b.op("concat", *parts, axis=axis)
        values.append(
            b.op("add", b.op(OPS[number % 3], joined), b.constant(np.float32(number + 1)))
        )
    b.output("y", b.op("concat", *values, axis=axis))
    b.output("last", b.op("exp", values[-1]))
    return b.module()


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    axis=st.integers(0, 3),
    runs=st.lists(st.tuples(st.integers(0, 5), st.integers(2, 6)), min_size=1, max_size=4),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_concats_of_neighbours(shape: list[int], axis: int, runs: list[tuple[int, int]]) -> None:
    axis %= len(shape)
    x = np.random.default_rng(0).uniform(-2, 2, shape).astype(np.float32)
    wanted = run(dense(shape, axis, runs).main, {"x": x})
    module = aot.compile(dense(shape, axis, runs), targets=[native_targets()[-1]])
    with aot.load(module, device="cpu") as program:
        got = program({"x": x})
    np.testing.assert_allclose(got["y"], wanted[0], rtol=1e-6)
    np.testing.assert_allclose(got["last"], wanted[1], rtol=1e-5)
