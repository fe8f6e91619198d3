"""Models that nobody ships, made here with fixed seeds: a decoder, a U-Net, side outputs of
another, an fp16 classifier.

Each is what an exporter would write for it, in plain ONNX ops, with the dims open that such a
model leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import IR_VERSION, tensor_info

Array = np.ndarray[Any, Any]


@dataclass
class Graph:
    """Nodes, weights and fresh names of a model under construction."""

    random: np.random.RandomState
    dtype: type = np.float32
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [f"{kind.lower()}_{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        spread = (1 / np.prod(shape[1:] or (1,))) ** 0.5 if scale is None else scale
        return self.constant(self.random.standard_normal(shape) * spread, self.dtype)

    def named(self, value: str, name: str) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def model(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[str], opset: int = 17
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "generated",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.weights,
        )
        return helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", opset)]
        )


# a decoder with a KV cache

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 2, 4, 64, 101, 64
HEAD = WIDTH // HEADS


def decoder() -> onnx.ModelProto:
    """Two layers; tokens [B, T] and the keys and values of P earlier positions to logits and the
    caches with T more."""
    g = Graph(np.random.RandomState(11))
    infos = [tensor_info("tokens", ["B", "T"], TensorProto.INT64)]
    caches = [f"past_{what}_{n}" for n in range(LAYERS) for what in ("key", "value")]
    infos += [tensor_info(name, ["B", HEADS, "P", HEAD]) for name in caches]
    length = g.op("Gather", g.op("Shape", "tokens"), g.constant(1), axis=0)
    past = g.op("Gather", g.op("Shape", caches[0]), g.constant(2), axis=0)
    total = g.op("Add", past, length)
    here = g.op("Range", past, total, g.constant(1))
    there = g.op("Range", g.constant(0), total, g.constant(1))
    is_hidden = g.op(
        "Greater",
        g.op("Unsqueeze", there, g.constant([0])),
        g.op("Unsqueeze", here, g.constant([1])),
    )
    x = g.op(
        "Add",
        g.op("Gather", g.weight(VOCABULARY, WIDTH, scale=0.7), "tokens"),
        g.op("Gather", g.weight(POSITIONS, WIDTH, scale=0.3), here),
    )
    for n in range(LAYERS):
        x = g.op("Add", x, _attention(g, _norm(g, x), n, is_hidden))
        hidden = g.op("MatMul", _norm(g, x), g.weight(WIDTH, 4 * WIDTH, scale=0.12))
        x = g.op("Add", x, g.op("MatMul", _gelu(g, hidden), g.weight(4 * WIDTH, WIDTH, scale=0.06)))
    g.named(g.op("MatMul", _norm(g, x), g.weight(WIDTH, VOCABULARY, scale=0.12)), "logits")
    return g.model(infos, ["logits", *(c.replace("past", "present") for c in caches)])


def _norm(g: Graph, x: str) -> str:
    """Layer normalisation as exporters before opset 17 spell it."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
    variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2, np.float32)), axes=[-1])
    deviation = g.op("Sqrt", g.op("Add", variance, g.constant(1e-5, np.float32)))
    scaled = g.op(
        "Mul",
        g.op("Div", centred, deviation),
        g.constant(g.random.uniform(0.8, 1.2, WIDTH), np.float32),
    )
    return str(g.op("Add", scaled, g.weight(WIDTH, scale=0.1)))


def _gelu(g: Graph, x: str) -> str:
    erf = g.op("Erf", g.op("Div", x, g.constant(2**0.5, np.float32)))
    half = g.op("Mul", x, g.op("Add", erf, g.constant(1, np.float32)))
    return str(g.op("Mul", half, g.constant(0.5, np.float32)))


def _attention(g: Graph, x: str, number: int, is_hidden: str) -> str:
    split = g.constant([0, 0, HEADS, HEAD])
    query, key, value = (
        g.op(
            "Transpose",
            g.op("Reshape", g.op("MatMul", x, g.weight(WIDTH, WIDTH, scale=0.12)), split),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    joined = []
    for what, fresh in (("key", key), ("value", value)):
        joined.append(g.op("Concat", f"past_{what}_{number}", fresh, axis=2))
        g.named(joined[-1], f"present_{what}_{number}")
    scores = g.op("MatMul", query, g.op("Transpose", joined[0], perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, g.constant(HEAD**0.5, np.float32))
    masked = g.op("Where", is_hidden, g.constant(-1e9, np.float32), scores)
    mixed = g.op("MatMul", g.op("Softmax", masked, axis=-1), joined[1])
    merged = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, WIDTH]))
    return str(g.op("MatMul", merged, g.weight(WIDTH, WIDTH, scale=0.12)))


def decoder_feeds(batch: int, length: int, past: int, seed: int = 1) -> dict[str, Array]:
    random = np.random.RandomState(seed)
    feeds: dict[str, Array] = {"tokens": random.randint(0, VOCABULARY, (batch, length))}
    for n in range(LAYERS):
        for what in ("key", "value"):
            feeds[f"past_{what}_{n}"] = random.standard_normal((batch, HEADS, past, HEAD)).astype(
                np.float32
            )
    return feeds


# a U-Net


def u_net() -> onnx.ModelProto:
    """Three scales; one way up by ConvTranspose, one by Resize (linear), skips by Concat."""
    g = Graph(np.random.RandomState(12))

    def block(x: str, before: int, after: int) -> str:
        y = g.op(
            "Conv",
            x,
            g.weight(after, before, 3, 3),
            g.weight(after, scale=0.1),
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        )
        y = g.op(
            "BatchNormalization",
            y,
            *(
                g.constant(g.random.uniform(low, high, after), np.float32)
                for low, high in ((0.7, 1.3), (-0.2, 0.2), (-0.2, 0.2), (0.6, 1.5))
            ),
        )
        return str(g.op("LeakyRelu", y, alpha=0.1))

    first = block("x", 3, 8)
    second = block(g.op("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 8, 16)
    third = block(g.op("AveragePool", second, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)
    up = g.op(
        "ConvTranspose",
        third,
        g.weight(32, 16, 2, 2, scale=0.15),
        g.weight(16, scale=0.1),
        strides=[2, 2],
    )
    up = block(g.op("Concat", up, second, axis=1), 32, 16)
    up = g.op(
        "Resize",
        up,
        "",
        g.constant([1, 1, 2, 2], np.float32),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    up = block(g.op("Concat", up, first, axis=1), 24, 8)
    mask = g.op("Sigmoid", g.op("Conv", up, g.weight(1, 8, 1, 1)))
    g.named(
        g.op(
            "Resize",
            mask,
            "",
            g.constant([1, 1, 2, 2], np.float32),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        "mask",
    )
    return g.model([tensor_info("x", ["N", 3, 32, 40])], ["mask"])


def u_net_feeds(batch: int, seed: int = 1) -> dict[str, Array]:
    return {"x": np.random.RandomState(seed).uniform(-1, 1, (batch, 3, 32, 40)).astype(np.float32)}


# side outputs of a U-Net

SIDES, PICTURE = (160, 80, 20), 320


def side_outputs() -> onnx.ModelProto:
    """What U2-Net and its like end in: maps of several extents, each resized to the picture's."""
    g = Graph(np.random.RandomState(12))
    for n in range(len(SIDES)):
        made = g.op(
            *("Resize", f"x{n}", "", "", g.constant([1, 1, PICTURE, PICTURE])),
            mode="linear",
            coordinate_transformation_mode="pytorch_half_pixel",
        )
        g.named(g.op("Sigmoid", made), f"y{n}")
    inputs = [tensor_info(f"x{n}", [1, 1, extent, extent]) for n, extent in enumerate(SIDES)]
    return g.model(inputs, [f"y{n}" for n in range(len(SIDES))])


def side_feeds(seed: int) -> dict[str, Array]:
    random = np.random.RandomState(seed)
    return {
        f"x{n}": random.standard_normal((1, 1, extent, extent)).astype(np.float32)
        for n, extent in enumerate(SIDES)
    }


# an fp16 classifier


def fp16_classifier() -> onnx.ModelProto:
    """Weights, activations, input and output of float16."""
    g = Graph(np.random.RandomState(13), np.float16)
    x = "x"
    for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 32, 1)):
        x = g.op(
            "Conv",
            x,
            g.weight(after, before, 3, 3, scale=(2 / (9 * before)) ** 0.5),
            g.weight(after, scale=0.1),
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[stride, stride],
        )
        x = g.op("Relu", x)
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    x = g.op("Gemm", x, g.weight(10, 32, scale=0.5), g.weight(10, scale=0.1), transB=1)
    g.named(g.op("Softmax", x, axis=-1), "probabilities")
    return g.model([tensor_info("x", ["N", 3, 32, 32], TensorProto.FLOAT16)], ["probabilities"])


def fp16_feeds(batch: int, seed: int = 1) -> dict[str, Array]:
    random = np.random.RandomState(seed)
    return {"x": random.uniform(-1, 1, (batch, 3, 32, 32)).astype(np.float16)}


@dataclass(frozen=True)
class Generated:
    """Attributes:
    tolerance: of each output's largest magnitude.
    runs: inputs that one compiled file must take one after the other.
    """

    model: Callable[[], onnx.ModelProto]
    runs: tuple[Mapping[str, Array], ...]
    tolerance: float = 1e-4

    @property
    def has_open_dims(self) -> bool:
        inputs = self.model().graph.input
        return any(d.dim_param for x in inputs for d in x.type.tensor_type.shape.dim)


GENERATED = {
    "decoder": Generated(
        decoder,
        (
            decoder_feeds(1, 7, 0),
            decoder_feeds(1, 1, 7, 2),
            decoder_feeds(3, 4, 12, 3),
            decoder_feeds(1, 1, 8, 4),
        ),
    ),
    "u_net": Generated(u_net, (u_net_feeds(1), u_net_feeds(3, 2))),
    "side_outputs": Generated(side_outputs, (side_feeds(1), side_feeds(2))),
    "fp16_classifier": Generated(fp16_classifier, (fp16_feeds(1), fp16_feeds(4, 2)), 5e-3),
}
