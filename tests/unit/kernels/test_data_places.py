"""Places that data name: of each lane, far outside too, and under conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir import expr
from aot.ir.expr import Binary, Load
from aot.ir.graph import Function
from aot.ir.types import DType
from aot.kernels.ir.nodes import Store, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import graph_of, outlined, type_of
from tests.support.kernel_backends import on_cpu
from tests.support.laid_out import relay
from tests.support.lowering_checks import check, on_interpreter

NATIVE = native_targets()


def sampled(x: Any, grid: Any, **attrs: str) -> Function:
    return graph_of([type_of(x), type_of(grid)], ("grid_sample", attrs))


def engine_of(target: str) -> Any:
    return on_interpreter if target == "interpreted" else on_cpu(target)


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_elements_by_number(dtype: str, target: str) -> None:
    name = "x86-64-v4" if target == "interpreted" else target
    r = np.random.default_rng(1)
    x = r.integers(-99, 99, (21, 35)).astype(np.float32)
    far = [2**31 - 1, -(2**31)] if dtype == "i32" else [2**40 + 3, -(2**40), 2**32, 2**63 - 1]

    def positions(*shape: int) -> Any:
        made = r.integers(-22, 22, shape)
        made.reshape(-1)[1 : len(far) + 1] = far
        return made.astype({"i32": np.int32, "i64": np.int64}[dtype])

    for op, attrs, shape in (
        ("gather_elements", {"axis": 0}, (19, 35)),
        ("gather_elements", {"axis": 1}, (21, 37)),
        ("gather_nd", {"depth": 2, "batch_dims": 0}, (43, 2)),
        ("gather_nd", {"depth": 1, "batch_dims": 0}, (43, 1)),
    ):
        function = graph_of(["f32[21, 35]", f"{dtype}{list(shape)}"], (op, attrs))
        check(function, [x, positions(*shape)], name, 1, engine=engine_of(target))


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_a_grid(mode: str, padding: str, target: str) -> None:
    name = "x86-64-v4" if target == "interpreted" else target
    r = np.random.default_rng(2)
    for channels, columns in ((1, 37), (3, 18), (17, 5)):
        x = r.standard_normal((2, channels, 6, 7)).astype(np.float32)
        grid = r.uniform(-1.6, 1.6, (2, 3, columns, 2)).astype(np.float32)
        function = sampled(x, grid, mode=mode, padding=padding)
        check(function, [x, grid], name, 1, 1e-5, engine=engine_of(target))


@pytest.mark.parametrize("target", [*NATIVE, "interpreted"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("layout", ["", "channels_last"])
def test_samples_of_several_channels(layout: str, padding: str, mode: str, target: str) -> None:
    """Positions that all channels share, some of them far outside."""
    name = "x86-64-v4" if target == "interpreted" else target
    r = np.random.default_rng(3)
    for channels, columns in ((3, 20), (9, 37), (17, 16)):
        x = r.normal(size=(2, channels, 7, 5)).astype(np.float32)
        grid = r.uniform(-1.6, 1.6, (2, 2, columns, 2)).astype(np.float32)
        if padding != "reflection":  # where these are found depends on how the last bit is rounded
            grid[0, 0, :3, 0] = (9e9, -9e9, 3e4)
        function = sampled(x, grid, mode=mode, padding=padding)
        if layout:
            relay(function, layout)
        check(function, [x, grid], name, 1, 1e-5, engine=engine_of(target))


def test_conditions_are_no_branches_of_lanes() -> None:
    attrs = {"mode": "nearest", "padding": "zeros"}
    function = graph_of(["f32[1, 1, 32, 32]", "f32[1, 32, 32, 2]"], ("grid_sample", attrs))
    target = targets.load("x86-64-v3")
    kernel = lower(outlined(function, target), target)
    values = [s.value for s in walk(kernel.body) if isinstance(s, Store)]
    nodes = {node for value in values for node in expr.nodes(value)}
    assert not any(isinstance(n, Load) and n.guard is not None for n in nodes)
    compared = [n for n in nodes if isinstance(n, Binary) and n.op in expr.COMPARE_OPS]
    assert compared and all(n.a.dtype is DType.I32 for n in compared)
