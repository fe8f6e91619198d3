"""Streams of rows that layers keep beside each other: AltUp, https://arxiv.org/abs/2301.13310.

A layer works on the first stream. Before, it predicts all of them, each as a sum of all; behind, it
corrects them by what became of the first. The factors of both are of a product with the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.frontends.lib.place import Place
from aot.ir.graph import Value
from aot.ir.types import DType

if TYPE_CHECKING:
    from aot.frontends.gguf.layer_graph import LayerBuilder
    from aot.frontends.gguf.layers import Layer

F32 = DType.F32
LEAST_SQUARE = 1e-5  # mean of a stream's squares that it is divided by


class Streams:
    """Builds what a model with `count` streams does with them, f32[tokens, count, width].

    Args:
        builder: of the model's layers.
    """

    def __init__(self, builder: LayerBuilder, count: int) -> None:
        self.builder = builder
        self.count = count

    def begun(self, x: Value) -> Value:
        """The streams before the first layer: embeddings x [tokens, width], and products with them
        that are as large as they are."""
        place, (rows, width) = self.builder.part("altup_proj"), x.type.dims
        first = place.reshape(x, (rows, 1, width))
        others = self.builder.linear(x, "altup_proj")
        others = place.reshape(others, (rows, self.count - 1, width))
        return place.emit("concat", first, _as_large(place, others, first), axis=1)

    def merged(self, streams: Value) -> Value:
        """The mean [tokens, width] of the first stream and of products with the others that are as
        large as it is."""
        name, width = "altup_unembd_proj", streams.type.dims[2]
        assert isinstance(width, int)
        place, first = self.builder.part(name), self.first(streams)
        total = first
        for n in range(1, self.count):
            rows = np.arange((n - 1) * width, n * width)
            own = self.builder.linear(self._stream(place, streams, n), name, rows)
            total = place.emit("add", total, _as_large(place, own, first))
        return place.emit("mul", total, place.scalar(1 / self.count, F32))

    def predicted(self, layer: Layer, streams: Value) -> Value:
        """The streams before a layer."""
        label = f"{layer.label}.altup_predict_coef"
        place, rows = self.builder.part(label), streams.type.dims[0]
        factors = self.builder.linear(self._routed(layer, self.first(streams)), label)
        factors = place.reshape(factors, (rows, self.count, self.count))
        return place.emit("add", place.emit("matmul", factors, streams), streams)

    def corrected(self, layer: Layer, predicted: Value, x: Value) -> Value:
        """The streams behind a layer.

        Args:
            predicted: those before it.
            x: what it made of the first of them, [tokens, width].
        """
        label = f"{layer.label}.altup_correct_coef"
        place, (rows, width) = self.builder.part(label), x.type.dims
        factors = self.builder.linear(self._routed(layer, x), label)
        factors = place.emit("add", factors, place.scalar(1, F32))
        missed = place.emit("sub", x, self.first(predicted))
        added = place.emit(
            "mul",
            place.reshape(factors, (rows, self.count, 1)),
            place.reshape(missed, (rows, 1, width)),
        )
        return place.emit("add", predicted, added)

    def scaled_first(self, layer: Layer, streams: Value) -> Value:
        """The first stream times a layer's factors of its elements, [tokens, width]."""
        name = f"{layer.label}.altup_correct_scale"
        place = self.builder.part(name)
        factors = place.constant(self.builder.weights.vector(f"{name}.weight"))
        return place.emit("mul", self.first(streams), factors)

    def added_to_others(self, layer: Layer, streams: Value, x: Value) -> Value:
        """The streams, with x [tokens, width] added to all but the first."""
        place, (rows, count, width) = self.builder.part(layer.label), streams.type.dims
        first, others = (
            place.emit("slice", streams, starts=(0, a, 0), stops=(rows, b, width), steps=(1, 1, 1))
            for a, b in ((0, 1), (1, count))
        )
        others = place.emit("add", others, place.reshape(x, (rows, 1, width)))
        return place.emit("concat", first, others, axis=1)

    def first(self, streams: Value) -> Value:
        """The stream that layers work on, [tokens, width]."""
        return self._stream(self.builder.part("altup"), streams, 0)

    def _stream(self, place: Place, streams: Value, number: int) -> Value:
        rows, _, width = streams.type.dims
        starts, stops = (0, number, 0), (rows, number + 1, width)
        own = place.emit("slice", streams, starts=starts, stops=stops, steps=(1, 1, 1))
        return place.reshape(own, (rows, width))

    def _routed(self, layer: Layer, x: Value) -> Value:
        """What factors are products of, [tokens, count], from -1 to 1."""
        name = f"{layer.label}.altup_router"
        place = self.builder.part(name)
        normal = self.builder.norm(x, f"{name}_norm", "rms")
        normal = place.emit("mul", normal, place.scalar(1 / layer.width, F32))
        return place.emit("tanh", self.builder.linear(normal, name))


def _as_large(place: Place, x: Value, other: Value) -> Value:
    """x with as large a mean of the squares of its last dim as `other` has."""

    def mean_square(y: Value) -> Value:
        axes = (y.type.rank - 1,)
        return place.emit("reduce_mean", place.emit("mul", y, y), axes=axes, keepdims=True)

    own = place.emit("maximum", mean_square(x), place.scalar(LEAST_SQUARE, F32))
    share = place.emit("sqrt", place.emit("div", mean_square(other), own))
    return place.emit("mul", x, share)
