"""TFLite's convolutions. Their channels are last and ours second; the transposes around them are
left to `assign-layouts`, which keeps the data in place."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.transposed import Transposed, transposed_convolution
from aot.frontends.lib.windows import same_pads
from aot.frontends.tflite.table import Node, UnsupportedNodeError, custom_op, tflite_op
from aot.ir.dims import Dim
from aot.ir.graph import Value


def channels_second(n: Node, x: Value) -> Value:
    """Transposes x [N, spatial..., C] to [N, C, spatial...]."""
    rank = x.type.rank
    return n.transposed(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(n: Node, x: Value) -> Value:
    """Transposes x [N, C, spatial...] to [N, spatial..., C]."""
    return n.transposed(x, (0, *range(2, x.type.rank), 1))


def pads_of(
    n: Node,
    padding: str,
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Dim, ...]:
    """The padding, begins then ends, for TFLite's padding mode."""
    if padding == "SAME":
        return same_pads(extents, kernel, strides, dilations, is_upper=True)
    return (0,) * 2 * len(kernel)


def check_rank(n: Node, rank: int, *numbers: int) -> None:
    """Checks that the operands `numbers` have rank `rank`."""
    for number in numbers:
        found = n.input(number).type
        if found.rank != rank:
            raise n.error(f"operand {number} is {found}, expected rank {rank}")


def numbers_of(n: Node, prefix: str, *, spatial: int = 2) -> tuple[int, ...]:
    """Options with one value per spatial dim."""
    names = ("h", "w") if spatial == 2 else ("d", "h", "w")
    found = tuple(int(n.option(f"{prefix}_{name}", 1)) for name in names)
    if min(found) < 1:
        raise n.error(f"{prefix} is {list(found)}, expected positive numbers")
    return found


def bias_of(n: Node, number: int) -> Value | None:
    """A bias operand as a vector with one number per filter; None if it is absent."""
    if not n.has(number):
        return None
    bias = n.real(number)
    return n.reshape(bias, (bias.type.element_count,))


def convolved(n: Node, w: Value, group: int, spatial: int = 2) -> Value:
    """The convolution of operand 0 with w [O, C / group, taps...], its bias and activation."""
    x = channels_second(n, n.real(0))
    kernel = static_extents(w.type.dims[2:], "a kernel")
    strides = numbers_of(n, "stride", spatial=spatial)
    dilations = tuple(
        max(int(n.option(f"dilation_{name}_factor", 1)), 1)
        for name in ("d", "h", "w")[3 - spatial :]
    )
    padding = n.enum("Padding", "padding")
    pads = pads_of(n, padding, x.type.dims[2:], kernel, strides, dilations)
    y = n.emit(
        "conv",
        x,
        w,
        bias_of(n, 2),
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=group,
    )
    return n.activated(channels_last(n, y))


def groups_of(n: Node, x: Value, in_a_group: Dim) -> int:
    """The number of channel groups of a convolution."""
    channels = x.type.dims[-1]
    if not isinstance(channels, int) or not isinstance(in_a_group, int):
        raise UnsupportedNodeError("channels that depend on the input's shape are not supported")
    if in_a_group < 1 or channels % in_a_group:
        raise n.error(f"x has {channels} channels, its filters {in_a_group}")
    return channels // in_a_group


@tflite_op("CONV_2D")
def conv_2d(n: Node) -> Value:
    check_rank(n, 4, 0, 1)
    w = n.transposed(n.real(1), (0, 3, 1, 2))
    return convolved(n, w, groups_of(n, n.input(0), w.type.dims[1]))


@tflite_op("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(n: Node) -> Value:
    check_rank(n, 4, 0, 1)
    x, w = n.input(0), n.real(1)
    if w.type.dims[0] != 1:
        raise n.error(f"its filters are {w.type}, expected an extent of 1 in front")
    group = groups_of(n, x, 1)
    filters = w.type.dims[3]
    if not isinstance(filters, int) or filters % group:
        raise n.error(f"x has {group} channels, but there are {filters} filters")
    return convolved(n, n.transposed(w, (3, 0, 1, 2)), group)


@tflite_op("CONV_3D")
def conv_3d(n: Node) -> Value:
    check_rank(n, 5, 0, 1)
    w = n.transposed(n.real(1), (4, 3, 0, 1, 2))
    return convolved(n, w, groups_of(n, n.input(0), w.type.dims[1]), spatial=3)


# transposed convolutions


def _transposed(
    n: Node,
    x: Value,
    w: Value,
    bias: Value | None,
    image: Sequence[Dim],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str,
) -> Value:
    """The transposed convolution of x [N, spatial..., C] with w [C, O, taps...]: an image [N,
    spatial..., O]."""
    x = channels_second(n, x)
    kernel = static_extents(w.type.dims[2:], "a kernel")
    spatial = len(kernel)
    # the image is what a convolution with this padding would read
    pads = pads_of(n, padding, image, kernel, strides, dilations)
    options = Transposed(1, strides, dilations, tuple(image), pads[:spatial])
    return channels_last(n, transposed_convolution(n, x, w, bias, options))


def _image(n: Node, number: int, spatial: int) -> list[Dim]:
    shape = n.dims_of(number)
    if len(shape) != spatial + 2:
        raise n.error(f"its output shape has {len(shape)} extents, expected {spatial + 2}")
    return shape[1:-1]


@tflite_op("TRANSPOSE_CONV")
def transpose_conv(n: Node) -> Value:
    check_rank(n, 4, 1, 2)
    w = n.transposed(n.real(1), (3, 0, 1, 2))
    strides, padding = numbers_of(n, "stride"), n.enum("Padding", "padding")
    y = _transposed(n, n.real(2), w, bias_of(n, 3), _image(n, 0, 2), strides, (1, 1), padding)
    return n.activated(y)


@tflite_op("CONV_3D_TRANSPOSE")
def conv_3d_transpose(n: Node) -> Value:
    check_rank(n, 5, 1, 2)
    w = n.transposed(n.real(1), (4, 3, 0, 1, 2))
    strides = numbers_of(n, "stride", spatial=3)
    dilations = tuple(max(int(n.option(f"dilation_{d}_factor", 1)), 1) for d in "dhw")
    padding = n.enum("Padding", "padding")
    y = _transposed(n, n.real(2), w, bias_of(n, 3), _image(n, 0, 3), strides, dilations, padding)
    return n.activated(y)


@custom_op("Convolution2DTransposeBias")
def convolution_2d_transpose_bias(n: Node) -> Value:
    """MediaPipe's Convolution2DTransposeBias: x, filters [O, H, W, C] and a bias. Its options are
    the struct of TransposeConv's: padding (1 is SAME, 2 VALID), and the strides along columns and
    rows."""
    check_rank(n, 4, 0, 1)
    if len(n.operator.custom_options) < 12:
        raise n.error("its options are missing")
    padding, columns, rows = struct.unpack_from("<3i", n.operator.custom_options)
    if padding not in (1, 2) or rows < 1 or columns < 1:
        raise n.error(f"its options are padding {padding} and strides {rows}, {columns}")
    x, w = n.real(0), n.transposed(n.real(1), (3, 0, 1, 2))
    kernel = static_extents(w.type.dims[2:], "a kernel")
    name = "SAME" if padding == 1 else "VALID"
    image = [
        _grown(extent, stride, taps, name)
        for extent, stride, taps in zip(x.type.dims[1:3], (rows, columns), kernel, strict=True)
    ]
    return _transposed(n, x, w, bias_of(n, 2), image, (rows, columns), (1, 1), name)


def _grown(extent: Dim, stride: int, taps: int, padding: str) -> Dim:
    """The extent of an image from which a convolution makes `extent` pixels."""
    from aot.ir import dims

    whole = dims.multiply(extent, stride)
    return whole if padding == "SAME" else dims.add(whole, max(taps - stride, 0))
