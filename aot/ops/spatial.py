"""Sampling of spatial dims: col2im, table-driven resampling, and grid sampling.

A transposed convolution is a matrix product and then `col2im`; resizing is `resample` along one
dim after the other with tables that the importer makes; no schedule knows of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    FLOATS,
    INTEGERS,
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
from aot.ops.contraction import inside, may_be_positions, sum_dtype
from aot.ops.elementwise import result_indices
from aot.ops.indexing import clamp_array, needs_of_i32, zero
from aot.ops.selection import clamped_position

F32, I64 = DType.F32, DType.I64


# col2im


def _spatial(call: Call) -> int:
    return (call.operand(0).rank - 2) // 2


def _col2im_attributes_fit(call: Call) -> bool:
    spatial = _spatial(call)
    return (
        len(call.dims("image"))
        == len(call.ints("strides"))
        == len(call.ints("dilations"))
        == len(call.dims("begins"))
        == spatial
        and min(call.ints("strides")) >= 1
        and min(call.ints("dilations")) >= 1
        and may_be_positions(call.dims("begins"))
    )


def _tap_position(
    call: Call, d: int, index: e.Expr
) -> tuple[tuple[e.Var, Dim], e.Expr, e.Expr, list[e.Expr]]:
    """For spatial dim d: a loop over taps, the tap, its window, and when they exist.

    A pixel at p = index + begin is tap k of window w where p = w * stride + k * dilation. With
    dilation 1 only the taps k = p mod stride, and every stride-th after it, are looked at.
    """
    x, spatial = call.operand(0), _spatial(call)
    taps, windows = x.dims[2 + d], x.dims[2 + spatial + d]
    stride, dilation = call.ints("strides")[d], call.ints("dilations")[d]
    position = e.add(index, e.index(call.dims("begins")[d]))
    t = e.Var(f"t{d}")
    if dilation == 1:
        tap = e.add(e.binary("floormod", position, e.index(stride)), e.mul(t, e.index(stride)))
        window = e.sub(e.binary("floordiv", position, e.index(stride)), t)
        is_tap = [] if dims.modulo(taps, stride) == 0 else [e.binary("lt", tap, e.index(taps))]
        return (t, dims.ceil_divide(taps, stride)), tap, window, is_tap + inside(window, windows)
    rest = e.sub(position, e.mul(t, e.index(dilation)))
    window = e.binary("floordiv", rest, e.index(stride))
    is_tap = (
        []
        if stride == 1
        else [e.binary("eq", e.binary("floormod", rest, e.index(stride)), e.index(0))]
    )
    return (t, taps), t, window, is_tap + inside(window, windows)


def _col2im_compute(call: Call) -> Sequence[Compute]:
    x, spatial = call.operand(0), _spatial(call)
    indices = result_indices(2 + spatial)
    axes, taps, windows, conditions = [], [], [], []
    for d in range(spatial):
        axis, tap, window, holds = _tap_position(call, d, indices[2 + d])
        axes.append(axis)
        taps.append(tap)
        windows.append(window)
        conditions += holds
    wide = x.dtype.accumulator
    load = e.Load(0, (*indices[:2], *taps, *windows), x.dtype, e.all_of(conditions), zero(x.dtype))
    total = e.Reduce("sum", tuple(axes), e.cast(load, wide), wide)
    return [Compute(indices, e.cast(total, x.dtype))]


def _col2im_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    spatial = _spatial(call)
    image = [int(n) for n in call.dims("image")]
    begins = [int(n) for n in call.dims("begins")]
    strides, dilations = call.ints("strides"), call.ints("dilations")
    taps, windows = x.shape[2 : 2 + spatial], x.shape[2 + spatial :]
    spans = [
        max(b + n, (w - 1) * s + (k - 1) * dil + 1)
        for b, n, w, s, k, dil in zip(begins, image, windows, strides, taps, dilations, strict=True)
    ]
    total = np.zeros((*x.shape[:2], *spans), sum_dtype(x.dtype))
    for tap in cartesian(*map(range, taps)):
        where: tuple[Any, ...] = tuple(
            slice(t * dil, t * dil + (w - 1) * s + 1, s)
            for t, dil, w, s in zip(tap, dilations, windows, strides, strict=True)
        )
        chosen: tuple[Any, ...] = (slice(None), slice(None), *tap)
        if 0 not in windows:
            total[(slice(None), slice(None), *where)] += x[chosen]
    cut = tuple(slice(b, b + n) for b, n in zip(begins, image, strict=True))
    return [np.ascontiguousarray(total[(slice(None), slice(None), *cut)]).astype(x.dtype)]


def _col2im_sample(
    x: tuple[int, ...],
    image: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    begins: tuple[int, ...],
    dtype: DType = F32,
) -> Sample:
    return Sample(
        (TensorType(dtype, x),),
        {"image": image, "strides": strides, "dilations": dilations, "begins": begins},
    )


COL2IM = register(
    OpRecord(
        name="col2im",
        summary="The sum of all windows' taps at each pixel: x [N, C, taps..., windows...] to "
        "[N, C, image...].",
        operands=(Operand("x", NUMBERS),),
        attributes=(
            Attribute("image", "dims", doc="spatial dims of the result"),
            Attribute("strides", "ints", doc="between windows"),
            Attribute("dilations", "ints", doc="between taps"),
            Attribute("begins", "dims", doc="pixels cut off at the begin of each dim"),
        ),
        constraints=(
            Constraint(
                "x is [N, C, taps..., windows...] of 1 to 3 spatial dims",
                lambda call: call.operand(0).rank in (4, 6, 8),
            ),
            Constraint(
                "image, strides, dilations and begins have one item a spatial dim; strides "
                "and dilations are positive, begins not negative",
                _col2im_attributes_fit,
            ),
        ),
        infer=lambda call: [
            TensorType(call.operand(0).dtype, (*call.operand(0).dims[:2], *call.dims("image")))
        ],
        reference=_col2im_reference,
        compute=_col2im_compute,
        kind=Kind.REDUCTION,
        samples=(
            _col2im_sample((1, 3, 3, 2, 4, 5), (9, 10), (2, 2), (1, 1), (0, 0)),
            _col2im_sample((2, 2, 4, 4, 3, 3), (6, 6), (2, 2), (1, 1), (1, 1)),
            _col2im_sample((1, 2, 3, 2, 4, 3), (8, 11), (1, 3), (2, 3), (1, 0)),
            _col2im_sample((2, 3, 5, 6), (21,), (4,), (1,), (2,)),
            _col2im_sample((1, 2, 2, 1, 2, 2, 3, 2), (4, 3, 4), (2, 1, 2), (1, 1, 1), (0, 0, 0)),
            _col2im_sample((1, 2, 2, 2, 3, 3), (4, 4), (1, 1), (1, 1), (0, 0), DType.I32),
        ),
    )
)


# resample


def _tables_fit(call: Call) -> bool:
    chosen, weights = call.operand(1), call.operand(2)
    return chosen.rank == weights.rank == 2 and all(
        call.equal(a, b, "resample: positions and weights have the same dims")
        for a, b in zip(chosen.dims, weights.dims, strict=True)
    )


def _resample_type(call: Call) -> Sequence[TensorType]:
    x, axis = call.operand(0), call.int("axis")
    return [TensorType(x.dtype, (*x.dims[:axis], call.operand(1).dims[1], *x.dims[axis + 1 :]))]


def _resample_compute(call: Call) -> Sequence[Compute]:
    x, chosen, axis = call.operand(0), call.operand(1), call.int("axis")
    indices = result_indices(x.rank)
    wide, t = x.dtype.accumulator, e.Var("t")
    position = clamped_position(e.Load(1, (t, indices[axis]), chosen.dtype), x.dims[axis])
    weight = e.cast(e.Load(2, (t, indices[axis]), x.dtype), wide)
    extent = x.dims[axis]
    guard = None if isinstance(extent, int) else e.binary("lt", e.index(0), e.index(extent))
    load = e.Load(
        0,
        (*indices[:axis], position, *indices[axis + 1 :]),
        x.dtype,
        guard,
        None if guard is None else zero(x.dtype),
    )
    total = e.Reduce("sum", ((t, chosen.dims[0]),), e.mul(e.cast(load, wide), weight), wide)
    return [Compute(indices, e.cast(total, x.dtype))]


def _resample_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, chosen, weights = inputs
    axis = call.int("axis")
    first = np.moveaxis(x.astype(np.float64), axis, 0)
    at = clamp_array(chosen, first.shape[0])
    total = np.zeros((chosen.shape[1], *first.shape[1:]))
    for t in range(chosen.shape[0]):
        weight = weights[t].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
        total += first[at[t]] * weight
    return [np.moveaxis(total, 0, axis).astype(x.dtype)]


def _resample_sample(x: tuple[int, ...], axis: int, count: int, taps: int) -> Sample:
    return Sample(
        (TensorType(F32, x), TensorType(I64, (taps, count)), TensorType(F32, (taps, count))),
        {"axis": axis},
        constant_operands=(1, 2),
    )


RESAMPLE = register(
    OpRecord(
        name="resample",
        summary="Weighted sums of elements along axis: element i is the sum over t of "
        "weights[t, i] times x's element positions[t, i].",
        operands=(
            Operand("x", FLOATS),
            Operand("positions", INTEGERS, clamps=True),
            Operand("weights", FLOATS, same_as="x"),
        ),
        attributes=(Attribute("axis", "int", doc="not negative"),),
        constraints=(
            Constraint(
                "axis is a dim of x, not negative, and not empty",
                lambda call: (
                    0 <= call.int("axis") < call.operand(0).rank
                    and call.operand(0).dims[call.int("axis")] != 0
                ),
            ),
            Constraint("positions and weights are [taps, result's extent]", _tables_fit),
        ),
        infer=_resample_type,
        reference=_resample_reference,
        compute=_resample_compute,
        kind=Kind.REDUCTION,
        propagate=layout_rules.along_axis,
        samples=(
            _resample_sample((2, 3, 5, 7), 2, 9, 2),
            _resample_sample((2, 3, 5, 7), 3, 4, 4),
            _resample_sample((3, 4), 0, 6, 1),
        ),
    )
)


# grid_sample

_MODES = ("nearest", "linear", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _grid_fits(call: Call) -> bool:
    x, grid = call.operand(0), call.operand(1)
    return (
        x.rank in (3, 4, 5)
        and grid.rank == x.rank
        and call.equal(grid.dims[-1], x.rank - 2, "grid_sample: a number a spatial dim")
        and call.equal(x.dims[0], grid.dims[0], "grid_sample: one grid an image")
    )


def _grid_type(call: Call) -> Sequence[TensorType]:
    x, grid = call.operand(0), call.operand(1)
    return [TensorType(x.dtype, (*x.dims[:2], *grid.dims[1:-1]))]


class _Coordinates:
    """Expressions for the coordinates along one spatial dim of a sampling grid, in `dtype`."""

    def __init__(self, call: Call, extent: Dim, dtype: DType) -> None:
        self.extent, self.dtype = extent, dtype
        self.align = bool(call.attrs["align_corners"])
        self.padding, self.mode = str(call.attrs["padding"]), str(call.attrs["mode"])
        self.size = e.cast(e.cast(e.index(extent), DType.I32), dtype)
        self.last = e.sub(self.size, self.number(1.0))
        self.low = self.number(0.0 if self.align else -0.5)
        self.span = self.last if self.align else self.size

    def number(self, value: float) -> e.Expr:
        return e.const(value, self.dtype)

    def unnormalised(self, g: e.Expr) -> e.Expr:
        """Converts [-1, 1] to pixels, relative to the corners' centres or the image's edges."""
        moved = e.add(g, self.number(1.0))
        if self.align:
            return e.mul(e.binary("div", moved, self.number(2.0)), self.last)
        return e.binary("div", e.sub(e.mul(moved, self.size), self.number(1.0)), self.number(2.0))

    def reflected(self, v: e.Expr) -> e.Expr:
        """v mirrored at both borders until it lies between them."""
        period = e.binary("max", e.mul(self.span, self.number(2.0)), self.number(1e-6))
        u = e.sub(v, self.low)
        turns = e.unary("floor", e.binary("div", u, period))
        phase = e.sub(u, e.mul(turns, period))
        mirrored = e.add(self.low, e.sub(self.span, e.unary("abs", e.sub(phase, self.span))))
        high = e.add(self.low, self.span)
        is_inside = e.binary("and", e.binary("ge", v, self.low), e.binary("le", v, high))
        return e.select(is_inside, v, mirrored)

    def bordered(self, v: e.Expr) -> e.Expr:
        """A coordinate after the padding mode was applied; cubic taps are clamped one by one."""
        if self.padding == "reflection":
            return self.reflected(v)
        if self.padding == "border" and self.mode != "cubic":
            return e.binary("min", e.binary("max", v, self.number(0.0)), self.last)
        return v

    def pixel(self, v: e.Expr) -> tuple[e.Expr, list[e.Expr]]:
        """(index, conditions under which the element exists) for an integral coordinate."""
        if self.padding == "reflection":
            v = e.unary("floor", e.add(self.reflected(v), self.number(0.5)))
        position = e.cast(e.cast(v, DType.I32), DType.INDEX)
        if self.padding == "zeros":
            return position, inside(position, self.extent)
        last = e.index(dims.add(self.extent, -1))
        clamped = e.binary("max", e.binary("min", position, last), e.index(0))
        unknown = (
            []
            if isinstance(self.extent, int)
            else [e.binary("lt", e.index(0), e.index(self.extent))]
        )
        return clamped, unknown


def _cubic_weight(distance: e.Expr, dtype: DType) -> e.Expr:
    """The weight of Keys' cubic kernel with a = -0.75, at a distance in [0, 2]."""
    a = -0.75

    def horner(*coefficients: float) -> e.Expr:
        total: e.Expr = e.const(coefficients[0], dtype)
        for c in coefficients[1:]:
            total = e.add(e.mul(total, distance), e.const(c, dtype))
        return total

    near = horner(a + 2, -(a + 3), 0.0, 1.0)
    far = horner(a, -5 * a, 8 * a, -4 * a)
    return e.select(e.binary("le", distance, e.const(1.0, dtype)), near, far)


def _grid_taps(
    call: Call, d: int, number: e.Expr
) -> list[tuple[e.Expr | None, e.Expr, list[e.Expr]]]:
    """For each tap along spatial dim d: (weight or None for 1, position, conditions that it
    exists)."""
    x, mode = call.operand(0), str(call.attrs["mode"])
    wide = number.dtype
    along = _Coordinates(call, x.dims[2 + d], wide)
    v = along.unnormalised(number)
    if mode == "nearest":
        return [(None, *along.pixel(e.unary("round", along.bordered(e.unary("round", v)))))]
    v = along.bordered(v)
    first = e.unary("floor", v)
    taps: list[tuple[e.Expr | None, e.Expr, list[e.Expr]]] = []
    for step in (-1, 0, 1, 2) if mode == "cubic" else (0, 1):
        at = first if step == 0 else e.add(first, e.const(float(step), wide))
        distance = e.unary("abs", e.sub(v, at))
        weight = (
            _cubic_weight(distance, wide)
            if mode == "cubic"
            else e.sub(e.const(1.0, wide), distance)
        )
        taps.append((weight, *along.pixel(at)))
    return taps


def _grid_compute(call: Call) -> Sequence[Compute]:
    """The `compute` of a grid sample. All taps are unrolled, as they share parts of the
    coordinates.
    """
    x, grid = call.operand(0), call.operand(1)
    spatial = x.rank - 2
    indices = result_indices(x.rank)
    wide = x.dtype.accumulator
    # a grid's numbers are in the order of the last dim first
    numbers = [
        e.Load(1, (indices[0], *indices[2:], e.index(spatial - 1 - d)), grid.dtype)
        for d in range(spatial)
    ]
    axes = [_grid_taps(call, d, e.cast(number, wide)) for d, number in enumerate(numbers)]
    total: e.Expr | None = None
    for taps in cartesian(*axes):
        guard = e.all_of(condition for _, _, holds in taps for condition in holds)
        term: e.Expr = e.cast(
            e.Load(
                0,
                (*indices[:2], *(position for _, position, _ in taps)),
                x.dtype,
                guard,
                None if guard is None else zero(x.dtype),
            ),
            wide,
        )
        for weight, _, _ in taps:
            term = term if weight is None else e.mul(term, weight)
        total = term if total is None else e.add(total, term)
    assert total is not None
    # a reduction in one step: each lane makes its own result
    return [Compute(indices, e.cast(e.Reduce("sum", ((e.Var("t"), 1),), total, wide), x.dtype))]


def _reflect(v: Array, low: float, span: float) -> Array:
    period = max(2 * span, 1e-6)
    phase = np.mod(v - low, period)
    return np.asarray(
        np.where((v >= low) & (v <= low + span), v, low + span - np.abs(phase - span))
    )


def _grid_axis(call: Call, g: Array, extent: int) -> list[tuple[Array, Array, Array]]:
    """For each tap: (weight, position, whether there is an element)."""
    mode, padding = str(call.attrs["mode"]), str(call.attrs["padding"])
    align = bool(call.attrs["align_corners"])
    one = g.dtype.type(1)
    v = (g + one) / 2 * (extent - 1) if align else ((g + one) * extent - one) / 2
    low, span = (0.0, extent - 1.0) if align else (-0.5, float(extent))
    v = np.rint(v) if mode == "nearest" else v
    v = v.astype(np.float64)
    if padding == "border" and mode != "cubic":
        v = np.clip(v, 0, extent - 1)
    elif padding == "reflection":
        v = _reflect(v, low, span)
    taps = []
    for t in {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]:
        at = np.rint(v) if mode == "nearest" else np.floor(v) + t
        distance = np.abs(v - at)
        if mode == "nearest":
            weight = np.ones_like(v)
        elif mode == "linear":
            weight = 1 - distance
        else:
            near = (1.25 * distance - 2.25) * distance**2 + 1
            far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
            weight = np.where(distance <= 1, near, far)
        if padding == "reflection":
            at = np.floor(_reflect(at, low, span) + 0.5)
        exists = (at >= 0) & (at < extent) if padding == "zeros" else np.ones(at.shape, bool)
        inside = np.nan_to_num(np.clip(at, 0, extent - 1))
        taps.append((weight, inside.astype(np.int64), exists))
    return taps


def _grid_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, grid = inputs
    spatial = x.ndim - 2
    coordinates = grid.astype(np.float32) if grid.dtype == np.float16 else grid
    axes = [
        _grid_axis(call, coordinates[..., spatial - 1 - d], x.shape[2 + d]) for d in range(spatial)
    ]
    images = np.arange(x.shape[0]).reshape(-1, *[1] * spatial)
    total = np.zeros((*grid.shape[:-1], x.shape[1]))
    last = np.moveaxis(x, 1, -1).astype(np.float64)
    for taps in cartesian(*axes):
        weight = np.prod([np.where(exists, w, 0.0) for w, _, exists in taps], axis=0)
        total += last[(images, *(at for _, at, _ in taps))] * weight[..., None]
    return [np.ascontiguousarray(np.moveaxis(total, -1, 1)).astype(x.dtype)]


def _grid_sample(
    x: tuple[int, ...], out: tuple[int, ...], mode: str, padding: str, align: bool
) -> Sample:
    return Sample(
        (TensorType(F32, x), TensorType(F32, (x[0], *out, len(x) - 2))),
        {"mode": mode, "padding": padding, "align_corners": align},
        low=-1.6,
        high=1.6,
    )


GRID_SAMPLE = register(
    OpRecord(
        name="grid_sample",
        summary="x [N, C, spatial...] at the coordinates of grid [N, out..., spatial dims], which "
        "run from -1 to 1, the last dim's first.",
        operands=(Operand("x", FLOATS), Operand("grid", FLOATS)),
        attributes=(
            Attribute("mode", "str", "linear", "nearest, linear or cubic"),
            Attribute("padding", "str", "zeros", "zeros, border or reflection"),
            Attribute(
                "align_corners",
                "bool",
                False,
                "-1 and 1 are the centres of the corner elements, not their edges",
            ),
        ),
        constraints=(
            Constraint(
                "x is [N, C, 1 to 3 spatial dims] and grid [N, out..., one number a spatial dim]",
                _grid_fits,
            ),
            Constraint(
                "mode is nearest, linear or cubic", lambda call: call.attrs["mode"] in _MODES
            ),
            Constraint(
                "padding is zeros, border or reflection",
                lambda call: call.attrs["padding"] in _PADDINGS,
            ),
        ),
        infer=_grid_type,
        needs=lambda call: needs_of_i32(call, call.operand(0).dims[2:]),
        reference=_grid_reference,
        compute=_grid_compute,
        kind=Kind.REDUCTION,
        jumps=(1,),
        samples=(
            *(
                _grid_sample((2, 3, 5, 7), (4, 6), mode, padding, align)
                for mode, padding, align in (
                    ("linear", "zeros", False),
                    ("linear", "border", True),
                    ("linear", "reflection", False),
                    ("nearest", "zeros", True),
                    ("nearest", "reflection", False),
                    ("cubic", "zeros", False),
                    ("cubic", "border", True),
                    ("cubic", "reflection", True),
                )
            ),
            _grid_sample((1, 2, 4, 3, 5), (2, 3, 4), "linear", "zeros", False),
            _grid_sample((2, 2, 6), (5,), "linear", "border", False),
        ),
    )
)
