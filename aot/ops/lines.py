"""Ops with sequential semantics along an axis: scans, scatters and top_k.

Their kernels are in aot/kernels/rules/lines/lines.py, scatter.py and sort.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir.record import (
    ANY,
    INTEGERS,
    NUMBERS,
    Attribute,
    Call,
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
from aot.ops.arg import DTYPE, DTYPE_FITS, position_dtype
from aot.ops.contraction import may_be_positions, sum_dtype
from aot.ops.indexing import indices_fit_but_along_axis, needs_but_along_axis, needs_of_i32
from aot.ops.reduction import AXIS

F32, I32, I64 = DType.F32, DType.I32, DType.I64


def _same_type(call: Call) -> Sequence[TensorType]:
    return [TensorType(call.operand(0).dtype, call.operand(0).dims)]


# scan

_SCANS = {"sum": np.add, "prod": np.multiply}


def _scan_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    axis, function = call.int("axis"), _SCANS[str(call.attrs["combine"])]
    first = np.moveaxis(x.astype(sum_dtype(x.dtype)), axis, 0)
    first = first[::-1] if call.attrs["reverse"] else first
    with np.errstate(all="ignore"):
        total = function.accumulate(first, axis=0, dtype=first.dtype)
    if call.attrs["exclusive"] and len(total):
        start = np.full((1, *total.shape[1:]), function.identity, total.dtype)
        total = np.concatenate([start, total[:-1]])
    total = total[::-1] if call.attrs["reverse"] else total
    return [np.ascontiguousarray(np.moveaxis(total, 0, axis)).astype(x.dtype)]


def _scan_sample(shape: tuple[int, ...], axis: int, dtype: DType = F32, **more: Any) -> Sample:
    return Sample((TensorType(dtype, shape),), {"axis": axis, **more})


SCAN = register(
    OpRecord(
        name="scan",
        summary="Running sums or products along axis.",
        operands=(Operand("x", NUMBERS),),
        attributes=(
            Attribute("axis", "int", doc="not negative"),
            Attribute("combine", "str", "sum", "sum or prod"),
            Attribute("exclusive", "bool", False, "an element itself is left out"),
            Attribute("reverse", "bool", False, "from the end to the front"),
        ),
        constraints=(
            AXIS,
            Constraint("combine is sum or prod", lambda call: call.attrs["combine"] in _SCANS),
        ),
        infer=_same_type,
        reference=_scan_reference,
        kind=Kind.SCAN,
        propagate=layout_rules.along_axis,
        samples=(
            _scan_sample((3, 7), 1),
            _scan_sample((5, 37), 0, exclusive=True),
            _scan_sample((2, 6, 3), 1, reverse=True, combine="prod"),
            _scan_sample((9,), 0, exclusive=True, reverse=True),
            _scan_sample((4, 5), 1, I32, combine="prod"),
            _scan_sample((2, 1, 19), 2, I32),
        ),
    )
)


# scatter

_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_REDUCTION = Attribute(
    "reduction",
    "str",
    "none",
    "what becomes of an update and the element there: none (it is replaced), add, mul, max or min",
)


def _reduction_fits(call: Call) -> bool:
    return call.attrs["reduction"] == "none" or (
        call.attrs["reduction"] in _REDUCTIONS and call.operand(0).dtype is not DType.BOOL
    )


_REDUCTION_FITS = Constraint(
    "reduction is none, or add, mul, max or min of numbers", _reduction_fits
)


def _combined(call: Call, old: Array, update: Array) -> Array:
    if call.attrs["reduction"] == "none":
        return update
    with np.errstate(all="ignore"):
        return np.asarray(_REDUCTIONS[str(call.attrs["reduction"])](old, update), old.dtype)


def _updates_fit(call: Call) -> bool:
    return call.operand(1).rank == call.operand(2).rank and all(
        call.equal(a, b, "scatter_elements: one update a position")
        for a, b in zip(call.operand(1).dims, call.operand(2).dims, strict=True)
    )


def _scatter_elements_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    data, chosen, updates = inputs
    axis = call.int("axis")
    result = np.array(data)
    # lines first: one step writes each line at most once
    lines = np.moveaxis(result, axis, -1)
    chosen, updates = np.moveaxis(chosen, axis, -1), np.moveaxis(updates, axis, -1)
    extent = lines.shape[-1]
    across = np.indices(chosen.shape[:-1])
    for k in range(chosen.shape[-1]):
        at = chosen[..., k].astype(np.int64)
        at = np.where(at < 0, at + extent, at)
        exists = (at >= 0) & (at < extent)
        where = (*(a[exists] for a in across), at[exists])
        lines[where] = _combined(call, lines[where], updates[..., k][exists])
    return [result]


SCATTER_ELEMENTS = register(
    OpRecord(
        name="scatter_elements",
        summary="data with updates[i, j, ...] at [i, indices[i, j, ...], ...], the position along "
        "axis; in order along axis, positions outside are left out.",
        operands=(
            Operand("data", ANY),
            Operand("indices", INTEGERS, clamps=True),
            Operand("updates", ANY, same_as="data"),
        ),
        attributes=(Attribute("axis", "int", doc="not negative"), _REDUCTION),
        constraints=(
            AXIS,
            _REDUCTION_FITS,
            Constraint(
                "indices has data's rank, and no more elements along any dim but axis",
                indices_fit_but_along_axis,
            ),
            Constraint("updates has the dims of indices", _updates_fit),
        ),
        needs=needs_but_along_axis,
        infer=_same_type,
        reference=_scatter_elements_reference,
        kind=Kind.SCATTER,
        propagate=layout_rules.aligned_along_axis,
        samples=tuple(
            Sample(
                (TensorType(dtype, data), TensorType(I32, chosen), TensorType(dtype, chosen)),
                {"axis": axis, "reduction": reduction},
                low=low,
                high=high,
            )
            for data, chosen, axis, reduction, dtype, low, high in (
                ((3, 5), (3, 4), 1, "none", F32, -5, 4),
                ((6, 19), (4, 18), 0, "add", F32, -6, 5),
                ((2, 4, 3), (2, 7, 3), 1, "mul", F32, -4, 3),
                ((9,), (5,), 0, "max", F32, -12, 12),
                ((4, 5), (2, 5), 1, "min", I32, -5, 4),
                ((4, 6), (4, 2), 1, "none", DType.BOOL, 0, 5),
            )
        ),
    )
)


def _scatter_nd_fits(call: Call) -> bool:
    data, chosen, depth = call.operand(0), call.operand(1), call.int("depth")
    return (
        chosen.rank >= 1
        and 0 <= depth <= data.rank
        and call.equal(chosen.dims[-1], depth, "scatter_nd: indices name depth dims")
    )


def _slices_fit(call: Call) -> bool:
    data, chosen, updates = (call.operand(i) for i in range(3))
    wanted = (*chosen.dims[:-1], *data.dims[call.int("depth") :])
    return updates.rank == len(wanted) and all(
        call.equal(a, b, "scatter_nd: one slice a position")
        for a, b in zip(updates.dims, wanted, strict=True)
    )


def _scatter_nd_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    data, chosen, updates = inputs
    result = np.array(data)
    extents = np.array(data.shape[: call.int("depth")], np.int64)
    for at in np.ndindex(*chosen.shape[:-1]):
        row = chosen[at].astype(np.int64)
        row = np.where(row < 0, row + extents, row)
        if np.all((row >= 0) & (row < extents)):
            where = tuple(row)
            result[where] = _combined(call, result[where], updates[at])
    return [result]


SCATTER_ND = register(
    OpRecord(
        name="scatter_nd",
        summary="data with slices of updates where rows of positions say; in order, rows that name "
        "nothing are left out.",
        operands=(
            Operand("data", ANY),
            Operand("indices", INTEGERS, clamps=True),
            Operand("updates", ANY, same_as="data"),
        ),
        attributes=(
            Attribute("depth", "int", doc="how many dims of data a row of indices names"),
            _REDUCTION,
        ),
        constraints=(
            _REDUCTION_FITS,
            Constraint(
                "the last dim of indices is depth, and data has depth dims", _scatter_nd_fits
            ),
            Constraint(
                "updates has the dims of indices but the last, then data's after depth", _slices_fit
            ),
        ),
        infer=_same_type,
        reference=_scatter_nd_reference,
        kind=Kind.SCATTER,
        samples=tuple(
            Sample(
                (TensorType(dtype, data), TensorType(I32, chosen), TensorType(dtype, updates)),
                {"depth": chosen[-1], "reduction": reduction},
                low=-5,
                high=4,
            )
            for data, chosen, updates, reduction, dtype in (
                ((5, 7), (3, 1), (3, 7), "none", F32),
                ((4, 5, 6), (2, 3, 2), (2, 3, 6), "add", F32),
                ((5, 5), (8, 2), (8,), "mul", F32),
                ((8,), (4, 1), (4,), "max", I32),
                ((3, 19), (4, 1), (4, 19), "min", F32),
            )
        ),
    )
)


# top_k


def _count_fits(call: Call) -> bool:
    k, extent = call.dim("k"), call.operand(0).dims[call.int("axis")]
    return may_be_positions([k, dims.add(extent, dims.multiply(k, -1))])


def _top_k_needs(call: Call) -> Sequence[Need]:
    axis = call.int("axis")
    k, extent = call.dim("k"), call.operand(0).dims[axis]
    needs = [Need(k, extent, f"axis {axis} of its input is too short")]
    if position_dtype(call) is I32:
        needs += needs_of_i32(call, [extent])
    return needs


def _positions_fit(call: Call) -> bool:
    return may_be_positions([need.room for need in _top_k_needs(call)])


def _top_k_type(call: Call) -> Sequence[TensorType]:
    x, axis = call.operand(0), call.int("axis")
    shape = (*x.dims[:axis], call.dim("k"), *x.dims[axis + 1 :])
    return [TensorType(x.dtype, shape), TensorType(position_dtype(call), shape)]


def _top_k_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    axis, k = call.int("axis"), call.int("k")
    if call.attrs["largest"]:
        # from the end: ascending and stable there is descending and stable here
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, order, axis), order.astype(position_dtype(call).numpy)]


def _top_k_sample(
    shape: tuple[int, ...], axis: int, k: int, dtype: DType = F32, largest: bool = True
) -> Sample:
    return Sample(
        (TensorType(dtype, shape),),
        {"axis": axis, "k": k, "largest": largest, "dtype": I32},
        low=-9,
        high=9,
    )


TOP_K = register(
    OpRecord(
        name="top_k",
        summary="The k largest or smallest elements along axis, best first, equal ones in their "
        "order, and their positions; NaN is greater than any number, and equal to NaN.",
        operands=(Operand("x", NUMBERS),),
        attributes=(
            Attribute("axis", "int", doc="not negative"),
            Attribute("k", "dim"),
            Attribute("largest", "bool", True, "or the smallest"),
            DTYPE,
        ),
        constraints=(
            AXIS,
            DTYPE_FITS,
            Constraint("k is not negative and at most x's extent along axis", _count_fits),
            Constraint("dtype holds the positions along axis", _positions_fit),
        ),
        needs=_top_k_needs,
        infer=_top_k_type,
        reference=_top_k_reference,
        kind=Kind.SORT,
        propagate=layout_rules.along_axis,
        samples=(
            _top_k_sample((3, 40), 1, 5),
            _top_k_sample((7, 9), 0, 7, largest=False),
            _top_k_sample((2, 11, 3), 1, 4, I32),
            _top_k_sample((6,), 0, 1, I32, largest=False),
        ),
    )
)
