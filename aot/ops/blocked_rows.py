"""Rows of block-quantised weights, such as token embeddings, read from the panels of a product.

A model whose head is its embedding stores it once: `matmul_blocked` reads its panels column by
column, this op reads some columns of them as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    INTEGERS,
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
from aot.ir.types import DType, TensorType
from aot.ops.blocked import (
    CODE_ATTRIBUTES,
    FLOATS,
    HAS_PARAMETERS,
    PANEL,
    Blocks,
    weight_at,
    weights,
    weights_fit,
)
from aot.ops.elementwise import result_indices
from aot.ops.indexing import clamp_array
from aot.ops.selection import clamped_position

F16, F32, I32, U32 = DType.F16, DType.F32, DType.I32, DType.U32


def _type(call: Call) -> Sequence[TensorType]:
    return [TensorType(F32, (*call.operand(0).dims, call.dim("depth")))]


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    rows = weights(call, inputs).T.astype(np.float32)
    return [np.asarray(rows[clamp_array(np.asarray(inputs[0]), call.int("columns"))])]


def _compute(call: Call) -> Sequence[Compute]:
    indices = result_indices(call.result_types[0].rank)
    *outer, k = indices
    row = clamped_position(e.Load(0, tuple(outer), call.operand(0).dtype), call.dim("columns"))
    panel = e.binary("floordiv", row, e.index(PANEL))
    lane = e.binary("floormod", row, e.index(PANEL))
    return [Compute(indices, weight_at(call, panel, lane, k))]


def _has_rows(call: Call) -> bool:
    columns: Dim = call.dim("columns")
    return isinstance(columns, int) and columns >= 1


def _sample(
    rows: tuple[int, ...], k: int, columns: int, block: int, bits: int, *, minimums: bool = False
) -> Sample:
    blocks, panels = Blocks(k, block, bits), -(-columns // PANEL)
    types: list[TensorType | None] = [
        TensorType(I32, rows),
        TensorType(U32, (panels, blocks.words, PANEL)),
        TensorType(F16, (panels, blocks.count, PANEL)),
    ]
    if minimums:
        types.append(TensorType(F16, (panels, blocks.count, PANEL)))
    attrs = {"columns": columns, "depth": k, "block": block, "bits": bits}
    attrs["zero_point"] = 1 << (bits - 1)
    constants = tuple(range(1, len(types)))
    return Sample(tuple(types), attrs, low=-3.0, high=columns + 3.0, constant_operands=constants)


GATHER_BLOCKED = register(
    OpRecord(
        name="gather_blocked",
        summary="Columns by number, as rows, of weights that are stored in few bits as "
        "`matmul_blocked` has them; negative counts from the end, outside clamps.",
        operands=(
            Operand("indices", INTEGERS, clamps=True),
            Operand("words", frozenset({U32})),
            Operand("scales", FLOATS | {U32}),
            Operand("zero_points", FLOATS | {U32}, "optional"),
            Operand("none", FLOATS, "optional"),
            Operand("super_scales", FLOATS, "optional"),
            Operand("super_minimums", FLOATS, "optional"),
        ),
        attributes=(
            Attribute("columns", "dim", doc="of the weights, one of which is a row of the result"),
            Attribute("depth", "int", doc="elements of a row"),
            Attribute("block", "int", doc="how many elements of a row share a scale"),
            *CODE_ATTRIBUTES,
        ),
        constraints=(
            HAS_PARAMETERS,
            Constraint("there are columns, and their number is known", _has_rows),
            Constraint("words, scales and zero points fit columns and depth", weights_fit),
        ),
        infer=_type,
        reference=_reference,
        compute=_compute,
        kind=Kind.MOVEMENT,
        samples=(
            _sample((3,), 64, 40, 32, 4),
            _sample((2, 5), 70, 19, 32, 4, minimums=True),
            _sample((4,), 48, 17, 16, 8),
            _sample((), 33, 5, 5, 2),
        ),
    )
)
