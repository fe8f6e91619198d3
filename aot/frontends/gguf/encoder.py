"""An encoder as a graph: the tokens of a text in, its embedding out, without states.

Tokens read all others, those of a window, or with a decoder's architecture those before them. What
is left of all tokens is the pooling's.
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.gguf.caches import by_heads
from aot.frontends.gguf.layer_graph import COUNT, LayerBuilder, Part
from aot.frontends.gguf.layers import Layer
from aot.frontends.gguf.model import Model
from aot.frontends.gguf.weights import Weights
from aot.frontends.lib.attention import attention
from aot.frontends.lib.rotary import positions_from
from aot.ir import dims
from aot.ir.graph import Module, Value
from aot.ir.types import Array

EMBEDDING, EMBEDDINGS = "embedding", "embeddings"
LARGEST_SLOPE = 8.0  # the exponent of ALiBi's: https://arxiv.org/abs/2108.12409
FURTHEST = 128  # of distances that T5's buckets tell apart


class EncoderBuilder(LayerBuilder):
    """Builds the function of a model that embeds texts.

    Args:
        most_tokens: of a text.
    """

    def __init__(self, model: Model, weights: Weights, most_tokens: int) -> None:
        super().__init__(model, weights, most_tokens, most_tokens)
        self._biases: dict[str, Value] = {}
        self._read: dict[int, tuple[Value, Value]] = {}  # keys and values by layer

    def build(self) -> Module:
        x = self._through_all(self._embedded(self._tokens()))
        if self.model.architecture.norms.last:
            x = self._last_norm(x)
        name = EMBEDDINGS if self.model.pooling == "none" else EMBEDDING
        self._give(name, self._pooled(x))
        return self._finished()

    def _positions(self, place: Part) -> Value:
        return positions_from(place, 0, COUNT)

    # attention

    def _mixed(self, index: int, x: Value) -> Value:
        model, layer = self.model, self.model.layers[index]
        place = self.part(f"{layer.label}.attn")
        heads = {n: by_heads(place, value) for n, value in self._heads(layer, x).items()}
        if layer.shares is None:
            self._read[index] = heads["k"], heads["v"]
        keys, values = self._read[index if layer.shares is None else layer.shares]
        reach = layer.window // 2 if layer.window else None
        mixed = attention(
            place,
            heads["q"],
            keys,
            values,
            self._bias(layer),
            scale=model.scale,
            ahead=0 if model.is_causal else reach,
            behind=layer.window - 1 if model.is_causal and layer.window else reach,
            softcap=model.attention_cap,
        )
        mixed = by_heads(place, mixed)
        return place.reshape(mixed, (COUNT, layer.heads * layer.value_depth))

    def _bias(self, layer: Layer) -> Value | None:
        """What is added to scores, f32[heads, queries, keys]; None where nothing is."""
        kind = self.model.architecture.attention.bias
        if not kind:
            return None
        name = f"{layer.label}.attn_rel_b.weight"
        if kind == "slopes" or not self.weights.has(name):
            name = f"{self.model.layers[0].label}.attn_rel_b.weight"
        if name not in self._biases:
            place, most = self.part(f"{layer.label}.attn"), self.most_tokens
            far = np.arange(1 - most, most)
            if kind == "slopes":
                table = -np.abs(far)[:, None] * _slopes(layer.heads)
            else:
                table = self.weights.vector(name)[_bucket(far, layer.buckets)]
            queries = place.reshape(self._positions(place), (COUNT, 1))
            keys = positions_from(place, most - 1, COUNT)
            rows = place.emit(
                "gather",
                place.constant(table.astype(np.float32)),
                place.emit("sub", keys, queries),
                axis=0,
            )
            self._biases[name] = place.emit("transpose", rows, perm=(2, 0, 1))
        return self._biases[name]

    # results

    def _wanted(self, x: Value) -> Value:
        """The row of x that the pooling leaves, as far as it leaves one."""
        pooling = self.model.pooling
        if pooling not in ("cls", "last"):
            return x
        start = 0 if pooling == "cls" else dims.add(COUNT, -1)
        width = x.type.dims[-1]
        ends = {"starts": (start, 0), "stops": (dims.add(start, 1), width), "steps": (1, 1)}
        return self.part("pooling").emit("slice", x, **ends)

    def _pooled(self, x: Value) -> Value:
        if self.model.pooling != "mean":
            return x
        return self.part("pooling").emit("reduce_mean", x, axes=(0,), keepdims=True)


def _slopes(heads: int) -> Array:
    """The slopes of ALiBi, f64[heads]: powers of one number, then odd powers of its root."""
    power = 1 << (heads.bit_length() - 1)
    first = 2 ** (-LARGEST_SLOPE / power)
    found = [first ** (n + 1) for n in range(power)]
    found += [first ** (n + 0.5) for n in range(heads - power)]
    return np.asarray(found)


def _bucket(far: Array, count: int) -> Array:
    """The buckets of distances of keys from queries, T5's: each near one has its own, further ones
    have them by their logarithm; half of the buckets are of keys behind."""
    half = count // 2
    exact = half // 2
    size = np.abs(far)
    growth = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    wide = exact + growth * (half - exact) / math.log(FURTHEST / exact)
    wide = np.minimum(np.floor(wide.astype(np.float32)), half - 1).astype(np.int64)
    return np.asarray(np.where(size < exact, size, wide) + half * (far > 0))
