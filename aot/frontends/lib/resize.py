"""Interpolation along each dim: a table of taps, a gather, or a repetition.

Interpolation is separable, so a resize is one `resample` a dim. Tables are constants where the
extents are known; else the program computes them, in f32, from the input's shape. The names of
coordinates, roundings and policies are ONNX's, which has more of them than other formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction
from typing import Union

import numpy as np

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.frontends.lib.coordinates import (
    KnownLine,
    Line,
    Places,
    is_power_of_two,
    line_of,
    meant,
    nearest,
    open_line,
    rounded,
)
from aot.frontends.lib.place import Place
from aot.frontends.lib.scaled_extents import scaled_extent
from aot.ir import dims
from aot.ir.bounds import bounds_of
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import Array, DType

F32, I64 = DType.F32, DType.I64
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
# those that a run computes with extents of its own
RUN_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
)
Region = tuple[Union[float, Value], Union[float, Value]]  # values, f32[], where a run computes it
POLICIES = ("stretch", "not_larger", "not_smaller")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Options:
    """The options of a resize's interpolation.

    Attributes:
        mode: nearest, linear or cubic.
        coordinates: of COORDINATES: where an element of the result is in x.
        rounding: of ROUNDING: which element is the nearest.
        cubic_a: the coefficient of the cubic kernel.
        exclude_outside: taps outside of x weigh nothing, and the others more.
        antialias: the kernel widens with what shrinks.
        extrapolation: the value of elements outside of x, where coordinates are cropped.
    """

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    rounding: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Axis:
    """One resized dim. `scale` is exact; None if sizes with unknown extents are given. `ratio`,
    f32[], replaces it where it is computed at run time and is not the sizes' ratio. `roi` is the
    cropped part of the dim, from its first element's position to its last one's."""

    number: int
    extent: Dim
    size: Dim
    scale: Fraction | None
    roi: Region = (0.0, 1.0)
    ratio: Value | None = field(default=None, kw_only=True)

    @property
    def known(self) -> KnownAxis | None:
        """The dim with all values known; None if one is computed at run time."""
        (start, end), extent, size = self.roi, self.extent, self.size
        if not isinstance(extent, int) or not isinstance(size, int):
            return None
        if isinstance(start, Value) or isinstance(end, Value):
            return None
        if self.scale is None or self.ratio is not None:
            return None
        return KnownAxis(self.number, extent, size, self.scale, (start, end))


@dataclass(frozen=True)
class KnownAxis:
    """One resized dim whose values are all known at import; fields as in `Axis`."""

    number: int
    extent: int
    size: int
    scale: Fraction
    roi: tuple[float, float] = (0.0, 1.0)


def _line(options: Options, axis: KnownAxis) -> KnownLine:
    """The source coordinates of a dim's result elements."""
    start, end = map(Fraction, axis.roi)
    return line_of(options.coordinates, axis.extent, axis.size, axis.scale, (start, end))


def _nearest(options: Options, axis: KnownAxis) -> Array:
    """The position of the source element that each result element copies, for nearest-neighbour
    modes."""
    return nearest(_line(options, axis), options.rounding, axis.size)


def _kernel(options: Options, distance: Array) -> Array:
    """The weight of a tap at a distance, for a linear or cubic interpolation."""
    d, a = np.abs(distance), options.cubic_a
    if options.mode == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0)))


def _taps(options: Options, axis: KnownAxis) -> tuple[Array, Array]:
    """(positions, weights), each [size, taps]; downscaling with antialias widens the kernel."""
    places = Places.of(_line(options, axis), axis.size)
    radius = 1 if options.mode == "linear" else 2
    scale = min(axis.scale, Fraction(1)) if options.antialias and axis.size else Fraction(1)
    first = math.floor(-radius / scale) + 1
    left = places.ceilings - 1  # the pixel before x, or one left of it
    offsets = np.arange(first, 2 - first)
    positions = left[:, None] + offsets[None, :]
    distances = offsets[None, :] - places.beyond(left)[:, None]
    weights = _kernel(options, distances * float(scale))
    if options.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if options.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.extent), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = np.asarray(weights / np.where(total == 0, 1, total))
    is_used = np.any(weights != 0, axis=0)
    is_used[0] |= not is_used.any()
    positions, weights = positions[:, is_used], weights[:, is_used]
    return np.clip(positions, 0, axis.extent - 1), weights


def _repetition(options: Options, axis: Axis) -> int | None:
    """How often each element is repeated, if the resize is a plain repetition; else None."""
    if (
        options.mode != "nearest"
        or options.coordinates in ("align_corners", "tf_crop_and_resize")
        or axis.scale is None
    ):
        return None
    factor = round(axis.scale)
    if factor != axis.scale or factor < 1 or axis.size != dims.multiply(axis.extent, factor):
        return None
    known = axis.known or KnownAxis(axis.number, 7, 7 * factor, axis.scale)
    found = _nearest(options, known)
    wanted = np.arange(known.extent * factor) // factor
    is_same = np.array_equal(np.clip(found, 0, known.extent - 1), wanted)
    return factor if is_same else None


def _repeated(b: GraphBuilder, x: Value, factors: dict[int, int]) -> Value:
    """`x` with elements repeated along several dims, as one movement."""
    split: list[Dim] = []
    spread: list[Dim] = []
    for d, extent in enumerate(x.type.dims):
        split += [extent, 1] if d in factors else [extent]
        spread += [extent, factors[d]] if d in factors else [extent]
    wide = b.emit("broadcast_to", b.reshape(x, split), shape=tuple(spread))
    return b.reshape(
        wide, [dims.multiply(extent, factors.get(d, 1)) for d, extent in enumerate(x.type.dims)]
    )


class _Program:
    """Builds tables of taps that are computed at run time, as their extents are unknown at
    import."""

    def __init__(self, b: GraphBuilder, options: Options, axis: Axis) -> None:
        self.b, self.options, self.axis = b, options, axis
        if options.coordinates not in RUN_COORDINATES:
            raise UnsupportedNodeError(
                f"{options.coordinates} with extents that depend on the input's shape is not "
                "supported"
            )

    def op(self, name: str, *operands: Value | float) -> Value:
        return self.b.emit(
            name, *(o if isinstance(o, Value) else self.b.scalar(o, F32) for o in operands)
        )

    def number(self, extent: Dim) -> Value:
        return self.b.cast(self.b.emit("dim_values", dims=(extent,)), F32)

    def coordinates(self) -> Value:
        axis = self.axis
        y = self.b.cast(self.b.emit("range", size=axis.size), F32)
        if self.options.coordinates == "align_corners":
            last = self.number(dims.add(axis.extent, -1))
            steps = self.op("maximum", self.number(dims.add(axis.size, -1)), 1.0)
            return self.op("div", self.op("mul", y, last), steps)
        if self.options.coordinates == "tf_crop_and_resize":
            return self.cropped(y)
        scale = self.scale()
        if self.options.coordinates == "asymmetric":
            return self.op("div", y, scale)
        found = self.op("sub", self.op("div", self.op("add", y, 0.5), scale), 0.5)
        if self.options.coordinates == "half_pixel" or (
            isinstance(axis.size, int) and axis.size > 1
        ):
            return found
        return self.op("where", self.is_one(), 0.0, found)

    def is_one(self) -> Value:
        """Whether the result has a single element."""
        return self.op("equal", self.number(self.axis.size), 1.0)

    def cropped(self, y: Value) -> Value:
        """The coordinate within the cropped region of position y; its middle if there is a single
        element."""
        axis = self.axis
        start, end = axis.roi
        last, steps = (self.number(dims.add(n, -1)) for n in (axis.extent, axis.size))
        part = self.op("div", y, self.op("maximum", steps, 1.0))
        part = self.op("where", self.is_one(), 0.5, part)
        edges = self.op("mul", start, last), self.op("mul", self.op("sub", end, start), last)
        found = self.op("add", self.op("mul", part, edges[1]), edges[0])
        # what is far outside becomes a position all the same, before it is extrapolated
        limited = self.op("minimum", found, self.number(axis.extent))
        return self.op("maximum", limited, -1.0)

    def scale(self) -> Value | float:
        axis = self.axis
        if axis.ratio is not None:
            return axis.ratio
        if axis.scale is not None:
            return float(axis.scale)
        return self.op("div", self.number(axis.size), self.number(axis.extent))

    def positions(self, x: Value) -> Value:
        """Integral coordinates as positions; those past the end are clamped where they are read."""
        return self.b.cast(self.op("maximum", x, 0.0), I64)

    def nearest(self) -> Value:
        axis = self.axis
        line = None
        if axis.ratio is None:
            line = open_line(self.options.coordinates, axis.extent, axis.size, axis.scale)
        return self.nearest_in_floats() if line is None else self.nearest_in_integers(line)

    def nearest_in_integers(self, line: Line) -> Value:
        """The nearest source elements: rounded quotients of `line`, clamped at 0."""
        moved, is_floor = rounded(line, self.options.rounding)
        start = moved.start if is_floor else dims.add(moved.start, dims.add(moved.divisor, -1))
        y = self.b.emit("range", size=self.axis.size)
        above = self.b.emit(
            "add", self.b.emit("mul", y, self.whole(moved.slope)), self.whole(start)
        )
        above = self.b.emit("maximum", above, self.whole(0))
        # a dim of no elements has no quotient
        found = self.b.emit("div", above, self.whole(dims.maximum(moved.divisor, 1)))
        size = self.axis.size
        if self.options.coordinates != "pytorch_half_pixel" or (isinstance(size, int) and size > 1):
            return found
        is_one = self.b.emit("equal", self.whole(size), self.whole(1))
        return self.b.emit("where", is_one, self.whole(0), found)

    def whole(self, extent: Dim) -> Value:
        """An extent as an i64[1] value."""
        if isinstance(extent, int):
            return self.b.constant(np.array([extent], np.int64))
        return self.b.emit("dim_values", dims=(extent,))

    def nearest_in_floats(self) -> Value:
        x = self.coordinates()
        match self.options.rounding:
            case "floor":
                return self.positions(self.op("floor", x))
            case "ceil":
                return self.positions(self.op("ceil", x))
            case "round_prefer_ceil":
                return self.positions(self.op("floor", self.op("add", x, 0.5)))
        return self.positions(self.op("ceil", self.op("sub", x, 0.5)))

    def taps(self) -> tuple[Value, Value]:
        """(positions, weights), each [taps, size], as computed by `_taps`."""
        place = self.place()
        if self.options.antialias:
            at, weights = self.widened(place)
        else:
            offsets = (0, 1) if self.options.mode == "linear" else (-1, 0, 1, 2)
            table = self.b.constant(np.array(offsets, np.float32).reshape(-1, 1))
            at = self.op("add", place.floor(), table)
            weights = self.weights(place.distance(at))
        if self.options.exclude_outside:
            outside = self.op("less", at, 0.0)
            behind = self.op("less_equal", self.number(self.axis.extent), at)
            weights = self.op("where", self.op("or", outside, behind), 0.0, weights)
            weights = self.normalised(weights)
        return self.positions(at), weights

    def place(self) -> _Place:
        """The source coordinates of the result elements along the axis, [1, size]: integer
        quotients where float division would be inexact, or where they follow from the exact width.
        """
        axis, row = self.axis, (1, self.axis.size)
        line = None
        if axis.ratio is None and axis.scale is not None:
            follows = self.options.coordinates in ("align_corners", "half_pixel_symmetric")
            if follows or not is_power_of_two(axis.scale):
                line = open_line(self.options.coordinates, axis.extent, axis.size, axis.scale)
        if line is None:
            return _Place(self, self.b.reshape(self.coordinates(), row))
        # no coordinate is below -1, and quotients of what is not negative are floors
        divisor = self.whole(dims.maximum(line.divisor, 1))
        y = self.b.emit("range", size=axis.size)
        above = self.b.emit("mul", y, self.whole(line.slope))
        above = self.b.emit("add", above, self.whole(dims.add(line.start, line.divisor)))
        if self.options.coordinates == "pytorch_half_pixel":
            is_one = self.b.emit("equal", self.whole(axis.size), self.whole(1))
            above = self.b.emit("where", is_one, divisor, above)
        found = self.b.emit("div", above, divisor)
        rest = self.b.emit("sub", above, self.b.emit("mul", found, divisor))
        beyond = self.op("div", self.b.cast(rest, F32), self.b.cast(divisor, F32))
        floor = self.b.cast(self.b.emit("sub", found, self.whole(1)), F32)
        return _Place(self, self.b.reshape(floor, row), self.b.reshape(beyond, row))

    def widened(self, place: _Place) -> tuple[Value, Value]:
        """(positions, weights) with as many taps on both sides of x as the widened kernel has when
        shrinking."""
        axis, radius = self.axis, 1 if self.options.mode == "linear" else 2
        # ceil(radius / scale): a ratio whose size is rounded is above that of half an element less
        least, twice = dims.maximum(axis.size, 1), dims.multiply(axis.extent, 2 * radius)
        below = dims.add(dims.multiply(least, 2), -1 if axis.ratio is not None else 0)
        half = dims.floor_divide(dims.add(twice, dims.add(below, -1)), below)
        half = dims.maximum(half, radius)
        count = dims.multiply(half, 2)
        offsets = self.b.cast(self.b.emit("range", size=count), F32)
        offsets = self.op("sub", offsets, self.number(half))
        at = self.op("add", place.ceil(), self.b.reshape(offsets, (count, 1)))
        distance = place.distance(at)
        weights = self.weights(self.op("mul", distance, self.op("minimum", self.scale(), 1.0)))
        return at, self.normalised(weights)

    def normalised(self, weights: Value) -> Value:
        """Weights scaled to sum to 1 for each element, unless all are 0."""
        total = self.b.emit("reduce_sum", weights, axes=(0,), keepdims=True)
        return self.op("div", weights, self.op("where", self.op("equal", total, 0.0), 1.0, total))

    def weights(self, d: Value) -> Value:
        if self.options.mode == "linear":
            near = self.op("sub", 1.0, d)
            return self.op("maximum", near, 0.0) if self.options.antialias else near
        a = self.options.cubic_a

        def horner(*coefficients: float) -> Value:
            total: Value | float = coefficients[0]
            for c in coefficients[1:]:
                total = self.op("add", self.op("mul", total, d), c)
            assert isinstance(total, Value)
            return total

        far = horner(a, -5 * a, 8 * a, -4 * a)
        if self.options.antialias:
            far = self.op("where", self.op("less", d, 2.0), far, 0.0)
        near = horner(a + 2, -(a + 3), 0.0, 1.0)
        return self.op("where", self.op("less_equal", d, 1.0), near, far)


@dataclass(frozen=True)
class _Place:
    """Source coordinates that are computed at run time: floats, or an integer part and
    a fraction.
    """

    program: _Program
    x: Value
    beyond: Value | None = None

    def floor(self) -> Value:
        return self.program.op("floor", self.x) if self.beyond is None else self.x

    def ceil(self) -> Value:
        if self.beyond is None:
            return self.program.op("ceil", self.x)
        is_beyond = self.program.op("less", 0.0, self.beyond)
        return self.program.op("add", self.x, self.program.b.cast(is_beyond, F32))

    def distance(self, at: Value) -> Value:
        """The distances of positions from the coordinates."""
        apart = self.program.op("sub", at, self.x)
        if self.beyond is not None:
            apart = self.program.op("sub", apart, self.beyond)
        return self.program.op("abs", apart)


def _along(b: GraphBuilder, x: Value, options: Options, axis: Axis) -> Value:
    """`x` resized along one dim."""
    known = axis.known
    if options.mode == "nearest":
        if known is not None:
            found = _nearest(options, known)
            chosen = b.constant(np.clip(found, 0, known.extent - 1))
        else:
            chosen = _Program(b, options, axis).nearest()
        return b.emit("gather", x, chosen, axis=axis.number)
    if known is not None:
        positions, weights = _taps(options, known)
        tables = (b.constant(positions.T), b.constant(weights.T.astype(x.type.dtype.numpy)))
    else:
        at, part = _Program(b, options, axis).taps()
        tables = (at, b.cast(part, x.type.dtype))
    return b.emit("resample", x, *tables, axis=axis.number)


def _extrapolated(b: GraphBuilder, y: Value, options: Options, axes: Sequence[Axis]) -> Value:
    """`y` with the extrapolation value where a coordinate is out of range."""
    for axis in axes:
        outer, known = [1] * (y.type.rank - 1 - axis.number), axis.known
        if known is None:
            program = _Program(b, options, axis)
            found = program.coordinates()
            last = program.number(dims.add(axis.extent, -1))
            beyond = program.op("less", last, found)
            outside = program.op("or", program.op("less", found, 0.0), beyond)
            mask = b.reshape(outside, (axis.size, *outer))
            y = b.emit("where", mask, options.extrapolation, y)
            continue
        is_outside = Places.of(_line(options, known), known.size).are_outside(known.extent)
        if is_outside.any():
            mask = b.constant(is_outside.reshape(-1, *outer))
            y = b.emit("where", mask, options.extrapolation, y)
    return y


def resized(b: GraphBuilder, x: Value, options: Options, axes: Sequence[Axis]) -> Value:
    """`x` resized to other extents along `axes`."""
    dtype = x.type.dtype
    if any(axis.extent == 0 and axis.size != 0 for axis in axes):
        raise b.error("x has no elements to resize")
    axes = [
        axis
        for axis in axes
        if axis.extent != axis.size
        or axis.scale != 1
        or (options.coordinates == "tf_crop_and_resize" and axis.roi != (0.0, 1.0))
    ]
    y = x if options.mode == "nearest" or dtype.is_float else b.cast(x, F32)
    for axis in axes:
        if isinstance(axis.size, int) and axis.scale is not None:
            # antialiasing widens the kernel of what shrinks
            scale = min(float(axis.scale), 1.0)
            widening = 1 / scale if options.antialias and scale > 0 else 1.0
            b.check_computed(
                int(axis.size * min(4 * widening, 1e9)), f"the table of dim {axis.number}"
            )
    factors = {
        axis.number: factor for axis in axes if (factor := _repetition(options, axis)) is not None
    }
    rest = [axis for axis in axes if axis.number not in factors]
    for axis in sorted(rest, key=_order):
        y = _along(b, y, options, axis)
    if factors:
        y = _repeated(b, y, factors)
    if options.coordinates == "tf_crop_and_resize":
        y = _extrapolated(b, y, options, axes)
    return b.cast(y, dtype)


def _order(axis: Axis) -> tuple[float, int]:
    """A sort key for the order in which axes are resized: shrinking axes first, so that later ones
    have less to do; among growing axes the last one first, as it gathers single elements where it
    is innermost, and the others then read whole rows.
    """
    scale = float(axis.scale) if axis.scale is not None else 1.0
    return (scale, axis.number) if scale < 1.0 else (1.0, -axis.number)


def by_scales(
    b: Place,
    x: Value,
    scales: Sequence[float],
    numbers: Sequence[int],
    roi: Sequence[Region] = (),
) -> list[Axis]:
    """The dims `numbers` of x, each resized by its scale."""
    if len(scales) != len(numbers):
        raise b.error(f"scales has {len(scales)} numbers, expected {len(numbers)}")
    if not all(s > 0 and math.isfinite(s) for s in scales):
        raise b.error(f"scales {list(scales)} are not positive")
    return [
        Axis(
            d,
            x.type.dims[d],
            scaled_extent(x.type.dims[d], scale, F32, _most(b, x.type.dims[d])),
            meant(scale, F32),
            *roi[i : i + 1],
        )
        for i, (d, scale) in enumerate(zip(numbers, scales, strict=True))
    ]


def _most(b: Place, extent: Dim) -> int | None:
    """An upper bound of an extent from the bounds of the model's inputs; None if there is none."""
    return dims.bounds(extent, bounds_of(b.rewriter.function.assumptions))[1]


def by_sizes(
    b: GraphBuilder,
    x: Value,
    sizes: Sequence[Dim],
    numbers: Sequence[int],
    policy: str,
    roi: Sequence[Region],
) -> list[Axis]:
    """The dims `numbers` of x, each resized to its size, or to the nearest size that keeps
    proportions.
    """
    if len(sizes) != len(numbers):
        raise b.error(f"sizes has {len(sizes)} numbers, expected {len(numbers)}")
    if any(isinstance(n, int) and n < 0 for n in sizes):
        raise b.error(f"sizes {list(sizes)} are negative")
    axes = []
    for i, (d, size) in enumerate(zip(numbers, sizes, strict=True)):
        extent = x.type.dims[d]
        scale = Fraction(1) if extent == size else None
        if isinstance(extent, int) and isinstance(size, int) and extent > 0:
            scale = Fraction(size, extent)
        axes.append(Axis(d, extent, size, scale, *roi[i : i + 1]))
    if policy == "stretch":
        return axes
    known = [found for axis in axes if (found := axis.known) is not None]
    if len(known) < len(axes):
        raise UnsupportedNodeError(
            f"keep_aspect_ratio_policy {policy} with extents that depend on "
            "the input's shape is not supported"
        )
    scales = [axis.scale for axis in known]
    common = min(scales) if policy == "not_larger" else max(scales)
    return [
        Axis(k.number, k.extent, math.floor(common * k.extent + Fraction(1, 2)), common, k.roi)
        for k in known
    ]
