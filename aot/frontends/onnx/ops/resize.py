"""Imports ONNX's Resize and Upsample, whose versions differ in how scales and sizes are given."""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.extents import dim_value, extent_of
from aot.frontends.lib.resize import (
    COORDINATES,
    POLICIES,
    ROUNDING,
    RUN_COORDINATES,
    Axis,
    Options,
    Region,
    by_scales,
    by_sizes,
    resized,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "cubic": "cubic",
    "bilinear": "linear",
    "trilinear": "linear",
}


def _bounds(node: Node) -> list[float | Value]:
    """The elements of the region of interest; values where the model computes them."""
    roi = node.optional(1)
    return (
        []
        if roi is None
        else [
            _element(node, roi, at) if known is None else known
            for at, known in enumerate(_known_scales(node, roi))
        ]
    )


def _element(node: Node, vector: Value, at: int) -> Value:
    """An element of a vector of floats, f32[]."""
    one = node.emit("slice", vector, starts=(at,), stops=(at + 1,), steps=(1,))
    return node.cast(node.reshape(one, ()), DType.F32)


def _mode(node: Node) -> str:
    name = node.str_attr("mode", "nearest")
    if name not in _MODES:
        raise node.error(f"attribute 'mode' is {name!r}, expected nearest, linear or cubic")
    return _MODES[name]


@onnx_op("Upsample", since=7)
def upsample_by_attribute(node: Node) -> Value:
    x = node.input(0)
    scales = [float(s) for s in node.attribute("scales").floats]
    return resized(node, x, Options(_mode(node)), by_scales(node, x, scales, range(x.type.rank)))


@onnx_op("Upsample", since=9)
@onnx_op("Resize", since=10)
def resize_by_scales(node: Node) -> Value:
    x = node.input(0)
    options = Options(_mode(node))
    return resized(node, x, options, _scaled(node, x, options, 1, range(x.type.rank), ()))


@onnx_op("Resize", since=11)
def resize(node: Node) -> Value:
    x = node.input(0)
    rounding = node.str_attr("nearest_mode", "round_prefer_floor")
    coordinates = node.str_attr("coordinate_transformation_mode", "half_pixel")
    if rounding not in ROUNDING:
        raise node.error(
            f"attribute 'nearest_mode' is {rounding!r}, expected one of {', '.join(ROUNDING)}"
        )
    if coordinates == "tf_half_pixel_for_nn":  # opset 11 only
        raise UnsupportedNodeError("tf_half_pixel_for_nn is not supported")
    if coordinates not in COORDINATES:
        raise node.error(
            f"attribute 'coordinate_transformation_mode' is {coordinates!r}, expected "
            f"one of {', '.join(COORDINATES)}"
        )
    options = Options(
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
    bounds = _bounds(node) if coordinates == "tf_crop_and_resize" else []
    if coordinates == "tf_crop_and_resize" and len(bounds) != 2 * len(numbers):
        raise node.error(
            f"roi has {len(bounds)} numbers, expected two for each of {len(numbers)} axes"
        )
    roi = list(zip(bounds[: len(numbers)], bounds[len(numbers) :], strict=True))
    policy = node.str_attr("keep_aspect_ratio_policy", "stretch")
    scales = node.optional(2)
    if scales is not None and scales.type.element_count != 0:
        return resized(node, x, options, _scaled(node, x, options, 2, numbers, roi))
    sizes = node.extents(3, "sizes")
    if policy not in POLICIES:
        raise node.error(
            f"attribute 'keep_aspect_ratio_policy' is {policy!r}, expected stretch, "
            "not_larger or not_smaller"
        )
    extents = [x.type.dims[d] for d in numbers]
    is_known = all(isinstance(n, int) for n in (*sizes, *extents))
    if policy != "stretch" and not is_known and len(sizes) == len(numbers):
        return resized(node, x, options, _proportional(node, sizes, numbers, policy))
    return resized(node, x, options, by_sizes(node, x, sizes, numbers, policy, roi))


def _scaled(
    node: Node,
    x: Value,
    options: Options,
    index: int,
    numbers: Sequence[int],
    roi: Sequence[Region],
) -> list[Axis]:
    """The dims `numbers` of x, each scaled by its element of operand `index`; the scale may be
    computed at run time if the coordinates allow it."""
    operand = node.input(index)
    scales = _known_scales(node, operand)
    known = [s for s in scales if s is not None]
    if len(known) == len(scales):
        return by_scales(node, x, known, numbers, roi)
    if len(scales) != len(numbers):
        raise node.error(f"scales has {len(scales)} numbers, expected {len(numbers)}")
    if options.coordinates not in RUN_COORDINATES or roi:
        raise UnsupportedNodeError(f"operand {index} (scales) is not known at compile time")
    axes: list[Axis] = []
    for at, (d, scale) in enumerate(zip(numbers, scales, strict=True)):
        if scale is not None:
            axes += by_scales(node, x, [scale], [d])
            continue
        extent = x.type.dims[d]
        ratio = _element(node, operand, at)
        size = node.emit("floor", node.emit("mul", ratio, _as_f32(node, extent)))
        found = extent_of(node, node.cast(size, DType.I64), None, f"operand {index} (scales)")
        axes.append(Axis(d, extent, found, None, ratio=ratio))
    return axes


def _known_scales(node: Node, scales: Value) -> list[float | None]:
    """The elements of a vector of floats; None for elements that the model computes."""
    known = node.values.known(scales)
    if known is not None and known.dtype != object:
        return [float(v) for v in known.reshape(-1)]
    if scales.op is not None and scales.op.name == "concat":
        parts = [_known_scales(node, v) for v in scales.op.operands if v is not None]
        return [element for part in parts for element in part]
    count = scales.type.element_count
    if not isinstance(count, int):
        raise UnsupportedNodeError(f"{count} numbers do not say which dims they are of")
    return [None] * count


def _as_f32(node: Node, extent: Dim) -> Value:
    return node.cast(dim_value(node, extent), DType.F32)


def _proportional(
    node: Node, sizes: Sequence[Dim], numbers: Sequence[int], policy: str
) -> list[Axis]:
    """The dims `numbers` of x, resized to sizes that keep proportions, which are computed at run
    time."""
    extents = [node.input(0).type.dims[d] for d in numbers]
    ratios = [
        node.emit("div", _as_f32(node, size), _as_f32(node, extent))
        for size, extent in zip(sizes, extents, strict=True)
    ]
    ratio = ratios[0]
    for other in ratios[1:]:
        ratio = node.emit("minimum" if policy == "not_larger" else "maximum", ratio, other)
    axes = []
    for d, size, extent in zip(numbers, sizes, extents, strict=True):
        scaled = node.emit("mul", ratio, _as_f32(node, extent))
        rounded = node.emit("floor", node.emit("add", scaled, node.scalar(0.5, DType.F32)))
        most = size if policy == "not_larger" else None
        found = extent_of(node, node.cast(rounded, DType.I64), most, "operand 3 (sizes)")
        axes.append(Axis(d, extent, found, None, ratio=ratio))
    return axes
