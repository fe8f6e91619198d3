"""MediaPipe's operators that crop images around landmarks, version 2.

A matrix [1, 4, 4] maps places in a crop to places in an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.frontends.lib import functions
from aot.frontends.tflite.table import Node, UnsupportedNodeError, custom_op
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I64 = DType.F32, DType.I64


def _number(n: Node, options: Mapping[str, Any], name: str) -> float:
    value = options.get(name)
    if not isinstance(value, (int, float)):
        raise n.error(f"option {name!r} is missing")
    return value


def _column(n: Node, points: Value, number: int) -> Value:
    """Coordinate `number` of points [count, dims]."""
    count = points.type.dims[0]
    part = n.emit("slice", points, starts=(0, number), stops=(count, number + 1), steps=(1, 1))
    return n.reshape(part, (count,))


@custom_op("Landmarks2TransformMatrix")
def transform_matrix(n: Node) -> Value:
    """The affine matrix that crops the bounding box of some landmarks, rotated so that two given
    landmarks are horizontal in the crop.
    """
    options = n.flexible_options()
    if n.input(0).type.rank != 3:
        raise UnsupportedNodeError("the first version of this operator is not supported")
    points = n.reshape(n.real(0), n.input(0).type.dims[1:])
    chosen = options.get("subset_idxs")
    if not isinstance(chosen, list) or not chosen:
        raise n.error("option 'subset_idxs' is missing")
    ends = [int(_number(n, options, f"{side}_rotation_idx")) for side in ("left", "right")]
    count = points.type.dims[0]
    if any(not 0 <= int(i) < count for i in (*chosen, *ends) if isinstance(count, int)):
        raise n.error(f"an option names a landmark of {count}")

    def xy(numbers: list[int]) -> tuple[Value, Value]:
        taken = n.emit("gather", points, n.constant(np.array(numbers, np.int64)), axis=0)
        return _column(n, taken, 0), _column(n, taken, 1)

    (left_x, left_y), (right_x, right_y) = (xy([end]) for end in ends)
    angle = functions.atan2(n, n("sub", right_y, left_y), n("sub", right_x, left_x))
    turn = n("sub", n.scalar(_number(n, options, "target_rotation_radians"), F32), angle)
    cos, sin = n("cos", turn), n("sin", turn)
    x, y = xy([int(i) for i in chosen])
    along = n("sub", n("mul", x, cos), n("mul", y, sin))
    across = n("add", n("mul", x, sin), n("mul", y, cos))

    def box(v: Value) -> tuple[Value, Value]:
        """(middle, extent) of the range of coordinates v."""
        low, high = (n.emit(op, v, axes=(0,), keepdims=True) for op in ("reduce_min", "reduce_max"))
        return n("mul", n("add", low, high), 0.5), n("sub", high, low)

    (middle_x, width), (middle_y, height) = box(along), box(across)
    # turned back: the inverse has the sine of the other sign
    x0 = n("add", n("mul", middle_x, cos), n("mul", middle_y, sin))
    y0 = n("sub", n("mul", middle_y, cos), n("mul", middle_x, sin))
    columns, rows = _number(n, options, "output_width"), _number(n, options, "output_height")
    if min(columns, rows) < 1:
        raise n.error(f"the crop has extents {rows} and {columns}")
    scale_x = n("mul", width, _number(n, options, "scale_x") / columns)
    scale_y = n("mul", height, _number(n, options, "scale_y") / rows)
    a, b = n("mul", cos, scale_x), n("mul", sin, scale_y)
    c, d = n("neg", n("mul", sin, scale_x)), n("mul", cos, scale_y)

    def shifted(origin: Value, p: Value, q: Value) -> Value:
        return n("add", origin, n("add", n("mul", p, -columns / 2), n("mul", q, -rows / 2)))

    zero, one = n.constant(np.zeros(1, np.float32)), n.constant(np.ones(1, np.float32))
    items = [a, b, zero, shifted(x0, a, b), c, d, zero, shifted(y0, c, d)]
    items += [zero, zero, one, zero, zero, zero, zero, one]
    return n.reshape(n.emit("concat", *items, axis=0), (1, 4, 4))


def _matrix(n: Node, number: int) -> list[list[Value]]:
    """The first two rows of a matrix, as scalars."""
    flat = n.reshape(n.real(number), (16,))

    def item(place: int) -> Value:
        part = n.emit("slice", flat, starts=(place,), stops=(place + 1,), steps=(1,))
        return n.reshape(part, ())

    return [[item(4 * row + column) for column in range(4)] for row in range(2)]


def _mapped(n: Node, row: list[Value], x: Value, y: Value) -> Value:
    """A matrix row times (x, y, 0, 1)."""
    return n("add", n("add", n("mul", x, row[0]), n("mul", y, row[1])), row[3])


@custom_op("TransformLandmarks")
def transform_landmarks(n: Node) -> Value:
    """Landmarks [1, count, 2 or 3] after an affine transform; third coordinates are unchanged."""
    x = n.real(0)
    if x.type.rank != 3 or x.type.dims[2] not in (2, 3):
        raise UnsupportedNodeError("the first version of this operator is not supported")
    points = n.reshape(x, x.type.dims[1:])
    across, down = _column(n, points, 0), _column(n, points, 1)
    made = [_mapped(n, row, across, down) for row in _matrix(n, 1)]
    if x.type.dims[2] == 3:
        made.append(_column(n, points, 2))
    columns = [n.reshape(v, (1, *v.type.dims, 1)) for v in made]
    return n.emit("concat", *columns, axis=2)


@custom_op("TransformTensorBilinear")
def transform_tensor(n: Node) -> Value:
    """A crop of an image [1, H, W, C] by an affine transform; zeros outside the image."""
    options = n.flexible_options()
    x = n.real(0)
    size = [int(_number(n, options, f"output_{name}")) for name in ("height", "width")]
    height, width = x.type.dims[1:3]
    if x.type.rank != 4 or x.type.dims[0] != 1 or min(size) < 1:
        raise n.error(f"it cuts {size} out of {x.type}")
    if not isinstance(height, int) or not isinstance(width, int):
        raise UnsupportedNodeError("an image whose extents depend on the input's shape")
    # the matrix is for pixels' corners: half a pixel on before, half a pixel back after
    down = n.constant(np.arange(size[0], dtype=np.float32).reshape(-1, 1) + np.float32(0.5))
    across = n.constant(np.arange(size[1], dtype=np.float32).reshape(1, -1) + np.float32(0.5))
    places = [n("sub", _mapped(n, row, across, down), 0.5) for row in _matrix(n, 1)]
    column, row = (n("floor", place) for place in places)
    right, below = n("sub", places[0], column), n("sub", places[1], row)
    inside = n.emit("and", _is_inside(n, places[0], width), _is_inside(n, places[1], height))
    pixels = n.reshape(x, (height * width, x.type.dims[3]))

    def pixel(more_rows: int, more_columns: int) -> Value:
        """One of the four pixels around each sampling position; positions are clamped to the image,
        as pixels beyond the border have weight 0.
        """
        at_row = _clamped(n, n("add", row, float(more_rows)), height)
        at_column = _clamped(n, n("add", column, float(more_columns)), width)
        at = n("add", n("mul", at_row, float(width)), at_column)
        return n.emit("gather", pixels, n.cast(at, I64), axis=0)

    def between(a: Value, b: Value, weight: Value) -> Value:
        weight = n.reshape(weight, (*size, 1))
        return n("add", n("mul", a, n("sub", n.scalar(1.0, F32), weight)), n("mul", b, weight))

    upper, lower = (between(pixel(r, 0), pixel(r, 1), right) for r in range(2))
    found = between(upper, lower, below)
    made = n.emit("where", n.reshape(inside, (*size, 1)), found, n.scalar(0.0, F32))
    return n.reshape(made, (1, *made.type.dims))


def _is_inside(n: Node, place: Value, extent: int) -> Value:
    low = n.emit("less_equal", n.scalar(0.0, F32), place)
    return n.emit("and", low, n.emit("less_equal", place, n.scalar(float(extent - 1), F32)))


def _clamped(n: Node, place: Value, extent: int) -> Value:
    return n("minimum", n("maximum", place, 0.0), float(extent - 1))
