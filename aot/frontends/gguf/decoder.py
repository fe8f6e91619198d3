"""A decoder as a graph: tokens in, logits out, keys and values of all layers as growing states.

Several sequences are rows of one graph, as long as the longest: shorter ones have padding before
their first token, which is counted in no position and no query looks at.
"""

from __future__ import annotations

from aot.frontends.gguf.caches import CACHES, PAST, Cache, by_heads
from aot.frontends.gguf.layer_graph import COUNT, F32, I32, LayerBuilder, Part
from aot.frontends.gguf.layers import Layer
from aot.frontends.gguf.model import Model
from aot.frontends.gguf.weights import Weights
from aot.frontends.lib.attention import attention
from aot.frontends.lib.rotary import positions_from
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Module, Value
from aot.ir.states import REWIND_ROWS, SLIDE_ROWS
from aot.ir.types import DType, TensorType
from aot.options import Tie

MOST_TOKENS = 512  # of a run: the arena does not grow with the context
STARTS, LOGITS = "starts", "logits"
Caches = tuple[Cache, Cache]  # of keys and of values


class DecoderBuilder(LayerBuilder):
    """Builds the function of a model that continues texts.

    Args:
        context: tokens that its states hold.
        cache: how keys and values are kept, a name of CACHES.
        all_logits: whether the result has the logits of all tokens; else those of the last one.
        sequences: that a run continues; with more than one it is told where they start.
    """

    def __init__(
        self,
        model: Model,
        weights: Weights,
        context: int,
        *,
        all_logits: bool,
        cache: str = "f16",
        sequences: int = 1,
    ) -> None:
        most = min(MOST_TOKENS // sequences, context)
        lead = (sequences,) if sequences > 1 else ()
        super().__init__(model, weights, context, most, lead)
        self.all_logits = all_logits
        self.sequences = sequences
        self.starts: Value | None = None
        self.caches = CACHES[cache]
        self._states: list[Caches | None] = []
        self._grown: dict[int, tuple[Value, Value]] = {}

    def build(self) -> Module:
        tokens = self._tokens()
        if self.lead:
            self.starts = self._input(STARTS, TensorType(I32, self.lead))
        layers = enumerate(self.model.layers)
        self._states = [self._layer_caches(n, layer) for n, layer in layers]
        if all(pair[0].past is not PAST for pair in self._states if pair is not None):
            self._count(tokens)
        x = self._through_all(self._embedded(tokens))
        self._give(LOGITS, self._logits(x))
        return self._finished()

    # states

    def _layer_caches(self, index: int, layer: Layer) -> Caches | None:
        """The caches of a layer's keys and values of earlier tokens; None without any."""
        if not layer.groups or layer.shares is not None:
            return None
        keys, values = (
            kind(
                *(f"{name}.{index}", self, (*self.lead, layer.groups), depth),
                window=self._window(layer),
            )
            for kind, name, depth in zip(
                self.caches,
                ("keys", "values"),
                (layer.key_depth, layer.value_depth),
                strict=True,
            )
        )
        return keys, values

    def _rows(self, window: int) -> int:
        """Most rows of a layer's state: the context, or with a window, that, the rows to rewind,
        those kept until the next slide, and the run's tokens.
        """
        kept = window + REWIND_ROWS + SLIDE_ROWS - 1
        return kept + self.most_tokens if window else self.context

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

    # parts

    def _mixed(self, index: int, x: Value) -> Value:
        model, layer = self.model, self.model.layers[index]
        source = index if layer.shares is None else layer.shares
        caches = self._states[source]
        assert caches is not None
        past_keys, past_values = caches
        place = self.part(f"{layer.label}.attn")
        heads = self._heads(layer, x)
        if source == index:
            keys, values = (
                cache.grown(place, heads[name])
                for cache, name in ((past_keys, "k"), (past_values, "v"))
            )
            self._grown[index] = keys, values
        keys, values = self._grown[source]
        mixed = attention(
            place,
            by_heads(place, heads["q"]),
            keys,
            values,
            self._is_text(place, past_keys.past),
            scale=model.scale,
            past=past_keys.past,
            ahead=0,
            behind=layer.window - 1 if layer.window else None,
            softcap=model.attention_cap,
        )
        mixed = past_values.turned(place, by_heads(place, mixed))
        return place.reshape(mixed, (self._all_tokens, layer.heads * layer.value_depth))

    def _is_text(self, place: Part, past: Dim) -> Value | None:
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

    def _positions(self, place: Part) -> Value:
        """The positions of the tokens in their sequences, [..., tokens]; negative where they are
        padding.
        """
        places = positions_from(place, PAST, COUNT)
        if self.starts is None:
            return places
        starts = place.reshape(place.cast(self.starts, DType.I64), (self.sequences, 1))
        return place.emit("sub", places, starts)

    def _logits(self, x: Value) -> Value:
        model = self.model
        normal = self._last_norm(x)
        name = "output" if self.weights.has("output.weight") else "token_embd"
        logits = self.linear(normal, name, bias="output.bias")
        place = self.part(name)
        if model.logit_scale != 1:
            logits = place.emit("mul", logits, place.scalar(model.logit_scale, F32))
        if model.logit_cap:
            share = place.emit("mul", logits, place.scalar(1 / model.logit_cap, F32))
            share = place.emit("tanh", share)
            logits = place.emit("mul", share, place.scalar(model.logit_cap, F32))
        return logits
