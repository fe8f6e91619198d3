"""The estimate of what tiles cost: what it must say whatever its constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.analysis.cost.plan import Plan, plan
from aot.analysis.cost.tile_costs import (
    DynamicLoops,
    KernelModel,
    Loops,
    Tile,
    cost,
    loops_of,
    shared_tiles,
)
from aot.ir.dims import symbol
from aot.ir.graph import Attr
from aot.ir.record import Call
from aot.ir.types import DType, Layout, TensorType
from aot.ops import contraction, elementwise, pooling
from aot.target import selection as targets

TARGET = targets.load("x86-64-v4")
NHWC = Layout((), (0, 2, 3, 1))
PRODUCTS = KernelModel("products", 16, 16, True, 32)
WINDOW = KernelModel("window", 16, 16, False, 32)
ALL = DynamicLoops(True, True, True, True)


def image(*dims: int | str) -> TensorType:
    return TensorType(DType.F32, tuple(symbol(d) if isinstance(d, str) else d for d in dims), NHWC)


def conv(x: TensorType, columns: int, kernel: int, group: int = 1) -> Call:
    channels = x.dims[1]
    assert isinstance(channels, int)
    weight = TensorType(DType.F32, (columns, channels // group, kernel, kernel))
    attrs: dict[str, Attr] = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0,) * 4,
        "group": group,
    }
    call = contraction.CONV.call([x, weight], attrs)
    call.result_types = tuple(replace(t, layout=NHWC) for t in call.result_types)
    return call


def test_loops_of_a_convolution_of_points() -> None:
    """All of a plane's points are rows; two images are two lines."""
    call = conv(image(2, 24, 7, 5), 40, 1)
    assert loops_of(call, plan(call, TARGET), {}) == (Loops(35, 40, 24, 2), DynamicLoops())


def test_loops_of_a_convolution_with_a_kernel() -> None:
    call = conv(image(1, 24, 9, 12), 40, 3)
    assert loops_of(call, plan(call, TARGET), {})[0] == Loops(10, 40, 24 * 9, 7)


def test_loops_of_windows() -> None:
    call = conv(image(1, 24, 9, 12), 24, 3, group=24)
    made = plan(call, TARGET)
    assert KernelModel.of(made, TARGET).form == "window"
    assert loops_of(call, made, {})[0] == Loops(10, 24, 9, 7)
    attrs = {"kernel": (2, 3), "strides": (2, 3), "dilations": (1, 1), "pads": (0,) * 4}
    pool = pooling.MAX_POOL.call([image(1, 24, 8, 24)], attrs)
    pool.result_types = tuple(replace(t, layout=NHWC) for t in pool.result_types)
    assert loops_of(pool, plan(pool, TARGET), {})[0] == Loops(8, 24, 6, 4)


def test_loops_have_the_dims_of_a_dispatch() -> None:
    call = conv(image(1, 24, 1, "d0"), 40, 1)
    made = plan(call, TARGET)
    assert loops_of(call, made, {"d0": 11}) == (
        Loops(11, 40, 24, 1),
        DynamicLoops(rows=True, outer=True),
    )


def test_elementwise_ops_are_streams() -> None:
    call = elementwise.RELU.call([image(1, 24, 8, 8)], {})
    kernel = KernelModel.of(plan(call, TARGET), TARGET)
    assert kernel.form == "stream"
    loops, _ = loops_of(call, plan(call, TARGET), {})
    assert cost(kernel, loops, (1, 1), DynamicLoops()) < cost(kernel, loops, (1, 1), ALL)


@pytest.mark.parametrize("kernel", [PRODUCTS, WINDOW])
@pytest.mark.parametrize("rows", [1, 5, 13, 100])
@pytest.mark.parametrize("columns", [16, 48, 200])
def test_parameters_cost_something_and_never_a_whole_tile(
    kernel: KernelModel, rows: int, columns: int
) -> None:
    """Where tiles fit."""
    loops = Loops(rows * 4, columns, 64, 3)
    own = cost(kernel, loops, (4, 16), DynamicLoops())
    assert own < cost(kernel, loops, (4, 16), ALL) < 1.6 * own


def test_what_differs_in_lines_alone_costs_nothing() -> None:
    loops = Loops(20, 64, 64, 3)
    for kernel in (PRODUCTS, WINDOW):
        assert cost(kernel, loops, (5, 64), DynamicLoops(outer=True)) == cost(
            kernel, loops, (5, 64), DynamicLoops()
        )


@pytest.mark.parametrize("tile", [(5, 64), (7, 48), (8, 32)])
def test_what_is_left_of_columns_is_done_by_the_vector(tile: Tile) -> None:
    """One vector of columns costs far less than a tile that has four, where these are open."""
    narrow, wide = Loops(40, 16, 64, 1), Loops(40, tile[1], 64, 1)
    shared = DynamicLoops(columns=True)
    assert cost(PRODUCTS, narrow, tile, shared) < 0.7 * cost(PRODUCTS, wide, tile, shared)
    assert cost(PRODUCTS, narrow, tile, DynamicLoops()) == cost(
        PRODUCTS, wide, tile, DynamicLoops()
    )


@pytest.mark.parametrize(
    ("tile", "least", "most"),
    [((6, 16), 1, 1), ((4, 16), 1, 1.1), ((3, 16), 1.2, 1.4), ((2, 16), 1.7, 2.1)],
)
def test_few_sums_wait_for_each_other(tile: Tile, least: float, most: float) -> None:
    """As measured with vectors of 8, by 60 rows of 384 terms: 1, 1.06, 1.3 and 1.9."""
    kernel = KernelModel("products", 8, 16, True, 16)
    loops = Loops(60, 384, 384, 1)
    best = cost(kernel, loops, (6, 16), DynamicLoops())
    assert least <= cost(kernel, loops, tile, DynamicLoops()) / best <= most


@pytest.mark.parametrize("tile", [(3, 32), (4, 32), (1, 64)])
def test_sums_that_registers_do_not_hold_take_far_longer(tile: Tile) -> None:
    """As measured: 1.6 to 2.2 times as long as a tile that fits; by chance one that does not was
    taken for a few bytes of code less."""
    kernel = KernelModel("products", 8, 16, True, 16)
    loops = Loops(12, 384, 384, 1)
    assert cost(kernel, loops, tile, ALL) > 1.6 * cost(kernel, loops, (6, 16), ALL)


def test_rows_of_lanes_take_registers() -> None:
    """Six rows of four vectors leave none of 32 registers for the rows' scalars."""
    kernel = KernelModel("products", 4, 16, True, 32, is_by_lane=True)
    assert all(r * n // 4 + n // 4 + r < 32 for r, n in shared_tiles(kernel, []))
    loops = Loops(30, 384, 384, 1)
    assert cost(kernel, loops, (6, 16), ALL) > 1.6 * cost(kernel, loops, (5, 16), ALL)


def test_shared_tiles_leave_registers() -> None:
    for tile in shared_tiles(PRODUCTS, []):
        rows, vectors = tile[0], max(1, tile[1] // 16)
        assert rows * vectors + vectors + 1 <= PRODUCTS.registers
    assert shared_tiles(WINDOW, [(7, 16), (8, 16), (4, 32)]) == [(7, 32)]
    assert not shared_tiles(PRODUCTS._replace(registers=0), [])
    assert not shared_tiles(PRODUCTS._replace(is_blocked=True), [])


@pytest.mark.parametrize(("rows", "columns"), [(48, 64), (5, 17), (1, 100), (7, 24)])
def test_rows_past_the_end_cost_as_others_do(rows: int, columns: int) -> None:
    types = [TensorType(DType.F32, (rows, 32)), TensorType(DType.F32, (32, columns))]
    call = contraction.MATMUL.call(types, {})
    made: Plan = plan(call, TARGET)
    kernel, (loops, _) = KernelModel.of(made, TARGET), loops_of(call, made, {})
    own = cost(kernel, loops, (made.rows, made.columns), DynamicLoops())
    assert own < cost(kernel, loops, (made.rows + rows, made.columns), DynamicLoops())
