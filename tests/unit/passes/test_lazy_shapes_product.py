"""Lazily and eagerly told changes beside each other, and what deferring transposes is good for.

The figures that these gate are made by benchmarks/lazy_shapes.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.frontends.text import import_text
from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.graph import Module
from aot.ir.record import count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.verifier import verify
from aot.passes.base import PassContext, run_passes
from aot.passes.layout.defer_transposes import DEFER_TRANSPOSES
from aot.passes.layout.eager_shapes import follow_eagerly
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES, resolve
from benchmarks import lazy_shapes as bench_lazy_shapes
from tests.support.graphs import assert_same_results
from tests.support.models import model_path
from tests.support.nhwc_models import residual_net
from tests.support.onnx_models import ort_run
from tests.support.pending_changes import DIAMOND, names, turn, value_of

# eager and lazy


def each_mode(text: str, change: Callable[[Module], None]) -> list[tuple[Module, int]]:
    """The program and the shape rules called, lazily and eagerly."""
    found = []
    for is_eager in (False, True):
        module = import_text(text)
        if is_eager:
            follow_eagerly(module)
        with count_shape_rules() as rules:
            change(module)
            resolve(module.main)
        verify(module, is_resolved=True)
        found.append((module, rules.calls))
    return found


def test_the_cascade_goes_in_program_order_and_stops_where_shapes_stay() -> None:
    """One change: eager asks what lazy asks, and the op at which shapes stay, once each."""

    def change(module: Module) -> None:
        turn(module, value_of(module, "relu"), (1, 0))

    (lazy, few), (eager, many) = each_mode(DIAMOND, change)
    assert modules_equal(lazy, eager)
    assert (few - 1, many - 1) == (3, 4)  # less the transpose that `turn` makes


def test_eagerly_nothing_is_left_to_ask() -> None:
    """Changes behind changes, and users that are rewired plainly in between."""
    b = Builder()
    value = b.input("x", "f32[2, 3, 4]")
    for _ in range(12):
        value = b.op("relu", value)
    b.output("y", b.op("transpose", value, perm=(2, 0, 1)))
    module = b.module()
    follow_eagerly(module)
    for number, perm in ((2, (2, 0, 1)), (5, (1, 2, 0)), (8, (0, 2, 1))):
        turn(module, value_of(module, "relu", number), perm)
    before = clone_module(module)
    with count_shape_rules() as rules:
        resolve(module.main)
    assert rules.calls == 0
    verify(module, is_resolved=True)
    assert_same_results(before, module)


def test_what_is_rewired_after_it_was_told_is_decided_anew() -> None:
    programs = []
    for is_eager in (False, True):
        module = import_text(DIAMOND)
        if is_eager:
            follow_eagerly(module)
        turn(module, value_of(module, "relu"), (1, 0))
        sin = value_of(module, "sin").op
        Rewriter(module.main).set_operand(sin, 0, module.main.inputs[0])
        resolve(module.main)
        verify(module, is_resolved=True)
        programs.append(module)
    assert modules_equal(*programs)


def test_many_changes_cost_the_cascade_each_time_and_the_sweep_once() -> None:
    module, rewrite = bench_lazy_shapes.chain(60, 20)
    lazy, eager = bench_lazy_shapes.compare(module, rewrite)
    assert lazy.rewrites == eager.rewrites == 20
    assert lazy.calls == 59  # each op once, but the first, whose operand stays
    # every change tells all ops behind it, and one more as nothing is behind
    assert eager.calls >= sum(60 - 3 * n - 1 for n in range(20))


def test_calls_grow_with_ops_and_rewrites_not_with_their_product() -> None:
    """The slope that docs/internals/lazy-shapes.md has up to n = 100,000."""
    sizes = (50, 100, 200)
    costs = [bench_lazy_shapes.compare(*bench_lazy_shapes.chain(n, n // 5)) for n in sizes]
    slope = [
        bench_lazy_shapes.fitted_slope(sizes, [pair[mode].calls for pair in costs])
        for mode in (0, 1)
    ]
    assert slope[0] < 1.05 and slope[1] > 1.9


@pytest.mark.models
@pytest.mark.parametrize("name", ["resnet50_rw", "densenet121_rw", "minilm_l3"])
def test_bulk_changes_of_models_cost_a_tenth_at_most(name: str) -> None:
    module = bench_lazy_shapes.prepared(str(model_path(name)))
    for rewrite in (bench_lazy_shapes.channels_last, bench_lazy_shapes.narrow):
        lazy, eager = bench_lazy_shapes.compare(module, rewrite)
        assert lazy.rewrites > 20 and eager.calls > 100
        assert 10 * lazy.calls <= eager.calls


def test_eager_compiling_gives_the_same_file() -> None:
    model = residual_net(is_last=True, blocks=1)
    lazy, eager = (
        aot.compile(model, targets=["x86-64-v3"], disable=d) for d in ([], ["lazy-shapes"])
    )
    assert lazy.to_bytes() == eager.to_bytes()
    few, many = (
        c.stats["variants"][0]["shape_rules"]["defer-transposes"]
        + c.stats["variants"][0]["shape_rules"]["resolve-shapes"]
        for c in (lazy, eager)
    )
    assert 0 < few < many
    pending = [c.stats["variants"][0]["pending"] for c in (lazy, eager)]
    assert pending[0] == pending[1]
    assert pending[0]["pushed"] > 0 and pending[0]["folded"] > 0


# in the product


@pytest.mark.parametrize("blocks", [1, 3])
def test_channels_last_exports_are_as_clean_as_channels_first_ones(blocks: int) -> None:
    dispatches = []
    for is_last in (False, True):
        model = residual_net(is_last=is_last, blocks=blocks)
        compiled = aot.compile(model, targets=["x86-64-v2"])
        variant = compiled.stats["variants"][0]
        dispatches.append(variant["dispatches"])
        shape = (1, 16, 16, 3) if is_last else (1, 3, 16, 16)
        x = np.random.RandomState(1).standard_normal(shape).astype(np.float32)
        with aot.load(compiled) as program:
            found = program({"x": x})["y"]
        np.testing.assert_allclose(found, ort_run(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert dispatches[0] == dispatches[1]


def test_hundreds_of_transposes_that_undo_each_other_cost_nothing() -> None:
    b = Builder()
    value = b.input("x", "f32[2, 3, 4, 5]")
    for number in range(150):
        value = b.op("transpose", value, perm=(0, 2, 3, 1))
        value = b.op("mul", value, np.array([1.5, 0.5, 1.0], np.float32))
        value = b.op("transpose", value, perm=(0, 3, 1, 2))
        value = b.op("tanh" if number % 2 else "relu", value)
    b.output("y", value)
    module = b.module()
    before = clone_module(module)
    run_passes(module, (DEFER_TRANSPOSES, RESOLVE_SHAPES), PassContext())
    verify(module, is_resolved=True)
    assert "transpose" not in names(module)
    assert_same_results(before, module)


@pytest.mark.parametrize("seed", range(3))
def test_there_are_never_more_transposes_than_before(seed: int) -> None:
    """On any graph: a web that ends with as many stays as it was."""
    rng = np.random.default_rng(seed)
    b = Builder()
    pool = [b.input(f"x{n}", "f32[3, 3, 3]") for n in range(3)]
    for _ in range(60):
        kind = rng.integers(0, 4)
        value = pool[rng.integers(0, len(pool))]
        if kind == 0:
            pool.append(b.op("transpose", value, perm=tuple(map(int, rng.permutation(3)))))
        elif kind == 1:
            pool.append(b.op("tanh", value))
        elif kind == 2:
            pool.append(b.op("add", value, pool[rng.integers(0, len(pool))]))
        else:
            pool.append(b.op("matmul", value, pool[rng.integers(0, len(pool))]))
    for number, value in enumerate([v for v in pool if not v.uses]):
        b.output(f"y{number}", b.op("sigmoid", value))
    module = b.module()
    before = clone_module(module)
    run_passes(module, (DEFER_TRANSPOSES, RESOLVE_SHAPES), PassContext())
    verify(module, is_resolved=True)
    assert names(module).count("transpose") <= names(before).count("transpose")
    assert_same_results(before, module, tolerance=1e-4)
