"""Sampling of boxes (RoiAlign): a grid of interpolated points in each bin of each box, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.ir import dims
from aot.ir import expr as e
from aot.ir.record import (
    FLOATS,
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
from aot.ops.elementwise import result_indices
from aot.ops.indexing import clamp_array, not_empty, zero
from aot.ops.selection import clamped_position

F32, I64 = DType.F32, DType.I64
_MODES = ("avg", "max")


def _shapes_fit(call: Call) -> bool:
    x, boxes, images = (call.operand(n) for n in range(3))
    return (
        (x.rank, boxes.rank, images.rank) == (4, 2, 1)
        and call.equal(boxes.dims[1], 4, "roi_align: a box is four numbers")
        and call.equal(boxes.dims[0], images.dims[0], "roi_align: an image a box")
        and 0 not in (x.dims[0], *x.dims[2:])
    )


def _are_two_positive(call: Call, name: str) -> bool:
    found = call.ints(name)
    return len(found) == 2 and min(found) >= 1


def _roi_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    return [TensorType(x.dtype, (call.operand(1).dims[0], x.dims[1], *call.ints("bins")))]


@dataclass(frozen=True)
class _Along:
    """Expressions for the sampling points along one spatial dim, in `low.dtype`.

    Attributes:
        positions: the pixels before and after the point, and their weights.
        exists: when the point is near enough to the image to be read.
        is_sampled: when there is such a point at all; None: always.
        count: how many points a bin has.
    """

    positions: tuple[tuple[e.Expr, e.Expr], tuple[e.Expr, e.Expr]]
    exists: list[e.Expr]
    is_sampled: e.Expr | None
    count: e.Expr


def _along(call: Call, d: int, box: e.Expr, bin_: e.Expr, point: e.Expr) -> _Along:
    """Spatial dim d (0 rows, 1 columns) at point `point` of bin `bin_` of box `box`."""
    x, boxes = call.operand(0), call.operand(1)
    extent, dtype = x.dims[2 + d], x.dtype.accumulator

    def number(value: float) -> e.Expr:
        return e.const(value, dtype)

    def counted(index: e.Expr) -> e.Expr:
        return e.cast(e.cast(index, DType.I32), dtype)

    def edge(column: int) -> e.Expr:
        given = e.cast(e.Load(1, (box, e.index(column)), boxes.dtype), dtype)
        scaled = e.mul(given, number(call.float("scale")))
        return e.sub(scaled, number(0.5)) if call.attrs["half_pixel"] else scaled

    low = edge(1 - d)
    size = e.sub(edge(3 - d), low)
    if not call.attrs["half_pixel"]:
        size = e.binary("max", size, number(1.0))
    step = e.binary("div", size, number(float(call.ints("bins")[d])))
    count = number(float(call.ints("points")[d]))
    is_sampled: e.Expr | None = None
    if call.attrs["is_adaptive"]:
        count = e.binary("max", e.binary("min", e.unary("ceil", step), count), number(0.0))
        is_sampled = e.binary("lt", counted(point), count)
    start = e.add(low, e.mul(counted(bin_), step))
    inner = e.binary("div", e.mul(e.add(counted(point), number(0.5)), step), count)
    at = e.add(start, inner)
    exists = [
        e.binary("ge", at, number(-1.0)),
        e.binary("le", at, counted(e.index(extent))),
        *([] if isinstance(extent, int) else [e.binary("lt", e.index(0), e.index(extent))]),
    ]
    last = e.index(dims.add(extent, -1))
    at = e.binary("min", e.binary("max", at, number(0.0)), counted(last))
    whole = e.unary("floor", at)
    before = e.cast(e.cast(whole, DType.I32), DType.INDEX)
    before = e.binary("max", e.binary("min", before, last), e.index(0))
    after = e.binary("min", e.add(before, e.index(1)), last)
    rest = e.sub(at, whole)
    positions = ((before, e.sub(number(1.0), rest)), (after, rest))
    return _Along(positions, exists, is_sampled, count)


def _roi_compute(call: Call) -> Sequence[Compute]:
    x, images = call.operand(0), call.operand(2)
    box, channel, row, column = indices = result_indices(4)
    t, u = e.Var("t"), e.Var("u")
    wide, is_max = x.dtype.accumulator, call.attrs["mode"] == "max"
    image = clamped_position(e.Load(2, (box,), images.dtype), x.dims[0])
    rows, columns = _along(call, 0, box, row, t), _along(call, 1, box, column, u)
    sampled = [s for s in (rows.is_sampled, columns.is_sampled) if s is not None]
    is_there = not_empty([x.dims[0], *x.dims[2:]])
    guards = [] if is_there is None else [is_there]
    guard = e.all_of([*guards, *sampled, *rows.exists, *columns.exists])
    total: e.Expr | None = None
    for y, weight_y in rows.positions:
        for z, weight_z in columns.positions:
            load = e.Load(0, (image, channel, y, z), x.dtype, guard, zero(x.dtype))
            term = e.mul(e.mul(weight_y, weight_z), e.cast(load, wide))
            total = term if total is None else e.binary("max" if is_max else "add", total, term)
    assert total is not None
    is_point = e.all_of(sampled)
    if is_point is not None:
        nothing = e.const(-float("inf") if is_max else 0.0, wide)
        total = e.select(is_point, total, nothing)
    axes = tuple(zip((t, u), call.ints("points"), strict=True))
    pooled: e.Expr = e.Reduce("max" if is_max else "sum", axes, total, wide)
    points = e.mul(rows.count, columns.count)
    if not is_max:
        pooled = e.binary("div", pooled, e.binary("max", points, e.const(1.0, wide)))
    elif is_point is not None:
        has_none = e.binary("lt", points, e.const(1.0, wide))
        pooled = e.select(has_none, e.const(0.0, wide), pooled)
    return [Compute(indices, e.cast(pooled, x.dtype))]


@dataclass(frozen=True)
class _Points:
    """The sampling points along one spatial dim of all boxes: arrays [boxes, bins, points], and
    counts [boxes]."""

    before: Array
    after: Array
    rest: Array
    exists: Array
    is_sampled: Array
    count: Array


def _points(call: Call, d: int, boxes: Array, extent: int) -> _Points:
    bins, points = call.ints("bins")[d], call.ints("points")[d]
    one = boxes.dtype.type
    edges = boxes * one(call.float("scale"))
    edges = edges - one(0.5) if call.attrs["half_pixel"] else edges
    low, size = edges[:, 1 - d], edges[:, 3 - d] - edges[:, 1 - d]
    size = size if call.attrs["half_pixel"] else np.maximum(size, one(1))
    step = size / one(bins)
    count = np.full_like(step, points)
    if call.attrs["is_adaptive"]:
        count = np.clip(np.ceil(step), 0, points)
    number = np.arange(points, dtype=boxes.dtype)
    with np.errstate(all="ignore"):
        inner = (number + one(0.5)) * step[:, None] / count[:, None]
    start = low[:, None] + np.arange(bins, dtype=boxes.dtype) * step[:, None]
    at = start[:, :, None] + inner[:, None, :]
    exists = (at >= -1) & (at <= extent)
    at = np.clip(np.where(np.isnan(at), 0, at), 0, extent - 1)
    before = np.floor(at).astype(np.int64)
    after = np.minimum(before + 1, extent - 1)
    is_sampled = np.broadcast_to(number < count[:, None, None], at.shape)
    return _Points(before, after, at - before, exists, is_sampled, count)


def _roi_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, boxes, images = inputs
    x = np.pad(x, [(0, d != 1 and n == 0) for d, n in enumerate(x.shape)])  # nothing counts as 0
    is_max = call.attrs["mode"] == "max"
    boxes = boxes.astype(call.operand(0).dtype.accumulator.numpy)
    rows, columns = (_points(call, d, boxes, x.shape[2 + d]) for d in range(2))
    image = clamp_array(images, x.shape[0]).reshape(-1, 1, 1, 1, 1)

    def spread(a: Array, b: Array) -> tuple[Array, Array]:
        """Broadcasts row and column factors to [boxes, rows, columns, row's points, column's
        points]."""
        return a[:, :, None, :, None], b[:, None, :, None, :]

    exists = np.logical_and(*spread(rows.exists, columns.exists))[..., None]
    sampled = np.logical_and(*spread(rows.is_sampled, columns.is_sampled))[..., None]
    last = np.moveaxis(x, 1, -1).astype(np.float64)
    terms = []
    for y, weight_y in ((rows.before, 1 - rows.rest), (rows.after, rows.rest)):
        for z, weight_z in ((columns.before, 1 - columns.rest), (columns.after, columns.rest)):
            weight = np.multiply(*spread(weight_y, weight_z))[..., None].astype(np.float64)
            terms.append(np.where(exists, last[(image, *spread(y, z))] * weight, 0.0))
    value = np.maximum.reduce(terms) if is_max else np.add.reduce(terms)
    value = np.where(sampled, value, -np.inf if is_max else 0.0)
    points = (rows.count * columns.count).astype(np.float64).reshape(-1, 1, 1, 1)
    if is_max:
        pooled = np.where(points < 1, 0.0, value.max(axis=(3, 4)))
    else:
        pooled = value.sum(axis=(3, 4)) / np.maximum(points, 1.0)
    return [np.ascontiguousarray(np.moveaxis(pooled, -1, 1)).astype(x.dtype)]


def _roi_sample(boxes: int, mode: str, **attrs: Any) -> Sample:
    types = (
        TensorType(F32, (2, 3, 6, 7)),
        TensorType(F32, (boxes, 4)),
        TensorType(I64, (boxes,)),
    )
    given = {"bins": (2, 3), "points": (2, 2), "mode": mode, "scale": 1.0, **attrs}
    return Sample(types, given, low=-2.0, high=9.0)


ROI_ALIGN = register(
    OpRecord(
        name="roi_align",
        summary="Each box of boxes [R, (x, y, x, y)], cut out of its image of x [N, C, H, W] and "
        "divided into bins: a bin is the mean of sampling points between pixels, or the "
        "largest contribution of any pixel to any point.",
        operands=(
            Operand("x", FLOATS),
            Operand("boxes", FLOATS),
            Operand("images", INTEGERS, clamps=True),
        ),
        attributes=(
            Attribute("bins", "ints", doc="rows and columns of the result"),
            Attribute("points", "ints", doc="of each bin, along rows and columns"),
            Attribute("is_adaptive", "bool", False, "a bin of fewer pixels has fewer points"),
            Attribute("mode", "str", "avg", "avg or max"),
            Attribute("scale", "float", 1.0, "pixels a unit of the boxes"),
            Attribute(
                "half_pixel",
                "bool",
                True,
                "pixels' centres are at halves; else boxes are a pixel wide at least",
            ),
        ),
        constraints=(
            Constraint(
                "x is [N, C, H, W] and not empty, boxes is [R, 4], images is [R]", _shapes_fit
            ),
            Constraint(
                "bins and points are two positive numbers each",
                lambda call: _are_two_positive(call, "bins") and _are_two_positive(call, "points"),
            ),
            Constraint("mode is avg or max", lambda call: call.attrs["mode"] in _MODES),
        ),
        infer=_roi_type,
        reference=_roi_reference,
        compute=_roi_compute,
        kind=Kind.REDUCTION,
        jumps=(1,),
        samples=(
            _roi_sample(4, "avg"),
            _roi_sample(3, "max", half_pixel=False, scale=0.5),
            _roi_sample(5, "avg", points=(4, 3), is_adaptive=True),
            _roi_sample(5, "max", points=(4, 3), is_adaptive=True, half_pixel=False),
            _roi_sample(1, "avg", bins=(1, 5), points=(1, 3), half_pixel=False),
        ),
    )
)
