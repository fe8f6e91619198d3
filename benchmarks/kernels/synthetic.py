"""Small models of one op each, at sizes that real models seldom have together: a table of cases.

Each is made at every size and batch of the set. A convolution stands alone, where it reads and
writes planes as the model has them, and between two others, where layouts are the compiler's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.kernels.dispatches import Source

SIZES = (32, 33, 64, 97, 128, 224, 255, 256, 320, 512)
BATCHES = (1, 8)
QUICK_SIZES, QUICK_BATCHES = (33, 64, 128), (1,)
# elements of the largest value, so that a run needs no more memory than a phone has
MOST_ELEMENTS = 1 << 24
OPSET, IR_VERSION = 18, 9

Shape = Sequence[int]


class Graph:
    """An ONNX model in the making: a chain of nodes from one input to one output."""

    def __init__(self, shape: Shape, dtype: int = TensorProto.FLOAT) -> None:
        self.inputs = [helper.make_tensor_value_info("x", dtype, list(shape))]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"
        self._random = np.random.default_rng(1)

    def weight(self, *shape: int) -> str:
        """A random constant."""
        name = f"w{len(self.weights)}"
        array = self._random.uniform(-0.5, 0.5, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight_of_bytes(self, *shape: int) -> str:
        """A random constant of i8, as quantisers make them: -128 is not among them."""
        return self.constant(self._random.integers(-127, 128, shape).astype(np.int8))

    def quantised(self, scale: float, zero_point: int) -> tuple[str, str]:
        """The scale and zero point of a tensor of u8."""
        zero = np.array(zero_point, np.uint8)
        return self.constant(np.array(scale, np.float32)), self.constant(zero)

    def integers(self, values: Sequence[int]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def op(self, name: str, *others: str, outputs: int = 1, **attributes: Any) -> Graph:
        """A node of the last one's result and other values; its last result is the next's input."""
        made = [f"n{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(
            name, [self.last, *others], made, f"{name}{len(self.nodes)}", **attributes
        )
        self.nodes.append(node)
        self.last = made[-1]
        return self

    def model(self) -> bytes:
        """The model, whose output is the last value."""
        output = helper.make_empty_tensor_value_info(self.last)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [output], self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        inferred = onnx.shape_inference.infer_shapes(made)
        return bytes(inferred.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class Conv:
    """A convolution of `channels` to `outputs`, with a square window or a line."""

    channels: int
    outputs: int
    kernel: int
    stride: int = 1
    group: int = 1
    rank: int = 2

    def add(self, g: Graph) -> Graph:
        taps = [self.kernel] * self.rank
        weight = g.weight(self.outputs, self.channels // self.group, *taps)
        pads = [self.kernel // 2] * (2 * self.rank)
        strides = [self.stride] * self.rank
        return g.op(
            "Conv", weight, g.weight(self.outputs), pads=pads, strides=strides, group=self.group
        )


@dataclass(frozen=True)
class IntegerConv(Conv):
    """A convolution of u8 by i8 to u8, with a scale of the weights a channel."""

    def add(self, g: Graph) -> Graph:
        taps = [self.kernel] * self.rank
        weight = g.weight_of_bytes(self.outputs, self.channels // self.group, *taps)
        scales = g.constant(np.full(self.outputs, 1 / 256, np.float32))
        zeros = g.constant(np.zeros(self.outputs, np.int8))
        bias = g.constant(np.arange(self.outputs, dtype=np.int32))
        first, last = g.quantised(0.02, 128), g.quantised(0.1, 120)
        return g.op(
            "QLinearConv",
            *(*first, weight, scales, zeros, *last, bias),
            pads=[self.kernel // 2] * (2 * self.rank),
            strides=[self.stride] * self.rank,
            group=self.group,
        )


CONVOLUTIONS = {
    "1x1": Conv(64, 128, 1),
    "1x1 wide": Conv(256, 64, 1),
    "1x1 strided": Conv(64, 128, 1, 2),
    "3x3": Conv(32, 32, 3),
    "3x3 strided": Conv(32, 64, 3, 2),
    "5x5": Conv(16, 32, 5),
    "7x7 of 3 channels": Conv(3, 64, 7, 2),
    "9x9 of 3 channels": Conv(3, 32, 9),
    "3x3 to 1": Conv(32, 1, 3),
    "1x1 to 3": Conv(64, 3, 1),
    "grouped by 8": Conv(64, 64, 3, 1, 8),
    "grouped by 24": Conv(96, 96, 3, 1, 4),
    "depthwise 3x3": Conv(64, 64, 3, 1, 64),
    "depthwise 5x5 strided": Conv(64, 64, 5, 2, 64),
    "depthwise 7x7": Conv(64, 64, 7, 1, 64),
    "line of 3": Conv(64, 64, 3, rank=1),
    "line of 25": Conv(8, 16, 25, rank=1),
    "line of 101 on 1": Conv(1, 16, 101, rank=1),
}

Make = Callable[[int, int], bytes | None]


def _alone(conv: Conv) -> Make:
    def make(size: int, batch: int) -> bytes | None:
        shape = (batch, conv.channels, *_spatial(conv, size))
        return conv.add(Graph(shape)).model() if _fits(batch, conv, size) else None

    return make


def _within(conv: Conv) -> Make:
    def make(size: int, batch: int) -> bytes | None:
        if not _fits(batch, conv, size):
            return None
        first = Conv(4, conv.channels, 1, rank=conv.rank)
        g = first.add(Graph((batch, 4, *_spatial(conv, size)))).op("Relu")
        g = conv.add(g).op("Relu")
        return Conv(conv.outputs, 8, 1, rank=conv.rank).add(g).model()

    return make


def _integers_within(conv: Conv) -> Make:
    """On bytes, between two others."""

    def one(channels: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> Conv:
        return IntegerConv(channels, outputs, kernel, stride, group)

    def make(size: int, batch: int) -> bytes | None:
        if not _fits(batch, conv, size):
            return None
        g = one(4, conv.channels, 1).add(
            Graph((batch, 4, *_spatial(conv, size)), TensorProto.UINT8)
        )
        g = one(conv.channels, conv.outputs, conv.kernel, conv.stride, conv.group).add(g)
        return one(conv.outputs, 8, 1).add(g).model()

    return make


def _integer_gemm(
    rows: Callable[[int], int], inner: Callable[[int], int], columns: Callable[[int], int]
) -> Make:
    def make(n: int, batch: int) -> bytes | None:
        extents = batch * rows(n), inner(n)
        if math.prod(extents) > MOST_ELEMENTS:
            return None
        g = Graph(extents, TensorProto.UINT8)
        first, last = g.quantised(0.02, 128), g.quantised(0.1, 120)
        weight, zero = g.weight_of_bytes(inner(n), columns(n)), g.constant(np.array(0, np.int8))
        scale = g.constant(np.array(1 / 256, np.float32))
        return g.op("QLinearMatMul", *(*first, weight, scale, zero, *last)).model()

    return make


def _spatial(conv: Conv, size: int) -> tuple[int, ...]:
    """An image; a line is as long as a short image has pixels."""
    return (size, size) if conv.rank == 2 else (16 * size,)


def _fits(batch: int, conv: Conv, size: int) -> bool:
    return batch * max(conv.channels, conv.outputs) * math.prod(_spatial(conv, size)) <= (
        MOST_ELEMENTS
    )


def _images(channels: int, add: Callable[[Graph, int], Graph]) -> Make:
    """Of images of so many channels."""
    return _tensors(lambda n, batch: (batch, channels, n, n), add)


def _tensors(shape: Callable[[int, int], Shape], add: Callable[[Graph, int], Graph]) -> Make:
    """Of inputs of a shape by size and batch."""

    def make(size: int, batch: int) -> bytes | None:
        extents = shape(size, batch)
        return add(Graph(extents), size).model() if math.prod(extents) <= MOST_ELEMENTS else None

    return make


def _typed(
    dtype: int, shape: Callable[[int, int], Shape], add: Callable[[Graph, int], Graph]
) -> Make:
    """As `_tensors`, of inputs of an element type of ONNX."""

    def make(size: int, batch: int) -> bytes | None:
        extents = shape(size, batch)
        fits = math.prod(extents) <= MOST_ELEMENTS
        return add(Graph(extents, dtype), size).model() if fits else None

    return make


def _places(n: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Places below n, in no order that could be guessed."""
    numbers = np.arange(rows * columns, dtype=np.int64)
    return (numbers * 7919 % 65537 % n).reshape(rows, columns)


def _integer_scores(n: int, batch: int) -> bytes:
    """Queries by keys of 6 heads of 64, both of bytes and made when the model runs."""
    g = Graph((batch, n, 6, 64), TensorProto.UINT8)
    other = "x1"
    g.inputs.append(helper.make_tensor_value_info(other, TensorProto.UINT8, [batch, n, 6, 64]))
    first, last = g.quantised(0.02, 128), g.quantised(0.1, 120)
    keys = g.op("Transpose", perm=[0, 2, 3, 1]).last
    g.last = other
    g.op("Transpose", perm=[0, 2, 1, 3])
    return g.op("QLinearMatMul", *first, keys, *first, *last).model()


def _rows(n: int, batch: int) -> Shape:
    return (batch, n, 384)


def _attention(n: int, batch: int) -> bytes:
    """12 heads of 32, as the chain of ops that exporters write."""
    g = Graph((batch, 12, n, 32))
    g.op("MatMul", g.input(batch, 12, 32, n))
    g.op("Softmax", axis=-1)
    return g.op("MatMul", g.input(batch, 12, n, 32)).model()


def _lstm(n: int, batch: int) -> bytes:
    g = Graph((n, batch, 64))
    weights = g.weight(1, 512, 64), g.weight(1, 512, 128), g.weight(1, 1024)
    g.op("LSTM", *weights, hidden_size=128, outputs=1)
    return g.model()


def _channels_last(add: Callable[[Graph, int], Graph]) -> Make:
    """Of images of 32 channels behind a convolution, which the compiler has channels last."""
    return _images(4, lambda g, n: add(Conv(4, 32, 1).add(g).op("Relu"), n))


def _scales(n: int, size: int) -> np.ndarray[Any, Any]:
    return np.array([1, 1, size / n, size / n], np.float32)


def _resized(mode: str, size: Callable[[int], int]) -> Make:
    return _images(
        8,
        lambda g, n: g.op("Resize", "", g.constant(_scales(n, size(n))), mode=mode),
    )


def _normed(g: Graph, columns: int) -> Graph:
    return g.op("LayerNormalization", g.weight(columns), g.weight(columns), axis=-1)


def _gemm(
    rows: Callable[[int], int], inner: Callable[[int], int], columns: Callable[[int], int]
) -> Make:
    return _tensors(
        lambda n, batch: (batch * rows(n), inner(n)),
        lambda g, n: g.op("MatMul", g.weight(inner(n), columns(n))),
    )


CASES: dict[str, Make] = {
    **{f"convolution {name}": _alone(conv) for name, conv in CONVOLUTIONS.items()},
    **{f"convolution {name}, within": _within(conv) for name, conv in CONVOLUTIONS.items()},
    "average pool 3x3": _images(
        32, lambda g, n: g.op("AveragePool", kernel_shape=[3, 3], pads=[1] * 4)
    ),
    "average pool 2x2 strided": _images(
        32, lambda g, n: g.op("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    ),
    "max pool 2x2 strided": _images(
        32, lambda g, n: g.op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    ),
    "max pool 3x3 strided": _images(
        32, lambda g, n: g.op("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ),
    "max pool 5x5": _images(32, lambda g, n: g.op("MaxPool", kernel_shape=[5, 5], pads=[2] * 4)),
    "global average pool": _images(32, lambda g, n: g.op("GlobalAveragePool")),
    "instance norm": _images(
        16, lambda g, n: g.op("InstanceNormalization", g.weight(16), g.weight(16))
    ),
    "group norm": _images(
        16, lambda g, n: g.op("GroupNormalization", g.weight(4), g.weight(4), num_groups=4)
    ),
    "resize": _images(
        8,
        lambda g, n: g.op(
            "Resize", "", g.weight(0), g.integers([1, 8, 2 * n, 2 * n]), mode="linear"
        ),
    ),
    **{
        f"resize {mode} {name}": _resized(mode, size)
        for mode in ("nearest", "linear", "cubic")
        for name, size in {
            "by 3": lambda n: 3 * n,
            "by 1.7": lambda n: 17 * n // 10,
            "by 0.75": lambda n: 3 * n // 4,
        }.items()
    },
    **{
        f"layer norm of {n}": _tensors(
            lambda rows, batch, n=n: (batch, rows, n),  # type: ignore[misc]
            lambda g, _, n=n: _normed(g, n),  # type: ignore[misc]
        )
        for n in (20, 32, 64, 96, 197)
    },
    "layer norm, transposed": _tensors(
        lambda n, batch: (batch, n, 96),
        lambda g, _: _normed(g, 96).op("Transpose", perm=[0, 2, 1]),
    ),
    "instance norm, channels last": _channels_last(
        lambda g, n: g.op("InstanceNormalization", g.weight(32), g.weight(32))
    ),
    "max pool 5x5, channels last": _channels_last(
        lambda g, n: g.op("MaxPool", kernel_shape=[5, 5], pads=[2] * 4)
    ),
    "max pool 3x3 strided, channels last": _channels_last(
        lambda g, n: g.op("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ),
    "softmax of 49": _tensors(
        lambda n, batch: (batch, 4, n, 49), lambda g, n: g.op("Softmax", axis=-1)
    ),
    "add rows of 26": _tensors(
        lambda n, batch: (batch * n, 56, 26), lambda g, n: g.op("Add", g.input(1, 56, 1))
    ),
    "place of the largest of a row": _tensors(
        lambda n, batch: (batch, n, 64), lambda g, n: g.op("ArgMax", axis=-1)
    ),
    "cast to i64": _images(16, lambda g, n: g.op("Cast", to=TensorProto.INT64)),
    "gather of columns": _tensors(
        lambda n, batch: (batch * n, 200),
        lambda g, n: g.op("Gather", g.integers([(79 * k) % 200 for k in range(100)]), axis=1),
    ),
    "transpose": _images(16, lambda g, n: g.op("Transpose", perm=[0, 2, 3, 1])),
    "transpose inner": _tensors(_rows, lambda g, n: g.op("Transpose", perm=[0, 2, 1])),
    "pad": _images(16, lambda g, n: g.op("Pad", g.integers([0, 0, 1, 1, 0, 0, 2, 2]))),
    "slice": _images(16, lambda g, n: g.op("Slice", *map(g.integers, ([1], [n], [3], [2])))),
    "slice backwards": _images(
        16, lambda g, n: g.op("Slice", *map(g.integers, ([-1], [-(1 << 30)], [3], [-2])))
    ),
    "slice of bytes by 3": _typed(
        TensorProto.UINT8,
        lambda n, batch: (batch, 16, n, n),
        lambda g, n: g.op("Slice", *map(g.integers, ([1], [n], [3], [3]))),
    ),
    **{
        f"pad, {mode}": _images(
            16,
            lambda g, n, mode=mode: g.op("Pad", g.integers([0, 0, 1, 1, 0, 0, 2, 2]), mode=mode),  # type: ignore[misc]
        )
        for mode in ("reflect", "wrap")
    },
    "concat of odd widths": _tensors(
        lambda n, batch: (batch, 8 * n, 17), lambda g, n: g.op("Concat", g.last, axis=2)
    ),
    "transpose inner, bytes": _typed(
        TensorProto.UINT8, _rows, lambda g, n: g.op("Transpose", perm=[0, 2, 1])
    ),
    "transpose, halves": _typed(
        TensorProto.FLOAT16,
        lambda n, batch: (batch, 16, n, n),
        lambda g, n: g.op("Transpose", perm=[0, 2, 3, 1]),
    ),
    "pixels of bytes to planes": _typed(
        TensorProto.UINT8,
        lambda n, batch: (batch, n, n, 3),
        lambda g, n: g.op("Transpose", perm=[0, 3, 1, 2]).op("Cast", to=TensorProto.FLOAT),
    ),
    "depth to space": _images(16, lambda g, n: g.op("DepthToSpace", blocksize=2)),
    "running sum along rows, backwards": _tensors(
        _rows, lambda g, n: g.op("CumSum", g.integers([2]), reverse=1)
    ),
    "gather of elements": _tensors(
        lambda n, batch: (batch * n, 64),
        lambda g, n: g.op("GatherElements", g.constant(_places(n, n, 64)), axis=0),
    ),
    "scatter with sums": _tensors(
        lambda n, batch: (batch * n, 64),
        lambda g, n: g.op(
            "ScatterElements",
            g.constant(_places(n, n, 64)),
            g.weight(n, 64),
            axis=0,
            reduction="add",
        ),
    ),
    **{
        f"sample at a grid, {mode}": _images(
            8,
            lambda g, n, mode=mode: g.op(  # type: ignore[misc]
                "GridSample", g.input(1, n, n, 2), mode="linear", padding_mode=mode
            ),
        )
        for mode in ("zeros", "reflection")
    },
    "add": _images(16, lambda g, n: g.op("Add", g.weight(1, 16, 1, 1))),
    "sigmoid": _images(16, lambda g, n: g.op("Sigmoid")),
    "gelu": _tensors(_rows, lambda g, n: g.op("Erf")),
    "softmax last": _tensors(_rows, lambda g, n: g.op("Softmax", axis=-1)),
    "softmax of odd rows": _images(4, lambda g, n: g.op("Softmax", axis=-1)),
    "softmax middle": _tensors(_rows, lambda g, n: g.op("Softmax", axis=1)),
    "layer norm": _tensors(
        _rows, lambda g, n: g.op("LayerNormalization", g.weight(384), g.weight(384), axis=-1)
    ),
    "sum of rows": _tensors(_rows, lambda g, n: g.op("ReduceSum", g.integers([2]))),
    "sum of columns": _tensors(_rows, lambda g, n: g.op("ReduceSum", g.integers([1]))),
    "largest of planes": _images(16, lambda g, n: g.op("ReduceMax", g.integers([1]))),
    "place of the largest": _images(16, lambda g, n: g.op("ArgMax", axis=1)),
    "running sum": _tensors(_rows, lambda g, n: g.op("CumSum", g.integers([1]))),
    "top k": _tensors(_rows, lambda g, n: g.op("TopK", g.integers([5]), outputs=2)),
    "gather": _tensors(
        lambda n, batch: (2048, 64),
        lambda g, n: g.op("Gather", g.integers([(7919 * k) % 2048 for k in range(n)])),
    ),
    "product square": _gemm(lambda n: n, lambda n: n, lambda n: n),
    "product tall": _gemm(lambda n: 64 * n, lambda n: 64, lambda n: 64),
    "product flat": _gemm(lambda n: 8, lambda n: n, lambda n: 8 * n),
    "product one row": _gemm(lambda n: 1, lambda n: 4 * n, lambda n: 4 * n),
    "product few columns": _gemm(lambda n: n, lambda n: 4 * n, lambda n: 2),
    **{
        f"integer convolution {name}, within": _integers_within(CONVOLUTIONS[name])
        for name in (
            "1x1",
            "1x1 strided",
            "3x3",
            "3x3 strided",
            "7x7 of 3 channels",
            "grouped by 8",
            "depthwise 3x3",
            "depthwise 5x5 strided",
        )
    },
    "integer product square": _integer_gemm(lambda n: n, lambda n: n, lambda n: n),
    "integer product tall": _integer_gemm(lambda n: 64 * n, lambda n: 64, lambda n: 64),
    "integer product one row": _integer_gemm(lambda n: 1, lambda n: 4 * n, lambda n: 4 * n),
    "integer products of activations": _integer_scores,
    "attention": _attention,
    "recurrence": _lstm,
}


def sources(sizes: Sequence[int] = SIZES, counts: Sequence[int] = BATCHES) -> Iterator[Source]:
    """Every case at every size and batch."""
    for name, make in CASES.items():
        for batch in counts:
            for size in sizes:
                model = make(size, batch)
                if model is not None:
                    yield Source(f"{name}, {size}, batch {batch}", model)
