"""Changes of layout: the same logical tensor in another memory order."""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import expr as e
from aot.ir.record import (
    ANY,
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import DType, Layout, TensorType
from aot.ops.elementwise import result_indices

F32 = DType.F32


def _layout(call: Call) -> Layout:
    layout = call.attrs["layout"]
    assert isinstance(layout, Layout)
    return layout


def _layout_fits(call: Call) -> bool:
    layout, rank = _layout(call), call.operand(0).rank
    physical = rank + len(layout.splits)
    return (
        not layout.strides
        and all(0 <= dim < rank and factor >= 1 for dim, factor in layout.splits)
        and len({dim for dim, _ in layout.splits}) == len(layout.splits)
        and (not layout.order or sorted(layout.order) == list(range(physical)))
    )


def _pack_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    layout = _layout(call)
    return [TensorType(x.dtype, x.dims, None if layout == Layout() else layout)]


def _pack_compute(call: Call) -> Sequence[Compute]:
    x = call.operand(0)
    indices = result_indices(x.rank)
    return [Compute(indices, e.Load(0, indices, x.dtype))]


PACK = register(
    OpRecord(
        name="pack",
        summary="x in another layout; the empty layout unpacks.",
        operands=(Operand("x", ANY),),
        attributes=(Attribute("layout", "layout"),),
        constraints=(
            Constraint(
                "layout splits each dim of x at most once, by a positive factor, "
                "orders all physical dims, and has no strides",
                _layout_fits,
            ),
        ),
        infer=_pack_type,
        reference=lambda call, inputs: [inputs[0]],
        compute=_pack_compute,
        kind=Kind.MOVEMENT,
        samples=(
            Sample((TensorType(F32, (5, 7)),), {"layout": Layout(order=(1, 0))}),
            Sample((TensorType(F32, (2, 5, 3, 4)),), {"layout": Layout(order=(0, 2, 3, 1))}),
            Sample(
                (TensorType(F32, (19, 6)),),
                {"layout": Layout(splits=((0, 16),), order=(0, 1, 2))},
                constant_operands=(0,),
            ),
            Sample((TensorType(F32, (5, 7), Layout(order=(1, 0))),), {"layout": Layout()}),
        ),
    )
)
