"""Loops whose condition may never become false: a run ends, and says which loop it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import aot
from aot.errors import CompileError, RuntimeFailure
from aot.frontends.onnx import import_onnx
from aot.ir.interpreter.interpreter import run
from aot.ir.loops import MOST_RUNS
from tests.support.control_models import I64, Body, loop_inputs
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.onnx_models import graph_model, tensor_info
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

TRIPS = {"none": None, "as many as fit": 2**63 - 1, "as many as fit 32 bits": 2**31 - 1}
FROM, TO = np.zeros(1, np.int64), np.array([30], np.int64)
ENDS = {"x": FROM, "step": np.ones(1, np.int64)}
GOES_ON = {"x": FROM, "step": np.zeros(1, np.int64)}


def counting(trips: int | None = None) -> onnx.ModelProto:
    """Adds step i64[1] to x i64[1] until that is 30."""
    body = Body("b_")
    following = body.op("Add", "v", "step")
    goes_on = body.op("Squeeze", body.op("Not", body.op("Equal", following, body.constant(TO))))
    graph = body.graph(loop_inputs(tensor_info("v", [1], I64)), [goes_on, following])
    count = "" if trips is None else "count"
    loop = helper.make_node("Loop", [count, "", "x"], ["y"], "search", body=graph)
    inputs = [tensor_info("x", [1], I64), tensor_info("step", [1], I64)]
    model = graph_model([loop], inputs, ["y"])
    if trips is not None:
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(trips, np.int64), "count")
        )
    return model


def message(runs: int) -> str:
    return (
        f"search: its condition has not ended it after {runs} runs; if it does end, allow it more "
        "with --max search=N"
    )


@pytest.mark.parametrize("trips", TRIPS)
def test_a_loop_without_end_is_named(trips: str) -> None:
    with aot.load(aot.compile(counting(TRIPS[trips]))) as program:
        with pytest.raises(RuntimeFailure) as caught:
            program(GOES_ON)
        assert (str(caught.value), caught.value.status) == (message(MOST_RUNS), "check")
        assert program(ENDS)["y"] == TO


@pytest.mark.parametrize("trips", TRIPS)
def test_the_user_says_after_how_many_runs(trips: str) -> None:
    for most in (29, 30, 10**10):
        model = aot.compile(counting(TRIPS[trips]), max_extents={"search": most})
        with aot.load(model) as program:
            if most > 29:
                assert program(ENDS)["y"] == TO
                continue
            with pytest.raises(RuntimeFailure) as caught:
                program(ENDS)
            assert str(caught.value) == message(29)


def test_a_loop_that_ends_has_no_such_limit() -> None:
    """It does what it is told, however often that is."""
    runs = MOST_RUNS + 1
    with aot.load(aot.compile(counting(runs))) as program:
        assert program({**GOES_ON, "x": TO + runs, "step": FROM - 1})["y"] == TO
    with pytest.raises(CompileError) as caught:
        aot.compile(counting(runs), max_extents={"search": 5})
    assert str(caught.value) == "no node 'search' computes an extent, those that do are none"


def test_the_interpreter_says_the_same() -> None:
    function = import_onnx(counting()).main
    (loop,) = [op for op in function.block if op.name == "loop"]
    loop.attrs["most"] = 30
    assert run(function, ENDS)[0] == TO
    with pytest.raises(CompileError) as caught:
        run(function, GOES_ON)
    assert str(caught.value) == message(30)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    model = aot.compile(counting(), targets=("vulkan-1.1",), max_extents={"search": 30})
    with running_on(driver, tmp_path), aot.load(model, device="vulkan") as program:
        assert program(ENDS)["y"] == TO
        with pytest.raises(RuntimeFailure) as caught:
            program(GOES_ON)
        assert str(caught.value) == message(30)
        assert program(ENDS)["y"] == TO


def test_under_node(tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    path = tmp_path / "loop.aotm"
    path.write_bytes(aot.compile(counting(), targets=("wasm32",)).to_bytes())
    loader = make_package(path, tmp_path / "package")
    ended, not_ended = run_calls(loader, [Call(ENDS), Call(GOES_ON)])
    assert ended.outputs["y"] == TO
    assert message(MOST_RUNS) in not_ended.message
