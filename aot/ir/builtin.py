"""Ops that the graph itself needs: constants, terminators of functions and blocks, pending shape
changes, and dims defined by values.

Owns their records, so that nothing in aot/ir needs the op table, which aot/ops fills with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aot.ir.arrays import cast_array
from aot.ir.dims import DimExpr, is_symbol_name
from aot.ir.graph import ConstantData
from aot.ir.index_map import IndexMap
from aot.ir.record import (
    INTEGERS,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    register,
)
from aot.ir.types import DType, Layout, TensorType


def _constant_type(call: Call) -> Sequence[TensorType]:
    value = call.attrs["value"]
    assert isinstance(value, ConstantData)
    return [value.type]


def _constant_value(call: Call, _: Sequence[object]) -> Sequence[object]:
    value = call.attrs["value"]
    assert isinstance(value, ConstantData)
    return [value.logical]


CONSTANT = register(
    OpRecord(
        name="constant",
        summary="A tensor known at compile time.",
        operands=(),
        attributes=(Attribute("value", "data"),),
        infer=_constant_type,
        reference=_constant_value,
        kind=Kind.STRUCTURE,
    )
)


def _pending_type(call: Call) -> Sequence[TensorType]:
    dtype, layout = call.attrs["dtype"], call.attrs["layout"]
    assert isinstance(dtype, DType) and isinstance(layout, Layout)
    found = pending_map(call).result_dims(call.operand(0).dims)
    return [TensorType(dtype, found, None if layout == Layout() else layout)]


def pending_map(call: Call) -> IndexMap:
    """The index map of a pending shape change."""
    return IndexMap.of_attr(call.attrs["map"])


def _pending_value(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    (type,) = call.result_types
    return [cast_array(pending_map(call).apply(inputs[0]), type.dtype)]


PENDING = register(
    OpRecord(
        name="pending_shape_change",
        summary="What users that are not updated yet read of a value of another type: element i "
        "is x[map(i)] as `dtype`. It never runs: resolve-shapes folds, pushes or materialises it.",
        operands=(Operand("x"),),
        attributes=(
            Attribute("map", "map", (), "steps from x to the result; none is the identity"),
            Attribute("dtype", "dtype"),
            Attribute("layout", "layout", Layout(), "of the result; {} is dense"),
        ),
        infer=_pending_type,
        reference=_pending_value,
        kind=Kind.STRUCTURE,
    )
)


def _is_symbol_or_number(call: Call) -> bool:
    dim = call.dim("dim")
    return is_symbol_name(str(dim)) if isinstance(dim, DimExpr) else dim >= 0


# What a value computed by the model is as a dim: aot/ir/data_dims.py.
EXTENT = register(
    OpRecord(
        name="extent",
        summary="Makes the one element of x the dim that its symbol is, for the ops behind it in "
        "its block and in blocks there. Where the dim is a number, x must be that.",
        operands=(Operand("x", INTEGERS),),
        attributes=(
            Attribute("dim", "dim", doc="a symbol that nothing else gives, or a number"),
            Attribute("checked", "bool", False, "it stays, with its limits, if no op has the dim"),
        ),
        constraints=(
            Constraint("x has one element", lambda call: call.operand(0).element_count == 1),
            Constraint("dim is a symbol, or a number that is not negative", _is_symbol_or_number),
        ),
        infer=lambda call: [],
        kind=Kind.STRUCTURE,
        has_side_effects=True,
    )
)

RETURN = register(
    OpRecord(
        name="return",
        summary="Ends a function; its operands are the function's results.",
        operands=(Operand("values", kind="variadic", is_mixed=True),),
        infer=lambda call: [],
        kind=Kind.STRUCTURE,
        is_terminator=True,
    )
)

YIELD = register(
    OpRecord(
        name="yield",
        summary="Ends a block of an op; its operands are the block's results.",
        operands=(Operand("values", kind="variadic", is_mixed=True),),
        infer=lambda call: [],
        kind=Kind.STRUCTURE,
        is_terminator=True,
    )
)
