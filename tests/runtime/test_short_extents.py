"""Open extents below what an op needs are an error of the run, where no input's bound says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import parser

import aot
from aot.builder import Builder
from aot.ir.graph import Value

Made = Callable[[Builder, Value], Value]


def _top_k(k: int, result: int) -> Made:
    def make(b: Builder, x: Value) -> Value:
        made: Value = b.op("top_k", x, axis=0, k=k)[result]
        return made

    return make


def _gather(b: Builder, x: Value) -> Value:
    return b.op("gather_elements", x, np.zeros((3, 2), np.int32), axis=1)


def _scatter(b: Builder, x: Value) -> Value:
    chosen = np.zeros((3, 2), np.int32)
    return b.op("scatter_elements", x, chosen, np.ones((3, 2), np.float32), axis=1)


def _slice(b: Builder, x: Value) -> Value:
    found: Value = b.op("slice", x, starts=(1, 0), stops=(7, 3), steps=(1, 2))
    return found


def _sum_of_slice(b: Builder, x: Value) -> Value:
    return b.op("reduce_sum", b.op("exp", _slice(b, x)), axes=(0,), keepdims=False)


def _backwards(b: Builder, x: Value) -> Value:
    found: Value = b.op("slice", x, starts=(4, 3), stops=(-1, -1), steps=(-1, -1))
    return found


def _apart(b: Builder, x: Value) -> Value:
    """Rows 0, 2, 4 and 6, whose stop lies behind the last."""
    found: Value = b.op("slice", x, starts=(0, 0), stops=(8, 4), steps=(2, 1))
    return found


CASES = {
    "apart": (_apart, 7),
    "slice": (_slice, 7),
    "slice that is fused": (_sum_of_slice, 7),
    "backwards": (_backwards, 5),
    "few": (_top_k(3, 0), 3),
    "places of few": (_top_k(3, 1), 3),
    "heap": (_top_k(11, 0), 11),
    "places of a heap": (_top_k(11, 1), 11),
    "gather_elements": (_gather, 3),
    "scatter_elements": (_scatter, 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_computed", [False, True])
def test_too_short(name: str, is_computed: bool) -> None:
    make, least = CASES[name]
    b = Builder()
    x = b.input("x", "f32[N, 4]")
    rows = x
    if is_computed:  # two rows fewer than x has
        rows = b.op("slice", b.op("exp", x), starts=(2, 0), stops=("N", 4), steps=(1, 1))
    b.output("y", make(b, rows))
    with aot.load(aot.compile(b.module())) as program:
        least += 2 * is_computed
        assert program(x=np.ones((least, 4), np.float32))["y"].size
        for n in (least - 1, 2 * is_computed, 0):
            with pytest.raises(aot.RuntimeFailure, match="is too short"):
                program(x=np.ones((n, 4), np.float32))


def test_a_branch_that_is_not_taken_needs_nothing() -> None:
    model = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[N] x) => (float[3] y) {
            n = Size(x)
            three = Constant<value = int64 {3}>()
            is_short = Less(n, three)
            y = If(is_short) <
                then_branch = t () => (float[3] z) {
                    k = Constant<value = int64[1] {3}>()
                    z = ConstantOfShape<value = float[1] {7}>(k)
                },
                else_branch = e () => (float[3] v) {
                    k = Constant<value = int64[1] {3}>()
                    v, i = TopK(x, k)
                }
            >
        }""")
    with aot.load(aot.compile(model)) as program:
        for n in range(6):
            wanted = np.full(3, 7) if n < 3 else np.arange(n)[::-1][:3]
            np.testing.assert_array_equal(program(x=np.arange(n, dtype=np.float32))["y"], wanted)
