"""Random graphs, and what they found before: the graph interpreter against what is shipped.

A failing example is printed as text IR. Reduce it, and put it into tests/regressions, where every
file is run for every target.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from tests.support.graphs import MODEL_KINDS, modules, random_inputs
from tests.support.paths import TESTS
from tests.support.quantised_graphs import QuantisedGraph, differences
from tests.support.random_graphs import Graph, difference, graphs
from tests.support.vulkan_graph import run_on_driver

TARGETS = ("host", "x86-64-v2", "x86-64-v3-128")
REGRESSIONS = sorted((TESTS / "regressions").glob("*.ir"))

FEW = settings(max_examples=20, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=400, suppress_health_check=list(HealthCheck))


def check(module: Module, inputs: dict[str, np.ndarray], target: str) -> None:
    """Fails where the compiled module differs from the interpreter by more than noise."""
    verify(module)
    if currently_in_test_context():
        note(print_module(module))
    expected = run(module.main, inputs)
    try:
        data = aot.compile(module, targets=[target])
    except aot.UnsupportedError:
        assume(False)
    with aot.load(data) as program:
        found = list(program(inputs).values())
    problem = difference(module.main, inputs, expected, found)
    assert not problem, f"{target}: {problem}"


@FEW
@given(graphs(), st.integers(0, 9), st.sampled_from(TARGETS))
def test_compiled_graphs_compute_what_the_interpreter_does(
    graph: Graph, seed: int, target: str
) -> None:
    check(graph.module, graph.inputs(seed), target)


@FEW
@given(graphs(max_ops=14), st.integers(0, 9), st.sampled_from(TARGETS))
def test_larger_graphs(graph: Graph, seed: int, target: str) -> None:
    check(graph.module, graph.inputs(seed), target)


@pytest.mark.sweep
@MANY
@given(graphs(max_ops=14), st.integers(0, 9), st.sampled_from(TARGETS))
def test_many_larger_graphs(graph: Graph, seed: int, target: str) -> None:
    check(graph.module, graph.inputs(seed), target)


@FEW
@given(modules(kinds=MODEL_KINDS), st.sampled_from(TARGETS))
def test_graphs_of_symbolic_dims(module: Module, target: str) -> None:
    check(module, random_inputs(module.main), target)


@pytest.mark.vulkan
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 9))
def test_graphs_as_spirv(graph: Graph, seed: int) -> None:
    inputs = graph.inputs(seed)
    note(print_module(graph.module))
    expected = run(graph.module.main, inputs)
    try:
        found = run_on_driver("lavapipe", graph.module.main, inputs)
    except aot.UnsupportedError:
        assume(False)
    problem = difference(graph.module.main, inputs, expected, found)
    assert not problem, problem


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [3, 8])
def test_quantised_graphs(seed: int, target: str) -> None:
    check_quantised(QuantisedGraph(seed), target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_quantised_graphs(seed: int, target: str) -> None:
    check_quantised(QuantisedGraph(seed, size=8), target)


@pytest.mark.vulkan
@pytest.mark.parametrize("seed", [5, 13])
def test_quantised_graphs_as_spirv(seed: int) -> None:
    check_quantised(QuantisedGraph(seed), "")


def check_quantised(graph: QuantisedGraph, target: str) -> None:
    """Fails where a target, or lavapipe for "", computes anything but the graph's definition."""
    inputs = graph.inputs()
    if target:
        with aot.load(aot.compile(graph.module, targets=[target])) as program:
            found = list(program(inputs).values())
    else:
        found = run_on_driver("lavapipe", graph.module.main, inputs)
    problem, near = differences(graph.module.main, inputs, found)
    assert not problem, print_module(graph.module)
    assert near <= 3


def test_a_wrong_result_is_a_difference_and_noise_is_none() -> None:
    b = Builder()
    x = b.input("x", "f32[4]")
    b.output("sum", b.op("add", x, 1.0))
    b.output("floor", b.op("floor", b.op("mul", x, 3.0)))
    function = b.module().main
    inputs = {"x": np.array([0.5, 1, 2, 3], np.float32)}
    total, floor = run(function, inputs)
    assert not difference(function, inputs, [total, floor], [total * np.float32(1 + 1e-6), floor])
    wrong = total + np.array([0, 0, 1e-3, 0], np.float32)
    assert difference(function, inputs, [total, floor], [wrong, floor]).startswith("result 0 at (2")
    edge = floor - np.array([0, 1, 0, 0], np.float32)  # floor(3 - noise) is 2
    assert not difference(function, inputs, [total, floor], [total, edge])
    steady = floor - np.array([1, 0, 0, 0], np.float32)  # floor(1.5) is not
    assert difference(function, inputs, [total, floor], [total, steady]).startswith("result 1")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: p.stem)
def test_what_was_found_before(path: Path, target: str) -> None:
    module = parse_module(path.read_text())
    check(module, random_inputs(module.main), target)
