"""Dispatches of several stages: joined regions compute what the graph does, on CPU and GPU kernels.

Kernels run on the kernel interpreter with race checks, so that a stage that reads what another lane
stored without a barrier is found.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot.analysis.stages import shared_dims, stages_of
from aot.frontends.text import import_text
from aot.ir.graph import Function, Value
from aot.passes.fusion.join_regions import join_regions
from aot.target import selection as targets
from tests.support.lowering_checks import TARGETS, check

SQUEEZE = """
func @main(%x: f32[N, 6, 5, 4], %w: f32[3, 6, 1, 1], %v: f32[6, 3, 1, 1]) -> ("y") {
  %2 = reduce_mean(%x) {axes = [2, 3], keepdims = true} : f32[N, 6, 1, 1]
  %3 = conv(%2, %w) {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]} : f32[N, 3, 1, 1]
  %4 = relu(%3) : f32[N, 3, 1, 1]
  %5 = conv(%4, %v) {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]} : f32[N, 6, 1, 1]
  %6 = sigmoid(%5) : f32[N, 6, 1, 1]
  %7 = mul(%x, %6) : f32[N, 6, 5, 4]
  return(%7)
}
"""
SOFTMAX = """
func @main(%x: f32[70, 33]) -> ("y") {
  %0 = reduce_max(%x) {axes = [1], keepdims = true} : f32[70, 1]
  %1 = sub(%x, %0) : f32[70, 33]
  %2 = exp(%1) : f32[70, 33]
  %3 = reduce_sum(%2) {axes = [1], keepdims = true} : f32[70, 1]
  %4 = div(%2, %3) : f32[70, 33]
  return(%4)
}
"""
VIEWS = """
func @main(%x: f32[4, 2, 3]) -> ("y", "z") {
  %0 = reduce_sum(%x) {axes = [2], keepdims = false} : f32[4, 2]
  %1 = reshape(%0) {shape = [8]} : f32[8]
  %2 = reduce_max(%1) {axes = [0], keepdims = false} : f32[]
  %3 = mul(%1, %2) : f32[8]
  return(%3, %2)
}
"""


def joined(function: Function, target: str) -> None:
    join_regions(function, targets.load(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (SQUEEZE, [(2, 6, 5, 4), (3, 6, 1, 1), (6, 3, 1, 1)]),
        (SOFTMAX, [(70, 33)]),
        (VIEWS, [(4, 2, 3)]),
    ],
    ids=["squeeze", "softmax", "views"],
)
def test_stages_compute_what_the_graph_does(
    text: str, shapes: list[tuple[int, ...]], target: str
) -> None:
    rng = np.random.RandomState(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    function = import_text(text).main
    check(function, inputs, target, 1, after_fuse=lambda f: joined(f, target))


def shared(text: str, ends: Callable[[Function], list[Value]]) -> int:
    function = import_text(text).main
    return shared_dims(stages_of(function.block, ends(function)))


def made(function: Function, *numbers: int) -> list[Value]:
    return [list(function.block)[n].result for n in numbers]


def test_rows_of_a_softmax_are_shared() -> None:
    assert shared(SOFTMAX, lambda f: made(f, 0, 2, 3, 4)) == 1


def test_a_reduction_over_rows_shares_nothing() -> None:
    assert shared(VIEWS, lambda f: made(f, 0, 2, 3)) == 0


def test_batches_are_shared_through_convolutions() -> None:
    assert shared(SQUEEZE, lambda f: made(f, 0, 2, 4, 5)) == 1


def test_a_stage_has_what_no_earlier_one_stored() -> None:
    function = import_text(SOFTMAX).main
    stages = stages_of(function.block, made(function, 4, 0, 3, 2))
    assert [[op.name for op in s.ops] for s in stages] == [
        ["reduce_max"],
        ["sub", "exp"],
        ["reduce_sum"],
        ["div"],
    ]
