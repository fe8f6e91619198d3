"""TFLite models of several layers: a net as MobileNet is, with weights of each kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.tflite_models import NUMBERS, Array, Builder

SAME = NUMBERS["Padding"]["SAME"]
RELU6 = NUMBERS["ActivationFunctionType"]["RELU6"]
SIZE, CLASSES = 32, 10


class Net(Builder):
    """Layers with weights in f32, or in f16 behind a DEQUANTIZE as converters write them."""

    def __init__(self, *, is_half: bool = False) -> None:
        super().__init__()
        self.random = np.random.RandomState(5)
        self.is_half = is_half

    def weight(self, *shape: int) -> int:
        """Random numbers of about the size that keeps activations as they are."""
        fan_in = max(int(np.prod(shape)) // shape[0], 1)
        data = self.random.standard_normal(shape).astype(np.float32) * (2 / fan_in) ** 0.5
        if not self.is_half:
            return self.constant(data.astype(np.float32))
        half = self.constant(data.astype(np.float16))
        wide = self.tensor(shape)
        self.op("DEQUANTIZE", [half], [wide], "DequantizeOptions")
        return wide

    def shape(self, number: int) -> list[int]:
        """The shape of a tensor."""
        return list(self.tensors[number]["shape"])

    def conv(
        self, x: int, filters: int, size: int, stride: int = 1, activation: int = RELU6
    ) -> int:
        batch, height, width, channels = self.shape(x)
        y = self.tensor((batch, -(-height // stride), -(-width // stride), filters))
        inputs = [x, self.weight(filters, size, size, channels), self.weight(filters)]
        self.op(
            "CONV_2D",
            inputs,
            [y],
            "Conv2DOptions",
            padding=SAME,
            stride_h=stride,
            stride_w=stride,
            fused_activation_function=activation,
        )
        return y

    def depthwise(self, x: int, stride: int = 1) -> int:
        batch, height, width, channels = self.shape(x)
        y = self.tensor((batch, -(-height // stride), -(-width // stride), channels))
        inputs = [x, self.weight(1, 3, 3, channels), self.weight(channels)]
        self.op(
            "DEPTHWISE_CONV_2D",
            inputs,
            [y],
            "DepthwiseConv2DOptions",
            padding=SAME,
            stride_h=stride,
            stride_w=stride,
            depth_multiplier=1,
            fused_activation_function=RELU6,
        )
        return y

    def residual(self, x: int, filters: int, stride: int = 1) -> int:
        """An inverted residual block."""
        channels = self.shape(x)[3]
        y = self.conv(x, 4 * channels, 1)
        y = self.conv(self.depthwise(y, stride), filters, 1, activation=0)
        if stride > 1 or filters != channels:
            return y
        total = self.tensor(self.shape(y))
        self.op("ADD", [x, y], [total], "AddOptions")
        return total


def mobilenet(*, is_half: bool = False) -> bytes:
    """A small MobileNet v2: input "image" [1, 32, 32, 3], output "scores" [1, 10]."""
    net = Net(is_half=is_half)
    image = net.tensor((1, SIZE, SIZE, 3), name="image")
    x = net.conv(image, 8, 3, 2)
    for filters, stride in ((8, 1), (16, 2), (16, 1), (24, 2), (24, 1)):
        x = net.residual(x, filters, stride)
    x = net.conv(x, 64, 1)
    mean = net.tensor((1, 64))
    net.op("MEAN", [x, net.constant(np.array([1, 2], np.int32))], [mean], "ReducerOptions")
    logits = net.tensor((1, CLASSES))
    net.op(
        "FULLY_CONNECTED",
        [mean, net.weight(CLASSES, 64), net.weight(CLASSES)],
        [logits],
        "FullyConnectedOptions",
    )
    scores = net.tensor((1, CLASSES), name="scores")
    net.op("SOFTMAX", [logits], [scores], "SoftmaxOptions", beta=1.0)
    return net.model([image], [scores])


def quantised_net(*, is_wide: bool = False) -> bytes:
    """Convolutions, a residual sum, a mean and a product on integers: input "image" of u8 as
    [1, 32, 32, 3] means nothing else than (q - 128) / 64; int16 activations where `is_wide`."""
    b = Builder()
    random = np.random.RandomState(11)
    stored: Any = np.int16 if is_wide else np.int8
    step = 1 / 8192 if is_wide else 1 / 32

    def activation(*shape: int, name: str | None = None) -> int:
        return b.tensor(shape, stored, scale=step, zero=0 if is_wide else -3, name=name)

    def weight(shape: tuple[int, ...], axis: int) -> tuple[int, Array]:
        fan_in = max(int(np.prod(shape)) // shape[axis], 1)
        scales = random.uniform(0.5, 1.5, shape[axis]).astype(np.float32) / 60 / fan_in**0.5
        data = random.randint(-127, 128, shape).astype(np.int8)
        return b.constant(data, scale=scales, zero=0, axis=axis), scales

    def bias(scales: Array) -> int:
        data = random.uniform(-0.5, 0.5, scales.size) / (step * scales)
        wide = np.int64 if is_wide else np.int32
        return b.constant(data.astype(wide), scale=np.float32(step) * scales, zero=0)

    def conv(x: int, filters: int, size: int, stride: int = 1) -> int:
        _, side, _, channels = b.tensors[x]["shape"]
        y = activation(1, side // stride, side // stride, filters)
        w, scales = weight((filters, size, size, channels), 0)
        how = {"stride_h": stride, "stride_w": stride, "fused_activation_function": RELU6}
        b.op("CONV_2D", [x, w, bias(scales)], [y], "Conv2DOptions", **how)
        return y

    def depthwise(x: int) -> int:
        _, side, _, channels = b.tensors[x]["shape"]
        y = activation(1, side, side, channels)
        w, scales = weight((1, 3, 3, channels), 3)
        how = {"stride_h": 1, "stride_w": 1, "depth_multiplier": 1}
        b.op("DEPTHWISE_CONV_2D", [x, w, bias(scales)], [y], "DepthwiseConv2DOptions", **how)
        return y

    image = activation(1, SIZE, SIZE, 3, name="image")
    x = conv(image, 16, 3, 2)
    for _ in range(2):
        inner = conv(depthwise(conv(x, 32, 1)), 16, 1)
        total = activation(*b.tensors[x]["shape"])
        b.op("ADD", [x, inner], [total], "AddOptions")
        x = total
    mean, scores = activation(1, 16), activation(1, CLASSES, name="scores")
    b.op("MEAN", [x, b.constant(np.array([1, 2], np.int32))], [mean], "ReducerOptions")
    data = random.randint(-127, 128, (CLASSES, 16)).astype(np.int8)
    w = b.constant(data, scale=1 / 200, zero=0)
    operands = [mean, w, bias(np.full(CLASSES, 1 / 200, np.float32))]
    b.op("FULLY_CONNECTED", operands, [scores], "FullyConnectedOptions")
    return b.model([image], [scores])


def picture(seed: int = 0) -> Array:
    """An input of the nets."""
    found: Any = np.random.RandomState(seed).standard_normal((1, SIZE, SIZE, 3))
    return np.asarray(found, np.float32)
