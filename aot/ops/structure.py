"""Ops that structure the program rather than compute: constants, returns, dispatches.

Their meaning is built into the interpreter and the pipeline; the records give types and rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir.body import Body
from aot.ir.graph import FunctionRef
from aot.ir.record import Attribute, Call, Constraint, Kind, Operand, OpRecord, register
from aot.ir.types import TensorType


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
        body=Body("once", is_isolated=True),
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
