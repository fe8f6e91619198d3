"""The target's passes keep what memory holds, where it is written in place: as the reference
interpreter has it up to insert-copies, and as storage has it from there on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import currently_in_test_context, given, note, settings
from hypothesis import strategies as st

import aot
from aot.analysis.alias.database import AliasDb, count_alias
from aot.analysis.alias.lint import lint
from aot.builder import Builder
from aot.errors import UnsupportedError
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import Pass, PassContext
from aot.passes.check_supported import CHECK_SUPPORTED
from aot.passes.fusion.outline import OUTLINE
from aot.passes.memory.insert_copies import INSERT_COPIES
from aot.passes.memory.write_values import WRITE_VALUES
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.write_graphs import RUNS, WriteGraph, outcome, stored_outcome

EXAMPLES = settings(max_examples=60, deadline=None)
MANY = settings(max_examples=3000, deadline=None)
NAMES = ("x86-64-v3", "vulkan-1.1")


def drawn(data: st.DataObject) -> Any:
    return lambda below: data.draw(st.integers(0, below - 1))


def run_all(
    module: Module, target: str, *, fusion: bool, check: Any, skipped: tuple[Pass, ...] = ()
) -> None:
    """Runs all passes that can be run, and `check(step, is_stored)` after each."""
    options = CompileOptions(disable=() if fusion else ("fusion",))
    contexts = PassContext(options), PassContext(options, targets.load(target))
    is_stored, is_supported = False, True
    for passes, context in zip((MODEL_PASSES, TARGET_PASSES), contexts, strict=True):
        for step in passes:
            if step in skipped:
                continue
            if step is OUTLINE and not is_supported:
                return  # no program can be made of it
            try:
                step.run(module, context)
            except UnsupportedError:
                if step is INSERT_COPIES:
                    return
                assert step is CHECK_SUPPORTED
                is_supported = False
            is_stored = is_stored or step is INSERT_COPIES
            check(step, is_stored)


def some_graph(choose: Any) -> WriteGraph:
    size, (slices, inputs) = 2 + choose(14), (choose(2) == 1, choose(2) == 1)
    return WriteGraph(choose, size, writes_slices=slices, writes_inputs=inputs)


def same(wanted: Sequence[np.ndarray[Any, Any]], found: Sequence[np.ndarray[Any, Any]]) -> bool:
    return len(wanted) == len(found) and all(
        a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-5, equal_nan=True)
        for a, b in zip(wanted, found, strict=True)
    )


def check_passes(data: st.DataObject) -> None:
    choose = drawn(data)
    graph = some_graph(choose)
    module = graph.module
    inputs = [graph.inputs(seed) for seed in range(2)]
    wanted = [outcome(module, each) for each in inputs]

    def check(step: Pass, is_stored: bool) -> None:
        verify(module, during=f"after {step.name}")
        for each, results in zip(inputs, wanted, strict=True):
            assert same(results, (stored_outcome if is_stored else outcome)(module, each)), step
        for function in module.functions.values():
            for listener in function.listeners:
                if isinstance(listener, AliasDb) and listener.is_solved:
                    lint(listener)

    with count_alias() as counts:
        # passes must be right where writes are left, and most are not
        skipped = (WRITE_VALUES,) if choose(2) else ()
        target, fusion = NAMES[choose(2)], choose(4) != 0
        run_all(module, target, fusion=fusion, check=check, skipped=skipped)
    assert counts.builds == 1 >= counts.solves


@EXAMPLES
@given(st.data())
def test_passes_keep_what_memory_holds(data: st.DataObject) -> None:
    check_passes(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_passes_keep_what_memory_holds_in_many(data: st.DataObject) -> None:
    check_passes(data)


# whole programs


def check_programs(data: st.DataObject) -> None:
    choose = drawn(data)
    graph = some_graph(choose)
    if currently_in_test_context():
        note(print_module(graph.module))
    fusion = choose(4) != 0
    try:
        made = aot.compile(graph.module, targets=["host"], disable=() if fusion else ["fusion"])
    except UnsupportedError:
        return
    alias = made.stats["variants"][0]["alias"]
    assert alias["builds"] == 1 >= alias["solves"]
    names = [v.name for v in graph.module.main.inputs]
    with aot.load(made) as program:
        for seed in range(2):
            program.reset()
            inputs = graph.inputs(seed)
            found: list[Any] = []
            for _ in range(RUNS):
                arrays = [a.copy() for a in inputs]
                results = program(dict(zip(names, arrays, strict=True)))
                assert all(
                    np.array_equal(results[r], arrays[names.index(i)], equal_nan=True)
                    for r, i in program.updates.items()
                )
                found += [v for name, v in results.items() if name not in program.updates]
                found += arrays
            assert same(outcome(graph.module, inputs)[: len(found)], found)


@EXAMPLES
@given(st.data())
def test_programs_keep_what_memory_holds(data: st.DataObject) -> None:
    check_programs(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_programs_keep_what_memory_holds_in_many(data: st.DataObject) -> None:
    check_programs(data)


@pytest.mark.parametrize("has_writes", [False, True])
def test_one_database_a_function_and_variant(has_writes: bool) -> None:
    """It is kept through the model's and the target's passes; what writes nothing costs nothing."""
    b = Builder()
    x = b.op("tanh", b.input("x", "f32[4, 4]"))
    if has_writes:
        b.op("assign", b.op("state", variable="s", dtype="f32", shape=(4, 4)), x)
    b.output("y", b.op("relu", b.op("add", x, 1.0)))
    made = aot.compile(b.module(), targets=["x86-64-v2", "x86-64-v3", "aarch64-generic"])
    for variant in made.stats["variants"]:
        assert (variant["alias"]["builds"], variant["alias"]["solves"]) == (1, int(has_writes))
        assert (variant["alias"]["updates"] > 0) is has_writes
