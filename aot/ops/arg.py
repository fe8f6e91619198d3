"""Positions of extrema: arg_max and arg_min along an axis, and positions in max pooling windows.

A reduction finds the extremum, a second one the first (or last) position that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    NUMBERS,
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
from aot.ops.pooling import CONSTRAINTS, WINDOW_ATTRIBUTES, lowest, pool_type, window
from aot.ops.reduction import AXIS

F32, I32, I64 = DType.F32, DType.I32, DType.I64
_POSITIONS = frozenset({I32, I64})


def position_dtype(call: Call) -> DType:
    """The element type of a result that holds positions."""
    dtype = call.attrs["dtype"]
    assert isinstance(dtype, DType)
    return dtype


DTYPE = Attribute("dtype", "dtype", I64, "of the result: i64 or i32")
DTYPE_FITS = Constraint("dtype is i64 or i32", lambda call: position_dtype(call) in _POSITIONS)


def is_extremum(value: e.Expr, extremum: e.Expr) -> e.Expr:
    """The condition that a value is the extremum, where NaN counts as one."""
    found = e.binary("eq", value, extremum)
    return e.binary("or", found, e.unary("isnan", value)) if value.dtype.is_float else found


def _arg_compute(call: Call, is_max: bool) -> Sequence[Compute]:
    x, axis = call.operand(0), call.int("axis")
    dtype, is_last = position_dtype(call), bool(call.attrs["select_last"])
    indices = result_indices(call.result_types[0].rank)
    before, after = indices[:axis], indices[axis + bool(call.attrs["keepdims"]) :]

    def element(position: e.Expr) -> e.Expr:
        return e.Load(0, (*before, position, *after), x.dtype)

    m, a = e.Var("m"), e.Var("a")
    extremum = e.Reduce("max" if is_max else "min", ((m, x.dims[axis]),), element(m), x.dtype)
    # positions of 32 bits are compared in half the vectors
    narrow = I32 if isinstance(x.dims[axis], int) else dtype
    never = e.const(-1 if is_last else int(np.iinfo(narrow.numpy).max), narrow)
    candidate = e.select(is_extremum(element(a), extremum), e.cast(a, narrow), never)
    found = e.Reduce("max" if is_last else "min", ((a, x.dims[axis]),), candidate, narrow)
    return [Compute(indices, e.cast(found, dtype))]


def _arg_type(call: Call) -> Sequence[TensorType]:
    x, axis = call.operand(0), call.int("axis")
    kept: tuple[Dim, ...] = (1,) if call.attrs["keepdims"] else ()
    return [TensorType(position_dtype(call), (*x.dims[:axis], *kept, *x.dims[axis + 1 :]))]


def _arg_reference(call: Call, x: Array, is_max: bool) -> Sequence[Array]:
    axis = call.int("axis")
    find = np.argmax if is_max else np.argmin
    if not x.size:
        found = np.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), np.int64)
    elif call.attrs["select_last"]:
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    else:
        found = find(x, axis)
    if call.attrs["keepdims"]:
        found = np.expand_dims(found, axis)
    return [np.asarray(found, position_dtype(call).numpy)]


def _arg(name: str, summary: str, is_max: bool) -> OpRecord:
    def sample(
        shape: tuple[int, ...],
        axis: int,
        dtype: DType = F32,
        keepdims: bool = True,
        last: bool = False,
        to: DType = I32,
    ) -> Sample:
        return Sample(
            (TensorType(dtype, shape),),
            {"axis": axis, "keepdims": keepdims, "select_last": last, "dtype": to},
        )

    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(Operand("x", NUMBERS),),
            attributes=(
                Attribute("axis", "int", doc="not negative"),
                Attribute("keepdims", "bool", True, "the axis stays with extent 1"),
                Attribute("select_last", "bool", False, "of equal ones the last, not first"),
                DTYPE,
            ),
            constraints=(
                AXIS,
                DTYPE_FITS,
                Constraint(
                    "x has elements along axis",
                    lambda call: call.operand(0).dims[call.int("axis")] != 0,
                ),
            ),
            infer=_arg_type,
            reference=lambda call, inputs: _arg_reference(call, inputs[0], is_max),
            compute=lambda call: _arg_compute(call, is_max),
            kind=Kind.REDUCTION,
            propagate=layout_rules.reduction,
            samples=(
                sample((4, 37), 1),
                sample((3, 5, 6), 1, keepdims=False),
                sample((3, 9), 1, I32, last=True),
                sample((7, 3), 0, I32, to=I32),
                sample((5,), 0, keepdims=False),
            ),
        )
    )


ARG_MAX = _arg("arg_max", "Position of the largest element along axis.", True)
ARG_MIN = _arg("arg_min", "Position of the smallest element along axis.", False)


def _pool_indices_type(call: Call) -> Sequence[TensorType]:
    return [TensorType(position_dtype(call), pool_type(call)[0].dims)]


def _number(
    at: Sequence[e.Expr], extents: Sequence[Dim], order: Sequence[int], dtype: DType
) -> e.Expr:
    """The flat index of element `at`, with dims listed in `order` from slowest to fastest."""
    total: e.Expr = e.index(0)
    for d in order:
        total = e.add(e.mul(total, e.index(extents[d])), at[d])
    return e.cast(total, dtype)


def _pool_indices_compute(call: Call) -> Sequence[Compute]:
    x, dtype = call.operand(0), position_dtype(call)
    indices, load, taps = window(call, lowest(x.dtype))
    largest = e.Reduce("max", taps, load, x.dtype)
    # variables of its own: the loops are one after the other
    _, again, more = window(call, lowest(x.dtype), indices)
    wanted = is_extremum(again, largest)
    if again.guard is not None:
        wanted = e.binary("and", again.guard, wanted)
    row_major = range(x.rank)
    first = e.Reduce(
        "min",
        more,
        e.select(
            wanted,
            _number(again.indices, x.dims, row_major, dtype),
            e.const(int(np.iinfo(dtype.numpy).max), dtype),
        ),
        dtype,
    )
    if not call.attrs["column_major"]:
        return [Compute(indices, first)]
    at, rest = [e.index(0)] * x.rank, e.cast(first, DType.INDEX)
    for d in reversed(row_major):
        at[d] = e.binary("floormod", rest, e.index(x.dims[d]))
        rest = e.binary("floordiv", rest, e.index(x.dims[d]))
    return [Compute(indices, _number(at, x.dims, (0, 1, *range(x.rank - 1, 1, -1)), dtype))]


def _pool_indices_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    from aot.ops.pooling import padded_input, taps_of

    x: Array = inputs[0]
    order = (0, 1, *range(x.ndim - 1, 1, -1)) if call.attrs["column_major"] else range(x.ndim)
    shape = [x.shape[d] for d in order]
    numbers = np.arange(x.size).reshape(shape).transpose(np.argsort(order))
    taps = taps_of(call, x, padded_input(call, x, lowest(DType.of(x)), x.dtype))
    places = taps_of(call, x, padded_input(call, numbers, -1, np.dtype(np.int64)))
    best, where = taps[0].copy(), places[0].copy()
    for value, place in zip(taps[1:], places[1:], strict=True):
        is_better = (place >= 0) & (
            (where < 0) | (value > best) | (np.isnan(value) & ~np.isnan(best))
        )
        best, where = np.where(is_better, value, best), np.where(is_better, place, where)
    return [where.astype(position_dtype(call).numpy)]


def _pool_sample(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    **more: bool,
) -> Sample:
    return Sample(
        (TensorType(F32, x),),
        {
            "kernel": kernel,
            "strides": strides,
            "pads": pads,
            "dilations": (1,) * len(kernel),
            "dtype": I32,
            **more,
        },
    )


MAX_POOL_INDICES = register(
    OpRecord(
        name="max_pool_indices",
        summary="The position of each of max_pool's results, as an index into x flattened; the "
        "first of equal ones.",
        operands=(Operand("x", NUMBERS),),
        attributes=(
            *WINDOW_ATTRIBUTES,
            DTYPE,
            Attribute(
                "column_major",
                "bool",
                False,
                "elements are counted with the first spatial dim fastest",
            ),
        ),
        constraints=(*CONSTRAINTS, DTYPE_FITS),
        infer=_pool_indices_type,
        reference=_pool_indices_reference,
        compute=_pool_indices_compute,
        kind=Kind.REDUCTION,
        samples=(
            _pool_sample((1, 3, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
            _pool_sample((2, 2, 7, 10), (3, 2), (2, 3), (0, 0, 0, 0), ceil_mode=True),
            _pool_sample((1, 2, 5, 6), (2, 2), (1, 2), (0, 1, 1, 0), column_major=True),
            _pool_sample((2, 3, 11), (3,), (2,), (1, 1)),
        ),
    )
)
