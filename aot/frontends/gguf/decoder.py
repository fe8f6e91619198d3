"""A decoder as a graph: tokens in, logits out, keys and values of all layers as growing states.

Several sequences are rows of one graph, as long as the longest: shorter ones have padding before
their first token, which is counted in no position and no query looks at.

Every architecture is built here, by what its row of the table says. Queries and keys are rotated by
halves: rows of weights whose architecture rotates neighbours are put into that order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError
from aot.frontends.gguf.architectures import Decoder, Rotation
from aot.frontends.gguf.caches import CACHES, PAST, Cache, by_heads
from aot.frontends.gguf.weights import Weights
from aot.frontends.lib.activations import swish, tanh_gelu
from aot.frontends.lib.attention import attention
from aot.frontends.lib.builder import GraphBuilder, static_extents
from aot.frontends.lib.normalization import rms_norm
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
_ACTIVATIONS: dict[str, Callable[[GraphBuilder, Value], Value]] = {
    "silu": swish,
    "gelu": tanh_gelu,
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
        self._angles: dict[tuple[Rotation, str], tuple[Value, Value]] = {}
        self.caches = CACHES[cache]

    def build(self) -> Module:
        model, weights = self.model, self.weights
        tokens = self._input(TOKENS, TensorType(I32, (*self.lead, COUNT)))
        if self.lead:
            self.starts = self._input(STARTS, TensorType(I32, self.lead))
        self._bound()
        states = [self._layer_caches(layer) for layer in range(model.layers)]
        if all(keys.past is not PAST for keys, _ in states):
            self._count(tokens)
        place = self.part("token_embd")
        vocabulary = weights.file.tensors.get("token_embd.weight")
        size = vocabulary.dims[0] if vocabulary is not None else 0
        listed = place.reshape(tokens, (self._all_tokens,))
        x = weights.rows(place, listed, "token_embd.weight", (size, model.width))
        if model.architecture.scales_embedding:
            x = place.emit("mul", x, place.scalar(model.width**0.5, F32))
        for layer, (keys, values) in enumerate(states):
            x = self._attended(layer, x, keys, values)
            x = self._fed_forward(layer, x)
        self._give(LOGITS, self._logits(x, size))
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

    def _layer_caches(self, layer: int) -> tuple[Cache, Cache]:
        """The caches of a layer's keys and values of earlier tokens."""
        model = self.model
        keys, values = (
            self.caches(
                *(f"{name}.{layer}", self, (*self.lead, model.groups), depth),
                window=self._window(layer),
            )
            for name, depth in (("keys", model.key_depth), ("values", model.value_depth))
        )
        return keys, values

    def _rows(self, window: int) -> int:
        """Most rows of a layer's state: the context, or with a window, the window, the run's tokens
        and the rows kept until the next slide.
        """
        return window + SLIDE_ROWS - 1 + self._most_tokens if window else self.context

    def _window(self, layer: int) -> int:
        """How many tokens before a run a layer looks at; 0 is all, as it is where they are kept in
        no more memory."""
        window = self.model.window - 1 if self.model.is_local(layer) else 0
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

    def _norm(self, x: Value, name: str) -> Value:
        place = self.part(name)
        scale = place.constant(self.weights.vector(f"{name}.weight", _extent(x)))
        return rms_norm(place, x, scale, x.type.rank - 1, self.model.epsilon)

    def _linear(self, x: Value, name: str, rows: int, order: Array | None = None) -> Value:
        """A product with a matrix of the file, and its bias where there is one."""
        place, weights = self.part(name), self.weights
        y = weights.product(place, x, f"{name}.weight", (rows, _extent(x)), order)
        if not weights.has(f"{name}.bias"):
            return y
        bias = weights.vector(f"{name}.bias", rows)
        return place.emit("add", y, place.constant(bias if order is None else bias[order]))

    def _attended(self, layer: int, x: Value, past_keys: Cache, past_values: Cache) -> Value:
        model, label = self.model, f"blk.{layer}"
        place = self.part(f"{label}.attn")
        q, k, v = self._heads(layer, self._norm(x, f"{label}.attn_norm"))
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
            behind=model.window - 1 if model.is_local(layer) else None,
            softcap=model.attention_cap,
        )
        mixed = by_heads(place, mixed)
        mixed = place.reshape(mixed, (self._all_tokens, model.heads * model.value_depth))
        if layer == model.layers - 1:
            mixed, x = self._wanted(mixed), self._wanted(x)
        y = self._linear(mixed, f"{label}.attn_output", model.width)
        if model.architecture.has_post_norms:
            y = self._norm(y, f"{label}.post_attention_norm")
        return place.emit("add", x, y)

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

    def _heads(self, layer: int, x: Value) -> tuple[Value, Value, Value]:
        """Queries, keys and values [..., tokens, heads, depth], the first two rotated."""
        model, label = self.model, f"blk.{layer}"
        counts = {
            "q": (model.heads, model.key_depth),
            "k": (model.groups, model.key_depth),
            "v": (model.groups, model.value_depth),
        }
        orders = {n: self._order(*counts[n]) if n != "v" else None for n in counts}
        rows = {name: count * depth for name, (count, depth) in counts.items()}
        if self.weights.has(f"{label}.attn_qkv.weight"):
            found = self._fused_heads(f"{label}.attn_qkv", x, rows, orders)
        else:
            found = {n: self._linear(x, f"{label}.attn_{n}", rows[n], orders[n]) for n in counts}
        place = self.part(f"{label}.attn")
        heads = {n: place.reshape(v, (*self.lead, COUNT, *counts[n])) for n, v in found.items()}
        if model.architecture.normalises_heads:
            for name in ("q", "k"):
                heads[name] = self._norm(heads[name], f"{label}.attn_{name}_norm")
        turns = self._turns(layer)
        q, k = (rotated(place, heads[name], *turns) for name in ("q", "k"))
        return q, k, heads["v"]

    def _fused_heads(
        self, name: str, x: Value, rows: dict[str, int], orders: dict[str, Array | None]
    ) -> dict[str, Value]:
        """The three parts of a product whose matrix has their rows below each other."""
        order, start = [], 0
        for part, count in rows.items():
            own = orders[part]
            order.append(start + (np.arange(count) if own is None else own))
            start += count
        has_order = any(o is not None for o in orders.values())
        y = self._linear(x, name, start, np.concatenate(order) if has_order else None)
        parts = self._split(name, y, list(rows.values()))
        return dict(zip(rows, parts, strict=True))

    def _split(self, label: str, y: Value, extents: list[int]) -> list[Value]:
        """y's columns split into consecutive parts of these extents."""
        place, start, parts = self.part(label), 0, []
        for extent in extents:
            stop = start + extent
            ends = {"starts": (0, start), "stops": (y.type.dims[0], stop), "steps": (1, 1)}
            parts.append(place.emit("slice", y, **ends))
            start = stop
        return parts

    def _order(self, heads: int, depth: int) -> Array | None:
        """Rows of heads in the order in which halves are rotated; None where they are in it."""
        if not self.model.architecture.pairs_are_neighbours:
            return None
        count = self.model.global_rotation.elements
        head = np.concatenate(
            [np.arange(0, count, 2), np.arange(1, count, 2), np.arange(count, depth)]
        )
        return np.asarray((np.arange(heads)[:, None] * depth + head).reshape(-1))

    # rotations

    def _turns(self, layer: int) -> tuple[Value, Value]:
        """Cosines and sines of a layer, [..., tokens, 1, pairs]."""
        rotation = self.model.rotation(layer)
        source = self._factors_name(layer, rotation)
        key = rotation, source
        if key not in self._angles:
            place = self.part("rope")
            pairs = rotation.elements // 2
            places = np.arange(pairs, dtype=np.float64) * -2 / rotation.elements
            frequencies = rotation.scale * rotation.base**places
            if source:
                with np.errstate(divide="ignore"):
                    frequencies = frequencies / self.weights.vector(source, pairs)
            if not bool(np.isfinite(frequencies).all()):
                raise CompileError(
                    f"{self.weights.file.where}: tensor {source!r} has factors of 0 or NaN"
                )
            cosines, sines = angles(
                place,
                self._positions(place),
                frequencies.astype(np.float32),
                self.model.rotation_factor,
            )
            shape = (*self.lead, COUNT, 1, pairs)
            self._angles[key] = place.reshape(cosines, shape), place.reshape(sines, shape)
        return self._angles[key]

    def _positions(self, place: _Part) -> Value:
        """The positions of the tokens in their sequences, [..., tokens]; negative where they are
        padding.
        """
        places = positions_from(place, PAST, COUNT)
        if self.starts is None:
            return places
        starts = place.reshape(place.cast(self.starts, DType.I64), (self.sequences, 1))
        return place.emit("sub", places, starts)

    def _factors_name(self, layer: int, rotation: Rotation) -> str:
        """The tensor by whose elements frequencies are divided; "" where there is none."""
        weights, model = self.weights, self.model
        for name in ("rope_freqs.weight", f"blk.{layer}.rope_freqs.weight"):
            if weights.has(name):
                weights.vector(name, rotation.elements // 2)
                return name
        names = {size: f"rope_factors_{size}.weight" for size in ("short", "long")}
        for name in names.values():
            if weights.has(name):
                weights.vector(name, rotation.elements // 2)
        wanted = names["long" if self.context > model.original_context else "short"]
        return wanted if weights.has(wanted) else ""

    # after attention

    def _fed_forward(self, layer: int, x: Value) -> Value:
        model, label = self.model, f"blk.{layer}"
        place = self.part(f"{label}.ffn")
        normal = self._norm(x, f"{label}.ffn_norm")
        if model.architecture.has_fused_gate:
            both = self._linear(normal, f"{label}.ffn_up", 2 * model.hidden)
            gate, up = self._split(f"{label}.ffn_up", both, [model.hidden] * 2)
        else:
            gate = self._linear(normal, f"{label}.ffn_gate", model.hidden)
            up = self._linear(normal, f"{label}.ffn_up", model.hidden)
        gate = _ACTIVATIONS[model.architecture.activation](place, gate)
        y = self._linear(place.emit("mul", gate, up), f"{label}.ffn_down", model.width)
        if model.architecture.has_post_norms:
            y = self._norm(y, f"{label}.post_ffw_norm")
        return place.emit("add", x, y)

    def _logits(self, x: Value, vocabulary: int) -> Value:
        model = self.model
        normal = self._norm(x, "output_norm")
        name = "output" if self.weights.has("output.weight") else "token_embd"
        logits = self._linear(normal, name, vocabulary)
        if model.logit_cap:
            place = self.part(name)
            share = place.emit("mul", logits, place.scalar(1 / model.logit_cap, F32))
            share = place.emit("tanh", share)
            logits = place.emit("mul", share, place.scalar(model.logit_cap, F32))
        return logits


def _extent(x: Value) -> int:
    return static_extents(x.type.dims[-1:], "a layer's width")[0]
