"""Ops that select between operands, or by an operand's values: concat, where, gather.

Gather never reads outside its data: negative indices count from the end, and what is still
outside is clamped to the nearest element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.dim_semantics import UndecidedError, has_dims
from aot.ir.dims import Dim
from aot.ir.record import (
    ANY,
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
from aot.ir.types import Array, DType, TensorType
from aot.ops import layout_rules
from aot.ops.elementwise import result_indices

F32 = DType.F32


def _axis_is_a_dim(call: Call) -> bool:
    return 0 <= call.int("axis") < call.operand(0).rank


def _operands(call: Call) -> list[TensorType]:
    return [call.operand(i) for i in range(len(call.operands))]


def _concat_fits(call: Call) -> bool:
    first, axis = call.operand(0), call.int("axis")
    return all(
        t.rank == first.rank
        and all(
            d == axis or call.equal(a, b, "concat: dims other than axis are equal")
            for d, (a, b) in enumerate(zip(first.dims, t.dims, strict=True))
        )
        for t in _operands(call)
    )


def _concat_type(call: Call) -> Sequence[TensorType]:
    types, axis = _operands(call), call.int("axis")
    extent: Dim = 0
    for type in types:
        extent = dims.add(extent, type.dims[axis])
    # among dims assumed equal a number says most
    result = [
        next((t.dims[d] for t in types if isinstance(t.dims[d], int)), types[0].dims[d])
        for d in range(types[0].rank)
    ]
    result[axis] = extent
    return [TensorType(types[0].dtype, tuple(result))]


def _zero(dtype: DType) -> e.Const:
    return e.const(False if dtype is DType.BOOL else 0, dtype)


def _concat_compute(call: Call) -> Sequence[Compute]:
    types, axis = _operands(call), call.int("axis")
    indices = result_indices(types[0].rank)
    along = indices[axis]
    begins: list[Dim] = [0]
    for type in types:
        begins.append(dims.add(begins[-1], type.dims[axis]))

    def part(number: int) -> e.Expr:
        at = (*indices[:axis], e.sub(along, e.index(begins[number])), *indices[axis + 1 :])
        conditions = []
        if number > 0:
            conditions.append(e.binary("ge", along, e.index(begins[number])))
        if number < len(types) - 1:
            conditions.append(e.binary("lt", along, e.index(begins[number + 1])))
        guard = e.all_of(conditions)
        other = None if guard is None else _zero(types[0].dtype)
        return e.Load(number, at, types[0].dtype, guard, other)

    def choose(first: int, last: int) -> e.Expr:
        # halves rather than a chain: depth stays logarithmic in the number of operands
        if last - first == 1:
            return part(first)
        middle = (first + last) // 2
        is_before = e.binary("lt", along, e.index(begins[middle]))
        return e.select(is_before, choose(first, middle), choose(middle, last))

    return [Compute(indices, choose(0, len(types)))]


CONCAT = register(
    OpRecord(
        name="concat",
        summary="The concatenation of the operands along axis.",
        operands=(Operand("parts", ANY, "variadic"),),
        attributes=(Attribute("axis", "int", doc="not negative"),),
        constraints=(
            Constraint("axis is a dim of the operands, not negative", _axis_is_a_dim),
            Constraint("operands have one rank, and equal dims except along axis", _concat_fits),
        ),
        infer=_concat_type,
        reference=lambda call, inputs: [np.concatenate(list(inputs), axis=call.int("axis"))],
        compute=_concat_compute,
        kind=Kind.MOVEMENT,
        propagate=layout_rules.aligned_along_axis,
        is_cheap=True,
        takes_dims=True,
        samples=(
            Sample((TensorType(F32, (2, 3)), TensorType(F32, (2, 5))), {"axis": 1}),
            Sample(
                (
                    TensorType(F32, (1, 2, 3)),
                    TensorType(F32, (4, 2, 3)),
                    TensorType(F32, (2, 2, 3)),
                ),
                {"axis": 0},
            ),
            Sample((TensorType(F32, (2, 3)),), {"axis": 0}),
            Sample(tuple(TensorType(DType.I64, (n,)) for n in (1, 2, 1, 3, 1)), {"axis": 0}),
            Sample((TensorType(F32, (2, 0, 2)), TensorType(F32, (2, 3, 2))), {"axis": 1}),
        ),
    )
)

# what concat is where each part was made in its place
CONCAT_ALIAS = register(
    OpRecord(
        name="concat_alias",
        summary="A concat whose result is the memory of its operands, which were computed at "
        "their places in it along axis, so that nothing is copied.",
        operands=(Operand("parts", ANY, "variadic"),),
        attributes=CONCAT.attributes,
        constraints=CONCAT.constraints,
        infer=_concat_type,
        reference=CONCAT.reference,
        kind=Kind.STRUCTURE,
        container="joins",
    )
)


def _gather_type(call: Call) -> Sequence[TensorType]:
    data, chosen, axis = call.operand(0), call.operand(1), call.int("axis")
    return [TensorType(data.dtype, (*data.dims[:axis], *chosen.dims, *data.dims[axis + 1 :]))]


def _has_elements(call: Call) -> bool:
    return call.operand(0).dims[call.int("axis")] != 0 or any(d == 0 for d in call.operand(1).dims)


def _gather_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    data: Array = inputs[0]
    axis = call.int("axis")
    if has_dims(inputs[1]):
        raise UndecidedError("which elements a symbol chooses")
    wanted = np.asarray(inputs[1]).astype(np.int64)
    extent = data.shape[axis]
    wrapped = np.where(wanted < 0, wanted + extent, wanted)
    return [np.take(data, np.clip(wrapped, 0, max(extent - 1, 0)), axis=axis)]


def clamped_position(position: e.Expr, extent: Dim) -> e.Expr:
    """A position as an INDEX in [0, extent): negative ones count from the end, others are
    clamped."""
    wanted = e.cast(position, DType.INDEX)
    wrapped = e.select(e.binary("lt", wanted, e.index(0)), e.add(wanted, e.index(extent)), wanted)
    return e.binary("max", e.binary("min", wrapped, e.index(dims.add(extent, -1))), e.index(0))


def _gather_compute(call: Call) -> Sequence[Compute]:
    data, chosen, axis = call.operand(0), call.operand(1), call.int("axis")
    extent = data.dims[axis]
    indices = result_indices(data.rank - 1 + chosen.rank)
    middle = indices[axis : axis + chosen.rank]
    clamped = clamped_position(e.Load(1, middle, chosen.dtype), extent)
    # an extent that may be 0 at run time has no element to clamp to
    guard = None if isinstance(extent, int) else e.binary("lt", e.index(0), e.index(extent))
    at = (*indices[:axis], clamped, *indices[axis + chosen.rank :])
    return [
        Compute(
            indices, e.Load(0, at, data.dtype, guard, None if guard is None else _zero(data.dtype))
        )
    ]


GATHER = register(
    OpRecord(
        name="gather",
        summary="Slices of data along axis by number; negative counts from the end, "
        "outside clamps.",
        operands=(Operand("data", ANY), Operand("indices", INTEGERS, clamps=True)),
        attributes=(Attribute("axis", "int", 0, "not negative"),),
        constraints=(
            Constraint("axis is a dim of data, not negative", _axis_is_a_dim),
            Constraint("data has elements along axis", _has_elements),
        ),
        infer=_gather_type,
        reference=_gather_reference,
        compute=_gather_compute,
        kind=Kind.MOVEMENT,
        propagate=layout_rules.gather,
        takes_dims=True,
        samples=(
            Sample(
                (TensorType(F32, (7, 5)), TensorType(DType.I64, (2, 3))),
                {"axis": 0},
                low=-7.0,
                high=7.0,
                constant_operands=(0,),
            ),
            Sample(
                (TensorType(F32, (2, 5, 3)), TensorType(DType.I32, (4,))),
                {"axis": 1},
                low=-9.0,
                high=9.0,
            ),
            Sample((TensorType(F32, (3, 4)), TensorType(DType.I64, ())), {"axis": 1}),
            Sample((TensorType(DType.I64, (4,)), TensorType(DType.I64, (1,))), {"axis": 0}),
        ),
    )
)
