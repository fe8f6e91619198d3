"""Windows of convolutions and poolings: their padding, and poolings by smaller ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder
from aot.frontends.lib.normalization import powers, root
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ops.contraction import window_extent


@dataclass(frozen=True)
class Windows:
    """The windows of a pooling: one number per spatial dim; `pads` has two, all begins before all
    ends.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Dim, ...]


def same_pads(
    extents: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    is_upper: bool,
) -> tuple[Dim, ...]:
    """The padding, begins then ends, with which each dim has ceil(extent / stride) windows.

    Args:
        is_upper: of an odd number of padded elements, the end has one more and not the begin.
    """
    begins: list[Dim] = []
    ends: list[Dim] = []
    for extent, taps, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        windows = dims.floor_divide(dims.add(extent, stride - 1), stride)
        span = dims.add(dims.multiply(dims.add(taps, -1), dilation), 1)
        covered = dims.add(dims.multiply(dims.add(windows, -1), stride), span)
        total = dims.maximum(0, dims.add(covered, dims.multiply(extent, -1)))
        less = dims.floor_divide(total, 2)
        more = dims.add(total, dims.multiply(less, -1))
        begins.append(less if is_upper else more)
        ends.append(more if is_upper else less)
    return (*begins, *ends)


def with_room_for_last(windows: Windows, extents: Sequence[Dim]) -> Windows:
    """The windows with end padding increased so that a partial last window fits, for window counts
    that are rounded up."""
    spatial, pads = len(windows.kernel), list(windows.pads)
    for d, extent in enumerate(extents):
        stride, dilation = windows.strides[d], windows.dilations[d]
        span = (windows.kernel[d] - 1) * dilation + 1
        begin, end = pads[d], pads[spatial + d]
        count = window_extent(
            extent, windows.kernel[d], stride, dilation, begin, end, ceil_mode=True
        )
        covered = dims.add(dims.multiply(dims.add(count, -1), stride), span)
        room = dims.add(covered, dims.multiply(dims.add(extent, begin), -1))
        pads[spatial + d] = dims.maximum(end, room)
    return replace(windows, pads=tuple(pads))


def lp_pool(b: GraphBuilder, x: Value, windows: Windows, p: float) -> Value:
    """The p-norm of each window of x [N, C, spatial...]: from a mean that counts the padding, times
    the number of taps."""
    mean = b.emit(
        "average_pool",
        powers(b, x, p),
        kernel=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=windows.pads,
        count_include_pad=True,
    )
    taps = b.scalar(float(math.prod(windows.kernel)), x.type.dtype)
    return root(b, b.emit("mul", mean, taps), p)
