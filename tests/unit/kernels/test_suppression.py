"""Non-maximum suppression of which only some results are read."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType


@pytest.mark.parametrize("kept", [(0,), (1,), (0, 1)], ids=["chosen", "counts", "both"])
def test_results_that_nothing_reads_are_not_stored(kept: tuple[int, ...]) -> None:
    b = Builder()
    boxes, scores = b.input("boxes", "f32[2, 9, 4]"), b.input("scores", "f32[2, 3, 9]")
    most, overlap = np.array(5, np.int32), np.array(0.5, np.float32)
    results = b.op(
        "non_max_suppression", boxes, scores, most, overlap, None, limit=6, dtype=DType.I32
    )
    for number in kept:
        b.output(f"y{number}", results[number])
    module = b.module()
    rng = np.random.default_rng(5)
    feeds = [rng.random((2, 9, 4)).astype(np.float32), rng.random((2, 3, 9)).astype(np.float32)]
    wanted = run(module.main, feeds)
    with aot.load(aot.compile(module, targets=["host"]).to_bytes()) as program:
        for found, expected in zip(program.run(feeds), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)
