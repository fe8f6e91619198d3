"""PyTorch's convolutions and poolings, and im2col and col2im."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.transposed import (
    Transposed,
    transposed_convolution,
    transposed_extents,
)
from aot.frontends.torch.ops.movement import sliced
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType


def _each(numbers: Sequence[int], spatial: int) -> tuple[int, ...]:
    """One number per spatial dim; a single number is repeated for all."""
    return tuple(numbers) * spatial if len(numbers) == 1 else tuple(numbers)


@torch_op("aten.convolution.default")
def convolution(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    is_transposed: bool,
    extra: Sequence[int],
    group: int,
) -> Value:
    spatial = w.type.rank - 2
    if spatial not in (1, 2, 3):
        raise UnsupportedNodeError(f"a convolution of rank {w.type.rank} is not supported")
    own_strides, begins = _each(strides, spatial), _each(pads, spatial)
    own_dilations = _each(dilations, spatial)
    if not is_transposed:
        return n.emit(
            "conv",
            x,
            w,
            bias,
            strides=own_strides,
            dilations=own_dilations,
            pads=(*begins, *begins),
            group=group,
        )
    kernel = static_extents(w.type.dims[2:], "a kernel")
    whole = transposed_extents(
        x.type.dims[2:], kernel, own_strides, own_dilations, _each(extra, spatial)
    )
    image = tuple(dims.add(extent, -2 * p) for extent, p in zip(whole, begins, strict=True))
    options = Transposed(group, own_strides, own_dilations, image, begins)
    return transposed_convolution(n, x, w, bias, options)


# poolings


def _batched(n: Node, x: Value, spatial: int, build: Callable[[Value], Value]) -> Value:
    """The result of `build` on a batch of one, where x is a single image, which pooling layers
    accept too.
    """
    if x.type.rank == spatial + 2:
        return build(x)
    made = build(n.reshape(x, (1, *x.type.dims)))
    return n.reshape(made, made.type.dims[1:])


def _max_pool(spatial: int, has_places: bool) -> Callable[..., Any]:
    def build(
        n: Node,
        x: Value,
        kernel: Sequence[int],
        strides: Sequence[int] = (),
        pads: Sequence[int] = (0,),
        dilations: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        begins = _each(pads, spatial)
        own_kernel = _each(kernel, spatial)
        attrs: dict[str, Any] = {
            "kernel": own_kernel,
            "strides": _each(strides, spatial) or own_kernel,
            "dilations": _each(dilations, spatial),
            "pads": (*begins, *begins),
            "ceil_mode": ceil_mode,
        }
        y = _batched(n, x, spatial, lambda v: n.emit("max_pool", v, **attrs))
        if not has_places:
            return y
        if not n.wants(1):
            return [y, y]
        places = _batched(n, x, spatial, lambda v: n.emit("max_pool_indices", v, **attrs))
        # ours count over all of x, torch's over the image
        area = n.value(dims.product(x.type.dims[-spatial:]), places.type.dtype)
        return [y, n("sub", places, n("mul", n("div", places, area), area))]

    return build


for _spatial in (1, 2, 3):
    torch_op(f"aten.max_pool{_spatial}d.default")(_max_pool(_spatial, has_places=False))
    torch_op(f"aten.max_pool{_spatial}d_with_indices.default")(_max_pool(_spatial, has_places=True))


def _average_pool(spatial: int) -> Callable[..., Value]:
    def build(
        n: Node,
        x: Value,
        kernel: Sequence[int],
        strides: Sequence[int] = (),
        pads: Sequence[int] = (0,),
        ceil_mode: bool = False,
        counts_pads: bool = True,
        divisor: int | None = None,
    ) -> Value:
        begins, own_kernel = _each(pads, spatial), _each(kernel, spatial)
        own_strides = _each(strides, spatial) or own_kernel
        ends = begins
        if divisor is not None and ceil_mode:
            ends = _whole_ends(n, x, own_kernel, own_strides, begins)
        made = _batched(
            n,
            x,
            spatial,
            lambda v: n.emit(
                "average_pool",
                v,
                kernel=own_kernel,
                strides=own_strides,
                dilations=(1,) * spatial,
                pads=(*begins, *ends),
                ceil_mode=ceil_mode and divisor is None,
                count_include_pad=counts_pads or divisor is not None,
            ),
        )
        return made if divisor is None else n("mul", made, prod(own_kernel) / divisor)

    return build


def _whole_ends(
    n: Node, x: Value, kernel: Sequence[int], strides: Sequence[int], begins: Sequence[int]
) -> tuple[int, ...]:
    """The padding at the end of an image with which all windows are complete."""
    spatial = len(kernel)
    extents = static_extents(x.type.dims[-spatial:], "a border")
    counts = static_extents(n.dims[-spatial:], "a border")
    return tuple(
        max((count - 1) * s + k - b - extent, 0)
        for count, s, k, b, extent in zip(counts, strides, kernel, begins, extents, strict=True)
    )


def _bins(n: Node, extent: Dim, count: Dim) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(first indices, end indices) of `count` adaptive pooling bins, as torch places them."""
    if not isinstance(extent, int) or not isinstance(count, int):
        raise UnsupportedNodeError(
            f"adaptive pooling of {extent} elements to {count}; extents that depend on the input's "
            "shape are pooled to 1 only"
        )
    begins = tuple(i * extent // count for i in range(count))
    ends = tuple(-(-(i + 1) * extent // count) for i in range(count))
    return begins, ends


def _adaptive(n: Node, x: Value, sizes: Sequence[Dim], op: str, whole: str) -> Value:
    """Adaptive pooling to `sizes`: one window op if all bins are equal, else bin by bin."""
    spatial = len(sizes)
    axes = range(x.type.rank - spatial, x.type.rank)
    extents = x.type.dims[-spatial:]
    if all(size == 1 for size in sizes):
        return n.emit(whole, x, axes=tuple(axes), keepdims=True)
    if list(sizes) == list(extents):
        return x
    numbers = [_bins(n, extent, size) for extent, size in zip(extents, sizes, strict=True)]
    kernel = [ends[0] for _, ends in numbers]
    strides = [begins[1] if len(begins) > 1 else ends[0] for begins, ends in numbers]
    is_regular = all(
        begins == tuple(i * s for i in range(len(begins)))
        and ends == tuple(i * s + k for i in range(len(ends)))
        for (begins, ends), k, s in zip(numbers, kernel, strides, strict=True)
    )
    if is_regular:
        attrs: dict[str, Any] = {
            "kernel": tuple(kernel),
            "strides": tuple(strides),
            "dilations": (1,) * spatial,
            "pads": (0,) * 2 * spatial,
        }
        return _batched(n, x, spatial, lambda v: n.emit(op, v, **attrs))
    for axis, (begins, ends) in zip(axes, numbers, strict=True):
        x = _binned(n, x, axis, begins, ends, whole)
    return x


def _binned(
    n: Node, x: Value, axis: int, begins: Sequence[int], ends: Sequence[int], whole: str
) -> Value:
    parts = []
    for begin, end in zip(begins, ends, strict=True):
        starts = tuple(begin if d == axis else 0 for d in range(x.type.rank))
        stops = tuple(end if d == axis else e for d, e in enumerate(x.type.dims))
        part = n.emit("slice", x, starts=starts, stops=stops, steps=(1,) * x.type.rank)
        parts.append(n.emit(whole, part, axes=(axis,), keepdims=True))
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=axis)


def _adaptive_average(n: Node, x: Value, sizes: Sequence[Dim]) -> Value:
    return _adaptive(n, x, sizes, "average_pool", "reduce_mean")


def _adaptive_maximum(n: Node, x: Value, sizes: Sequence[Dim]) -> list[Value]:
    if n.wants(1):
        return _adaptive_maximum_with_places(n, x, sizes)
    y = _adaptive(n, x, sizes, "max_pool", "reduce_max")
    return [y, y]


def _adaptive_maximum_with_places(n: Node, x: Value, sizes: Sequence[Dim]) -> list[Value]:
    """The maximum of each adaptive bin and its position in the image, the first of equal ones.
    Reduces one spatial dim at a time, the last one first.
    """
    places: Value | None = None
    stride: Dim = 1
    whole = x.type.dims
    for axis in reversed(range(x.type.rank - len(sizes), x.type.rank)):
        begins, ends = _bins(n, whole[axis], sizes[axis - x.type.rank])
        best, found = [], []
        for begin, end in zip(begins, ends, strict=True):
            part = sliced(n, x, axis, begin, end)
            at = n.emit("arg_max", part, axis=axis, keepdims=True)
            best.append(n.emit("reduce_max", part, axes=(axis,), keepdims=True))
            place = n("mul", n("add", at, begin), n.value(stride, DType.I64))
            if places is not None:
                own = sliced(n, places, axis, begin, end)
                place = n("add", place, n.emit("gather_elements", own, at, axis=axis))
            found.append(place)
        x, places = (
            v[0] if len(v) == 1 else n.emit("concat", *v, axis=axis) for v in (best, found)
        )
        stride = dims.multiply(stride, whole[axis])
    assert places is not None
    return [x, places]


for _spatial in (1, 2, 3):
    torch_op(f"aten.avg_pool{_spatial}d.default")(_average_pool(_spatial))
    torch_op(f"aten.adaptive_avg_pool{_spatial}d.default")(_adaptive_average)
    torch_op(f"aten.adaptive_max_pool{_spatial}d.default")(_adaptive_maximum)
torch_op("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")(
    _adaptive_average
)


# windows as columns


@torch_op("aten.im2col.default")
def im2col(
    n: Node,
    x: Value,
    kernel: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Value:
    """im2col: the elements of each tap one after another, as strided slices of the padded image."""
    *outer, channels, _, _ = x.type.dims
    rank = x.type.rank
    if any(pads):
        border = (*[0] * (rank - 2), *pads)
        x = n.emit("pad", x, pads=(*border, *border), mode="constant", value=0.0)
    rows, columns = (
        dims.add(dims.floor_divide(dims.add(extent, -(k - 1) * d - 1), s), 1)
        for extent, k, d, s in zip(x.type.dims[-2:], kernel, dilations, strides, strict=True)
    )
    taps = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            at = (i * dilations[0], j * dilations[1])
            ends = [
                dims.add(a, dims.add(dims.multiply(dims.add(count, -1), s), 1))
                for a, count, s in zip(at, (rows, columns), strides, strict=True)
            ]
            tap = n.emit(
                "slice",
                x,
                starts=(*[0] * (rank - 2), *at),
                stops=(*x.type.dims[:-2], *ends),
                steps=(*[1] * (rank - 2), *strides),
            )
            taps.append(n.reshape(tap, (*outer, channels, 1, dims.multiply(rows, columns))))
    made = taps[0] if len(taps) == 1 else n.emit("concat", *taps, axis=rank - 2)
    return n.reshape(made, n.dims)


@torch_op("aten.col2im.default")
def col2im(
    n: Node,
    x: Value,
    image: Sequence[Dim],
    kernel: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Value:
    windows = [
        dims.add(dims.floor_divide(dims.add(extent, 2 * p - (k - 1) * d - 1), s), 1)
        for extent, k, d, p, s in zip(image, kernel, dilations, pads, strides, strict=True)
    ]
    batch = x.type.dims[0] if x.type.rank == 3 else 1
    channels = dims.floor_divide(x.type.dims[-2], prod(kernel))
    split = n.reshape(x, (batch, channels, *kernel, *windows))
    made = n.emit(
        "col2im",
        split,
        image=tuple(image),
        strides=tuple(strides),
        dilations=tuple(dilations),
        begins=tuple(pads),
    )
    return n.reshape(made, n.dims)
