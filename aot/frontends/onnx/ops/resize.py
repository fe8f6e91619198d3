"""ONNX's Resize and Upsample: per dim a table of taps, or a gather, or a repetition.

Interpolation is separable, so a resize is one `resample` a dim. Tables are constants where the
extents are known; else the program computes them, in f32, from the input's shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.record import Array
from aot.ir.types import DType

F32, I64 = DType.F32, DType.I64
_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "cubic": "cubic",
    "bilinear": "linear",
    "trilinear": "linear",
}
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# a denominator of which a scale is taken for the fraction meant
_MAX_DENOMINATOR = 64


@dataclass(frozen=True)
class _Options:
    mode: str = "nearest"
    coordinates: str = "asymmetric"
    rounding: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class _Axis:
    """One resized dim; `scale` is None where sizes of unknown extents are given."""

    number: int
    extent: Dim
    size: Dim
    scale: float | None
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def is_known(self) -> bool:
        return isinstance(self.extent, int) and isinstance(self.size, int)


def _coordinates(options: _Options, axis: _Axis, dtype: type = np.float64) -> Array:
    """Where each result element lies in the operand, in arithmetic of `dtype`."""
    assert isinstance(axis.extent, int) and isinstance(axis.size, int) and axis.scale is not None
    y: Array = np.arange(axis.size, dtype=dtype)
    scale, last = dtype(axis.scale), dtype(axis.extent - 1)
    width = scale * dtype(axis.extent)
    match options.coordinates:
        case "align_corners":
            return np.asarray(np.zeros_like(y) if width == 1 else y * last / (width - 1))
        case "asymmetric":
            return np.asarray(y / scale)
        case "tf_crop_and_resize":
            start, end = map(dtype, axis.roi)
            if width == 1:
                return np.asarray(np.full_like(y, (end - start) * last / 2) + start * last)
            return np.asarray(y * (end - start) * last / (width - 1) + start * last)
        case "pytorch_half_pixel" if width == 1:
            return np.full_like(y, -0.5)
        case "half_pixel_symmetric":
            offset = dtype(axis.extent / 2) * (1 - dtype(axis.size) / width)
            return np.asarray(offset + (y + dtype(0.5)) / scale - dtype(0.5))
    return np.asarray((y + dtype(0.5)) / scale - dtype(0.5))


def _nearest(options: _Options, axis: _Axis) -> Array:
    """The element that each result element is; in f32, where 1.5 / 0.6 is 2.5, as it is meant."""
    x = _coordinates(options, axis, np.float32)
    match options.rounding:
        case "floor":
            found = np.floor(x)
        case "ceil":
            found = np.ceil(x)
        case "round_prefer_ceil":
            found = np.floor(x + np.float32(0.5))
        case _:
            found = np.ceil(x - np.float32(0.5))
    return np.asarray(found, np.int64)


def _kernel(options: _Options, distance: Array) -> Array:
    """The weight of a tap at a distance, for a linear or cubic interpolation."""
    d, a = np.abs(distance), options.cubic_a
    if options.mode == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0)))


def _taps(options: _Options, axis: _Axis) -> tuple[Array, Array]:
    """Positions and weights [size, taps]; downscaling with antialias widens the kernel."""
    x = _coordinates(options, axis)
    assert axis.scale is not None and isinstance(axis.extent, int)
    radius = 1 if options.mode == "linear" else 2
    scale = min(axis.scale, 1.0) if options.antialias and axis.size else 1.0
    first = math.floor(-radius / scale) + 1
    left = np.ceil(x) - 1  # the pixel before x, or one left of it
    offsets = np.arange(first, 2 - first)
    positions = left[:, None] + offsets[None, :]
    weights = _kernel(options, (positions - x[:, None]) * scale)
    if options.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if options.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.extent), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = np.asarray(weights / np.where(total == 0, 1, total))
    is_used = np.any(weights != 0, axis=0)
    is_used[0] |= not is_used.any()
    positions, weights = positions[:, is_used], weights[:, is_used]
    return np.clip(positions, 0, axis.extent - 1).astype(np.int64), weights


def _repetition(options: _Options, axis: _Axis) -> int | None:
    """How often each element is repeated in turn, where that is all that is done."""
    if (
        options.mode != "nearest"
        or options.coordinates in ("align_corners", "tf_crop_and_resize")
        or axis.scale is None
    ):
        return None
    factor = round(axis.scale)
    if factor != axis.scale or factor < 1 or axis.size != dims.multiply(axis.extent, factor):
        return None
    known = axis if isinstance(axis.extent, int) else replace(axis, extent=7, size=7 * factor)
    found = _nearest(options, known)
    assert isinstance(known.extent, int)
    wanted = np.arange(known.extent * factor) // factor
    is_same = np.array_equal(np.clip(found, 0, known.extent - 1), wanted)
    return factor if is_same else None


def _repeated(node: Node, x: Value, factors: dict[int, int]) -> Value:
    """Elements repeated along several dims at once: one movement."""
    split: list[Dim] = []
    spread: list[Dim] = []
    for d, extent in enumerate(x.type.dims):
        split += [extent, 1] if d in factors else [extent]
        spread += [extent, factors[d]] if d in factors else [extent]
    wide = node.emit("broadcast_to", node.reshape(x, split), shape=tuple(spread))
    return node.reshape(
        wide, [dims.multiply(extent, factors.get(d, 1)) for d, extent in enumerate(x.type.dims)]
    )


class _Program:
    """Tables that the program computes, as their extents are not known."""

    def __init__(self, node: Node, options: _Options, axis: _Axis) -> None:
        self.node, self.options, self.axis = node, options, axis
        supported = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        if options.coordinates not in supported or options.antialias or options.exclude_outside:
            raise UnsupportedNodeError(
                f"{options.coordinates}, antialias or exclude_outside with extents that depend on "
                "the input's shape is not supported"
            )

    def op(self, name: str, *operands: Value | float) -> Value:
        return self.node.emit(
            name, *(o if isinstance(o, Value) else self.node.scalar(o, F32) for o in operands)
        )

    def number(self, extent: Dim) -> Value:
        return self.node.cast(self.node.emit("dim_values", dims=(extent,)), F32)

    def coordinates(self) -> Value:
        axis = self.axis
        y = self.node.cast(self.node.emit("range", size=axis.size), F32)
        if self.options.coordinates == "align_corners":
            last = self.number(dims.add(axis.extent, -1))
            steps = self.op("maximum", self.number(dims.add(axis.size, -1)), 1.0)
            return self.op("div", self.op("mul", y, last), steps)
        scale = (
            axis.scale
            if axis.scale is not None
            else self.op("div", self.number(axis.size), self.number(axis.extent))
        )
        if self.options.coordinates == "asymmetric":
            return self.op("div", y, scale)
        return self.op("sub", self.op("div", self.op("add", y, 0.5), scale), 0.5)

    def positions(self, x: Value) -> Value:
        """Positions of integral coordinates; what is beyond the end clamps where it is read."""
        return self.node.cast(self.op("maximum", x, 0.0), I64)

    def nearest(self) -> Value:
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
        x = self.node.reshape(self.coordinates(), (1, self.axis.size))
        offsets = (0, 1) if self.options.mode == "linear" else (-1, 0, 1, 2)
        at = self.op(
            "add",
            self.op("floor", x),
            self.node.constant(np.array(offsets, np.float32).reshape(-1, 1)),
        )
        d = self.op("abs", self.op("sub", at, x))
        return self.positions(at), self.weights(d)

    def weights(self, d: Value) -> Value:
        if self.options.mode == "linear":
            return self.op("sub", 1.0, d)
        a = self.options.cubic_a

        def horner(*coefficients: float) -> Value:
            total: Value | float = coefficients[0]
            for c in coefficients[1:]:
                total = self.op("add", self.op("mul", total, d), c)
            assert isinstance(total, Value)
            return total

        return self.op(
            "where",
            self.op("less_equal", d, 1.0),
            horner(a + 2, -(a + 3), 0.0, 1.0),
            horner(a, -5 * a, 8 * a, -4 * a),
        )


def _along(node: Node, x: Value, options: _Options, axis: _Axis) -> Value:
    """`x` resized along one dim."""
    if options.mode == "nearest":
        if axis.is_known:
            found = _nearest(options, axis)
            assert isinstance(axis.extent, int)
            chosen = node.constant(np.clip(found, 0, axis.extent - 1))
        else:
            chosen = _Program(node, options, axis).nearest()
        return node.emit("gather", x, chosen, axis=axis.number)
    if axis.is_known:
        positions, weights = _taps(options, axis)
        tables = (node.constant(positions.T), node.constant(weights.T.astype(x.type.dtype.numpy)))
    else:
        at, part = _Program(node, options, axis).taps()
        tables = (at, node.cast(part, x.type.dtype))
    return node.emit("resample", x, *tables, axis=axis.number)


def _extrapolated(node: Node, y: Value, options: _Options, axes: Sequence[_Axis]) -> Value:
    """`y` with the extrapolation value where a coordinate is outside."""
    for axis in axes:
        if not axis.is_known:
            raise UnsupportedNodeError(
                "tf_crop_and_resize with extents that depend on the input's shape is not supported"
            )
        assert isinstance(axis.extent, int)
        x = _coordinates(options, axis)
        is_outside = (x < 0) | (x > axis.extent - 1)
        if is_outside.any():
            mask = is_outside.reshape(-1, *[1] * (y.type.rank - 1 - axis.number))
            y = node.emit(
                "where", node.constant(mask), node.scalar(options.extrapolation, y.type.dtype), y
            )
    return y


def _resized(node: Node, options: _Options, axes: Sequence[_Axis]) -> Value:
    x = node.input(0)
    dtype = x.type.dtype
    if any(axis.extent == 0 and axis.size != 0 for axis in axes):
        raise node.error("x has no elements to resize")
    axes = [
        axis
        for axis in axes
        if axis.extent != axis.size
        or axis.scale != 1
        or (options.coordinates == "tf_crop_and_resize" and axis.roi != (0.0, 1.0))
    ]
    y = x if options.mode == "nearest" or dtype.is_float else node.cast(x, F32)
    for axis in axes:
        if isinstance(axis.size, int) and axis.scale is not None:
            # antialiasing widens the kernel of what shrinks
            widening = 1 / min(axis.scale, 1.0) if options.antialias and axis.scale > 0 else 1.0
            node.check_computed(
                int(axis.size * min(4 * widening, 1e9)), f"the table of dim {axis.number}"
            )
    factors = {
        axis.number: factor for axis in axes if (factor := _repetition(options, axis)) is not None
    }
    rest = [axis for axis in axes if axis.number not in factors]
    # what shrinks goes first, so that later dims have less to do
    for axis in sorted(rest, key=lambda a: a.scale if a.scale is not None else 1.0):
        y = _along(node, y, options, axis)
    if factors:
        y = _repeated(node, y, factors)
    if options.coordinates == "tf_crop_and_resize":
        y = _extrapolated(node, y, options, axes)
    return node.cast(y, dtype)


def _scaled_extent(extent: Dim, scale: float) -> Dim:
    """`floor(extent * scale)`."""
    if isinstance(extent, int):
        return math.floor(float(np.float32(extent) * np.float32(scale)))
    exact = Fraction(scale)
    if exact.denominator > _MAX_DENOMINATOR:
        raise UnsupportedNodeError(
            f"scale {scale} of an extent that depends on the input's shape is not supported"
        )
    return dims.floor_divide(dims.multiply(extent, exact.numerator), exact.denominator)


def _by_scales(
    node: Node,
    scales: Sequence[float],
    numbers: Sequence[int],
    roi: Sequence[tuple[float, float]] = (),
) -> list[_Axis]:
    x = node.input(0)
    if len(scales) != len(numbers):
        raise node.error(f"scales has {len(scales)} numbers, expected {len(numbers)}")
    if not all(s > 0 and math.isfinite(s) for s in scales):
        raise node.error(f"scales {list(scales)} are not positive")
    return [
        _Axis(d, x.type.dims[d], _scaled_extent(x.type.dims[d], scale), scale, *roi[i : i + 1])
        for i, (d, scale) in enumerate(zip(numbers, scales, strict=True))
    ]


def _by_sizes(
    node: Node,
    sizes: Sequence[Dim],
    numbers: Sequence[int],
    policy: str,
    roi: Sequence[tuple[float, float]],
) -> list[_Axis]:
    x = node.input(0)
    if len(sizes) != len(numbers):
        raise node.error(f"sizes has {len(sizes)} numbers, expected {len(numbers)}")
    if any(isinstance(n, int) and n < 0 for n in sizes):
        raise node.error(f"sizes {list(sizes)} are negative")
    axes = []
    for i, (d, size) in enumerate(zip(numbers, sizes, strict=True)):
        extent = x.type.dims[d]
        is_known = isinstance(extent, int) and isinstance(size, int) and extent > 0
        scale = 1.0 if extent == size else float(size) / float(extent) if is_known else None  # type: ignore[arg-type]
        axes.append(_Axis(d, extent, size, scale, *roi[i : i + 1]))
    if policy == "stretch":
        return axes
    if policy not in ("not_larger", "not_smaller"):
        raise node.error(
            f"attribute 'keep_aspect_ratio_policy' is {policy!r}, expected stretch, "
            "not_larger or not_smaller"
        )
    known = [axis.scale for axis in axes if axis.is_known and axis.scale is not None]
    if len(known) < len(axes):
        raise UnsupportedNodeError(
            f"keep_aspect_ratio_policy {policy} with extents that depend on "
            "the input's shape is not supported"
        )
    scale = min(known) if policy == "not_larger" else max(known)
    return [
        replace(axis, scale=scale, size=int(scale * axis.extent + 0.5))
        for axis in axes
        if isinstance(axis.extent, int)
    ]


def _numbers(node: Node, index: int, what: str) -> list[float]:
    """The elements of an operand of floats; none where it is absent or empty."""
    value = node.optional(index)
    if value is None:
        return []
    found = node.values.known(value)
    if found is None or found.dtype == object:
        raise UnsupportedNodeError(f"operand {index} ({what}) is not known at compile time")
    return [float(v) for v in found.reshape(-1)]


def _mode(node: Node) -> str:
    name = node.str_attr("mode", "nearest")
    if name not in _MODES:
        raise node.error(f"attribute 'mode' is {name!r}, expected nearest, linear or cubic")
    return _MODES[name]


@onnx_op("Upsample", since=7)
def upsample_by_attribute(node: Node) -> Value:
    scales = [float(s) for s in node.attribute("scales").floats]
    return _resized(
        node, _Options(_mode(node)), _by_scales(node, scales, range(node.input(0).type.rank))
    )


@onnx_op("Upsample", since=9)
@onnx_op("Resize", since=10)
def resize_by_scales(node: Node) -> Value:
    return _resized(
        node,
        _Options(_mode(node)),
        _by_scales(node, _numbers(node, 1, "scales"), range(node.input(0).type.rank)),
    )


@onnx_op("Resize", since=11)
def resize(node: Node) -> Value:
    x = node.input(0)
    rounding = node.str_attr("nearest_mode", "round_prefer_floor")
    coordinates = node.str_attr("coordinate_transformation_mode", "half_pixel")
    if rounding not in _ROUNDING:
        raise node.error(
            f"attribute 'nearest_mode' is {rounding!r}, expected one of {', '.join(_ROUNDING)}"
        )
    if coordinates == "tf_half_pixel_for_nn":  # opset 11 only
        raise UnsupportedNodeError("tf_half_pixel_for_nn is not supported")
    if coordinates not in _COORDINATES:
        raise node.error(
            f"attribute 'coordinate_transformation_mode' is {coordinates!r}, expected "
            f"one of {', '.join(_COORDINATES)}"
        )
    options = _Options(
        _mode(node),
        coordinates,
        rounding,
        node.float_attr("cubic_coeff_a", -0.75),
        bool(node.int_attr("exclude_outside", 0)),
        bool(node.int_attr("antialias", 0)),
        node.float_attr("extrapolation_value", 0.0),
    )
    if options.mode == "nearest" and options.antialias:
        raise node.error("antialias needs mode linear or cubic")
    numbers = [node.axis(a, x.type.rank) for a in node.ints_attr("axes", range(x.type.rank))]
    bounds = _numbers(node, 1, "roi") if coordinates == "tf_crop_and_resize" else []
    if coordinates == "tf_crop_and_resize" and len(bounds) != 2 * len(numbers):
        raise node.error(
            f"roi has {len(bounds)} numbers, expected two for each of {len(numbers)} axes"
        )
    roi = list(zip(bounds[: len(numbers)], bounds[len(numbers) :], strict=True))
    policy = node.str_attr("keep_aspect_ratio_policy", "stretch")
    scales = _numbers(node, 2, "scales")
    if scales:
        return _resized(node, options, _by_scales(node, scales, numbers, roi))
    return _resized(node, options, _by_sizes(node, node.dims(3, "sizes"), numbers, policy, roi))
