"""All that is done with a graph takes work linear in its ops, whatever its form."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from aot.analysis.alias.database import count_alias
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Function
from tests.support.alias_scale import STAGE, analyse_and_fuse, residual_graph, yolo_graph
from tests.support.scaling import GRAPHS, MOST, growth, lines_run, steps

SIZE = 96  # twice what a region holds


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_work_is_linear(name: str) -> None:
    make = GRAPHS[name]
    dict(steps(make(SIZE), lambda work: work() or 0))  # what is remembered from then on

    def costs_of(size: int) -> dict[str, float]:
        return {"build": lines_run(partial(make, size)), **dict(steps(make(size), lines_run))}

    found = [costs_of(size) for size in (SIZE, 2 * SIZE, 4 * SIZE)]
    grown = {step: growth([costs[step] for costs in found]) for step in found[0]}
    suspects = {step for step, g in grown.items() if g > MOST}
    if suspects:  # what only starts later than the rest does not go on growing
        found = [*found[1:], costs_of(8 * SIZE)]
        grown = {step: growth([costs[step] for costs in found]) for step in suspects}
    assert {step: round(grown[step], 2) for step in suspects if grown[step] > MOST} == {}


@pytest.mark.slow
@pytest.mark.parametrize("graph", [residual_graph, yolo_graph])
@pytest.mark.parametrize("stage", [STAGE, 0])
def test_analysis_and_fusion_are_linear(graph: Callable[[int, int], Function], stage: int) -> None:
    """Where memory is written in place: the database follows every change, and is asked."""
    analyse_and_fuse(graph(SIZE, stage))  # what is remembered from then on
    made = [graph(SIZE * times, stage) for times in (1, 2, 4)]
    with count_alias() as counts:
        costs = [lines_run(partial(analyse_and_fuse, function)) for function in made]
    assert counts.builds == len(made)
    assert counts.updates > 4 * SIZE
    assert growth(costs) < MOST


def layers(count: int) -> onnx.ModelProto:
    """Initializers, shape arithmetic, ops without an entry, and branches with a known condition."""
    nodes: list[onnx.NodeProto] = []
    weights = [numpy_helper.from_array(np.array([0], np.int64), "zero")]
    weights.append(numpy_helper.from_array(np.array([8], np.int64), "eight"))
    weights.append(numpy_helper.from_array(np.array(True), "yes"))
    x = "x"
    for n in range(count):
        weights.append(numpy_helper.from_array(np.full(8, n, np.float32), f"w{n}"))
        taken, other = (
            helper.make_graph(
                [helper.make_node(op, [f"s{n}"], [f"{op}{n}"])],
                op,
                [],
                [helper.make_tensor_value_info(f"{op}{n}", onnx.TensorProto.FLOAT, None)],
            )
            for op in ("Relu", "Exp")
        )
        nodes += [
            helper.make_node("Add", [x, f"w{n}"], [f"a{n}"]),
            helper.make_node("Shape", [f"a{n}"], [f"d{n}"]),
            helper.make_node("Gather", [f"d{n}", "zero"], [f"g{n}"]),
            helper.make_node("Concat", [f"g{n}", "eight"], [f"c{n}"], axis=0),
            helper.make_node("Reshape", [f"a{n}", f"c{n}"], [f"r{n}"]),
            helper.make_node("Shrink", [f"r{n}"], [f"s{n}"]),
            helper.make_node("If", ["yes"], [f"y{n}"], then_branch=taken, else_branch=other),
        ]
        x = f"y{n}"
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 8])
    made = helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "layers", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_import_is_linear() -> None:
    models = [layers(SIZE // 8 * times) for times in (1, 2, 4)]
    assert growth([lines_run(partial(import_onnx, model)) for model in models]) < MOST


def test_the_count_finds_what_is_quadratic() -> None:
    def work(size: int) -> list[int]:
        return [sum(1 for b in range(a)) for a in range(size)]

    costs = [lines_run(partial(work, SIZE * times)) for times in (1, 2, 4)]
    assert growth(costs) > 1.9
    start = 10 * costs[0]  # however dear what is done once
    assert growth([start + cost for cost in costs]) > 1.9
    assert growth([26_890.0, 25_237.0, 31_014.0]) < MOST


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["chain", "residual", "blocks_of_attention"])
def test_a_hundred_thousand_ops(name: str) -> None:
    """Prints seconds at 1,000, 10,000 and 100,000 ops, and the exponent fitted to them."""

    def seconds(work: Callable[[], Any]) -> float:
        gc.collect()
        gc.disable()  # which looks at all objects that there are, ever so often
        try:
            start = time.process_time()
            work()
            return time.process_time() - start
        finally:
            gc.enable()

    sizes = (1_000, 10_000, 100_000)
    make = GRAPHS[name]
    found = [
        {"build": seconds(partial(make, size)), **dict(steps(make(size), seconds))}
        for size in sizes
    ]
    slow: dict[str, float] = {}
    print(f"\n{name}")
    for step in found[0]:
        times = [run[step] for run in found]
        exponent = math.log10(max(times[-1], 1e-3) / max(times[-2], 1e-4))
        print(f"{step:24} {' '.join(f'{t:8.3f}' for t in times)} s   n^{exponent:.2f}")
        if exponent > 1.3 and times[-1] > 1:
            slow[step] = exponent
    assert not slow
