"""Movement by operands with positions: gather_elements, gather_nd; and triangles.

As in gather, negative positions count from the end, and what is still outside is clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    ANY,
    INTEGERS,
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Need,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops import layout_rules
from aot.ops.contraction import may_be_positions
from aot.ops.elementwise import result_indices
from aot.ops.selection import clamped_position

F32, I64, I32 = DType.F32, DType.I64, DType.I32


def zero(dtype: DType) -> e.Const:
    """The literal 0, or false."""
    return e.const(False if dtype is DType.BOOL else 0, dtype)


def clamp_array(positions: Array, extent: int) -> Array:
    """Positions clamped as by `clamped_position`, in numpy; negative ones count from the end."""
    wanted = positions.astype(np.int64)
    return np.clip(np.where(wanted < 0, wanted + extent, wanted), 0, max(extent - 1, 0))


def not_empty(extents: Sequence[Dim]) -> e.Expr | None:
    """The condition that unknown extents are not 0; None if all are known."""
    return e.all_of(
        e.binary("lt", e.index(0), e.index(d)) for d in extents if not isinstance(d, int)
    )


def needs_of_i32(call: Call, extents: Sequence[Dim]) -> list[Need]:
    """The conditions of a kernel that keeps positions along `extents` in i32."""
    what = f"i32 does not count the elements along a dim of operand 0, {call.operand(0)}"
    return [Need(extent, (1 << 31) - 1, what) for extent in extents]


def _other(guard: e.Expr | None, dtype: DType) -> e.Expr | None:
    return None if guard is None else zero(dtype)


def _axis_is_a_dim(call: Call) -> bool:
    return 0 <= call.int("axis") < call.operand(0).rank


def has_elements(call: Call, extents: Sequence[Dim]) -> bool:
    """Whether `extents` have elements to select, or nothing is selected."""
    return all(d != 0 for d in extents) or any(d == 0 for d in call.operand(1).dims)


# gather_elements


def indices_fit_but_along_axis(call: Call) -> bool:
    """Whether indices have data's rank, and are no longer than data along each dim except axis."""
    data, chosen = call.operand(0), call.operand(1)
    return data.rank == chosen.rank and may_be_positions(
        [need.room for need in needs_but_along_axis(call)]
    )


def needs_but_along_axis(call: Call) -> Sequence[Need]:
    """The conditions that indices are no longer than data along each dim except axis."""
    data, chosen = call.operand(0), call.operand(1)
    return [
        Need(a, b, f"axis {d} of its data is too short")
        for d, (a, b) in enumerate(zip(chosen.dims, data.dims, strict=True))
        if d != call.int("axis")
    ]


def _gather_elements_compute(call: Call) -> Sequence[Compute]:
    data, chosen, axis = call.operand(0), call.operand(1), call.int("axis")
    indices = result_indices(chosen.rank)
    extent = data.dims[axis]
    position = clamped_position(e.Load(1, indices, chosen.dtype), extent)
    guard = not_empty([extent])
    at = (*indices[:axis], position, *indices[axis + 1 :])
    return [Compute(indices, e.Load(0, at, data.dtype, guard, _other(guard, data.dtype)))]


def _gather_elements_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    data, chosen = inputs
    axis = call.int("axis")
    within = tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(chosen.shape))
    return [np.take_along_axis(data[within], clamp_array(chosen, data.shape[axis]), axis)]


GATHER_ELEMENTS = register(
    OpRecord(
        name="gather_elements",
        summary="result[i, j, ...] is data[i, indices[i, j, ...], ...], the position along axis.",
        operands=(Operand("data", ANY), Operand("indices", INTEGERS, clamps=True)),
        attributes=(Attribute("axis", "int", doc="not negative"),),
        constraints=(
            Constraint("axis is a dim of data, not negative", _axis_is_a_dim),
            Constraint(
                "indices has data's rank, and no more elements along any dim but axis",
                indices_fit_but_along_axis,
            ),
            Constraint(
                "data has elements along axis",
                lambda call: has_elements(call, [call.operand(0).dims[call.int("axis")]]),
            ),
        ),
        needs=needs_but_along_axis,
        infer=lambda call: [TensorType(call.operand(0).dtype, call.operand(1).dims)],
        reference=_gather_elements_reference,
        compute=_gather_elements_compute,
        kind=Kind.MOVEMENT,
        propagate=layout_rules.aligned_along_axis,
        samples=(
            Sample((TensorType(F32, (3, 5)), TensorType(I64, (3, 4))), {"axis": 1}, low=-5, high=5),
            Sample(
                (TensorType(F32, (4, 3, 6)), TensorType(I32, (7, 2, 5))),
                {"axis": 0},
                low=-4,
                high=4,
            ),
            Sample((TensorType(DType.U8, (9,)), TensorType(I64, (5,))), {"axis": 0}, low=0, high=9),
        ),
    )
)


# gather_nd


def _nd_ranks_fit(call: Call) -> bool:
    data, chosen = call.operand(0), call.operand(1)
    batch, depth = call.int("batch_dims"), call.int("depth")
    return (
        chosen.rank > batch >= 0
        and depth >= 0
        and batch + depth <= data.rank
        and call.equal(chosen.dims[-1], depth, "gather_nd: indices name depth dims")
    )


def _batches_fit(call: Call) -> bool:
    batch = call.int("batch_dims")
    return all(
        call.equal(a, b, "gather_nd: batch dims are equal")
        for a, b in zip(call.operand(0).dims[:batch], call.operand(1).dims[:batch], strict=True)
    )


def _chosen_extents(call: Call) -> tuple[Dim, ...]:
    batch = call.int("batch_dims")
    return call.operand(0).dims[batch : batch + call.int("depth")]


def _gather_nd_type(call: Call) -> Sequence[TensorType]:
    data, chosen = call.operand(0), call.operand(1)
    tail = data.dims[call.int("batch_dims") + call.int("depth") :]
    return [TensorType(data.dtype, (*chosen.dims[:-1], *tail))]


def _gather_nd_compute(call: Call) -> Sequence[Compute]:
    data, chosen = call.operand(0), call.operand(1)
    batch, lead = call.int("batch_dims"), chosen.rank - 1
    indices = result_indices(call.result_types[0].rank)
    extents = _chosen_extents(call)
    at = [
        clamped_position(e.Load(1, (*indices[:lead], e.index(k)), chosen.dtype), extent)
        for k, extent in enumerate(extents)
    ]
    guard = not_empty(extents)
    return [
        Compute(
            indices,
            e.Load(
                0,
                (*indices[:batch], *at, *indices[lead:]),
                data.dtype,
                guard,
                _other(guard, data.dtype),
            ),
        )
    ]


def _gather_nd_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    data, chosen = inputs
    batch, depth = call.int("batch_dims"), call.int("depth")
    lead = chosen.shape[:-1]
    at: list[Array] = [
        np.arange(n).reshape(-1, *[1] * (len(lead) - d - 1)) for d, n in enumerate(lead[:batch])
    ]
    at += [clamp_array(chosen[..., k], data.shape[batch + k]) for k in range(depth)]
    if not at:
        return [np.broadcast_to(data, (*lead, *data.shape)).copy()]
    if data.size == 0:
        return [np.zeros((*lead, *data.shape[batch + depth :]), data.dtype)]
    grid = np.broadcast_arrays(*at, np.zeros(lead, np.int64))[:-1]
    return [np.ascontiguousarray(data[tuple(grid)])]


GATHER_ND = register(
    OpRecord(
        name="gather_nd",
        summary="Slices of data by rows of positions: indices' last dim names data's first dims.",
        operands=(Operand("data", ANY), Operand("indices", INTEGERS, clamps=True)),
        attributes=(
            Attribute("depth", "int", doc="how many dims of data a row of indices names"),
            Attribute("batch_dims", "int", 0, "leading dims that data and indices share"),
        ),
        constraints=(
            Constraint(
                "the last dim of indices is depth, and data has depth dims after batch_dims",
                _nd_ranks_fit,
            ),
            Constraint("data and indices agree in the first batch_dims dims", _batches_fit),
            Constraint(
                "data has elements to choose",
                lambda call: has_elements(call, _chosen_extents(call)),
            ),
        ),
        infer=_gather_nd_type,
        reference=_gather_nd_reference,
        compute=_gather_nd_compute,
        kind=Kind.MOVEMENT,
        samples=(
            Sample(
                (TensorType(F32, (3, 4, 5)), TensorType(I64, (6, 2))), {"depth": 2}, low=-3, high=3
            ),
            Sample(
                (TensorType(F32, (2, 3, 7)), TensorType(I64, (2, 5, 1))),
                {"batch_dims": 1, "depth": 1},
                low=-3,
                high=3,
            ),
            Sample(
                (TensorType(I32, (4, 3)), TensorType(I32, (2, 1, 2))), {"depth": 2}, low=-3, high=3
            ),
        ),
    )
)


# trilu


def _trilu_compute(call: Call) -> Sequence[Compute]:
    x = call.operand(0)
    indices = result_indices(x.rank)
    diagonal = e.add(indices[-2], e.index(call.int("k")))
    is_kept = e.binary("ge" if call.attrs["upper"] else "le", indices[-1], diagonal)
    return [Compute(indices, e.Load(0, indices, x.dtype, is_kept, zero(x.dtype)))]


def _trilu_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    keep = np.triu if call.attrs["upper"] else np.tril
    return [np.asarray(keep(inputs[0], call.int("k")), inputs[0].dtype)]


TRILU = register(
    OpRecord(
        name="trilu",
        summary="The upper or lower triangle of each matrix, zeros elsewhere.",
        operands=(Operand("x", ANY),),
        attributes=(
            Attribute("upper", "bool", True, "keep what is on and above the diagonal"),
            Attribute("k", "int", 0, "the diagonal: 0 is the main one, 1 the one above"),
        ),
        constraints=(
            Constraint("x has at least two dims", lambda call: call.operand(0).rank >= 2),
        ),
        infer=lambda call: [TensorType(call.operand(0).dtype, call.operand(0).dims)],
        reference=_trilu_reference,
        compute=_trilu_compute,
        kind=Kind.MOVEMENT,
        propagate=layout_rules.trilu,
        is_cheap=True,
        samples=(
            Sample((TensorType(F32, (5, 7)),), {"k": 1}),
            Sample((TensorType(F32, (2, 6, 4)),), {"upper": False, "k": -2}),
            Sample((TensorType(F32, (2, 3, 4, 5)),), {"k": -1}),
            Sample((TensorType(I64, (3, 3)),), {"upper": False}),
        ),
    )
)
