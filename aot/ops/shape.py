"""Ops that depend on types only: shapes as tensors, iota, fills.

Their references read the call's types and attributes and never their operands' elements, so that
they also work where an operand's elements, or a dim, are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.dim_semantics import object_array
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import ConstantData
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
from aot.ir.types import Array, DType, TensorType
from aot.ops.contraction import may_be_positions
from aot.ops.elementwise import result_indices

F32, I64 = DType.F32, DType.I64


def array_of_dims(values: Sequence[Dim], dtype: DType = I64) -> Array:
    """A 1-D array of `dtype`, or an object array where a dim is symbolic."""
    if any(isinstance(v, DimExpr) for v in values):
        return object_array(list(values), (len(values),))
    return np.array(list(values), dtype.numpy).reshape(len(values))


def _listed(values: Sequence[Dim]) -> Sequence[Compute]:
    (index,) = result_indices(1)

    def choose(first: int, last: int) -> e.Expr:
        if last - first == 1:
            return e.cast(e.index(values[first]), I64)
        middle = (first + last) // 2
        return e.select(
            e.binary("lt", index, e.index(middle)), choose(first, middle), choose(middle, last)
        )

    return [Compute((index,), choose(0, len(values)) if values else e.const(0, I64))]


SHAPE_OF = register(
    OpRecord(
        name="shape_of",
        summary="The dims of x as an i64 tensor.",
        operands=(Operand("x", ANY),),
        infer=lambda call: [TensorType(I64, (call.operand(0).rank,))],
        reference=lambda call, _: [array_of_dims(call.operand(0).dims)],
        compute=lambda call: _listed(call.operand(0).dims),
        kind=Kind.SHAPE,
        is_cheap=True,
        takes_dims=True,
        samples=(
            Sample((TensorType(F32, (2, 3, 5)),)),
            Sample((TensorType(DType.BOOL, (7,)),)),
            Sample((TensorType(F32, ()),)),
        ),
    )
)

DIM_VALUES = register(
    OpRecord(
        name="dim_values",
        summary="The given dims as an i64 tensor.",
        operands=(),
        attributes=(Attribute("dims", "dims"),),
        infer=lambda call: [TensorType(I64, (len(call.dims("dims")),))],
        reference=lambda call, _: [array_of_dims(call.dims("dims"))],
        compute=lambda call: _listed(call.dims("dims")),
        kind=Kind.SHAPE,
        is_cheap=True,
        takes_dims=True,
        samples=(Sample((), {"dims": (4, 0, 17)}), Sample((), {"dims": (3,)})),
    )
)


def _range_values(call: Call, _: Sequence[Any]) -> Sequence[Array]:
    start, step = call.dim("start"), call.dim("step")
    dtype = call.result_types[0].dtype
    count = call.dim("size")
    if isinstance(count, DimExpr):
        raise call.error(f"the size {count} is not known")
    if isinstance(start, int) and isinstance(step, int):
        return [(start + step * np.arange(count, dtype=np.int64)).astype(dtype.numpy)]
    return [array_of_dims([dims.add(start, dims.multiply(step, i)) for i in range(count)], dtype)]


def _range_type(call: Call) -> Sequence[TensorType]:
    dtype = call.attrs["dtype"]
    assert isinstance(dtype, DType)
    return [TensorType(dtype, (call.dim("size"),))]


def _range_compute(call: Call) -> Sequence[Compute]:
    (index,) = result_indices(1)
    value = e.add(e.index(call.dim("start")), e.mul(index, e.index(call.dim("step"))))
    return [Compute((index,), e.cast(value, call.result_types[0].dtype))]


RANGE = register(
    OpRecord(
        name="range",
        summary="start, start + step, ...: size integers.",
        operands=(),
        attributes=(
            Attribute("size", "dim"),
            Attribute("start", "dim", 0),
            Attribute("step", "dim", 1),
            Attribute("dtype", "dtype", I64, "i32 or i64"),
        ),
        constraints=(
            Constraint("dtype is i32 or i64", lambda call: call.attrs["dtype"] in (DType.I32, I64)),
            Constraint("size is not negative", lambda call: may_be_positions([call.dim("size")])),
        ),
        infer=_range_type,
        reference=_range_values,
        compute=_range_compute,
        kind=Kind.SHAPE,
        is_cheap=True,
        takes_dims=True,
        samples=(
            Sample((), {"size": 7}),
            Sample((), {"size": 5, "start": 9, "step": -2}),
            Sample((), {"size": 3, "start": 4, "dtype": DType.I32}),
        ),
    )
)


def _fill_value(call: Call) -> ConstantData:
    value = call.attrs["value"]
    assert isinstance(value, ConstantData)
    return value


def _is_scalar(call: Call) -> bool:
    return _fill_value(call).type.dims == ()


def _fill_reference(call: Call, _: Sequence[Any]) -> Sequence[Array]:
    shape = tuple(int(d) for d in call.dims("shape"))
    return [np.full(shape, _fill_value(call).array, _fill_value(call).array.dtype)]


def _fill_compute(call: Call) -> Sequence[Compute]:
    value = _fill_value(call)
    return [
        Compute(
            result_indices(len(call.dims("shape"))), e.const(value.array.item(), value.type.dtype)
        )
    ]


def _scalar(value: float | int | bool, dtype: DType) -> ConstantData:
    return ConstantData(np.array(value, dtype.numpy))


FILL = register(
    OpRecord(
        name="fill",
        summary="A tensor whose elements all are value.",
        operands=(),
        attributes=(Attribute("shape", "dims"), Attribute("value", "data", doc="a scalar")),
        constraints=(
            Constraint("value is a scalar", _is_scalar),
            Constraint(
                "shape has no negative dim", lambda call: may_be_positions(call.dims("shape"))
            ),
        ),
        infer=lambda call: [TensorType(_fill_value(call).type.dtype, call.dims("shape"))],
        reference=_fill_reference,
        compute=_fill_compute,
        kind=Kind.SHAPE,
        is_cheap=True,
        takes_dims=True,
        samples=(
            Sample((), {"shape": (2, 3), "value": _scalar(1.5, F32)}),
            Sample((), {"shape": (), "value": _scalar(7, I64)}),
            Sample((), {"shape": (5,), "value": _scalar(True, DType.BOOL)}),
        ),
    )
)
