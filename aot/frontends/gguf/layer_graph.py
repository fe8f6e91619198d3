"""Layers of a GGUF model as a graph: norms, matrices, heads, rotations and feed-forward networks.

Every architecture is built here, by what its parts say. Queries and keys are rotated by halves:
rows of weights whose architecture rotates neighbours are put into that order. What a function has
besides layers is of aot/frontends/gguf/decoder.py and aot/frontends/gguf/encoder.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError
from aot.frontends.gguf.layers import Layer, Rotation
from aot.frontends.gguf.model import Model
from aot.frontends.gguf.streams import Streams
from aot.frontends.gguf.weights import Weights
from aot.frontends.lib.activations import swish, tanh_gelu
from aot.frontends.lib.builder import GraphBuilder
from aot.frontends.lib.normalization import rms_norm, standardised
from aot.frontends.lib.place import Place
from aot.frontends.lib.rotary import angles, rotated
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Assumption, Block, Function, Module, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType, TensorType
from aot.ops import lookup

F32, I32 = DType.F32, DType.I32
TOKENS = "tokens"
COUNT = dims.symbol("T")


def _relu_squared(b: GraphBuilder, x: Value) -> Value:
    positive = b.emit("relu", x)
    return b.emit("mul", positive, positive)


ACTIVATIONS: Mapping[str, Callable[[GraphBuilder, Value], Value]] = {
    "silu": swish,
    "gelu": tanh_gelu,
    "relu": lambda b, x: b.emit("relu", x),
    "relu squared": _relu_squared,
}


class Part(Place):
    """Builds one part of the model, such as `blk.3.ffn`, and gives its ops that name as origin."""

    def __init__(self, label: str, rewriter: Rewriter, values: DimValues) -> None:
        self.label = label
        self.rewriter = rewriter
        self.values = values

    def error(self, message: str) -> CompileError:
        return CompileError(f"{self.label}: {message}")


class LayerBuilder(ABC):
    """Builds the function of a model. The parts of its architecture say how layers are made.

    Args:
        context: the most tokens of a text.
        most_tokens: of a run.
        lead: extents of tokens before those of one text.
    """

    def __init__(
        self,
        model: Model,
        weights: Weights,
        context: int,
        most_tokens: int,
        lead: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.weights = weights
        self.context = context
        self.most_tokens = most_tokens
        self.lead = lead
        self.function = Function("main", Block())
        self.rewriter = Rewriter(self.function)
        self.values = DimValues(self.function)
        self.module = Module([self.function])
        self.results: dict[str, Value] = {}
        self._angles: dict[Rotation, tuple[Value, Value]] = {}
        self._side: Value | None = None
        count = model.layers[0].streams
        self.streams = Streams(self, count) if count else None

    @abstractmethod
    def _mixed(self, index: int, x: Value) -> Value:
        """Values of all heads of a layer side by side, each mixed by the scores of its queries."""

    @abstractmethod
    def _wanted(self, x: Value) -> Value:
        """The rows of x, one a token, of which the result is made."""

    @abstractmethod
    def _positions(self, place: Part) -> Value:
        """The positions of the tokens in their texts, [..., tokens]."""

    # inputs and results

    def part(self, label: str) -> Part:
        return Part(label, self.rewriter, self.values)

    def _input(self, name: str, type: TensorType) -> Value:
        block = self.function.block
        value = Value(type, block, len(block.args), name)
        block.args.append(value)
        return value

    def _tokens(self) -> Value:
        """The input of tokens, i32[..., T]."""
        tokens = self._input(TOKENS, TensorType(I32, (*self.lead, COUNT)))
        for bound, what in (
            (dims.maximum(COUNT, 1), "at least 1"),
            (dims.minimum(COUNT, self.most_tokens), f"at most {self.most_tokens}"),
        ):
            reason = f'input "{TOKENS}": dim {len(self.lead)} must be {what}'
            self.function.assumptions[Assumption(bound, COUNT, reason)] = None
        return tokens

    def _give(self, name: str, value: Value) -> None:
        self.results[name] = value

    def _finished(self) -> Module:
        self.function.result_names = list(self.results)
        self.rewriter.create(lookup("return"), list(self.results.values()))
        return self.module

    @property
    def _all_tokens(self) -> Dim:
        return dims.product([*self.lead, COUNT])

    def _embedded(self, tokens: Value) -> Value:
        """The rows of tokens with what is added to them, f32[tokens, width]."""
        model, place = self.model, self.part("token_embd")
        listed = place.reshape(tokens, (self._all_tokens,))
        x = self.weights.rows(place, listed, "token_embd.weight")
        if model.embedding_scale != 1:
            x = place.emit("mul", x, place.scalar(model.embedding_scale, F32))
        if model.layers[0].side:
            self._side = self._side_inputs(listed, x)
        return self._placed(place, x)

    def _placed(self, place: Part, x: Value) -> Value:
        """The token embeddings plus those of token types and positions, normalised."""
        part, weights, name = self.model.architecture.embedding, self.weights, "token_types.weight"
        if part.has_types and weights.has(name):
            first = place.constant(np.zeros(1, np.int32))
            x = place.emit("add", x, weights.rows(place, first, name))
        if part.has_positions:
            positions = place.reshape(self._positions(place), (self._all_tokens,))
            if self.lead:  # those of padding, of which nothing reads a row
                zero = place.cast(place.constant(np.zeros(1, np.int32)), positions.type.dtype)
                positions = place.emit("maximum", positions, zero)
            x = place.emit("add", x, weights.rows(place, positions, "position_embd.weight"))
        return self.norm(x, "token_embd_norm", part.norm) if part.norm else x

    def _side_inputs(self, tokens: Value, x: Value) -> Value:
        """What tokens give to each layer, f32[tokens, layers, elements]: the sum of the rows that
        they have for it and of a product with their embedding x."""
        model, name = self.model, "per_layer_model_proj"
        place, side = self.part("per_layer_token_embd"), model.layers[0].side
        dims = (self._all_tokens, model.matrices, side)
        rows = self.weights.rows(place, tokens, "per_layer_token_embd.weight")
        rows = place.emit("mul", place.reshape(rows, dims), place.scalar(side**0.5, F32))
        y = self.linear(x, name)
        y = place.emit("mul", y, place.scalar(model.width**-0.5, F32))
        y = self.norm(place.reshape(y, dims), "per_layer_proj_norm", "rms")
        return place.emit("mul", place.emit("add", y, rows), place.scalar(0.5**0.5, F32))

    def _through_all(self, x: Value) -> Value:
        """What all layers make of x, without the last norm."""
        if self.streams is not None:
            x = self.streams.begun(x)
        for index in range(len(self.model.layers)):
            if index and index % self.model.matrices == 0 and self.model.norms_loops:
                x = self._last_norm(x)
            x = self._through(index, x)
        return x if self.streams is None else self.streams.merged(x)

    # layers

    def norm(self, x: Value, name: str, kind: str, order: Array | None = None) -> Value:
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

    def _vector(self, place: Part, name: str, order: Array | None) -> Value:
        found = self.weights.vector(name)
        return place.constant(found if order is None else found[..., order])

    def _normed(self, layer: Layer, x: Value, name: str) -> Value:
        """x by one of the norms of a layer; itself where the architecture does not have it."""
        norms = self.model.architecture.norms
        if not name or (norms.first_is_plain and not layer.number and name == norms.attention):
            return x
        return self.norm(x, f"{layer.label}.{name}" if norms.has_weights else "", norms.kind)

    def linear(self, x: Value, name: str, order: Array | None = None, bias: str = "") -> Value:
        """A product with a matrix of the file, and its factor and bias where there are some."""
        place, weights = self.part(name), self.weights
        y = weights.product(place, x, f"{name}.weight", order)
        if weights.has(f"{name}.input_scale"):
            weights.tensor(f"{name}.input_scale")  # counted as read
        if weights.has(f"{name}.scale"):
            factor = float(weights.vector(f"{name}.scale")[0])
            y = place.emit("mul", y, place.scalar(factor, F32))
        bias = bias or f"{name}.bias"
        if not weights.has(bias):
            return y
        return place.emit("add", y, self._vector(place, bias, order))

    def _through(self, index: int, x: Value) -> Value:
        """What a layer makes of x, or of streams."""
        layer, streams = self.model.layers[index], self.streams
        if streams is None:
            y = self._attended_and_fed(index, x)
            return self._behind(layer, y, self._side_given(index, y))
        before = streams.predicted(layer, x)
        y = self._attended_and_fed(index, streams.first(before))
        before = self._wanted_streams(before) if index == len(self.model.layers) - 1 else before
        after = streams.corrected(layer, before, y)
        given = self._side_given(index, streams.scaled_first(layer, after))
        return after if given is None else streams.added_to_others(layer, after, given)

    def _wanted_streams(self, streams: Value) -> Value:
        place, (_, count, width) = self.part("altup"), streams.type.dims
        rows = self._wanted(
            place.reshape(streams, (self._all_tokens, dims.product([count, width])))
        )
        return place.reshape(rows, (rows.type.dims[0], count, width))

    def _attended_and_fed(self, index: int, x: Value) -> Value:
        """What attention and the feed-forward network of a layer make of x."""
        model, layer = self.model, self.model.layers[index]
        norms = model.architecture.norms
        place, is_last = self.part(f"{layer.label}.attn"), index == len(model.layers) - 1
        shares = model.is_parallel and not norms.feed_forward
        taken, attended = x, None
        if layer.heads:
            taken = self._normed(layer, x, norms.attention)
            has_second = norms.second and self.weights.has(f"{layer.label}.{norms.second}.weight")
            read = self._normed(layer, x, norms.second) if has_second else taken
            mixed = self._mixed(index, read) if layer.groups else read
            mixed = self._wanted(mixed) if is_last else mixed
        x = self._wanted(x) if is_last else x
        if layer.heads:
            y = self.linear(mixed, f"{layer.label}.{model.architecture.attention.output}")
            attended = self._given(layer, y, norms.after[0])
        if attended is not None and not model.is_parallel:
            x = self._summed(layer, place.emit("add", x, attended), norms.after[0])
            if layer.rank:
                x = self._beside(layer, x, self._wanted(taken) if is_last else taken)
        if layer.hidden:
            if not shares:
                taken = self._normed(layer, x, norms.feed_forward)
            elif is_last:
                taken = self._wanted(taken)
            y = self._given(layer, self._fed_forward(layer, taken), norms.after[1])
            x = self.part(f"{layer.label}.ffn").emit("add", x, y)
            x = self._summed(layer, x, norms.after[1])
        if attended is not None and model.is_parallel:
            x = place.emit("add", x, attended)
        return x

    def _beside(self, layer: Layer, x: Value, taken: Value) -> Value:
        """The mean of x and a product of low rank with attention's input, times the root of 2."""
        label = f"{layer.label}.laurel"
        place, y = self.part(label), self.linear(taken, f"{label}_l")
        y = self.norm(self.linear(y, f"{label}_r"), f"{label}_post_norm", "rms")
        total = place.emit("add", place.emit("add", y, taken), x)
        return place.emit("mul", total, place.scalar(0.5**0.5, F32))

    def _side_given(self, index: int, x: Value) -> Value | None:
        """What tokens' embeddings for a layer let it add, gated by x; None without them."""
        layer = self.model.layers[index]
        label, place = layer.label, self.part(layer.label)
        if self._side is None:
            return None
        rows, _, side = self._side.type.dims
        starts, stops = (0, layer.number, 0), (rows, layer.number + 1, side)
        own = place.emit("slice", self._side, starts=starts, stops=stops, steps=(1, 1, 1))
        own = place.reshape(own, (rows, side))
        own = self._wanted(own) if index == len(self.model.layers) - 1 else own
        gate = tanh_gelu(place, self.linear(x, f"{label}.inp_gate"))
        y = self.linear(place.emit("mul", gate, own), f"{label}.proj")
        return self.norm(y, f"{label}.post_norm", "rms")

    def _behind(self, layer: Layer, x: Value, side: Value | None) -> Value:
        """x with what tokens' embeddings for the layer let it add, times the layer's factor."""
        name, place = f"{layer.label}.layer_output_scale.weight", self.part(layer.label)
        if side is not None:
            x = place.emit("add", x, side)
        if self.model.architecture.residual.has_layer_factors and self.weights.has(name):
            factor = float(self.weights.vector(name)[0])
            x = place.emit("mul", x, place.scalar(factor, F32))
        return x

    def _given(self, layer: Layer, y: Value, norm: str) -> Value:
        """What attention or the feed-forward network adds to what came in."""
        scale = self.model.residual_scale
        if not self.model.architecture.norms.follow_sums:
            y = self._normed(layer, y, norm)
        if scale == 1:
            return y
        place = self.part(layer.label)
        return place.emit("mul", y, place.scalar(scale, F32))

    def _summed(self, layer: Layer, x: Value, norm: str) -> Value:
        """The sum of what came in and what attention or the feed-forward network adds to it."""
        return self._normed(layer, x, norm) if self.model.architecture.norms.follow_sums else x

    # attention

    def _heads(self, layer: Layer, x: Value) -> dict[str, Value]:
        """Queries, keys and values "q", "k" and "v" [..., tokens, heads, depth], the first two
        rotated; only the first of a layer that reads another's."""
        label, norms = layer.label, self.model.architecture.head_norms
        counts = {
            "q": (layer.heads, layer.key_depth),
            "k": (layer.groups, layer.key_depth),
            "v": (layer.groups, layer.value_depth),
        }
        orders = {n: _order(layer, *counts[n]) if n != "v" else None for n in counts}
        names = ("q", "k", "v") if layer.shares is None else ("q",)
        if self.weights.has(f"{label}.attn_qkv.weight"):
            found = self._fused_heads(layer, x, orders)
        else:
            found = {
                n: self.linear(x, f"{label}.attn_{n}", orders[n])
                for n in names
                if self.weights.has(f"{label}.attn_{n}.weight")
            }
            if "v" in names and "v" not in found:
                found["v"] = found["k"]
        turned = [n for n in ("q", "k") if n in names]
        place = self.part(f"{label}.attn")
        if self.model.clamp:
            found = {n: self._clamped(place, v) for n, v in found.items()}
        if norms is not None and norms.over == "row":
            found |= {n: self._head_norm(layer, n, found[n], orders[n]) for n in turned}
        heads = {n: place.reshape(found[n], (*self.lead, COUNT, *counts[n])) for n in names}
        by_head = norms is not None and norms.over != "row"
        own = _order(layer, 1, layer.key_depth)
        is_late = norms is not None and norms.follow_rotation
        if by_head and not is_late:
            heads |= {n: self._head_norm(layer, n, heads[n], own) for n in turned}
        if layer.rotation is not None:
            turns = self._turns(layer.rotation)
            heads |= {n: rotated(place, heads[n], *turns) for n in turned}
        if by_head and is_late:
            heads |= {n: self._head_norm(layer, n, heads[n], own) for n in turned}
        if self.model.temperature:
            heads["q"] = place.emit("mul", heads["q"], self._temperature(place))
        if norms is not None and norms.has_values and "v" in heads:
            heads["v"] = self.norm(heads["v"], "", norms.kind)
        return heads

    def _clamped(self, place: Part, x: Value) -> Value:
        for op, bound in (("minimum", self.model.clamp), ("maximum", -self.model.clamp)):
            x = place.emit(op, x, place.scalar(bound, F32))
        return x

    def _head_norm(self, layer: Layer, which: str, x: Value, order: Array | None) -> Value:
        norms, name = self.model.architecture.head_norms, f"{layer.label}.attn_{which}_norm"
        if norms is None or (norms.are_optional and not self.weights.has(f"{name}.weight")):
            return x
        return self.norm(x, name, norms.kind, order)

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
        y = self.linear(x, name, np.concatenate(order) if has_order else None)
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
            source = self._factors_name() if rotation.has_factors else ""
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
            shape: tuple[Dim, ...] = (*self.lead, COUNT, 1, rotation.elements // 2)
            self._angles[rotation] = place.reshape(cosines, shape), place.reshape(sines, shape)
        return self._angles[rotation]

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

    def _temperature(self, place: Part) -> Value:
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
        place, gate_kind = self.part(label), part.gate_of(layer, self.weights.has)
        plain = part.plain_activation if not gate_kind else ""
        active = ACTIVATIONS[plain or self.model.activation]
        if not gate_kind:
            return self.linear(active(place, self.linear(x, f"{label}_up")), f"{label}_down")
        if gate_kind == "fused":
            both = self.linear(x, f"{label}_up")
            gate, up = self._split(f"{label}_up", both, [layer.hidden] * 2)
        else:
            gate, up = (self.linear(x, f"{label}_{n}") for n in ("gate", "up"))
        if layer.cut > -np.inf:
            gate = self._cut(place, layer, gate)
        return self.linear(place.emit("mul", active(place, gate), up), f"{label}_down")

    def _cut(self, place: Part, layer: Layer, gate: Value) -> Value:
        """How far elements of the gate are above their mean and `cut` deviations of them; 0 where
        they are not above."""
        axes, share = (gate.type.rank - 1,), layer.hidden / max(1, layer.hidden - 1)
        centred = place.emit("sub", gate, place.emit("reduce_mean", gate, axes=axes, keepdims=True))
        square = place.emit("mul", centred, centred)
        square = place.emit("reduce_mean", square, axes=axes, keepdims=True)
        factor = place.scalar(layer.cut * share**0.5, F32)
        bound = place.emit("mul", place.emit("sqrt", square), factor)
        return place.emit("relu", place.emit("sub", centred, bound))

    def _last_norm(self, x: Value) -> Value:
        norms = self.model.architecture.norms
        return self.norm(x, norms.last if norms.has_weights else "", norms.kind)


def _order(layer: Layer, heads: int, depth: int) -> Array | None:
    """Rows of heads in the order in which halves are rotated; None where they are in it."""
    if layer.rotation is None or not layer.rotation.are_neighbours:
        return None
    count = layer.rotation.elements
    head = np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2), np.arange(count, depth)])
    return np.asarray((np.arange(heads)[:, None] * depth + head).reshape(-1))
