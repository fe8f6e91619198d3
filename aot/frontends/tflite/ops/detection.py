"""TFLite's non-maximum suppression, alone and in TensorFlow's detection post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.tflite.ops.movement import part
from aot.frontends.tflite.table import Node, UnsupportedNodeError, custom_op, tflite_op
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I32, I64 = DType.F32, DType.I32, DType.I64


def _suppressed(
    n: Node, boxes: Value, scores: Value, most: Value, overlap: Value, least: Value, limit: int
) -> tuple[Value, Value]:
    """(indices of the chosen boxes [classes, limit], their number per class), from boxes [N, 4] and
    scores [classes, N]."""
    chosen, counts, *_ = n.emit_all(
        "non_max_suppression",
        n.reshape(boxes, (1, *boxes.type.dims)),
        n.reshape(scores, (1, *scores.type.dims)),
        most,
        overlap,
        least,
        limit=limit,
    )
    return n.reshape(chosen, chosen.type.dims[1:]), n.reshape(counts, counts.type.dims[1:])


def _filled(n: Node, x: Value, count: Value) -> Value:
    """x [limit, ...] with zeros from element `count`."""
    counter = n.cast(n.emit("range", size=x.type.dims[0]), count.type.dtype)
    is_one = n.reshape(n("less", counter, count), (x.type.dims[0], *[1] * (x.type.rank - 1)))
    return n.emit("where", is_one, x, n.scalar(0, x.type.dtype))


@tflite_op("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(n: Node) -> list[Value]:
    """(indices of the chosen boxes padded with zeros, their scores in version 5, their number)."""
    boxes, scores, (limit,) = n.real(0), n.real(1), n.ints(2)
    is_soft = n.op.endswith("5")
    if is_soft:
        sigma = n.known(5)
        if sigma is None or sigma.any():
            raise UnsupportedNodeError("soft suppression (soft_nms_sigma) is not supported")
    most = n.scalar(limit, I64)
    rows = n.reshape(scores, (1, *scores.type.dims))
    overlap, least = (n.reshape(n.real(i), ()) for i in (3, 4))
    chosen, counts = _suppressed(n, boxes, rows, most, overlap, least, limit)
    count = n.reshape(counts, ())
    at = _filled(n, n.reshape(chosen, (limit,)), count)
    results = [n.cast(at, I32)]
    if is_soft:
        results.append(_filled(n, n.emit("gather", scores, at, axis=0), count))
    return [*results, n.cast(count, I32)]


def _decoded(n: Node, options: Mapping[str, Any]) -> Value:
    """Boxes [N, 4] as corners, decoded from offsets to anchors."""
    codes = n.real(0)
    count = codes.type.dims[1]
    codes = part(n, codes, 2, 0, 4)
    y, x, h, w = (n.reshape(part(n, codes, 2, i, i + 1), (count,)) for i in range(4))
    anchors = n.real(2)
    at_y, at_x, at_h, at_w = (n.reshape(part(n, anchors, 1, i, i + 1), (count,)) for i in range(4))

    def scale(name: str) -> float:
        found = options.get(name)
        if not isinstance(found, (int, float)) or found == 0:
            raise n.error(f"option {name!r} is {found}")
        return 1.0 / found

    def side(code: Value, extent: Value, name: str) -> Value:
        return n("mul", n("mul", n("exp", n("mul", code, scale(name))), extent), 0.5)

    def centre(code: Value, extent: Value, place: Value, name: str) -> Value:
        return n("add", n("mul", n("mul", code, scale(name)), extent), place)

    half_h, half_w = side(h, at_h, "h_scale"), side(w, at_w, "w_scale")
    mid_y, mid_x = centre(y, at_h, at_y, "y_scale"), centre(x, at_w, at_x, "x_scale")
    corners = [n("sub", mid_y, half_h), n("sub", mid_x, half_w)]
    corners += [n("add", mid_y, half_h), n("add", mid_x, half_w)]
    return n.emit("concat", *(n.reshape(v, (count, 1)) for v in corners), axis=1)


@custom_op("TFLite_Detection_PostProcess")
def detection_post_process(n: Node) -> list[Value]:
    """(boxes [1, M, 4], classes [1, M], scores [1, M], number [1]) of the best detections in one
    image."""
    options = n.flexible_options()
    try:
        most, per_box = int(options["max_detections"]), int(options["max_classes_per_detection"])
        classes = int(options["num_classes"])
        least, overlap = (float(options[f"nms_{name}_threshold"]) for name in ("score", "iou"))
    except (KeyError, TypeError, ValueError) as error:
        raise n.error(f"option {error} is missing or wrong") from None
    boxes, scores = _decoded(n, options), n.real(1)
    _, count, columns = static_extents(scores.type.dims, "class predictions")
    if not 1 <= classes <= columns or most < 1 or n.input(0).type.dims[0] != 1:
        raise n.error(f"a box has {columns} scores, expected one for each of {classes} classes")
    scores = n.reshape(part(n, scores, 2, columns - classes, columns), (count, classes))
    limits = n.scalar(overlap, F32), n.scalar(least, F32)
    if options.get("use_regular_nms", False):
        each = min(int(options.get("detections_per_class", 100)), count)
        return _by_class(n, boxes, scores, limits, each, most)
    if per_box != 1:
        raise UnsupportedNodeError("several classes of a box (max_classes_per_detection)")
    best = n.emit("reduce_max", scores, axes=(1,), keepdims=False)
    kind = n.emit("arg_max", scores, axis=1, keepdims=False)
    limit = min(most, count)
    rows = n.reshape(best, (1, count))
    chosen, counts = _suppressed(n, boxes, rows, n.scalar(most, I64), *limits, limit)
    at, number = n.reshape(chosen, (limit,)), n.reshape(counts, ())
    taken = [n.emit("gather", v, at, axis=0) for v in (boxes, n.cast(kind, F32), best)]
    return _results(n, taken, number, most)


def _by_class(
    n: Node,
    boxes: Value,
    scores: Value,
    limits: tuple[Value, Value],
    each: int,
    most: int,
) -> list[Value]:
    """Non-maximum suppression class by class, then the best of all classes."""
    (classes,) = static_extents(scores.type.dims[1:], "class predictions")
    rows = n.emit("transpose", scores, perm=(1, 0))
    chosen, counts = _suppressed(n, boxes, rows, n.scalar(each, I64), *limits, each)
    found = n.emit("gather_elements", rows, chosen, axis=1)
    counter = n.cast(n.emit("range", size=each), counts.type.dtype)
    is_one = n.emit("less", n.reshape(counter, (1, each)), n.reshape(counts, (classes, 1)))
    lowest = n.scalar(float(np.finfo(np.float32).min), F32)
    flat = n.reshape(n.emit("where", is_one, found, lowest), (classes * each,))
    limit = min(most, classes * each)
    best, at = n.emit_all("top_k", flat, k=limit, axis=0)
    kind = n("div", at, n.scalar(each, at.type.dtype))
    places = n.emit("gather", n.reshape(chosen, (classes * each,)), at, axis=0)
    total = n.emit("reduce_sum", counts, axes=(0,), keepdims=False)
    number = n("minimum", total, n.scalar(limit, total.type.dtype))
    taken = [n.emit("gather", boxes, places, axis=0), n.cast(kind, F32), best]
    return _results(n, taken, number, most)


def _results(n: Node, taken: list[Value], number: Value, most: int) -> list[Value]:
    """The chosen boxes' values, padded with zeros to `most` rows."""
    made = []
    for value in taken:
        value = _filled(n, value, number)
        room = most - int(str(value.type.dims[0]))
        if room:
            shape = (room, *value.type.dims[1:])
            zeros = n.emit("broadcast_to", n.scalar(0.0, F32), shape=shape)
            value = n.emit("concat", value, zeros, axis=0)
        made.append(n.reshape(value, (1, *value.type.dims)))
    return [*made, n.reshape(n.cast(number, F32), (1,))]
