"""Models of one layer: convolutions, poolings, products, reductions and resizing; see
`tflite_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.tflite_cases import ACTIVATIONS, SAME, VALID, Making, case
from tests.support.tflite_models import Array

Quantised = dict[str, Any]


def extent(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """How many windows there are."""
    span = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == SAME else -(-(size - span + 1) // stride)


class Kind:
    """Element types of a layer: f32, or integers with scales."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.x: Any = {"f32": np.float32, "i8": np.int8, "u8": np.uint8, "i16": np.int16}[name]
        self.is_float = name == "f32"

    def input(self, m: Making, shape: Sequence[int]) -> int:
        if self.is_float:
            return m.input(shape)
        how = {"i8": (0.03, 5), "u8": (0.03, 120), "i16": (1e-4, 0)}[self.name]
        return m.input(shape, self.x, scale=how[0], zero=how[1])

    def weight(self, m: Making, shape: Sequence[int], axis: int, *, is_apart: bool = True) -> int:
        """Weights, with a scale for each filter along `axis`, or one for all."""
        if self.is_float:
            return m.constant(m.numbers(shape))
        if self.name == "u8":
            return m.constant(m.numbers(shape, np.uint8), scale=0.011, zero=131)
        data = np.maximum(m.numbers(shape, np.int8), -127)
        if not is_apart:
            return m.constant(data, scale=0.012, zero=0)
        self.scales = m.random.uniform(0.002, 0.02, shape[axis]).astype(np.float32)
        return m.constant(data, scale=self.scales, zero=0, axis=axis)

    def bias(self, m: Making, count: int, *, is_apart: bool = True) -> int:
        if self.is_float:
            return m.constant(m.numbers((count,)))
        own = {"i8": 0.03, "u8": 0.03, "i16": 1e-4}[self.name]
        factor: Any = 0.011 if self.name == "u8" else np.asarray(self.scales) if is_apart else 0.012
        wide = np.int64 if self.name == "i16" else np.int32
        low = 300 if self.name != "i16" else 60000
        data = m.random.randint(-low, low, count).astype(wide)
        return m.constant(data, scale=np.float32(own) * np.float32(1) * factor, zero=0)

    def output(self, m: Making, shape: Sequence[int]) -> int:
        if self.is_float:
            return m.tensor(shape)
        how = {"i8": (0.15, -7), "u8": (0.15, 118), "i16": (6e-4, 0)}[self.name]
        return m.tensor(shape, self.x, scale=how[0], zero=how[1])

    def same(self, m: Making, shape: Sequence[int]) -> int:
        """An output of the input's scale."""
        if self.is_float:
            return m.tensor(shape)
        how = {"i8": (0.03, 5), "u8": (0.03, 120), "i16": (1e-4, 0)}[self.name]
        return m.tensor(shape, self.x, scale=how[0], zero=how[1])


_CONVS: list[tuple[Any, ...]] = [
    # input, filters, kernel, strides, dilations, padding, group
    ((1, 7, 9, 3), 5, (3, 3), (1, 1), (1, 1), SAME, 1),
    ((2, 8, 7, 4), 6, (3, 2), (2, 3), (1, 1), SAME, 1),
    ((1, 9, 9, 2), 3, (5, 3), (2, 2), (1, 1), VALID, 1),
    ((1, 11, 12, 3), 4, (3, 3), (1, 1), (2, 3), SAME, 1),
    ((1, 11, 12, 3), 4, (3, 3), (1, 1), (2, 2), VALID, 1),
    ((1, 5, 6, 8), 16, (1, 1), (1, 1), (1, 1), VALID, 1),
    ((1, 6, 5, 8), 8, (3, 3), (1, 1), (1, 1), SAME, 4),
]
_DEPTHWISE: list[tuple[Any, ...]] = [
    # input, multiplier, kernel, strides, dilations, padding
    ((1, 7, 9, 5), 1, (3, 3), (1, 1), (1, 1), SAME),
    ((2, 8, 7, 4), 1, (5, 5), (2, 2), (1, 1), SAME),
    ((1, 8, 8, 3), 2, (3, 3), (1, 1), (1, 1), VALID),
    ((1, 12, 11, 4), 1, (3, 3), (1, 1), (2, 2), SAME),
]


def _options(strides: Any, dilations: Any, padding: int, activation: str) -> dict[str, Any]:
    return {
        "padding": padding,
        "stride_h": strides[0],
        "stride_w": strides[1],
        "dilation_h_factor": dilations[0],
        "dilation_w_factor": dilations[1],
        "fused_activation_function": ACTIVATIONS[activation],
    }


def _conv_cases() -> None:
    for kind_name in ("f32", "i8", "u8", "i16"):
        for number, (shape, filters, kernel, strides, dilations, padding, group) in enumerate(
            _CONVS
        ):
            if group > 1 and kind_name in ("u8", "i16"):
                continue
            for is_apart in (True, False) if kind_name == "i8" and number < 2 else (True,):
                activation = ("NONE", "RELU", "RELU6")[number % 3]

                @case(f"CONV_2D-{kind_name}-{number}-{is_apart}", tolerance=1e-5)
                def _(
                    m: Making,
                    kind_name: str = kind_name,
                    shape: Any = shape,
                    filters: int = filters,
                    kernel: Any = kernel,
                    strides: Any = strides,
                    dilations: Any = dilations,
                    padding: int = padding,
                    group: int = group,
                    activation: str = activation,
                    is_apart: bool = is_apart,
                ) -> int:
                    kind = Kind(kind_name)
                    x = kind.input(m, shape)
                    w = kind.weight(m, (filters, *kernel, shape[3] // group), 0, is_apart=is_apart)
                    b = kind.bias(m, filters, is_apart=is_apart)
                    size = [
                        extent(shape[1 + d], kernel[d], strides[d], dilations[d], padding)
                        for d in range(2)
                    ]
                    y = kind.output(m, (shape[0], *size, filters))
                    how = _options(strides, dilations, padding, activation)
                    m.op("CONV_2D", [x, w, b], [y], "Conv2DOptions", **how)
                    return y

        for number, (shape, multiplier, kernel, strides, dilations, padding) in enumerate(
            _DEPTHWISE
        ):

            @case(f"DEPTHWISE_CONV_2D-{kind_name}-{number}", tolerance=1e-5)
            def _(
                m: Making,
                kind_name: str = kind_name,
                shape: Any = shape,
                multiplier: int = multiplier,
                kernel: Any = kernel,
                strides: Any = strides,
                dilations: Any = dilations,
                padding: int = padding,
                number: int = number,
            ) -> int:
                kind = Kind(kind_name)
                x = kind.input(m, shape)
                filters = shape[3] * multiplier
                w = kind.weight(m, (1, *kernel, filters), 3)
                b = kind.bias(m, filters)
                size = [
                    extent(shape[1 + d], kernel[d], strides[d], dilations[d], padding)
                    for d in range(2)
                ]
                y = kind.output(m, (shape[0], *size, filters))
                how = _options(strides, dilations, padding, ("NONE", "RELU6")[number % 2])
                m.op(
                    "DEPTHWISE_CONV_2D",
                    [x, w, b],
                    [y],
                    "DepthwiseConv2DOptions",
                    depth_multiplier=multiplier,
                    **how,
                )
                return y

        for number, (size, kernel, strides, padding) in enumerate(
            [
                ((4, 5), (3, 3), (2, 2), SAME),
                ((4, 5), (3, 2), (2, 3), VALID),
                ((3, 3), (2, 2), (2, 2), VALID),
                ((5, 4), (4, 4), (2, 2), SAME),
                ((5, 4), (3, 3), (1, 1), SAME),
            ]
        ):

            @case(f"TRANSPOSE_CONV-{kind_name}-{number}", tolerance=1e-5)
            def _(
                m: Making,
                kind_name: str = kind_name,
                size: Any = size,
                kernel: Any = kernel,
                strides: Any = strides,
                padding: int = padding,
            ) -> int:
                kind = Kind(kind_name)
                image = [
                    n * s if padding == SAME else (n - 1) * s + k
                    for n, s, k in zip(size, strides, kernel, strict=True)
                ]
                shape = m.constant(np.array([1, *image, 3], np.int32))
                x = kind.input(m, (1, *size, 4))
                w = kind.weight(m, (3, *kernel, 4), 0)
                y = kind.output(m, (1, *image, 3))
                m.op(
                    "TRANSPOSE_CONV",
                    [shape, w, x],
                    [y],
                    "TransposeConvOptions",
                    padding=padding,
                    stride_h=strides[0],
                    stride_w=strides[1],
                )
                return y

        for number, (shape, filters, keeps) in enumerate(
            [((3, 8), 5, False), ((2, 3, 8), 4, True), ((2, 3, 8), 4, False), ((2, 2, 4), 3, False)]
        ):

            @case(f"FULLY_CONNECTED-{kind_name}-{number}", tolerance=1e-5)
            def _(
                m: Making,
                kind_name: str = kind_name,
                shape: Any = shape,
                filters: int = filters,
                keeps: bool = keeps,
            ) -> int:
                kind = Kind(kind_name)
                x = kind.input(m, shape)
                w = kind.weight(m, (filters, 8), 0, is_apart=False)
                b = kind.bias(m, filters, is_apart=False)
                rows = int(np.prod(shape)) // 8
                y = kind.output(m, (*shape[:-1], filters) if keeps else (rows, filters))
                m.op(
                    "FULLY_CONNECTED",
                    [x, w, b],
                    [y],
                    "FullyConnectedOptions",
                    keep_num_dims=keeps,
                    fused_activation_function=ACTIVATIONS["RELU"],
                )
                return y

        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
            if name == "L2_POOL_2D" and kind_name != "f32":
                continue
            for number, (kernel, strides, padding) in enumerate(
                [((2, 2), (2, 2), VALID), ((3, 3), (2, 2), SAME), ((3, 2), (1, 2), SAME)]
            ):

                @case(f"{name}-{kind_name}-{number}")
                def _(
                    m: Making,
                    name: str = name,
                    kind_name: str = kind_name,
                    kernel: Any = kernel,
                    strides: Any = strides,
                    padding: int = padding,
                ) -> int:
                    kind = Kind(kind_name)
                    x = kind.input(m, (2, 7, 8, 3))
                    size = [extent((7, 8)[d], kernel[d], strides[d], 1, padding) for d in range(2)]
                    y = kind.same(m, (2, *size, 3))
                    m.op(
                        name,
                        [x],
                        [y],
                        "Pool2DOptions",
                        padding=padding,
                        stride_h=strides[0],
                        stride_w=strides[1],
                        filter_height=kernel[0],
                        filter_width=kernel[1],
                    )
                    return y

        for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
            words = "".join(part.title() for part in name.split("_")) + "Options"
            for number, (size, corners, half) in enumerate(
                [
                    ((8, 12), False, False),
                    ((8, 12), True, False),
                    ((8, 12), False, True),
                    ((3, 4), False, False),
                    ((3, 4), False, True),
                    ((5, 9), True, False),
                    ((5, 9), False, True),
                    ((5, 9), False, False),
                ]
            ):
                # LiteRT's places of integers have ten bits, which those of 16 show
                is_rough = kind_name == "i16" and name == "RESIZE_BILINEAR"

                @case(f"{name}-{kind_name}-{number}", tolerance=1e-5, steps=400 if is_rough else 1)
                def _(
                    m: Making,
                    name: str = name,
                    words: str = words,
                    kind_name: str = kind_name,
                    size: Any = size,
                    corners: bool = corners,
                    half: bool = half,
                ) -> int:
                    kind = Kind(kind_name)
                    x = kind.input(m, (1, 4, 6, 3))
                    y = kind.same(m, (1, *size, 3))
                    sizes = m.constant(np.array(size, np.int32))
                    how = {"align_corners": corners, "half_pixel_centers": half}
                    m.op(name, [x, sizes], [y], words, **how)
                    return y


_conv_cases()


@case("CONV_3D", tolerance=1e-5)
def _(m: Making) -> int:
    x, w, b = m.input((1, 4, 5, 6, 2)), m.constant(m.numbers((2, 3, 3, 2, 3))), None
    b = m.constant(m.numbers((3,)))
    y = m.tensor((1, 2, 3, 3, 3))
    how = {"padding": SAME, "stride_d": 2, "stride_h": 2, "stride_w": 2}
    m.op("CONV_3D", [x, w, b], [y], "Conv3DOptions", **how)
    return y


@case("CONV_3D_TRANSPOSE", tolerance=1e-5)
def _(m: Making) -> int:
    shape = m.constant(np.array([1, 4, 6, 6, 2], np.int32))
    w, x, y = (
        m.constant(m.numbers((2, 3, 3, 2, 3))),
        m.input((1, 2, 3, 3, 3)),
        m.tensor((1, 4, 6, 6, 2)),
    )
    how = {"padding": SAME, "stride_d": 2, "stride_h": 2, "stride_w": 2}
    m.op("CONV_3D_TRANSPOSE", [shape, w, x], [y], "Conv3DOptions", **how)
    return y


def _product_cases() -> None:
    for number, (left, right, adj_x, adj_y) in enumerate(
        [
            ((2, 3, 4), (2, 4, 5), False, False),
            ((2, 3, 4), (4, 5), False, False),
            ((1, 2, 4, 3), (2, 4, 5), True, False),
            ((2, 3, 4), (2, 5, 4), False, True),
        ]
    ):
        for kind_name in ("f32", "i8"):

            @case(f"BATCH_MATMUL-{kind_name}-{number}", tolerance=1e-5)
            def _(
                m: Making,
                left: Any = left,
                right: Any = right,
                adj_x: bool = adj_x,
                adj_y: bool = adj_y,
                kind_name: str = kind_name,
            ) -> int:
                kind = Kind(kind_name)
                a, b = kind.input(m, left), kind.input(m, right)
                x = np.empty(left).swapaxes(-1, -2) if adj_x else np.empty(left)
                w = np.empty(right).swapaxes(-1, -2) if adj_y else np.empty(right)
                y = kind.output(m, np.matmul(x, w).shape)
                m.op("BATCH_MATMUL", [a, b], [y], "BatchMatMulOptions", adj_x=adj_x, adj_y=adj_y)
                return y


_product_cases()

_REDUCTIONS = {
    "MEAN": "f32 i8 u8",
    "SUM": "f32 i8",
    "REDUCE_MAX": "f32 i8 u8",
    "REDUCE_MIN": "f32 i8 u8",
    "REDUCE_PROD": "f32",
}


def _reduction_cases() -> None:
    for name, kinds in _REDUCTIONS.items():
        for kind_name in kinds.split():
            for axes, keeps in (([1, 2], True), ([-1], False), ([0, 2], False), ([1], True)):

                @case(f"{name}-{kind_name}-{axes}-{keeps}", tolerance=1e-5)
                def _(
                    m: Making,
                    name: str = name,
                    kind_name: str = kind_name,
                    axes: Any = axes,
                    keeps: bool = keeps,
                ) -> int:
                    kind, shape = Kind(kind_name), (2, 5, 6, 3)
                    x = kind.input(m, shape)
                    moves = name in ("REDUCE_MAX", "REDUCE_MIN")
                    result = np.empty(shape).sum(axis=tuple(axes), keepdims=keeps).shape
                    y = (kind.same if moves else kind.output)(m, result)
                    own = m.constant(np.array(axes, np.int32))
                    m.op(name, [x, own], [y], "ReducerOptions", keep_dims=keeps)
                    return y

    for name in ("REDUCE_ANY", "REDUCE_ALL"):

        @case(name)
        def _(m: Making, name: str = name) -> int:
            x, y = m.input((3, 4), np.bool_), m.tensor((3,), np.bool_)
            own = m.constant(np.array([1], np.int32))
            m.op(name, [x, own], [y], "ReducerOptions")
            return y

    for name, options in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        for kind_name in ("f32", "i8"):
            for axis in (-1, 0, 1):

                @case(f"{name}-{kind_name}-{axis}")
                def _(
                    m: Making,
                    name: str = name,
                    options: str = options,
                    kind_name: str = kind_name,
                    axis: int = axis,
                ) -> int:
                    x = Kind(kind_name).input(m, (3, 4, 5))
                    y = m.tensor(np.empty((3, 4, 5)).sum(axis=axis).shape, np.int32)
                    own = m.constant(np.array([axis], np.int32))
                    m.op(name, [x, own], [y], options, output_type=2)
                    return y

    for exclusive in (False, True):
        for reverse in (False, True):

            @case(f"CUMSUM-{exclusive}-{reverse}")
            def _(m: Making, exclusive: bool = exclusive, reverse: bool = reverse) -> int:
                x, y = m.input((3, 4, 5)), m.tensor((3, 4, 5))
                own = m.constant(np.array(1, np.int32))
                how = {"exclusive": exclusive, "reverse": reverse}
                m.op("CUMSUM", [x, own], [y], "CumsumOptions", **how)
                return y


_reduction_cases()


@case("TOPK_V2")
def _(m: Making) -> Sequence[int]:
    x, y, at = m.input((3, 9)), m.tensor((3, 4)), m.tensor((3, 4), np.int32)
    m.op("TOPK_V2", [x, m.constant(np.array(4, np.int32))], [y, at], "TopKV2Options")
    return y, at


@case("LOCAL_RESPONSE_NORMALIZATION", tolerance=1e-5)
def _(m: Making) -> int:
    x, y = m.input((1, 2, 3, 9)), m.tensor((1, 2, 3, 9))
    how = {"radius": 2, "bias": 1.2, "alpha": 0.3, "beta": 0.6}
    m.op("LOCAL_RESPONSE_NORMALIZATION", [x], [y], "LocalResponseNormalizationOptions", **how)
    return y


for _bits in (8, 4):

    @case(f"FAKE_QUANT-{_bits}")
    def _(m: Making, bits: int = _bits) -> int:
        x, y = m.input((5, 40), low=-3, high=3), m.tensor((5, 40))
        how = {"min": -1.3, "max": 2.1, "num_bits": bits}
        m.op("FAKE_QUANT", [x], [y], "FakeQuantOptions", **how)
        return y


for _dtype in (np.int8, np.uint8, np.int16):

    @case(f"QUANTIZE-{np.dtype(_dtype).name}")
    def _(m: Making, dtype: Any = _dtype) -> int:
        x = m.input((3, 50), low=-5, high=5)
        y = m.tensor((3, 50), dtype, scale=0.03, zero=0 if dtype is np.int16 else 7)
        m.op("QUANTIZE", [x], [y], "QuantizeOptions")
        return y

    @case(f"DEQUANTIZE-{np.dtype(_dtype).name}")
    def _(m: Making, dtype: Any = _dtype) -> int:
        x = m.input((3, 50), dtype, scale=0.03, zero=0 if dtype is np.int16 else 7)
        y = m.tensor((3, 50))
        m.op("DEQUANTIZE", [x], [y], "DequantizeOptions")
        return y


for _pair in ((np.int8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8), (np.int16, np.int8)):

    @case(f"QUANTIZE-{np.dtype(_pair[0]).name}-{np.dtype(_pair[1]).name}")
    def _(m: Making, pair: Any = _pair) -> int:
        zeros = {np.int8: 3, np.uint8: 130, np.int16: 0}
        x = m.input((3, 50), pair[0], scale=0.02, zero=zeros[pair[0]])
        y = m.tensor((3, 50), pair[1], scale=0.033, zero=zeros[pair[1]])
        m.op("QUANTIZE", [x], [y], "QuantizeOptions")
        return y


def halves(m: Making, shape: Sequence[int]) -> Array:
    """Random numbers in f16."""
    return m.numbers(shape).astype(np.float16)


@case("DEQUANTIZE-f16")
def _(m: Making) -> int:
    w, y = m.tensor((4,)), m.tensor((3, 4))
    m.op("DEQUANTIZE", [m.constant(halves(m, (4,)))], [w], "DequantizeOptions")
    m.op("MUL", [m.input((3, 4)), w], [y], "MulOptions")
    return y
