"""Sums of a GPU that several lanes share: when they do, and what they add up to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.ir.dims import evaluate
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Barrier, Space, walk
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.kernel_backends import DRIVEN, INTERPRETED, KernelBackend
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import on_interpreter

PRODUCT = """
executable @e0(%0: f32[{rows}, {terms}], %1: f32[{terms}, {columns}], %2: f32[{columns}])
    -> ("r0") bindings [1, 0, 0, 1] {{
  %3 = matmul(%0, %1) : f32[{rows}, {columns}]
  %4 = add(%3, %2) : f32[{rows}, {columns}]
  %5 = relu(%4) : f32[{rows}, {columns}]
  return(%5)
}}
"""
CONV = """
executable @e0(%0: f32[1, {channels}, {size}, {size}]{{order=0:2:3:1}},
    %1: f32[{columns}, {channels}, {taps}, {taps}]{{order=2:3:1:0}})
    -> ("r0") bindings [1, 0, 1] {{
  %2 = conv(%0, %1) {{strides = [1, 1], dilations = [1, 1], pads = {pads}, group = 1}}
      : f32[1, {columns}, {size}, {size}]{{order=0:2:3:1}}
  return(%2)
}}
"""


STAGES = """
executable @e0(%0: f32[2, 32, 3, 3], %1: f32[5, 32, 3, 3], %2: f32[5])
    -> ("r0", "r1") bindings [1, 0, 0, 1, 1] {
  %3 = relu(%0) : f32[2, 32, 3, 3]
  %4 = conv(%3, %1, %2) {strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1], group = 1}
      : f32[2, 5, 3, 3]
  return(%3, %4)
}
"""


def product(rows: int, terms: int, columns: int) -> Function:
    text = PRODUCT.format(rows=rows, terms=terms, columns=columns)
    (function,) = parse_module(text).executables
    return function


def conv(size: int, channels: int, taps: int, columns: int) -> Function:
    pads = [taps // 2] * 4
    names = {"size": size, "channels": channels, "taps": taps, "columns": columns}
    (function,) = parse_module(CONV.format(**names, pads=pads)).executables
    return function


def busy(lanes: int) -> Target:
    """A GPU that so many lanes keep busy."""
    target = targets.load("vulkan-1.1")
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, busy_lanes=lanes))


@pytest.mark.parametrize(
    ("function", "lanes", "expected"),
    [
        (product(1, 2048, 1000), 4096, "contraction lanes=64 tile=1:16 shares=16"),
        (product(1, 2048, 1000), 1024, "contraction lanes=64 tile=1:64 shares=4"),
        (product(1, 2048, 1000), 0, "contraction lanes=64 tile=1:256"),
        (product(1, 500, 1000), 4096, "contraction lanes=64 tile=1:64 shares=4"),  # few terms each
        (product(1, 127, 1000), 4096, "contraction lanes=64 tile=1:256"),
        (product(49, 512, 512), 4096, "contraction lanes=64 tile=14:32 shares=4"),
        (product(512, 512, 512), 4096, "contraction lanes=64 tile=64:32"),
        (product(8, 512, 16), 4096, "contraction lanes=64 tile=8:16 shares=16"),  # idle lanes
        (conv(7, 512, 3, 512), 4096, "contraction lanes=64 tile=7:64 shares=4"),
        (conv(7, 3, 7, 64), 4096, "contraction lanes=64 tile=7:64"),  # taps are not shared
    ],
)
def test_lanes_share_sums_where_few_would_be_at_work(
    function: Function, lanes: int, expected: str
) -> None:
    (made,) = planned(function, busy(lanes))
    assert str(made) == expected


def test_a_target_that_gains_nothing_has_no_shares() -> None:
    (made,) = planned(product(1, 2048, 1000), targets.load("lavapipe"))
    assert made.shares == 1


def test_sums_of_unknown_length_have_no_shares() -> None:
    text = PRODUCT.format(rows=1, terms="n", columns=1000)
    (function,) = parse_module(text).executables
    (made,) = planned(function, busy(4096))
    assert made.shares == 1


BACKENDS = [
    INTERPRETED["vulkan-1.1"],
    *(pytest.param(b, marks=pytest.mark.vulkan) for b in DRIVEN.values()),
]
FUNCTIONS = [
    product(1, 512, 40),
    product(1, 515, 40),  # no steps of the loop together
    product(1, 512, 41),  # columns that are stored one by one
    product(3, 257, 37),
    product(9, 320, 24),
    product(49, 200, 64),
    conv(7, 64, 3, 32),
    conv(5, 150, 1, 36),
    conv(5, 66, 3, 10),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_shared_sums_are_whole(function: Function, backend: KernelBackend) -> None:
    target = busy(4096)
    assert planned(function, target)[0].shares > 1
    kernel = lower(function, target, [16] * len(function.bindings))
    assert sum(isinstance(stmt, Barrier) for stmt in walk(kernel.body)) == 1
    rng = np.random.default_rng(1)
    shapes = [value.type.dims for value in function.inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]  # type: ignore[arg-type]
    (wanted,) = run(function, arrays)
    laid = [
        to_memory(array, value.type, {})
        for array, value in zip(arrays, function.inputs, strict=True)
    ]
    alignments = [16] * len(function.bindings)
    (found,) = run_executable(function, target, laid, [], backend.engine, alignments)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def open_product(terms: int, columns: int) -> Function:
    """A product of as many rows as the device finds."""
    text = PRODUCT.format(rows="t", terms=terms, columns=columns).replace("@e0(", "@e0[t](")
    (function,) = parse_module(text).executables
    return function


@pytest.mark.parametrize("rows", [1, 2, 9, 63, 64, 70])
@pytest.mark.parametrize("lanes", [0, 4096])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_few_rows_have_tiles_of_their_own(rows: int, lanes: int, backend: KernelBackend) -> None:
    function, target = open_product(259, 300), busy(lanes)
    kernel = lower(function, target, [16] * 4)
    groups = [evaluate(extent, {"t": rows}) for extent in kernel.grid]
    few = {0: 2, 4096: 5}[lanes]  # tiles of 256 columns, or of 64 where four lanes share a sum
    if rows < 64:
        assert groups[:2] == [-(-rows // 8), few]
    else:
        assert groups[:2] == [-(-rows // 64), 10]
    rng = np.random.default_rng(rows)
    shapes = (rows, 259), (259, 300), (300,)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (wanted,) = run(function, arrays)
    laid = [array.reshape(-1) for array in arrays]
    (found,) = run_executable(function, target, laid, [rows], backend.engine, [16] * 4)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_few_rows_may_have_any_length(rows: int, backend: KernelBackend) -> None:
    text = PRODUCT.format(rows="t", terms="k", columns="n").replace("@e0(", "@e0[t, k, n](")
    (function,) = parse_module(text).executables
    target = busy(4096)
    kernel = lower(function, target, [4] * 4)
    assert sum(isinstance(stmt, Barrier) for stmt in walk(kernel.body)) == 2
    # both tiles have one memory for the sums that their lanes share
    assert [s.name for s in kernel.scratch if s.space is Space.WORKGROUP] == ["parts"]
    rng = np.random.default_rng(rows)
    for terms, columns in ((301, 100), (3, 5), (64, 33)):
        shapes = (rows, terms), (terms, columns), (columns,)
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        (wanted,) = run(function, arrays)
        laid = [array.reshape(-1) for array in arrays]
        sizes = [rows, terms, columns]
        (found,) = run_executable(function, target, laid, sizes, backend.engine, [4] * 4)
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("taps", [1, 3])
def test_windows_have_no_tile_for_one_row(taps: int) -> None:
    text = CONV.format(size="t", channels=2048, taps=taps, columns=32, pads=[taps // 2] * 4)
    (function,) = parse_module(text.replace("@e0(", "@e0[t](")).executables
    kernel = lower(function, busy(4096), [16] * 3)
    assert not any(isinstance(stmt, Barrier) for stmt in walk(kernel.body))


def test_a_workgroup_of_several_tiles_waits_for_the_sums_of_each() -> None:
    (function,) = parse_module(STAGES).executables
    target = targets.load("mali-valhall-fp16")
    kernel = lower(function, target)
    assert "parts" in {s.name for s in kernel.scratch if s.space is Space.WORKGROUP}
    rng = np.random.default_rng(2)
    arrays = [
        rng.uniform(-1, 1, [int(str(d)) for d in v.type.dims]).astype(np.float32)
        for v in function.inputs
    ]
    memory = [to_memory(a, v.type, {}) for a, v in zip(arrays, function.inputs, strict=True)]
    found = run_executable(function, target, memory, [], on_interpreter)
    for got, wanted in zip(found, run(function, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
