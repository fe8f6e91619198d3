"""What the plan says of ops by themselves."""

from __future__ import annotations

from aot.analysis.cost.plan import plan
from aot.ir.record import Call
from aot.ir.types import DType, TensorType
from aot.ops import contraction
from aot.target import selection as targets

TARGET = targets.load("x86-64-v3")


def conv(spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Call:
    """A convolution of 64 channels to 64, without padding."""
    rank = len(spatial)
    types = [TensorType(DType.F32, (1, 64, *spatial)), TensorType(DType.F32, (64, 64, *kernel))]
    attrs = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank}
    return contraction.CONV.call(types, attrs)


def test_rows_go_along_the_innermost_dim_that_has_several() -> None:
    """A convolution over one dim that is written as one over two has the same tile."""
    assert plan(conv((64,), (5,)), TARGET).rows > 1
    assert plan(conv((64, 1), (5, 1)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows
    assert plan(conv((1, 64), (1, 5)), TARGET).rows == plan(conv((64,), (5,)), TARGET).rows
