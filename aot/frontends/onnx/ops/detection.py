"""ONNX's ops on boxes: NonMaxSuppression and RoiAlign."""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.lib.extents import dim_value, ragged
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType

MAX_POINTS = 1 << 12  # of a bin, along one dim; more is a box far larger than any image


def _adaptive_points(node: Node, scale: float, bins: tuple[int, int], least: float) -> list[int]:
    """The largest numbers of sampling points, along rows and columns, in a bin of any box: one per
    pixel."""
    boxes = node.values.known(node.input(1))
    if boxes is None or boxes.dtype == object:
        raise UnsupportedNodeError(
            "sampling_ratio 0 takes as many points as each box has pixels, which is known only "
            "when the model runs; a sampling_ratio above 0 is supported"
        )
    found = []
    for d in range(2):
        sizes = (boxes[:, 3 - d] - boxes[:, 1 - d]).astype(np.float64) * scale
        longest = max(float(sizes.max(initial=0.0)), least)
        points = max(1, math.ceil(longest / bins[d] * (1 + 1e-6)))
        if not points <= MAX_POINTS:
            raise node.error(f"a box is {longest} pixels long, expected at most {MAX_POINTS} a bin")
        found.append(points)
    return found


def _roi_align(node: Node, is_half_pixel: bool) -> Value:
    x, boxes, images = (node.input(i) for i in range(3))
    mode = node.str_attr("mode", "avg").lower()
    if mode not in ("avg", "max"):
        raise node.error(f"attribute 'mode' is {mode!r}, expected 'avg' or 'max'")
    bins = (node.int_attr("output_height", 1), node.int_attr("output_width", 1))
    ratio, scale = node.int_attr("sampling_ratio", 0), node.float_attr("spatial_scale", 1.0)
    if min(bins) < 1 or ratio < 0:
        raise node.error(
            f"output_height, output_width and sampling_ratio are {bins[0]}, {bins[1]} and {ratio}; "
            "expected positive ones, or sampling_ratio 0"
        )
    least = 0.0 if is_half_pixel else 1.0
    points = [ratio] * 2 if ratio else _adaptive_points(node, scale, bins, least)
    return node.emit(
        "roi_align",
        x,
        boxes,
        images,
        bins=bins,
        points=tuple(points),
        is_adaptive=ratio == 0,
        mode=mode,
        scale=scale,
        half_pixel=is_half_pixel,
    )


@onnx_op("RoiAlign", since=10)
def roi_align_by_edges(node: Node) -> Value:
    return _roi_align(node, is_half_pixel=False)


@onnx_op("RoiAlign", since=16)
def roi_align(node: Node) -> Value:
    kind = node.str_attr("coordinate_transformation_mode", "half_pixel")
    if kind not in ("half_pixel", "output_half_pixel"):
        raise node.error(
            f"attribute 'coordinate_transformation_mode' is {kind!r}, expected 'half_pixel' or "
            "'output_half_pixel'"
        )
    return _roi_align(node, is_half_pixel=kind == "half_pixel")


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(node: Node) -> Value:
    boxes, scores = node.input(0), node.input(1)
    is_centered = bool(node.int_attr("center_point_box", 0))
    if node.optional(2) is None:
        return node.constant(np.zeros((0, 3), np.int64))  # the most boxes of a class are 0
    if boxes.type.rank != 3 or scores.type.rank != 3:
        raise node.error(f"boxes are {boxes.type} and scores {scores.type}, expected 3 dims each")
    overlap, least = node.optional(3), node.optional(4)
    known = node.values.of(node.input(2))
    count = boxes.type.dims[1]
    limit = count if known is None else dims.minimum(known.reshape(-1)[0], count)
    if isinstance(limit, int) and limit < 0:
        raise node.error(f"operand 2 (max_output_boxes_per_class) is {limit}, expected 0 or more")
    chosen, counts, *_ = node.emit_all(
        "non_max_suppression",
        boxes,
        scores,
        # "all of them" is a number beyond the integers of a GPU
        node.reshape(node.input(2), ()) if known is None else dim_value(node, limit),
        node.scalar(0.0, DType.F32) if overlap is None else node.reshape(overlap, ()),
        None if least is None else node.reshape(least, ()),
        limit=limit,
        centered=is_centered,
    )
    images, classes = counts.type.dims
    rows = dims.multiply(images, classes)
    row, found = ragged(node, node.reshape(chosen, (rows, limit)), node.reshape(counts, (rows,)))
    extent = dim_value(node, classes)
    image = node.emit("div", row, extent)
    number = node.emit("sub", row, node.emit("mul", image, extent))
    columns = [node.reshape(part, (*part.type.dims, 1)) for part in (image, number, found)]
    return node.emit("concat", *columns, axis=1)
