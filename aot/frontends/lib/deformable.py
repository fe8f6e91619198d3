"""Deformable convolutions: samples the taps' inputs with a grid, then multiplies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, static_extents
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value


@dataclass(frozen=True)
class Deformable:
    """A deformable convolution of two spatial dims.

    Attributes:
        group: groups of channels of the product.
        offset_groups: groups of channels that have offsets of their own.
        begins: pads before the first element of each spatial dim.
    """

    group: int
    offset_groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]


def deformable_convolution(
    b: GraphBuilder,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None,
    mask: Value | None,
    options: Deformable,
) -> Value:
    """A deformable convolution: taps sampled from x [N, C, H, W] at moved positions, multiplied
    with w [O, C / group, taps...].

    Args:
        offset: [N, offset groups * taps * 2, rows, columns]: what is added to the row and the
            column that a tap reads.
        mask: [N, offset groups * taps, rows, columns], factors of what is read; None are ones.
    """
    filters, per_group, *kernel = static_extents(w.type.dims, "a weight")
    groups, taps = options.offset_groups, math.prod(kernel)
    batch, channels = x.type.dims[0], static_extents(x.type.dims[1:2], "a channel count")[0]
    grid = _grid(b, x.type.dims[2:], offset, kernel, options)
    images = b.reshape(x, (dims.multiply(batch, groups), channels // groups, *x.type.dims[2:]))
    read = b.emit("grid_sample", images, grid, mode="linear", padding="zeros", align_corners=False)
    rows, columns = offset.type.dims[2:]
    if mask is not None:
        read = b.reshape(read, (read.type.dims[0], channels // groups, taps, rows, columns))
        read = b.emit("mul", read, b.reshape(mask, (read.type.dims[0], 1, taps, rows, columns)))
    flat = b.reshape(read, (batch, channels * taps, rows, columns))
    weight = b.reshape(w, (filters, per_group * taps, 1, 1))
    ones = (1, 1)
    return b.emit(
        "conv",
        flat,
        weight,
        bias,
        strides=ones,
        dilations=ones,
        pads=(0, 0, 0, 0),
        group=options.group,
    )


def _grid(
    b: GraphBuilder,
    extents: Sequence[Dim],
    offset: Value,
    kernel: Sequence[int],
    options: Deformable,
) -> Value:
    """The sampling grid [N * groups, taps * rows, columns, 2]: the positions that each window's
    taps read.

    Coordinates are those of grids without aligned corners, (2 p + 1) / extent - 1.
    """
    dtype, taps = offset.type.dtype, math.prod(kernel)
    batch, _, rows, columns = offset.type.dims
    pairs = (dims.multiply(batch, options.offset_groups), taps, 2, rows, columns)
    split = b.reshape(offset, pairs)
    parts = []
    for d, windows in ((1, columns), (0, rows)):
        extent = static_extents(extents[d : d + 1], "an extent")[0]
        moved = b.emit(
            "slice",
            split,
            starts=(0, 0, d, 0, 0),
            stops=(*split.type.dims[:2], d + 1, rows, columns),
            steps=(1,) * 5,
        )
        moved = b.reshape(moved, (*split.type.dims[:2], rows, columns))
        within = np.unravel_index(np.arange(taps), kernel)[d]
        tap = within * options.dilations[d] - options.begins[d]
        start = b.constant(tap.reshape(-1, 1, 1).astype(dtype.numpy))
        count = b.cast(b.emit("range", size=windows), dtype)
        count = b.emit(
            "mul",
            b.reshape(count, (windows, 1) if d == 0 else (windows,)),
            b.scalar(options.strides[d], dtype),
        )
        place = b.emit("add", moved, b.emit("add", start, count))
        scaled = b.emit("mul", place, b.scalar(2 / extent, dtype))
        scaled = b.emit("add", scaled, b.scalar(1 / extent - 1, dtype))
        parts.append(b.reshape(scaled, (*scaled.type.dims, 1)))
    grid = b.emit("concat", *parts, axis=4)
    return b.reshape(grid, (grid.type.dims[0], dims.multiply(taps, rows), columns, 2))
