"""Writes into a part of a value, as values: the result is the whole after the write.

A result may take its destination's memory, of which each element is read where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.record import (
    ANY,
    INTEGERS,
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
from aot.ops.elementwise import result_indices

F32 = DType.F32


def fits_into(call: Call) -> bool:
    """Whether operand 1 has the rank of operand 0 and no larger extents, as far as known."""
    whole, part = call.operand(0).dims, call.operand(1).dims
    return len(whole) == len(part) and all(
        b <= a
        for a, b in zip(whole, part, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )


def has_start_a_dim(call: Call) -> bool:
    """Whether operand 2 has one element per dim of operand 0."""
    starts, rank = call.operand(2), call.operand(0).rank
    reason = f"{call.record.name}: starts has an element a dim"
    return starts.rank == 1 and call.equal(starts.dims[0], rank, reason)


def put(destination: Any, update: Any, starts: Any) -> None:
    """Writes an array into another one at index `starts`, which is clamped so that it fits."""
    begins = [
        min(max(int(s), 0), max(a - b, 0))
        for s, a, b in zip(starts, destination.shape, update.shape, strict=True)
    ]
    at = tuple(slice(s, s + n) for s, n in zip(begins, update.shape, strict=True))
    destination[at] = update


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    found = np.array(inputs[0], order="C")
    put(found, *inputs[1:])
    return [found]


def _compute(call: Call) -> Sequence[Compute]:
    whole, part, starts = (call.operand(n) for n in range(3))
    indices = result_indices(whole.rank)
    inside: list[e.Expr] = []
    at: list[e.Expr] = []
    for d, i in enumerate(indices):
        wanted = e.cast(e.Load(2, (e.index(d),), starts.dtype), DType.INDEX)
        extent = e.index(part.dims[d])
        room = e.add(e.index(whole.dims[d]), e.mul(extent, e.index(-1)))
        begin = e.binary("max", e.binary("min", wanted, room), e.index(0))
        place = e.add(i, e.mul(begin, e.index(-1)))
        inside += [e.binary("le", e.index(0), place), e.binary("lt", place, extent)]
        at.append(place)
    guard = e.all_of(inside)
    zero = e.const(False if part.dtype is DType.BOOL else 0, part.dtype)
    fresh = e.Load(1, tuple(at), part.dtype, guard, None if guard is None else zero)
    kept = e.Load(0, indices, whole.dtype)
    return [Compute(indices, fresh if guard is None else e.select(guard, fresh, kept))]


def _type(call: Call) -> Sequence[TensorType]:
    whole = call.operand(0)
    return [TensorType(whole.dtype, whole.dims)]


PUT_SLICE = register(
    OpRecord(
        name="put_slice",
        summary="x with update in place of a part of it, from index starts on (moved so far that "
        "update fits).",
        operands=(
            Operand("x", ANY),
            Operand("update", ANY, same_as="x"),
            Operand("starts", INTEGERS, clamps=True),
        ),
        constraints=(
            Constraint("update has x's rank and fits into it", fits_into),
            Constraint("starts has an element a dim of x", has_start_a_dim),
        ),
        infer=_type,
        reference=_reference,
        compute=_compute,
        kind=Kind.MOVEMENT,
        samples=(
            Sample(
                (
                    TensorType(F32, (4, 6)),
                    TensorType(F32, (2, 3)),
                    TensorType(DType.I64, (2,)),
                ),
                low=-3.0,
                high=5.0,
            ),
            Sample(
                (
                    TensorType(DType.I32, (2, 5, 9)),
                    TensorType(DType.I32, (2, 1, 9)),
                    TensorType(DType.I32, (3,)),
                ),
                low=-3.0,
                high=6.0,
            ),
            Sample((TensorType(F32, ()), TensorType(F32, ()), TensorType(DType.I64, (0,)))),
        ),
    )
)
