"""Functions whose values lie in memory in other orders, and with gaps."""

from __future__ import annotations

from aot.analysis.memory.views import canonical
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim, multiply
from aot.ir.graph import Function
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout, TensorType


def channels_last(type: TensorType) -> Layout:
    return Layout(order=(0, *range(2, type.rank), 1))


def reversed_order(type: TensorType) -> Layout:
    return Layout(order=tuple(reversed(range(type.rank))))


def with_gaps(type: TensorType) -> Layout:
    """Channels last, in memory for two channels more."""
    strides: list[Dim] = [0] * type.rank
    step: Dim = 1
    order = (0, *range(2, type.rank), 1)
    for d in reversed(order):
        strides[d] = step
        step = multiply(step, type.dims[d] + 2 if d == 1 else type.dims[d])
    return Layout(order=order, strides=tuple(strides))


LAYOUTS = {"channels_last": channels_last, "reversed": reversed_order, "with_gaps": with_gaps}


def relay(function: Function, layout: str) -> None:
    """Gives all values of two dims and more a layout, but constants."""
    rewriter = Rewriter(function)
    made = [v for op in function.block if op.record is not CONSTANT for v in op.results]
    for value in (*function.inputs, *made):
        if value.type.rank > 1 and value.type.layout is None:
            type = TensorType(value.type.dtype, value.type.dims, LAYOUTS[layout](value.type))
            rewriter.set_type(value, canonical(type))
