"""A decoder as a graph: tokens in, logits out, keys and values of all layers as growing states.

Several sequences are rows of one graph, as long as the longest: shorter ones have padding before
their first token, which is counted in no position and no query looks at.

Every architecture is built here, by what its parts say. Queries and keys are rotated by
halves: rows of weights whose architecture rotates neighbours are put into that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError
from aot.frontends.gguf.caches import CACHES, PAST, Cache, by_heads
from aot.frontends.gguf.layers import Layer, Rotation
from aot.frontends.gguf.model import Decoder
from aot.frontends.gguf.weights import Weights
from aot.frontends.lib.activations import swish, tanh_gelu
from aot.frontends.lib.attention import attention
from aot.frontends.lib.builder import GraphBuilder
from aot.frontends.lib.normalization import rms_norm, standardised
from aot.frontends.lib.place import Place
from aot.frontends.lib.rotary import angles, positions_from, rotated
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Assumption, Block, Function, Module, Value
from aot.ir.rewriter import Rewriter
from aot.ir.states import SLIDE_ROWS
from aot.ir.types import Array, DType, TensorType
from aot.ops import lookup
from aot.options import Tie

F32, I32 = DType.F32, DType.I32
MOST_TOKENS = 512  # of a run: the arena does not grow with the context
TOKENS, STARTS, LOGITS = "tokens", "starts", "logits"
COUNT = dims.symbol("T")
Caches = tuple[Cache, Cache]  # of keys and of values


def _relu_squared(b: GraphBuilder, x: Value) -> Value:
    positive = b.emit("relu", x)
    return b.emit("mul", positive, positive)


ACTIVATIONS: Mapping[str, Callable[[GraphBuilder, Value], Value]] = {
    "silu": swish,
    "gelu": tanh_gelu,
    "relu squared": _relu_squared,
}


class _Part(Place):
    """Builds one part of the model, such as `blk.3.ffn`, and gives its ops that name as origin."""

    def __init__(self, label: str, rewriter: Rewriter, values: DimValues) -> None:
        self.label = label
        self.rewriter = rewriter
        self.values = values

    def error(self, message: str) -> CompileError:
        return CompileError(f"{self.label}: {message}")


class DecoderBuilder:
    """Builds the function of one model.

    Args:
        context: tokens that its states hold.
        cache: how keys and values are kept, a name of CACHES.
        all_logits: whether the result has the logits of all tokens; else those of the last one.
        sequences: that a run continues; with more than one it is told where they start.
    """

    def __init__(
        self,
        model: Decoder,
        weights: Weights,
        context: int,
        *,
        all_logits: bool,
        cache: str = "f16",
        sequences: int = 1,
    ) -> None:
        self.model = model
        self.weights = weights
        self.context = context
        self.all_logits = all_logits
        self.sequences = sequences
        self.lead = (sequences,) if sequences > 1 else ()  # extents before those of one sequence
        self.starts: Value | None = None
        self.function = Function("main", Block())
        self.rewriter = Rewriter(self.function)
        self.values = DimValues(self.function)
        self.module = Module([self.function])
        self.results: dict[str, Value] = {}
        self._angles: dict[Rotation, tuple[Value, Value]] = {}
        self.caches = CACHES[cache]

    def build(self) -> Module:
        model, weights = self.model, self.weights
        tokens = self._input(TOKENS, TensorType(I32, (*self.lead, COUNT)))
        if self.lead:
            self.starts = self._input(STARTS, TensorType(I32, self.lead))
        self._bound()
        states = [self._layer_caches(n, layer) for n, layer in enumerate(model.layers)]
        if all(pair[0].past is not PAST for pair in states if pair is not None):
            self._count(tokens)
        place = self.part("token_embd")
        listed = place.reshape(tokens, (self._all_tokens,))
        x = weights.rows(place, listed, "token_embd.weight")
        if model.embedding_scale != 1:
            x = place.emit("mul", x, place.scalar(model.embedding_scale, F32))
        for index, caches in enumerate(states):
            if index and index % model.matrices == 0 and model.norms_loops:
                x = self._last_norm(x)
            x = self._through(index, x, caches)
        self._give(LOGITS, self._logits(x))
        self.function.result_names = list(self.results)
        self.rewriter.create(lookup("return"), list(self.results.values()))
        return self.module

    # inputs and results

    def part(self, label: str) -> _Part:
        return _Part(label, self.rewriter, self.values)

    def _input(self, name: str, type: TensorType) -> Value:
        block = self.function.block
        value = Value(type, block, len(block.args), name)
        block.args.append(value)
        return value

    def _give(self, name: str, value: Value) -> None:
        self.results[name] = value

    @property
    def _most_tokens(self) -> int:
        return min(MOST_TOKENS // self.sequences, self.context)

    @property
    def _all_tokens(self) -> Dim:
        return dims.multiply(COUNT, self.sequences)

    def _bound(self) -> None:
        most = self._most_tokens
        for bound, what in (
            (dims.maximum(COUNT, 1), "at least 1"),
            (dims.minimum(COUNT, most), f"at most {most}"),
        ):
            reason = f'input "{TOKENS}": dim {len(self.lead)} must be {what}'
            self.function.assumptions[Assumption(bound, COUNT, reason)] = None

    def _layer_caches(self, index: int, layer: Layer) -> Caches | None:
        """The caches of a layer's keys and values of earlier tokens; None without attention."""
        if not layer.groups:
            return None
        keys, values = (
            self.caches(
                *(f"{name}.{index}", self, (*self.lead, layer.groups), depth),
                window=self._window(layer),
            )
            for name, depth in (("keys", layer.key_depth), ("values", layer.value_depth))
        )
        return keys, values

    def _rows(self, window: int) -> int:
        """Most rows of a layer's state: the context, or with a window, the window, the run's tokens
        and the rows kept until the next slide.
        """
        return window + SLIDE_ROWS - 1 + self._most_tokens if window else self.context

    def _window(self, layer: Layer) -> int:
        """How many tokens before a run a layer looks at; 0 is all, as it is where they are kept in
        no more memory."""
        window = layer.window - 1
        return window if window > 0 and self._rows(window) < self.context else 0

    def keep(self, name: str, type: TensorType, window: int) -> Value:
        """Declares a growing state; returns its content before the run."""
        self.module.states[name] = Tie(f"{name}.next", self._rows(window), window)
        return self._input(name, type)

    def _count(self, tokens: Value) -> None:
        """Keeps the tokens, whose number is the position where each layer has a window."""
        past = self.keep("tokens.past", TensorType(I32, (*self.lead, PAST)), 0)
        grown = self.part("tokens").emit("concat", past, tokens, axis=len(self.lead))
        self.kept("tokens.past", grown)

    def kept(self, name: str, grown: Value) -> None:
        """Sets the content of a growing state after the run."""
        self._give(f"{name}.next", grown)

    # layers

    def _norm(self, x: Value, name: str, kind: str, order: Array | None = None) -> Value:
        """x normalised over its last dim.

        Args:
            name: of the tensors of the weights and the bias, "" where there are none.
            order: which element of the weights' last dim comes where; None where they stay.
        """
        place, last, epsilon = self.part(name or "norm"), x.type.rank - 1, self.model.epsilon
        scale = self._vector(place, f"{name}.weight", order) if name else None
        if kind == "rms":
            return rms_norm(place, x, scale, last, epsilon)
        y = standardised(place, x, (last,), epsilon)
        if scale is not None:
            y = place.emit("mul", y, scale)
        if name and self.weights.has(f"{name}.bias"):
            y = place.emit("add", y, self._vector(place, f"{name}.bias", order))
        return y

    def _vector(self, place: _Part, name: str, order: Array | None) -> Value:
        found = self.weights.vector(name)
        return place.constant(found if order is None else found[..., order])

    def _normed(self, layer: Layer, x: Value, name: str) -> Value:
        """x by one of the norms of a layer; itself where the architecture does not have it."""
        norms = self.model.architecture.norms
        if not name:
            return x
        return self._norm(x, f"{layer.label}.{name}" if norms.has_weights else "", norms.kind)

    def _linear(self, x: Value, name: str, order: Array | None = None, bias: str = "") -> Value:
        """A product with a matrix of the file, and its bias where there is one."""
        place, weights = self.part(name), self.weights
        y = weights.product(place, x, f"{name}.weight", order)
        bias = bias or f"{name}.bias"
        if not weights.has(bias):
            return y
        return place.emit("add", y, self._vector(place, bias, order))

    def _through(self, index: int, x: Value, caches: Caches | None) -> Value:
        """What a layer makes of x."""
        model, layer = self.model, self.model.layers[index]
        norms = model.architecture.norms
        place, is_last = self.part(f"{layer.label}.attn"), index == len(model.layers) - 1
        shares = model.is_parallel and not norms.feed_forward
        taken, attended = x, None
        if layer.heads:
            taken = self._normed(layer, x, norms.attention)
            mixed = taken if caches is None else self._mixed(layer, taken, *caches)
            mixed = self._wanted(mixed) if is_last else mixed
        x = self._wanted(x) if is_last else x
        if layer.heads:
            y = self._linear(mixed, f"{layer.label}.attn_output")
            attended = self._given(layer, y, norms.after[0])
        if attended is not None and not model.is_parallel:
            x = place.emit("add", x, attended)
        if layer.hidden:
            if not shares:
                taken = self._normed(layer, x, norms.feed_forward)
            elif is_last:
                taken = self._wanted(taken)
            y = self._given(layer, self._fed_forward(layer, taken), norms.after[1])
            x = self.part(f"{layer.label}.ffn").emit("add", x, y)
        if attended is not None and model.is_parallel:
            x = place.emit("add", x, attended)
        return x

    def _given(self, layer: Layer, y: Value, norm: str) -> Value:
        """What attention or the feed-forward network adds to what came in."""
        y, scale = self._normed(layer, y, norm), self.model.residual_scale
        if scale == 1:
            return y
        place = self.part(layer.label)
        return place.emit("mul", y, place.scalar(scale, F32))

    # attention

    def _mixed(self, layer: Layer, x: Value, past_keys: Cache, past_values: Cache) -> Value:
        """Values of all heads side by side, each mixed by the scores of its queries."""
        model, place = self.model, self.part(f"{layer.label}.attn")
        q, k, v = self._heads(layer, x)
        keys, values = past_keys.grown(place, k), past_values.grown(place, v)
        mixed = attention(
            place,
            by_heads(place, q),
            keys,
            values,
            self._is_text(place, past_keys.past),
            scale=model.scale,
            past=past_keys.past,
            ahead=0,
            behind=layer.window - 1 if layer.window else None,
            softcap=model.attention_cap,
        )
        mixed = by_heads(place, mixed)
        return place.reshape(mixed, (self._all_tokens, layer.heads * layer.value_depth))

    def _is_text(self, place: _Part, past: Dim) -> Value | None:
        """Which keys are of no padding, [sequences, 1, 1, keys]; None where there is none.

        Args:
            past: keys before a run, the last of those that there were.
        """
        if self.starts is None:
            return None
        keys, before = dims.add(past, COUNT), dims.add(PAST, dims.multiply(past, -1))
        starts = place.reshape(place.cast(self.starts, DType.I64), (self.sequences, 1, 1, 1))
        return place.emit("less_equal", starts, positions_from(place, before, keys))

    def _wanted(self, x: Value) -> Value:
        """The rows of x whose logits are computed: all, or each sequence's last."""
        if self.all_logits:
            return x
        place, width = self.part("output"), x.type.dims[-1]
        x = place.reshape(x, (*self.lead, COUNT, width))
        begins = (*(0 for _ in self.lead), dims.add(COUNT, -1), 0)
        ends = {"starts": begins, "stops": x.type.dims, "steps": (1,) * len(begins)}
        return place.reshape(place.emit("slice", x, **ends), (self.sequences, width))

    def _heads(self, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
        """Queries, keys and values [..., tokens, heads, depth], the first two rotated."""
        label, norms = layer.label, self.model.architecture.head_norms
        counts = {
            "q": (layer.heads, layer.key_depth),
            "k": (layer.groups, layer.key_depth),
            "v": (layer.groups, layer.value_depth),
        }
        orders = {n: _order(layer, *counts[n]) if n != "v" else None for n in counts}
        if self.weights.has(f"{label}.attn_qkv.weight"):
            found = self._fused_heads(layer, x, orders)
        else:
            found = {n: self._linear(x, f"{label}.attn_{n}", orders[n]) for n in counts}
        place = self.part(f"{label}.attn")
        if self.model.clamp:
            found = {n: self._clamped(place, v) for n, v in found.items()}
        if norms is not None and norms.over == "row":
            found |= {n: self._head_norm(layer, n, found[n], orders[n]) for n in ("q", "k")}
        heads = {n: place.reshape(v, (*self.lead, COUNT, *counts[n])) for n, v in found.items()}
        by_head = norms is not None and norms.over != "row"
        own = _order(layer, 1, layer.key_depth)
        is_late = norms is not None and norms.follow_rotation
        if by_head and not is_late:
            heads |= {n: self._head_norm(layer, n, heads[n], own) for n in ("q", "k")}
        if layer.rotation is not None:
            turns = self._turns(layer.rotation)
            heads |= {n: rotated(place, heads[n], *turns) for n in ("q", "k")}
        if by_head and is_late:
            heads |= {n: self._head_norm(layer, n, heads[n], own) for n in ("q", "k")}
        if self.model.temperature:
            heads["q"] = place.emit("mul", heads["q"], self._temperature(place))
        return heads["q"], heads["k"], heads["v"]

    def _clamped(self, place: _Part, x: Value) -> Value:
        for op, bound in (("minimum", self.model.clamp), ("maximum", -self.model.clamp)):
            x = place.emit(op, x, place.scalar(bound, F32))
        return x

    def _head_norm(self, layer: Layer, which: str, x: Value, order: Array | None) -> Value:
        norms, name = self.model.architecture.head_norms, f"{layer.label}.attn_{which}_norm"
        if norms is None or (norms.are_optional and not self.weights.has(f"{name}.weight")):
            return x
        return self._norm(x, name, norms.kind, order)

    def _fused_heads(
        self, layer: Layer, x: Value, orders: dict[str, Array | None]
    ) -> dict[str, Value]:
        """The three parts of a product whose matrix has their rows below each other."""
        rows, name = layer.rows, f"{layer.label}.attn_qkv"
        order, start = [], 0
        for part, count in rows.items():
            own = orders[part]
            order.append(start + (np.arange(count) if own is None else own))
            start += count
        has_order = any(o is not None for o in orders.values())
        y = self._linear(x, name, np.concatenate(order) if has_order else None)
        found = dict(zip(rows, self._split(name, y, list(rows.values())), strict=True))
        for part in rows:
            bias, place = f"{layer.label}.attn_{part}.bias", self.part(name)
            if self.weights.has(bias):
                added = self._vector(place, bias, orders[part])
                found[part] = place.emit("add", found[part], added)
        return found

    def _split(self, label: str, y: Value, extents: list[int]) -> list[Value]:
        """y's columns split into consecutive parts of these extents."""
        place, start, parts = self.part(label), 0, []
        for extent in extents:
            stop = start + extent
            ends = {"starts": (0, start), "stops": (y.type.dims[0], stop), "steps": (1, 1)}
            parts.append(place.emit("slice", y, **ends))
            start = stop
        return parts

    # positions

    def _turns(self, rotation: Rotation) -> tuple[Value, Value]:
        """Cosines and sines of a rotation, [..., tokens, 1, pairs]."""
        if rotation not in self._angles:
            source = self._factors_name()
            place = self.part("rope")
            frequencies = rotation.frequencies()
            if source:
                with np.errstate(divide="ignore"):
                    frequencies = frequencies / self.weights.vector(source)
            if not bool(np.isfinite(frequencies).all()):
                raise CompileError(
                    f"{self.weights.file.where}: tensor {source!r} has factors of 0 or NaN"
                )
            cosines, sines = angles(
                place, self._positions(place), frequencies.astype(np.float32), rotation.factor
            )
            shape = (*self.lead, COUNT, 1, rotation.elements // 2)
            self._angles[rotation] = place.reshape(cosines, shape), place.reshape(sines, shape)
        return self._angles[rotation]

    def _positions(self, place: _Part) -> Value:
        """The positions of the tokens in their sequences, [..., tokens]; negative where they are
        padding.
        """
        places = positions_from(place, PAST, COUNT)
        if self.starts is None:
            return places
        starts = place.reshape(place.cast(self.starts, DType.I64), (self.sequences, 1))
        return place.emit("sub", places, starts)

    def _factors_name(self) -> str:
        """The tensor by whose elements frequencies are divided; "" where there is none."""
        weights, model = self.weights, self.model
        if not model.architecture.rope.factors:
            return ""
        names = {n: f"rope_{n}.weight" for n in ("freqs", "factors_short", "factors_long")}
        for name in names.values():
            if weights.has(name):
                weights.tensor(name)  # counted as read, whichever is taken
        is_long = self.context > model.original_context
        size = "factors_long" if is_long else "factors_short"
        wanted = names["freqs" if weights.has(names["freqs"]) else size]
        return wanted if weights.has(wanted) else ""

    def _temperature(self, place: _Part) -> Value:
        """What queries are multiplied by, [..., tokens, 1, 1]: Decoder.temperature's formula."""
        model = self.model
        positions = place.cast(self._positions(place), F32)
        turns = place.emit("div", positions, place.scalar(model.original_context, F32))
        turns = place.emit("maximum", place.emit("floor", turns), place.scalar(0, F32))
        grown = place.emit("log", place.emit("add", turns, place.scalar(1, F32)))
        grown = place.emit("mul", grown, place.scalar(model.temperature, F32))
        grown = place.emit("add", grown, place.scalar(1, F32))
        return place.reshape(grown, (*self.lead, COUNT, 1, 1))

    # after attention

    def _fed_forward(self, layer: Layer, x: Value) -> Value:
        part, label = self.model.architecture.feed_forward, f"{layer.label}.ffn"
        place, active = self.part(label), ACTIVATIONS[part.activation]
        if not part.gate:
            return self._linear(active(place, self._linear(x, f"{label}_up")), f"{label}_down")
        if part.gate == "fused":
            both = self._linear(x, f"{label}_up")
            gate, up = self._split(f"{label}_up", both, [layer.hidden] * 2)
        else:
            gate, up = (self._linear(x, f"{label}_{n}") for n in ("gate", "up"))
        return self._linear(place.emit("mul", active(place, gate), up), f"{label}_down")

    def _last_norm(self, x: Value) -> Value:
        norms = self.model.architecture.norms
        return self._norm(x, "output_norm" if norms.has_weights else "", norms.kind)

    def _logits(self, x: Value) -> Value:
        model = self.model
        normal = self._last_norm(x)
        name = "output" if self.weights.has("output.weight") else "token_embd"
        logits = self._linear(normal, name, bias="output.bias")
        place = self.part(name)
        if model.logit_scale != 1:
            logits = place.emit("mul", logits, place.scalar(model.logit_scale, F32))
        if model.logit_cap:
            share = place.emit("mul", logits, place.scalar(1 / model.logit_cap, F32))
            share = place.emit("tanh", share)
            logits = place.emit("mul", share, place.scalar(model.logit_cap, F32))
        return logits


def _order(layer: Layer, heads: int, depth: int) -> Array | None:
    """Rows of heads in the order in which halves are rotated; None where they are in it."""
    if layer.rotation is None or not layer.rotation.are_neighbours:
        return None
    count = layer.rotation.elements
    head = np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2), np.arange(count, depth)])
    return np.asarray((np.arange(heads)[:, None] * depth + head).reshape(-1))
