"""ONNX's ops on windows and images beside Conv and the poolings: transposed ones, norms, grids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.onnx.ops.nn import per_spatial_dim, pool_windows
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ops.contraction import window_extent

# the most arithmetic, as a factor, that is worth a whole convolution in place of sums over taps
_WORTH_PHASES = 2.0


def _static(node: Node, extents: Sequence[Dim], what: str) -> tuple[int, ...]:
    found = tuple(n for n in extents if isinstance(n, int))
    if len(found) != len(extents):
        raise UnsupportedNodeError(f"{what} that depends on the input's shape is not supported")
    return found


def _transposed_extents(
    node: Node,
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[Dim], list[Dim]]:
    """Extents of a transposed convolution's image, and how much is cut off at its begins."""
    spatial = len(extents)
    extra = node.ints_attr("output_padding", (0,) * spatial) or (0,) * spatial
    if len(extra) != spatial:
        raise node.error(f"attribute 'output_padding' is {list(extra)}, expected {spatial} numbers")
    spans = [
        dims.add(dims.multiply(dims.add(n, -1), s), (k - 1) * d + 1 + more)
        for n, s, k, d, more in zip(extents, strides, kernel, dilations, extra, strict=True)
    ]
    mode = node.str_attr("auto_pad", "NOTSET") or "NOTSET"
    wanted: Sequence[Dim] = node.ints_attr("output_shape", ())[-spatial:]
    pads = node.ints_attr("pads", (0,) * 2 * spatial) or (0,) * 2 * spatial
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [dims.multiply(n, s) for n, s in zip(extents, strides, strict=True)]
    elif mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.error(
            f"attribute 'auto_pad' is {mode!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
        )
    if len(pads) != 2 * spatial or min(pads) < 0 or (wanted and len(wanted) != spatial):
        raise node.error(
            f"attributes 'pads' {list(pads)} and 'output_shape' {list(wanted)} do not "
            f"fit {spatial} spatial dims"
        )
    if wanted:
        totals = [
            dims.maximum(0, dims.add(span, dims.multiply(n, -1)))
            for span, n in zip(spans, wanted, strict=True)
        ]
        halves = [dims.floor_divide(total, 2) for total in totals]
        if mode == "SAME_UPPER":
            return list(wanted), halves
        return list(wanted), [
            dims.add(total, dims.multiply(half, -1))
            for total, half in zip(totals, halves, strict=True)
        ]
    if mode == "VALID":
        pads = (0,) * 2 * spatial
    image = [dims.add(span, -pads[d] - pads[spatial + d]) for d, span in enumerate(spans)]
    if any(isinstance(n, int) and n < 1 for n in image):
        raise node.error(f"pads {list(pads)} leave nothing of the result, which has dims {image}")
    return image, list(pads[:spatial])


@onnx_op("ConvTranspose")
def conv_transpose(node: Node) -> Value:
    """As a convolution of x without the zeros that the definition puts between its elements."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    spatial = x.type.rank - 2
    if spatial not in (1, 2, 3) or w.type.rank != x.type.rank:
        raise UnsupportedNodeError(f"a convolution of rank {x.type.rank} is not supported")
    group = node.int_attr("group", 1)
    kernel = _static(node, w.type.dims[2:], "a kernel")
    named = node.ints_attr("kernel_shape", ())
    if named and named != kernel:
        raise node.error(
            f"attribute 'kernel_shape' is {list(named)}, but the weight has dims "
            f"({', '.join(map(str, w.type.dims))})"
        )
    channels, _ = _static(node, w.type.dims[:2], "a weight")
    if group < 1 or channels % group:
        raise node.error(f"attribute 'group' is {group}, which does not divide {channels} channels")
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    image, begins = _transposed_extents(node, x.type.dims[2:], kernel, strides, dilations)
    if math.prod(dilations) == 1 and _padding_waste(kernel, strides) <= _WORTH_PHASES:
        y = _by_phases(node, w, group, strides, image, begins)
    else:
        y = _by_taps(node, w, group, strides, dilations, image, begins)
    if bias is None:
        return y
    return node.emit("add", y, node.reshape(bias, (*bias.type.dims, *[1] * spatial)))


def _padding_waste(kernel: Sequence[int], strides: Sequence[int]) -> float:
    """How much of a kernel there is once its extents are multiples of the strides."""
    return math.prod(-(-k // s) * s / k for k, s in zip(kernel, strides, strict=True))


def _by_phases(
    node: Node,
    w: Value,
    group: int,
    strides: Sequence[int],
    image: Sequence[Dim],
    begins: Sequence[Dim],
) -> Value:
    """A convolution of x that makes, for each x, all pixels of one stride; col2im lays them out.

    Pixel q * stride + r is the sum over t of x[q - t] * w[t * stride + r]: for each r a
    convolution of its own, with every stride-th tap, in reverse.
    """
    x = node.input(0)
    spatial = len(strides)
    channels, filters, *kernel = _static(node, w.type.dims, "a weight")
    rounds = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    more = [t * s - k for t, s, k in zip(rounds, strides, kernel, strict=True)]
    if any(more):
        w = node.emit("pad", w, pads=(*[0] * (w.type.rank + 2), *more), mode="constant", value=0.0)
    pairs = [n for pair in zip(rounds, strides, strict=True) for n in pair]
    w = node.reshape(w, (group, channels // group, filters, *pairs))
    taps, phases = range(3, 3 + 2 * spatial, 2), range(4, 4 + 2 * spatial, 2)
    if any(t > 1 for t in rounds):
        w = node.emit(
            "slice",
            w,
            starts=tuple(n - 1 if d in taps else 0 for d, n in enumerate(w.type.shape)),
            stops=tuple(-1 if d in taps else n for d, n in enumerate(w.type.shape)),
            steps=tuple(-1 if d in taps else 1 for d in range(w.type.rank)),
        )
    w = node.emit("transpose", w, perm=(0, 2, *phases, 1, *taps))
    w = node.reshape(w, (group * filters * math.prod(strides), channels // group, *rounds))
    borders = tuple(t - 1 for t in rounds)
    ones = (1,) * spatial
    if math.prod(strides) == 1 and all(
        isinstance(b, int) and b < t for b, t in zip(begins, rounds, strict=True)
    ):
        pads = [t - 1 - b for t, b in zip(rounds, begins, strict=True) if isinstance(b, int)]
        ends = [
            dims.add(n, t - 1 - m - p)
            for n, t, m, p in zip(image, rounds, x.type.dims[2:], pads, strict=True)
        ]
        if all(isinstance(n, int) and n >= 0 for n in ends):
            return node.emit(
                "conv", x, w, None, strides=ones, dilations=ones, pads=(*pads, *ends), group=group
            )
    made = node.emit(
        "conv", x, w, None, strides=ones, dilations=ones, pads=(*borders, *borders), group=group
    )
    split = node.reshape(made, (x.type.dims[0], group * filters, *strides, *made.type.dims[2:]))
    return node.emit(
        "col2im",
        split,
        image=tuple(image),
        strides=tuple(strides),
        dilations=ones,
        begins=tuple(begins),
    )


def _by_taps(
    node: Node,
    w: Value,
    group: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    image: Sequence[Dim],
    begins: Sequence[Dim],
) -> Value:
    """One product over channels for each tap; col2im adds up the taps of a pixel."""
    x = node.input(0)
    spatial = len(strides)
    channels, filters, *kernel = _static(node, w.type.dims, "a weight")
    taps = math.prod(kernel)
    # [C, O/g, taps...] to [g * O/g * taps, C/g, 1...]
    grouped = node.reshape(w, (group, channels // group, filters * taps))
    moved = node.emit("transpose", grouped, perm=(0, 2, 1))
    weight = node.reshape(moved, (group * filters * taps, channels // group, *[1] * spatial))
    ones = (1,) * spatial
    columns = node.emit(
        "conv", x, weight, None, strides=ones, dilations=ones, pads=(0,) * 2 * spatial, group=group
    )
    split = node.reshape(columns, (x.type.dims[0], group * filters, *kernel, *x.type.dims[2:]))
    return node.emit(
        "col2im",
        split,
        image=tuple(image),
        strides=tuple(strides),
        dilations=tuple(dilations),
        begins=tuple(begins),
    )


@onnx_op("Col2Im", since=18)
def col2im(node: Node) -> Value:
    x, image = node.input(0), node.dims(1, "image_shape")
    kernel = node.ints(2, "block_shape")
    spatial = len(kernel)
    if x.type.rank != 3 or len(image) != spatial or spatial not in (1, 2, 3):
        raise node.error(
            f"x has rank {x.type.rank}, image_shape {len(image)} and block_shape "
            f"{spatial} numbers; expected rank 3, and one to three numbers each"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    dilations = per_spatial_dim(node, "dilations", spatial)
    pads = node.ints_attr("pads", (0,) * 2 * spatial)
    if len(pads) != 2 * spatial or min((*kernel, *strides, *dilations), default=1) < 1:
        raise node.error(
            f"pads are {list(pads)}, block_shape {list(kernel)}, strides "
            f"{list(strides)} and dilations {list(dilations)}; expected two pads a "
            "dim, and the others at least 1"
        )
    windows = [
        window_extent(image[d], kernel[d], strides[d], dilations[d], pads[d], pads[spatial + d])
        for d in range(spatial)
    ]
    channels = dims.floor_divide(x.type.dims[1], dims.product(kernel))
    split = node.reshape(x, (x.type.dims[0], channels, *kernel, *windows))
    return node.emit(
        "col2im",
        split,
        image=tuple(image),
        strides=strides,
        dilations=dilations,
        begins=tuple(pads[:spatial]),
    )


@onnx_op("MaxUnpool", since=9)
def max_unpool(node: Node) -> Value:
    x, places = node.input(0), node.input(1)
    kernel = node.ints_attr("kernel_shape")
    spatial = x.type.rank - 2
    if len(kernel) != spatial:
        raise node.error(
            f"attribute 'kernel_shape' is {list(kernel)}, but x has rank {x.type.rank}"
        )
    strides = per_spatial_dim(node, "strides", spatial)
    pads = node.ints_attr("pads", (0,) * 2 * spatial)
    inner = [
        dims.add(
            dims.multiply(dims.add(n, -1), strides[d]), kernel[d] - pads[d] - pads[spatial + d]
        )
        for d, n in enumerate(x.type.dims[2:])
    ]
    planes, size = dims.product(x.type.dims[:2]), dims.product(inner)
    count = dims.product(x.type.dims[2:])
    # places count over the whole tensor; each plane is a line of its own
    flat = node.reshape(places, (planes, count))
    extent = node.reshape(node.emit("dim_values", dims=(size,)), ())
    within = node.emit("sub", flat, node.emit("mul", node.emit("div", flat, extent), extent))
    nothing = node.emit(
        "fill", shape=(planes, size), value=ConstantData(np.zeros((), x.type.dtype.numpy))
    )
    filled = node.emit(
        "scatter_elements", nothing, within, node.reshape(x, (planes, count)), axis=1
    )
    y = node.reshape(filled, (*x.type.dims[:2], *inner))
    if node.optional(2) is None:
        return y
    wanted = node.dims(2, "output_shape")
    if len(wanted) != y.type.rank:
        raise node.error(f"output_shape has {len(wanted)} numbers, expected {y.type.rank}")
    ends = [
        dims.add(n, dims.multiply(have, -1)) for n, have in zip(wanted, y.type.dims, strict=True)
    ]
    if any(isinstance(n, int) and n < 0 for n in ends):
        raise node.error(f"output_shape {list(wanted)} is smaller than {list(y.type.dims)}")
    return node.emit("pad", y, pads=(*[0] * x.type.rank, *ends), mode="constant", value=0.0)


@onnx_op("LRN")
def local_response_normalization(node: Node) -> Value:
    x, size = node.input(0), node.int_attr("size")
    if x.type.rank < 2 or size < 1:
        raise node.error(f"x has rank {x.type.rank} and size is {size}, expected at least 2 and 1")
    n, channels, *rest = x.type.dims
    pixels = dims.product(rest)
    squares = node.reshape(node.emit("mul", x, x), (n, 1, channels, pixels))
    before = (size - 1) // 2
    # a mean of `size` elements, zeros outside included
    mean = node.emit(
        "average_pool",
        squares,
        kernel=(size, 1),
        strides=(1, 1),
        dilations=(1, 1),
        pads=(before, 0, size - 1 - before, 0),
        count_include_pad=True,
    )
    dtype = x.type.dtype
    scaled = node.emit(
        "mul", node.reshape(mean, x.type.dims), node.scalar(node.float_attr("alpha", 1e-4), dtype)
    )
    base = node.emit("add", scaled, node.scalar(node.float_attr("bias", 1.0), dtype))
    power = node.emit("pow", base, node.scalar(node.float_attr("beta", 0.75), dtype))
    return node.emit("div", x, power)


def _powers(node: Node, x: Value, p: float) -> Value:
    """|x| to the p."""
    if p <= 0:
        raise node.error(f"attribute 'p' is {p}, expected more than 0")
    if p == 2:
        return node.emit("mul", x, x)
    size = node.emit("abs", x)
    return size if p == 1 else node.emit("pow", size, node.scalar(p, x.type.dtype))


def _root(node: Node, x: Value, p: float) -> Value:
    if p == 2:
        return node.emit("sqrt", x)
    return x if p == 1 else node.emit("pow", x, node.scalar(1 / p, x.type.dtype))


@onnx_op("LpNormalization")
def lp_normalization(node: Node) -> Value:
    x, p = node.input(0), node.int_attr("p", 2)
    axis = node.axis_attr(x.type.rank, -1)
    total = node.emit("reduce_sum", _powers(node, x, p), axes=(axis,), keepdims=True)
    norm = _root(node, total, p)
    is_zero = node.emit("equal", norm, node.scalar(0, x.type.dtype))
    return node.emit("div", x, node.emit("where", is_zero, node.scalar(1, x.type.dtype), norm))


@onnx_op("GlobalLpPool", since=2)
def global_lp_pool(node: Node) -> Value:
    x, p = node.input(0), node.int_attr("p", 2)
    total = node.emit(
        "reduce_sum", _powers(node, x, p), axes=tuple(range(2, x.type.rank)), keepdims=True
    )
    return _root(node, total, p)


@onnx_op("LpPool", since=2)
def lp_pool(node: Node) -> Value:
    """A mean that counts the padding, times the number of taps."""
    x, p = node.input(0), node.int_attr("p", 2)
    windows = pool_windows(node)
    kernel, strides, dilations = windows.kernel, windows.strides, windows.dilations
    spatial, pads = len(kernel), list(windows.pads)
    if node.int_attr("ceil_mode", 0):
        for d in range(spatial):
            # a last window that runs over the end has room in more padding
            extent, span = x.type.dims[2 + d], (kernel[d] - 1) * dilations[d] + 1
            count = window_extent(
                extent,
                kernel[d],
                strides[d],
                dilations[d],
                pads[d],
                pads[spatial + d],
                ceil_mode=True,
            )
            covered = dims.add(dims.multiply(dims.add(count, -1), strides[d]), span)
            room = dims.add(covered, dims.multiply(dims.add(extent, pads[d]), -1))
            pads[spatial + d] = dims.maximum(pads[spatial + d], room)
    mean = node.emit(
        "average_pool",
        _powers(node, x, p),
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=tuple(pads),
        count_include_pad=True,
    )
    taps = node.scalar(float(np.prod(kernel)), x.type.dtype)
    return _root(node, node.emit("mul", mean, taps), p)


_GRID_MODES = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "linear": "linear",
    "cubic": "cubic",
    "nearest": "nearest",
}


@onnx_op("GridSample", since=16)
def grid_sample(node: Node) -> Value:
    mode = node.str_attr("mode", "linear")
    if mode not in _GRID_MODES:
        raise node.error(f"attribute 'mode' is {mode!r}, expected nearest, linear or cubic")
    return node.emit(
        "grid_sample",
        node.input(0),
        node.input(1),
        mode=_GRID_MODES[mode],
        padding=node.str_attr("padding_mode", "zeros"),
        align_corners=bool(node.int_attr("align_corners", 0)),
    )


def _deformed_grid(
    node: Node,
    offset: Value,
    groups: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
) -> Value:
    """Where each tap of each window reads, as a grid [N * groups, taps * rows, columns, 2].

    Coordinates are those of grids without aligned corners, (2 p + 1) / extent - 1.
    """
    x = node.input(0)
    if x.type.rank != 4 or offset.type.rank != 4:
        raise node.error(f"x has rank {x.type.rank} and offset {offset.type.rank}, expected 4")
    dtype, taps = offset.type.dtype, math.prod(kernel)
    batch, _, rows, columns = offset.type.dims
    split = node.reshape(offset, (dims.multiply(batch, groups), taps, 2, rows, columns))
    parts = []
    for d, windows in ((1, columns), (0, rows)):
        extent = _static(node, x.type.dims[2 + d : 3 + d], "an extent")[0]
        moved = node.emit(
            "slice",
            split,
            starts=(0, 0, d, 0, 0),
            stops=(*split.type.dims[:2], d + 1, rows, columns),
            steps=(1,) * 5,
        )
        moved = node.reshape(moved, (*split.type.dims[:2], rows, columns))
        tap = np.unravel_index(np.arange(taps), kernel)[d] * dilations[d] - begins[d]
        start = node.constant(tap.reshape(-1, 1, 1).astype(dtype.numpy))
        count = node.cast(node.emit("range", size=windows), dtype)
        count = node.emit(
            "mul",
            node.reshape(count, (windows, 1) if d == 0 else (windows,)),
            node.scalar(strides[d], dtype),
        )
        place = node.emit("add", moved, node.emit("add", start, count))
        scaled = node.emit("mul", place, node.scalar(2 / extent, dtype))
        scaled = node.emit("add", scaled, node.scalar(1 / extent - 1, dtype))
        parts.append(node.reshape(scaled, (*scaled.type.dims, 1)))
    grid = node.emit("concat", *parts, axis=4)
    return node.reshape(grid, (grid.type.dims[0], dims.multiply(taps, rows), columns, 2))


@onnx_op("DeformConv", since=19)
def deformable_convolution(node: Node) -> Value:
    """What the taps read, sampled from x with a grid, then a product over channels and taps."""
    x, w, offset = (node.input(i) for i in range(3))
    bias, mask = node.optional(3), node.optional(4)
    if x.type.rank != 4:
        raise UnsupportedNodeError(
            f"a deformable convolution of rank {x.type.rank} is not supported"
        )
    filters, per_group, *kernel = _static(node, w.type.dims, "a weight")
    groups, taps = node.int_attr("offset_group", 1), math.prod(kernel)
    node.ignore("kernel_shape")  # it is the weight's
    batch, channels = x.type.dims[0], _static(node, x.type.dims[1:2], "a channel count")[0]
    if groups < 1 or channels % groups or offset.type.dims[1] != groups * taps * 2:
        raise node.error(
            f"offset has dims ({', '.join(map(str, offset.type.dims))}), which do not "
            f"fit {channels} channels, {taps} taps and offset_group {groups}"
        )
    pads = node.ints_attr("pads", (0,) * 4)
    grid = _deformed_grid(
        node,
        offset,
        groups,
        kernel,
        per_spatial_dim(node, "strides", 2),
        per_spatial_dim(node, "dilations", 2),
        pads[:2],
    )
    images = node.reshape(x, (dims.multiply(batch, groups), channels // groups, *x.type.dims[2:]))
    read = node.emit(
        "grid_sample", images, grid, mode="linear", padding="zeros", align_corners=False
    )
    rows, columns = offset.type.dims[2:]
    if mask is not None:
        read = node.reshape(read, (read.type.dims[0], channels // groups, taps, rows, columns))
        read = node.emit(
            "mul", read, node.reshape(mask, (read.type.dims[0], 1, taps, rows, columns))
        )
    flat = node.reshape(read, (batch, channels * taps, rows, columns))
    weight = node.reshape(w, (filters, per_group * taps, 1, 1))
    return node.emit(
        "conv",
        flat,
        weight,
        bias,
        strides=(1, 1),
        dilations=(1, 1),
        pads=(0, 0, 0, 0),
        group=node.int_attr("group", 1),
    )
