"""Table lookups: a function of one 8-bit number, given by 256 values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.record import Call, Compute, Constraint, Kind, Operand, OpRecord, Sample, register
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import result_indices

ENTRIES = 256
_BYTES = frozenset({DType.U8, DType.I8})


def _type(call: Call) -> Sequence[TensorType]:
    return [TensorType(call.operand(1).dtype, call.operand(0).dims)]


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, table = inputs
    return [table[np.asarray(x).view(np.uint8)]]


def _compute(call: Call) -> Sequence[Compute]:
    x, table = call.operand(0), call.operand(1)
    indices = result_indices(x.rank)
    bits = e.cast(e.Load(0, indices, x.dtype), DType.U8)
    return [Compute(indices, e.Load(1, (e.cast(bits, DType.INDEX),), table.dtype))]


TABLE_LOOKUP = register(
    OpRecord(
        name="table_lookup",
        summary="The entry of a table that x's 8 bits, as an unsigned number, are the number of.",
        operands=(Operand("x", _BYTES), Operand("table", _BYTES)),
        constraints=(
            Constraint(
                f"table has {ENTRIES} entries, one dim of them",
                lambda call: (
                    call.operand(1).rank == 1
                    and call.equal(call.operand(1).dims[0], ENTRIES, "table_lookup: entries")
                ),
            ),
        ),
        infer=_type,
        reference=_reference,
        compute=_compute,
        kind=Kind.ELEMENTWISE,
        samples=tuple(
            Sample(
                (TensorType(x, (3, 35)), TensorType(to, (ENTRIES,))),
                {},
                -128,
                127,
                constant_operands=(1,),
            )
            for x, to in ((DType.U8, DType.I8), (DType.I8, DType.U8))
        ),
    )
)
