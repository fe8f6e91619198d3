"""Random TFLite nets against LiteRT: layers with the options that hypothesis chooses, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aot
from tests.support import litert
from tests.support.tflite_models import NUMBERS, Builder

LAYERS = ("conv", "depthwise", "max", "average", "pad", "add", "prelu", "resize", "concat", "mean")
ACTIVATIONS = ("NONE", "RELU", "RELU6")


class RandomNet:
    """A chain of layers on one image, each on what the one before gives."""

    def __init__(self, draw: Any) -> None:
        self.b, self.draw = Builder(), draw
        self.random = np.random.RandomState(draw(st.integers(0, 1 << 16)))
        size = draw(st.integers(3, 9)), draw(st.integers(3, 9)), draw(st.integers(1, 6))
        self.image = self.b.tensor((1, *size), name="image")
        self.x = self.image

    @property
    def shape(self) -> list[int]:
        return list(self.b.tensors[self.x]["shape"])

    def weight(self, *shape: int) -> int:
        data = self.random.uniform(-1, 1, shape) / max(np.prod(shape[1:]), 1) ** 0.5
        return self.b.constant(data.astype(np.float32))

    def windowed(self, size: int, stride: int, padding: int) -> list[int]:
        counts = [
            -(-n // stride) if padding == 0 else (n - size) // stride + 1 for n in self.shape[1:3]
        ]
        return [1, *counts]

    def add(self, kind: str) -> None:
        """One more layer, if the image is large enough for it."""
        size, stride = self.draw(st.integers(1, 3)), self.draw(st.integers(1, 2))
        padding, b = self.draw(st.integers(0, 1)), self.b
        height, width, channels = self.shape[1:]
        if padding == 1 and min(height, width) < size:
            padding = 0
        name = self.draw(st.sampled_from(ACTIVATIONS))
        act = NUMBERS["ActivationFunctionType"][name]
        window: dict[str, Any] = {"padding": padding, "stride_h": stride, "stride_w": stride}
        if kind == "conv":
            filters = self.draw(st.integers(1, 9))
            w = self.weight(filters, size, size, channels)
            operands = [self.x, w, self.weight(filters)]
            self.op(
                "CONV_2D",
                operands,
                [*self.windowed(size, stride, padding), filters],
                "Conv2DOptions",
                fused_activation_function=act,
                **window,
            )
        elif kind == "depthwise":
            w = self.weight(1, size, size, channels)
            operands = [self.x, w, self.weight(channels)]
            self.op(
                "DEPTHWISE_CONV_2D",
                operands,
                [*self.windowed(size, stride, padding), channels],
                "DepthwiseConv2DOptions",
                depth_multiplier=1,
                fused_activation_function=act,
                **window,
            )
        elif kind in ("max", "average"):
            window |= {"filter_height": size, "filter_width": size}
            self.op(
                f"{kind.upper()}_POOL_2D",
                [self.x],
                [*self.windowed(size, stride, padding), channels],
                "Pool2DOptions",
                **window,
            )
        elif kind == "pad":
            pairs = self.random.randint(0, 3, (4, 2)).astype(np.int32)
            pairs[0] = 0
            shape = [n + int(sum(p)) for n, p in zip(self.shape, pairs, strict=True)]
            self.op("PAD", [self.x, b.constant(pairs)], shape, "PadOptions")
        elif kind == "add":
            other = self.x if size == 1 else self.weight(channels)
            self.op("ADD", [self.x, other], self.shape, "AddOptions", fused_activation_function=act)
        elif kind == "prelu":
            self.op("PRELU", [self.x, self.weight(1, 1, channels)], self.shape)
        elif kind == "resize":
            to = [int(n) for n in self.random.randint(2, 12, 2)]
            how = {"half_pixel_centers": bool(padding)}
            self.op(
                "RESIZE_BILINEAR",
                [self.x, b.constant(np.array(to, np.int32))],
                [1, *to, channels],
                "ResizeBilinearOptions",
                **how,
            )
        elif kind == "concat":
            axis = size
            shape = self.shape
            shape[axis] *= 2
            self.op("CONCATENATION", [self.x, self.x], shape, "ConcatenationOptions", axis=axis)
        elif kind == "mean":
            axes = b.constant(np.array([1 + padding], np.int32))
            shape = [1 if d == 1 + padding else n for d, n in enumerate(self.shape)]
            self.op("MEAN", [self.x, axes], shape, "ReducerOptions", keep_dims=True)

    def op(
        self, name: str, operands: list[int], shape: Any, options: str | None = None, **how: Any
    ) -> None:
        y = self.b.tensor([int(n) for n in shape])
        self.b.op(name, operands, [y], options, **how)
        self.x = y


@st.composite
def nets(draw: Any) -> tuple[bytes, dict[str, Any]]:
    """A model, and an image for it."""
    net = RandomNet(draw)
    for kind in draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=6)):
        net.add(kind)
    shape = net.b.tensors[net.image]["shape"]
    image = net.random.uniform(-1, 1, shape).astype(np.float32)
    return net.b.model([net.image], [net.x]), {"image": image}


@given(nets())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_nets_agree_with_litert(made: tuple[bytes, dict[str, Any]]) -> None:
    litert.check(*made, tolerance=2e-5)


@pytest.mark.sweep
@given(nets())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_nets_agree_when_compiled(made: tuple[bytes, dict[str, Any]]) -> None:
    model, inputs = made
    program = aot.load(aot.compile(model, targets=["host"]))
    for name, wanted in litert.expected(model, inputs).items():
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(program(inputs)[name], wanted, rtol=0, atol=2e-5 * scale)
