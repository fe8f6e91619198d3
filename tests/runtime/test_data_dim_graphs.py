"""Random ONNX graphs whose shapes data decide, none of some included, run as ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import aot
from aot.frontends.onnx import import_onnx
from aot.ir.interpreter.interpreter import run
from tests.support.data_dim_graphs import MAKERS, DataGraph, given
from tests.support.node import Call, make_package, require_node, run_calls
from tests.support.onnx_models import Array, ort_run
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

FEEDS = 6


def assert_same(found: list[Array], wanted: list[Array], number: int) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape, number
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, err_msg=f"feed {number}")


def wanted_of(model: onnx.ModelProto) -> dict[int, list[Array]]:
    """What ONNX Runtime gives, but for feeds that it refuses."""
    found = {}
    for number in range(FEEDS):
        try:
            found[number] = ort_run(model, given(model, number))
        except Exception:  # it has no one type of error
            continue
    return found


def check(graph: DataGraph, device: str = "cpu", targets: tuple[str, ...] = ("host",)) -> None:
    model = graph.model()
    compiled = aot.compile(model, max_extents=graph.bounds, targets=targets)
    with aot.load(compiled, device=device) as program:
        for number, wanted in wanted_of(model).items():
            assert_same(list(program(given(model, number)).values()), wanted, number)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed: int) -> None:
    check(DataGraph(seed, 3))


@pytest.mark.parametrize("seed", range(100, 104))
def test_random_graphs_on_the_interpreter(seed: int) -> None:
    graph = DataGraph(seed, 3)
    model = graph.model()
    function = import_onnx(model).main
    for number, wanted in wanted_of(model).items():
        assert_same(run(function, given(model, number)), wanted, number)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_each_kind(kind: str, seed: int) -> None:
    """Behind rows that are chosen, of which there may be none."""
    check(DataGraph(seed, 2, ["chosen_rows", kind]))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(200, 400))
def test_larger_random_graphs(seed: int) -> None:
    check(DataGraph(seed, 6))


@pytest.mark.sweep
@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_on_a_gpu(driver: str, seed: int, tmp_path: Path) -> None:
    with running_on(driver, tmp_path):
        check(DataGraph(seed, 4), "vulkan", ("vulkan-1.1",))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_under_node(seed: int, tmp_path: Path) -> None:
    require_node()
    graph = DataGraph(seed, 4)
    model = graph.model()
    path = tmp_path / "graph.aotm"
    compiled = aot.compile(model, targets=("wasm32",), max_extents=graph.bounds)
    path.write_bytes(compiled.to_bytes())
    wanted = wanted_of(model)
    calls = [Call(given(model, number)) for number in wanted]
    outcomes = run_calls(make_package(path, tmp_path / "package"), calls)
    for number, outcome in zip(wanted, outcomes, strict=True):
        assert not outcome.message
        assert_same(list(outcome.outputs.values()), wanted[number], number)
