"""What the plan says of ops by themselves: tiles, and how much of them an op needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot import target as targets
from aot.analysis.plan import Plan, efficiency, plan
from aot.ir.types import DType, TensorType
from aot.ops import contraction
from aot.ops.record import Call

TARGET = targets.load("x86-64-v3")


def conv(spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Call:
    """A convolution of 64 channels to 64, without padding."""
    rank = len(spatial)
    types = [TensorType(DType.F32, (1, 64, *spatial)), TensorType(DType.F32, (64, 64, *kernel))]
    attrs = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank}
    return contraction.CONV.call(types, attrs)


def matmul(rows: int, columns: int) -> Call:
    types = [TensorType(DType.F32, (rows, 32)), TensorType(DType.F32, (32, columns))]
    return contraction.MATMUL.call(types, {})


def test_rows_go_along_the_innermost_dim_that_has_several() -> None:
    """A convolution over one dim that is written as one over two has the same tile."""
    assert plan(conv((64,), (5,)), TARGET).rows > 1
    assert plan(conv((64, 1), (5, 1)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows
    assert plan(conv((1, 64), (1, 5)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows


@pytest.mark.parametrize(("rows", "columns"), [(48, 64), (5, 17), (1, 100), (7, 8)])
def test_a_plan_s_own_tile_is_the_most_efficient_of_those_around(rows: int, columns: int) -> None:
    call = matmul(rows, columns)
    own = plan(call, TARGET)
    assert 0 < efficiency(call, own) <= 1
    wasteful = replace(own, rows=own.rows + rows)
    assert efficiency(call, wasteful) < efficiency(call, own)


def test_efficiency_counts_rows_and_columns_past_the_end() -> None:
    call = matmul(6, 16)

    def used(rows: int, columns: int) -> float:
        made: Plan = replace(plan(call, TARGET), rows=rows, columns=columns)
        return efficiency(call, made)

    assert used(6, 16) > used(4, 16)  # 6 rows in two tiles of 4 are 8
    assert used(6, 16) > used(6, 32)
