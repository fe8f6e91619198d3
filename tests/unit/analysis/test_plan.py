"""What the plan says of ops by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.analysis.cost.few_columns import SUMS
from aot.analysis.cost.plan import plan
from aot.analysis.cost.register_tiles import UNPACK_REGISTERS
from aot.analysis.cost.tile_costs import KernelModel, shared_tiles
from aot.ir.record import Call
from aot.ir.schedule import Schedule
from aot.ir.types import DType, Layout, TensorType
from aot.ops import contraction
from aot.ops.integer_contraction import CONV_INTEGER
from aot.target import selection as targets

TARGET = targets.load("x86-64-v3")
VNNI = targets.load("x86-64-v4-vnni")


def conv(spatial: tuple[int, ...], kernel: tuple[int, ...], stride: int = 1) -> Call:
    """A convolution of 64 channels to 64, without padding."""
    rank = len(spatial)
    types = [TensorType(DType.F32, (1, 64, *spatial)), TensorType(DType.F32, (64, 64, *kernel))]
    attrs = {"strides": (stride,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank}
    return contraction.CONV.call(types, attrs)


def last(type: TensorType) -> TensorType:
    """With its channels innermost."""
    return TensorType(type.dtype, type.dims, Layout(order=(0, 2, 3, 1)))


def test_rows_go_along_the_innermost_dim_that_has_several() -> None:
    """A convolution over one dim that is written as one over two has the same tile."""
    assert plan(conv((64,), (5,)), TARGET).rows > 1
    assert plan(conv((64, 1), (5, 1)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows
    assert plan(conv((1, 64), (1, 5)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows


@pytest.mark.parametrize("name", ["x86-64-v4-vnni", "x86-64-v3", "aarch64-generic"])
@pytest.mark.parametrize("width", [7, 14, 20, 28])
def test_rows_that_skip_others_are_those_of_one_line(name: str, width: int) -> None:
    """The last of a line and the first of the next are not neighbours, so that no tile has both."""
    target = targets.load(name)
    made, line = (plan(conv(s, (1, 1), 2), target) for s in ((2 * width,) * 2, (1, 2 * width)))
    assert (made.rows, made.columns) == (line.rows, line.columns)
    assert width / (-(-width // made.rows) * made.rows) >= 0.85


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "aarch64-generic"])
def test_tiles_have_sums_enough_to_hide_an_addition(name: str) -> None:
    """However rows divide: a low tile that wastes none waits for its own sums."""
    target = targets.load(name)
    for width in range(12, 80):
        made = plan(conv((9, width + 2), (3, 3)), target)
        vectors = made.columns // made.lanes
        used = width / (-(-width // made.rows) * made.rows)
        assert min(made.rows * vectors, SUMS) / SUMS * used >= 0.8, width


@pytest.mark.parametrize("name", ["x86-64-v4-vnni", "x86-64-v3", "aarch64-generic"])
def test_results_across_are_stored_in_parts_of_lines(name: str) -> None:
    """Of few columns, and of fewer where all their lines want one place of the cache."""
    target = targets.load(name)
    for size, most in ((28, 32), (32, 16), (64, 16), (50, 32)):
        call = conv((size, size), (1, 1))
        left, weights = call.operands
        assert left is not None
        made = plan(replace(call, operands=(last(left), weights)), target)
        assert made.rows in (4, 8, 16)
        assert made.columns <= max(most, made.lanes)
        assert made.rows * made.columns // made.lanes >= SUMS


def test_lines_of_long_sums_may_come_again() -> None:
    """Beside 64 x 9 terms it takes little to store two parts of lines that displace each other."""
    target = targets.load("x86-64-v4")
    for taps, terms in (((1, 1), 16), ((3, 3), 32)):
        call = conv((64, 64), taps)
        left, weights = call.operands
        assert left is not None
        assert plan(replace(call, operands=(last(left), weights)), target).columns == terms
    groups = TensorType(DType.F32, (1, 96, 64, 64)), TensorType(DType.F32, (96, 24, 3, 3))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 4}
    assert plan(contraction.CONV.call([*groups, None], attrs), target).columns == 16


def test_planes_that_want_one_place_are_stored_in_long_pieces() -> None:
    """Where lanes go along rows: of few planes at a time, but where sums are long or planes few."""

    def tile(size: int, channels: int, columns: int, name: str = "x86-64-v4") -> tuple[int, int]:
        left = TensorType(DType.F32, (1, channels, size, size))
        weights = TensorType(DType.F32, (columns, channels, 1, 1))
        attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
        made = plan(contraction.CONV.call([left, weights, None], attrs), targets.load(name))
        assert made.schedule is Schedule.PLANES
        return made.rows, made.columns

    assert tile(64, 4, 32) == (2, 128)
    assert tile(64, 4, 32, "x86-64-v3") == (2, 32)
    assert tile(32, 64, 16) == (2, 128)
    for other in ((60, 4, 32), (64, 128, 32), (64, 4, 8)):
        assert tile(*other) != (2, 128)


@pytest.mark.parametrize("width", [1000, 1024])
def test_lines_of_planes_are_no_rows(width: int) -> None:
    """A line's length does not bound how many of its places a tile has."""
    left = TensorType(DType.F32, (1, 8, width))
    weights = TensorType(DType.F32, (16, 8, 25))
    attrs = {"strides": (1,), "dilations": (1,), "pads": (12, 12), "group": 1}
    made = plan(contraction.CONV.call([left, weights, None], attrs), targets.load("x86-64-v4"))
    assert (made.rows, made.columns) == (16, 16)


def test_tiles_leave_registers_to_unpack_weights() -> None:
    """Bytes that are widened to pairs take registers beside the sums, in every kernel's tile."""
    spatial, channels = (14, 14), 256
    types = [
        TensorType(DType.U8, (1, channels, *spatial)),
        TensorType(DType.I8, (channels, channels, 1, 1)),
    ]
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    call = CONV_INTEGER.call(types, attrs)
    made = plan(call, TARGET)
    kernel = KernelModel.of(made, TARGET, call)
    assert kernel.is_unpacked and not KernelModel.of(made, VNNI, call).is_unpacked
    for rows, columns in (
        (made.rows, made.columns),
        *shared_tiles(kernel, [(made.rows, made.columns)]),
    ):
        vectors = columns // made.lanes
        assert rows * vectors + vectors + UNPACK_REGISTERS < TARGET.vector_registers


@pytest.mark.parametrize(("each", "is_panel"), [(32, True), (16, True), (24, False), (8, False)])
def test_weights_of_groups_are_panels_where_none_straddles_two(each: int, is_panel: bool) -> None:
    """A group's columns lie a panel after the other, not as rows of all groups' columns."""
    groups, spatial = 4, (14, 14)
    types = [
        TensorType(DType.F32, (1, groups * 48, *spatial)),
        TensorType(DType.F32, (groups * each, 48, 3, 3)),
    ]
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": groups}
    layout = plan(contraction.CONV.call([*types, None], attrs), TARGET).weight_layout
    assert layout is not None
    assert bool(layout.splits) == is_panel
