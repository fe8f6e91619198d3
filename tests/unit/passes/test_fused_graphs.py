"""Whatever fusion makes of a graph, code can be generated for it, and it computes the same as the
graph op by op: on a CPU, and as SPIR-V."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

import aot
from aot.analysis.alias.database import count_alias
from aot.backends.vulkan.emit import compile_kernel
from aot.ir.clone import clone_module
from aot.ir.interpreter.interpreter import run
from aot.ir.text.printer import print_module
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.fused_graphs import FusedGraph
from tests.support.random_graphs import difference
from tests.support.vulkan_graph import run_on_driver

FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
SIZE = 16


def drawn(data: st.DataObject) -> FusedGraph:
    def choose(below: int) -> int:
        return data.draw(st.integers(0, below - 1))

    graph = FusedGraph(choose, 2 + choose(SIZE))
    if currently_in_test_context():
        note(print_module(graph.module))
    return graph


def check_cpu(data: st.DataObject) -> None:
    graph = drawn(data)
    inputs = graph.inputs(data.draw(st.integers(0, 5)))
    main = graph.module.main
    expected = run(main, inputs)
    counts: list[int] = []
    for disable in ((), ("fusion",)):
        made = aot.compile(graph.module, targets=["host"], disable=disable)
        with aot.load(made) as program:
            found = list(program(inputs).values())
        problem = difference(main, inputs, expected, found)
        assert not problem, f"without {disable}: {problem}"
        counts.append(made.stats["variants"][0]["dispatches"])
        assert made.stats["variants"][0]["alias"] == {"builds": 1, "solves": 0, "updates": 0}
    assert counts[0] <= counts[1], "fusion adds no dispatch"


def check_vulkan(data: st.DataObject) -> None:
    """Code for every region; what it computes is checked on drivers below."""
    graph = drawn(data)
    target = targets.load("vulkan-1.1")
    for disable in ((), ("fusion",)):
        module, options = clone_module(graph.module), CompileOptions(disable=disable)
        with count_alias() as alias:
            run_passes(module, MODEL_PASSES, PassContext(options))
            run_passes(module, TARGET_PASSES, PassContext(options, target))
        assert (alias.builds, alias.solves) == (1, 0)
        for function in module.executables:
            assert compile_kernel(lower(function, target), target).words


@FEW
@given(st.data())
def test_fused_graphs_on_a_cpu(data: st.DataObject) -> None:
    check_cpu(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_many_fused_graphs_on_a_cpu(data: st.DataObject) -> None:
    check_cpu(data)


@FEW
@given(st.data())
def test_fused_graphs_as_spirv(data: st.DataObject) -> None:
    check_vulkan(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_many_fused_graphs_as_spirv(data: st.DataObject) -> None:
    check_vulkan(data)


def check_driver(data: st.DataObject) -> None:
    graph = drawn(data)
    inputs: dict[str, Any] = graph.inputs(data.draw(st.integers(0, 5)))
    expected = run(graph.module.main, inputs)
    for disable in ((), ("fusion",)):
        options = CompileOptions(targets=("vulkan-1.1",), disable=disable)
        found = run_on_driver("lavapipe", graph.module.main, inputs, options)
        problem = difference(graph.module.main, inputs, expected, found)
        assert not problem, f"without {disable}: {problem}"


@pytest.mark.vulkan
@settings(FEW, max_examples=5)
@given(st.data())
def test_fused_graphs_on_a_driver(data: st.DataObject) -> None:
    check_driver(data)


@pytest.mark.vulkan
@pytest.mark.sweep
@settings(MANY, max_examples=300)
@given(st.data())
def test_many_fused_graphs_on_a_driver(data: st.DataObject) -> None:
    check_driver(data)


def test_graphs_are_fused() -> None:
    """The graphs are worth the name: a region has about two ops or more."""
    rng = np.random.default_rng(0)
    ops = regions = 0
    for _ in range(20):
        module = FusedGraph(lambda below: int(rng.integers(below)), SIZE).module
        context = PassContext(CompileOptions(), targets.load("x86-64-v3"))
        run_passes(module, MODEL_PASSES, context)
        ops += sum(op.record.compute is not None for op in module.main.walk())
        run_passes(module, TARGET_PASSES, context)
        regions += sum(op.name == "dispatch" for op in module.main.walk())
    assert ops >= 2 * regions
