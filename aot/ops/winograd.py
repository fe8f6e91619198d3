"""Convolution with filters that are stored transformed, for Winograd's F(4x4, 3x3).

Owns their transform and what a convolution by them means; how a kernel uses them is
aot/kernels/rules/products/winograd.py's, whose points these are. Of filters that no transform
gives, the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.contraction import ContractionDims, Factor, Window
from aot.ir.dims import Dim
from aot.ir.graph import Attr
from aot.ir.record import (
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.contraction import bias_fits, conv_reference, window_extent
from aot.ops.contraction import may_be_positions as _may_be_positions
from aot.ops.elementwise import result_indices

F32 = DType.F32
KERNEL, POINTS = 3, 6  # along a side of a filter, and of a transformed one
_ROOT = 2**0.5
# for the points 0, +-1/sqrt(2), +-sqrt(2) and infinity, those other than 0 times |p|
FILTER_LINES = (
    (1.0, 0.0, 0.0),
    (_ROOT / 6, 1 / 3, _ROOT / 3),
    (_ROOT / 6, -1 / 3, _ROOT / 3),
    (-_ROOT / 3, -1 / 3, -_ROOT / 6),
    (-_ROOT / 3, 1 / 3, -_ROOT / 6),
    (0.0, 0.0, 1.0),
)
# a filter's taps are 1, 3/2 and 1 times these lines, the second one less the next
_TAP_LINES = np.array(
    [(1.0, 0, 0, 0, 0, 0), (0, 1.5, -1.5, 0, 0, 0), (0, 0, 0, 0, 0, 1.0)], np.float64
)


def transformed(filters: Array) -> Array:
    """Transforms filters [O, C, 3, 3] -> [O, C, 6, 6] by G w G^T, in a fixed order and rounded
    once."""
    lines = np.array(FILTER_LINES, np.float64)

    def along(x: Array, axis: int) -> Array:
        taps = [np.take(x, [tap], axis) for tap in range(KERNEL)]
        made = [sum(c * tap for c, tap in zip(line, taps, strict=True)) for line in lines]
        return np.concatenate(made, axis)

    return along(along(filters.astype(np.float64), 2), 3).astype(filters.dtype)


def _chosen(place: e.Expr, values: Sequence[float], dtype: DType) -> e.Expr:
    """An expression that selects element `place` of the constants `values`."""
    found: e.Expr = e.const(values[-1], dtype)
    for number in reversed(range(len(values) - 1)):
        is_here = e.binary("le", place, e.index(number))
        found = e.select(is_here, e.const(values[number], dtype), found)
    return found


def _are_transformed(call: Call) -> bool:
    x, w = call.operand(0), call.operand(1)
    return x.rank == w.rank == 4 and w.dims[2:] == (POINTS, POINTS)


def _pads_fit(call: Call) -> bool:
    return len(call.dims("pads")) == 4 and _may_be_positions(call.dims("pads"))


def _channels_match(call: Call) -> bool:
    x, w = call.operand(0), call.operand(1)
    return call.equal(x.dims[1], w.dims[1], "conv_winograd: x has the channels of the filters")


def _bias_fits(call: Call) -> bool:
    return bias_fits(call, "conv_winograd")


def _type(call: Call) -> Sequence[TensorType]:
    x, w, pads = call.operand(0), call.operand(1), call.dims("pads")
    sizes = [window_extent(x.dims[2 + d], KERNEL, 1, 1, pads[d], pads[2 + d]) for d in range(2)]
    return [TensorType(x.dtype, (x.dims[0], w.dims[0], *sizes))]


def _compute(call: Call) -> Sequence[Compute]:
    """The `compute`: a sum over channels and points, where each tap is a point or a difference of
    points."""
    x, w, pads = call.operand(0), call.operand(1), call.dims("pads")
    indices = result_indices(4)
    channel, points = e.Var("c"), (e.Var("k0"), e.Var("k1"))
    positions, conditions = [], []
    factor: e.Expr | None = None
    for d in range(2):
        tap = e.binary("floordiv", e.add(points[d], e.index(2)), e.index(KERNEL))
        position = e.sub(e.add(indices[2 + d], tap), e.index(pads[d]))
        positions.append(position)
        if pads[d] != 0 or pads[2 + d] != 0:
            conditions += [
                e.binary("ge", position, e.index(0)),
                e.binary("lt", position, e.index(x.dims[2 + d])),
            ]
        found = _chosen(points[d], [float(n) for n in _TAP_LINES.sum(axis=0)], x.dtype)
        factor = found if factor is None else e.mul(factor, found)
    assert factor is not None
    guard = e.all_of(conditions)
    other = None if guard is None else e.const(0, x.dtype)
    loaded = e.Load(0, (indices[0], channel, *positions), x.dtype, guard, other)
    weight = e.Load(1, (indices[1], channel, *points), w.dtype)
    axes = ((channel, x.dims[1]), *((point, POINTS) for point in points))
    total: e.Expr = e.Reduce("sum", axes, e.mul(e.mul(factor, loaded), weight), x.dtype)
    if call.has(2):
        total = e.add(total, e.Load(2, (indices[1],), call.operand(2).dtype))
    return [Compute(indices, total)]


def _dims(call: Call) -> ContractionDims:
    x, w, pads = call.operand(0), call.operand(1), call.dims("pads")
    return ContractionDims(
        left=Factor(0, x, batch=(), own=(0, 2, 3), summed=1),
        right=Factor(1, w, batch=(), own=(0,), summed=1, taps=(2, 3)),
        result=call.result_types[0],
        rows=(0, 2, 3),
        column=1,
        accumulator=x.dtype,
        windows=tuple(
            Window(2 + d, 2 + d, KERNEL, begin=pads[d], end=pads[2 + d]) for d in range(2)
        ),
        bias=2,
    )


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    filters = np.einsum("ia,jb,ocab->ocij", _TAP_LINES, _TAP_LINES, inputs[1].astype(np.float64))
    attrs: dict[str, Attr] = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
    attrs["pads"] = call.attrs["pads"]
    return conv_reference(replace(call, attrs=attrs), [inputs[0], filters, *inputs[2:]])


def _flops(call: Call) -> Dim:
    """The arithmetic operations of the direct convolution, whatever the algorithm."""
    terms = dims.multiply(call.operand(0).dims[1], KERNEL * KERNEL)
    return dims.multiply(dims.multiply(call.result_types[0].element_count, terms), 2)


CONV_WINOGRAD = register(
    OpRecord(
        name="conv_winograd",
        summary="Convolution of stride 1 by 3x3 filters, given as Winograd's F(4x4, 3x3) has them.",
        operands=(
            Operand("x", frozenset({F32})),
            Operand("w", frozenset({F32})),
            Operand("bias", frozenset({F32}), "optional"),
        ),
        attributes=(
            Attribute("pads", "dims", doc="elements at the begins, then at the ends, of both dims"),
        ),
        constraints=(
            Constraint("x is [N, C, H, W], w [O, C, 6, 6]", _are_transformed),
            Constraint("pads has four numbers that are not negative", _pads_fit),
            Constraint("x has the channels of the filters", _channels_match),
            Constraint("bias is one number a filter", _bias_fits),
        ),
        infer=_type,
        reference=_reference,
        compute=_compute,
        contraction=_dims,
        flops=_flops,
        kind=Kind.CONTRACTION,
    )
)
