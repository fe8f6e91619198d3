"""TFLite's resizing of channels-last images."""

from __future__ import annotations

from aot.frontends.lib.resize import Options, by_sizes, resized
from aot.frontends.tflite.ops.convolution import check_rank
from aot.frontends.tflite.table import Node, tflite_op
from aot.ir.graph import Value


def _coordinates(n: Node) -> str:
    if n.option("align_corners", False):
        return "align_corners"
    return "half_pixel" if n.option("half_pixel_centers", False) else "asymmetric"


def _resized(n: Node, x: Value, options: Options) -> Value:
    check_rank(n, 4, 0)
    sizes = n.dims_of(1)
    return resized(n, x, options, by_sizes(n, x, sizes, (1, 2), "stretch", ()))


@tflite_op("RESIZE_BILINEAR")
def resize_bilinear(n: Node) -> Value:
    return _resized(n, n.real(0), Options("linear", _coordinates(n)))


@tflite_op("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(n: Node) -> Value:
    coordinates = _coordinates(n)
    rounding = "floor" if coordinates == "asymmetric" else "round_prefer_ceil"
    return _resized(n, n.stored_like_output(0), Options("nearest", coordinates, rounding))
