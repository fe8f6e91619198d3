"""Ops that shape the program rather than compute: constants, returns, dispatches.

Their meaning is built into the interpreter and the pipeline; the records give types and rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir.core import ConstantData, FunctionRef
from aot.ir.types import TensorType
from aot.ops.record import (
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    register,
)


def _constant_type(call: Call) -> Sequence[TensorType]:
    value = call.attrs["value"]
    if not isinstance(value, ConstantData):
        raise call.error(f"attribute value is {value!r}, expected data")
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


def _region_types(call: Call) -> Sequence[TensorType]:
    raise call.error("a region's result types come from its block: build it with the block")


REGION = register(
    OpRecord(
        name="region",
        summary="A dispatch region: ops that run as one kernel on its operands, its "
        "block's arguments.",
        operands=(Operand("inputs", kind="variadic", is_mixed=True),),
        attributes=(
            Attribute(
                "ties", "ints", (), "per result: the operand whose memory it may take, or -1"
            ),
        ),
        infer=_region_types,
        kind=Kind.STRUCTURE,
        results_from="block",
    )
)


def _is_function(call: Call) -> bool:
    return isinstance(call.attrs["executable"], FunctionRef)


DISPATCH = register(
    OpRecord(
        name="dispatch",
        summary="Runs an executable on buffers: operands in, results out.",
        operands=(Operand("inputs", kind="variadic", is_mixed=True),),
        attributes=(
            Attribute("executable", "function"),
            Attribute("dims", "dims", (), "values of the executable's dim parameters"),
            Attribute(
                "ties", "ints", (), "per result: the operand whose memory it may take, or -1"
            ),
        ),
        constraints=(Constraint("executable must name a function", _is_function),),
        infer=_region_types,
        kind=Kind.STRUCTURE,
        results_from="callee",
    )
)
