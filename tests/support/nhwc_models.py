"""One residual conv net, written channels-first and as exporters of channels-last models write it.

The second has a transpose before and one behind each op that ONNX defines on channels-first
tensors; everything between, paddings, biases, concats, means, is in channels-last order.
"""

from __future__ import annotations

import numpy as np
import onnx

from tests.support.generated_models import Graph
from tests.support.onnx_models import tensor_info

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
SIZE, CLASSES = 16, 10


class _Net:
    """Layers on tensors of either order, with the same weights."""

    def __init__(self, is_last: bool) -> None:
        self.graph = Graph(np.random.RandomState(3))
        self.is_last = is_last

    def on_first(self, x: str, kind: str, *inputs: str, **attrs: object) -> str:
        """An op that ONNX defines on channels-first tensors."""
        g = self.graph
        if not self.is_last:
            return str(g.op(kind, x, *inputs, **attrs))
        first = g.op("Transpose", x, perm=TO_NCHW)
        return str(g.op("Transpose", g.op(kind, first, *inputs, **attrs), perm=TO_NHWC))

    def conv(self, x: str, filters: int, channels: int, size: int, strides: int = 1) -> str:
        """Padding, convolution, bias, each an op of its own."""
        g, side = self.graph, size // 2
        if side:
            spatial = [0, side, side, 0] if self.is_last else [0, 0, side, side]
            x = g.op("Pad", x, g.constant([*spatial, *spatial]))
        weight = g.weight(filters, channels, size, size)
        x = self.on_first(x, "Conv", weight, strides=[strides, strides])
        bias = g.random.standard_normal(filters)
        shape = (filters,) if self.is_last else (filters, 1, 1)
        return str(g.op("Add", x, g.constant(bias.reshape(shape), np.float32)))

    def squeeze_excite(self, x: str, channels: int) -> str:
        g, axes = self.graph, [1, 2] if self.is_last else [2, 3]
        mean = g.op("ReduceMean", x, axes=axes, keepdims=1)
        gate = g.op("Sigmoid", self.conv(mean, channels, channels, 1))
        return str(g.op("Mul", x, gate))

    def block(self, x: str, channels: int) -> str:
        g = self.graph
        inner = g.op("Relu", self.conv(x, channels, channels, 3))
        inner = self.squeeze_excite(self.conv(inner, channels, channels, 3), channels)
        return str(g.op("Relu", g.op("Add", x, inner)))


def residual_net(*, is_last: bool, blocks: int = 3) -> onnx.ModelProto:
    """The net; its input is in the same order as what is inside it."""
    net = _Net(is_last)
    g = net.graph
    x = g.op("Relu", net.conv("x", 8, 3, 3, strides=2))
    for _ in range(blocks):
        x = net.block(x, 8)
    pooled = net.on_first(x, "MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    wide = net.conv(pooled, 8, 8, 1)
    both = g.op("Concat", pooled, wide, axis=3 if is_last else 1)
    mean = g.op("ReduceMean", both, axes=[1, 2] if is_last else [2, 3], keepdims=0)
    g.named(g.op("MatMul", mean, g.weight(16, CLASSES, scale=0.3)), "y")
    dims = [1, SIZE, SIZE, 3] if is_last else [1, 3, SIZE, SIZE]
    return g.model([tensor_info("x", dims)], ["y"])
