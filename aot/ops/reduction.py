"""Reductions: sums and extrema along axes, and normalisations based on them.

`compute` uses nested Reduce nodes; one Reduce object that is used twice is computed once. The
references work in float64, in order along the axes, and round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.dim_semantics import has_dims, map_dims
from aot.ir.dims import Dim
from aot.ir.record import (
    FLOATS,
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
from aot.ops.contraction import sum_dtype
from aot.ops.elementwise import result_indices

F32 = DType.F32


def _axes_are_canonical(call: Call) -> bool:
    axes = call.ints("axes")
    return list(axes) == sorted(set(axes)) and all(0 <= a < call.operand(0).rank for a in axes)


def _reduced_type(call: Call) -> Sequence[TensorType]:
    x, axes = call.operand(0), call.ints("axes")
    if call.attrs["keepdims"]:
        kept: list[Dim] = [1 if d in axes else extent for d, extent in enumerate(x.dims)]
    else:
        kept = [extent for d, extent in enumerate(x.dims) if d not in axes]
    return [TensorType(x.dtype, tuple(kept))]


def _reduce_parts(call: Call) -> tuple[tuple[e.Var, ...], tuple[tuple[e.Var, Dim], ...], e.Expr]:
    """(result indices, reduced axes, the operand's element in the accumulator's dtype)."""
    x, reduced = call.operand(0), call.ints("axes")
    (result,) = call.result_types
    indices = result_indices(result.rank)
    free = iter(indices)
    axes: list[tuple[e.Var, Dim]] = []
    at: list[e.Expr] = []
    for d, extent in enumerate(x.dims):
        if d in reduced:
            if call.attrs["keepdims"]:
                next(free)
            axes.append((e.Var(f"r{d}"), extent))
            at.append(axes[-1][0])
        else:
            at.append(next(free))
    return indices, tuple(axes), e.cast(e.Load(0, tuple(at), x.dtype), x.dtype.accumulator)


def _reduce_compute(call: Call, op: str, is_mean: bool) -> Sequence[Compute]:
    indices, axes, element = _reduce_parts(call)
    value: e.Expr = e.Reduce(op, axes, element, element.dtype) if axes else element
    if is_mean:
        count = e.index(dims.product([extent for _, extent in axes]))
        value = e.binary("div", value, e.cast(count, value.dtype))
    return [Compute(indices, e.cast(value, call.operand(0).dtype))]


# Elements of rows that are reduced one after another; of shorter ones all partial results are made
# at once, which numpy does faster.
_LONG_ROW = 64


def _identity(function: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """The neutral element of a reduction: the result for no elements."""
    if function is np.maximum:
        return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    if function is np.minimum:
        return np.inf if dtype.kind == "f" else np.iinfo(dtype).max
    return function.identity


def _in_order(function: np.ufunc, wide: Array) -> Array:
    """The reduction along axis 0, strictly one element after another."""
    if wide.shape[0] == 0:
        return np.full(wide.shape[1:], _identity(function, wide.dtype), wide.dtype)
    if wide[0].size < _LONG_ROW:
        return np.asarray(function.accumulate(wide, axis=0)[-1])
    total: Array = wide[0].copy()
    for row in wide[1:]:
        function(total, row, out=total)
    return total


def _reduce_reference(
    call: Call,
    inputs: Sequence[Any],
    function: np.ufunc,
    of_dims: Callable[[Dim, Dim], Dim] | None,
    is_mean: bool,
) -> Sequence[Any]:
    x: Array = inputs[0]
    axes, keepdims = call.ints("axes"), bool(call.attrs["keepdims"])
    kept = [d for d in range(x.ndim) if d not in axes]
    first = x.transpose([*axes, *kept])
    flat = first.reshape(int(np.prod(first.shape[: len(axes)])), *first.shape[len(axes) :])
    with np.errstate(all="ignore"):
        if has_dims(x):
            assert of_dims is not None
            result = functools.reduce(functools.partial(map_dims, of_dims), list(flat))
        else:
            result = _in_order(function, flat.astype(sum_dtype(x.dtype)))
            if is_mean:
                result = result / flat.shape[0]
            result = result.astype(x.dtype)
    if keepdims:
        result = result.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
    return [result]


def _reduce(
    name: str,
    summary: str,
    op: str,
    function: np.ufunc,
    of_dims: Callable[[Dim, Dim], Dim] | None = None,
    *,
    dtypes: frozenset[DType] = NUMBERS,
    is_mean: bool = False,
) -> OpRecord:
    samples = [
        Sample((TensorType(F32, shape),), {"axes": axes, "keepdims": keepdims})
        for shape, axes, keepdims in (
            ((2, 3, 5), (1,), True),
            ((4, 7), (1,), False),
            ((2, 3, 4, 5), (2, 3), True),
            ((3, 5), (0, 1), False),
            ((2, 17, 3), (0, 2), False),
            ((2, 3), (), True),
        )
    ]
    if dtypes == NUMBERS:
        samples.append(Sample((TensorType(DType.I64, (3, 4)),), {"axes": (0,), "keepdims": False}))
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(Operand("x", dtypes),),
            attributes=(
                Attribute("axes", "ints", doc="sorted, not negative"),
                Attribute("keepdims", "bool", True, "reduced dims stay with extent 1"),
            ),
            constraints=(Constraint("axes are sorted, distinct dims of x", _axes_are_canonical),),
            infer=_reduced_type,
            reference=lambda call, inputs: _reduce_reference(
                call, inputs, function, of_dims, is_mean
            ),
            compute=lambda call: _reduce_compute(call, op, is_mean),
            kind=Kind.REDUCTION,
            is_approximate=op not in ("max", "min"),
            propagate=layout_rules.reduction,
            takes_dims=of_dims is not None,
            samples=tuple(samples),
        )
    )


REDUCE_SUM = _reduce("reduce_sum", "Sum along axes.", "sum", np.add, dims.add)
REDUCE_MEAN = _reduce(
    "reduce_mean",
    "Mean along axes; NaN of nothing.",
    "sum",
    np.add,
    dtypes=FLOATS,
    is_mean=True,
)
REDUCE_PROD = _reduce("reduce_prod", "Product along axes.", "prod", np.multiply, dims.multiply)
REDUCE_MAX = _reduce(
    "reduce_max", "Largest along axes; NaN if one is.", "max", np.maximum, dims.maximum
)
REDUCE_MIN = _reduce(
    "reduce_min", "Smallest along axes; NaN if one is.", "min", np.minimum, dims.minimum
)


def _axis_is_a_dim(call: Call) -> bool:
    return 0 <= call.int("axis") < call.operand(0).rank


AXIS = Constraint("axis is a dim of x, not negative", _axis_is_a_dim)


def _softmax_compute(call: Call, is_log: bool) -> Sequence[Compute]:
    x, axis = call.operand(0), call.int("axis")
    indices = result_indices(x.rank)
    wide = x.dtype.accumulator

    def element(position: e.Expr) -> e.Expr:
        at = (*indices[:axis], position, *indices[axis + 1 :])
        return e.cast(e.Load(0, at, x.dtype), wide)

    m, s = e.Var("m"), e.Var("s")
    largest = e.Reduce("max", ((m, x.dims[axis]),), element(m), wide)
    total = e.Reduce(
        "sum", ((s, x.dims[axis]),), e.unary("exp_nonpositive", e.sub(element(s), largest)), wide
    )
    shifted = e.sub(element(indices[axis]), largest)
    value = (
        e.sub(shifted, e.unary("log", total))
        if is_log
        else e.mul(e.unary("exp_nonpositive", shifted), e.binary("div", e.const(1, wide), total))
    )
    return [Compute(indices, e.cast(value, x.dtype))]


def _softmax_reference(call: Call, inputs: Sequence[Any], is_log: bool) -> Sequence[Any]:
    x: Array = inputs[0]
    wide = np.moveaxis(x.astype(np.float64), call.int("axis"), 0)
    if wide.shape[0] == 0:
        return [x]
    with np.errstate(all="ignore"):
        shifted = wide - np.max(wide, axis=0)
        powers = np.exp(shifted)
        total = _in_order(np.add, powers)
        result = shifted - np.log(total) if is_log else powers / total
    return [np.moveaxis(result, 0, call.int("axis")).astype(x.dtype)]


def _softmax(name: str, summary: str, is_log: bool) -> OpRecord:
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(Operand("x", FLOATS),),
            attributes=(Attribute("axis", "int", doc="not negative"),),
            constraints=(AXIS,),
            infer=lambda call: [TensorType(call.operand(0).dtype, call.operand(0).dims)],
            reference=lambda call, inputs: _softmax_reference(call, inputs, is_log),
            compute=lambda call: _softmax_compute(call, is_log),
            kind=Kind.REDUCTION,
            propagate=layout_rules.along_axis,
            samples=(
                Sample((TensorType(F32, (2, 3, 5)),), {"axis": 2}),
                Sample((TensorType(F32, (3, 7, 2)),), {"axis": 1}),
                Sample((TensorType(F32, (4, 33)),), {"axis": 1}, low=-80.0, high=80.0),
                Sample((TensorType(F32, (5,)),), {"axis": 0}),
            ),
        )
    )


SOFTMAX = _softmax("softmax", "exp(x - max) / sum(exp(x - max)) along an axis.", False)
LOG_SOFTMAX = _softmax("log_softmax", "x - max - log(sum(exp(x - max))) along an axis.", True)


def _affine_fits(operand: int) -> Callable[[Call], bool]:
    def holds(call: Call) -> bool:
        if not call.has(operand):
            return True
        tail = call.operand(0).dims[call.int("axis") :]
        found = call.operand(operand).dims
        return len(found) == len(tail) and all(
            call.equal(a, b, "layer_norm: scale and bias have the normalised dims")
            for a, b in zip(found, tail, strict=True)
        )

    return holds


def _layer_norm_compute(call: Call) -> Sequence[Compute]:
    x, axis = call.operand(0), call.int("axis")
    indices = result_indices(x.rank)
    wide = x.dtype.accumulator
    tail = x.dims[axis:]
    count = e.cast(e.index(dims.product(tail)), wide)

    def element(at: Sequence[e.Expr]) -> e.Expr:
        return e.cast(e.Load(0, (*indices[:axis], *at), x.dtype), wide)

    def mean(name: str, body: Callable[[Sequence[e.Expr]], e.Expr]) -> e.Expr:
        variables = tuple(e.Var(f"{name}{d}") for d in range(len(tail)))
        axes = tuple(zip(variables, tail, strict=True))
        return e.binary("div", e.Reduce("sum", axes, body(variables), wide), count)

    centre = mean("m", element)

    def squared(at: Sequence[e.Expr]) -> e.Expr:
        distance = e.sub(element(at), centre)
        return e.mul(distance, distance)

    variance = e.add(mean("v", squared), e.const(call.float("epsilon"), wide))
    scale = e.binary("div", e.const(1, wide), e.unary("sqrt", variance))
    value = e.mul(e.sub(element(indices[axis:]), centre), scale)
    if call.has(1):
        value = e.mul(value, e.cast(e.Load(1, indices[axis:], x.dtype), wide))
    if call.has(2):
        value = e.add(value, e.cast(e.Load(2, indices[axis:], x.dtype), wide))
    return [Compute(indices, e.cast(value, x.dtype))]


def _layer_norm_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    axis = call.int("axis")
    rows = x.astype(np.float64).reshape(*x.shape[:axis], prod(x.shape[axis:]))
    flat = np.moveaxis(rows, -1, 0)
    with np.errstate(all="ignore"):
        centred = flat - _in_order(np.add, flat) / max(flat.shape[0], 1)
        variance = _in_order(np.add, centred * centred) / max(flat.shape[0], 1)
        normal = centred / np.sqrt(variance + call.float("epsilon"))
        result = np.moveaxis(normal, 0, -1).reshape(x.shape)
        if len(inputs) > 1 and inputs[1] is not None:
            result = result * inputs[1].astype(np.float64)
        if len(inputs) > 2 and inputs[2] is not None:
            result = result + inputs[2].astype(np.float64)
    return [result.astype(x.dtype)]


LAYER_NORM = register(
    OpRecord(
        name="layer_norm",
        summary="(x - mean) / sqrt(variance + epsilon) * scale + bias over the dims from axis on.",
        operands=(
            Operand("x", FLOATS),
            Operand("scale", FLOATS, "optional", same_as="x"),
            Operand("bias", FLOATS, "optional", same_as="x"),
        ),
        attributes=(
            Attribute("axis", "int", doc="first normalised dim, not negative"),
            Attribute("epsilon", "float", 1e-5),
        ),
        constraints=(
            AXIS,
            Constraint("scale has the dims of x from axis on", _affine_fits(1)),
            Constraint("bias has the dims of x from axis on", _affine_fits(2)),
        ),
        infer=lambda call: [TensorType(call.operand(0).dtype, call.operand(0).dims)],
        reference=_layer_norm_reference,
        compute=_layer_norm_compute,
        kind=Kind.REDUCTION,
        propagate=layout_rules.layer_norm,
        samples=(
            Sample(
                (TensorType(F32, (2, 3, 7)), TensorType(F32, (7,)), TensorType(F32, (7,))),
                {"axis": 2, "epsilon": 1e-5},
                constant_operands=(1, 2),
            ),
            Sample(
                (TensorType(F32, (3, 4, 5)), TensorType(F32, (4, 5)), None),
                {"axis": 1, "epsilon": 1e-3},
                constant_operands=(1,),
            ),
            Sample(
                (TensorType(F32, (2, 33)), TensorType(F32, (33,))),
                {"axis": 1},
                constant_operands=(1,),
            ),
            Sample((TensorType(F32, (2, 3, 4)), None, TensorType(F32, (4,))), {"axis": 2}),
            Sample((TensorType(F32, (3, 4, 5)),), {"axis": 1}),
        ),
    )
)
