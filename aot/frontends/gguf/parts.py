"""The parts that models of GGUF files are made of: what differs between architectures.

A part names the metadata keys and the tensors that it reads, and has the options by which
architectures differ. An architecture is a record of parts (aot/frontends/gguf/architectures.py);
aot/frontends/gguf/model.py reads their keys, and aot/frontends/gguf/layer_graph.py builds them. The
meaning of keys and tensors is that of llama.cpp's src/models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import ClassVar

from aot.base.records import dataclass
from aot.frontends.gguf.layers import Has, Layer, Needed, Whole


def _vectors(name: str, kind: str, extent: int) -> Iterator[Needed]:
    """The weights of a norm, and the bias that it may have."""
    yield Needed(f"{name}.weight", (extent,))
    if kind == "layer":
        yield Needed(f"{name}.bias", (extent,), is_optional=True)


def _linear(name: str, rows: int, columns: int, *, is_optional: bool = False) -> Iterator[Needed]:
    """A matrix, and the bias and the factor that it may have.

    The factor of what comes in is for hardware that rounds it to four bits; no result needs it.
    """
    yield Needed(f"{name}.weight", (rows, columns), is_optional)
    yield Needed(f"{name}.bias", (rows,), is_optional=True)
    for factor in ("scale", "input_scale"):
        yield Needed(f"{name}.{factor}", (1,), is_optional=True)


@dataclass(frozen=True)
class Part:
    """A part of a model.

    Attributes:
        KEYS: below the architecture's name, that every such part reads.
    """

    KEYS: ClassVar[tuple[str, ...]] = ()

    def key_names(self) -> tuple[str, ...]:
        """The keys that it reads, with these options."""
        return self.KEYS

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        """The tensors of a layer that it reads."""
        return iter(())

    def shared(self, whole: Whole) -> Iterator[Needed]:
        """The tensors of no layer that it reads."""
        return iter(())


@dataclass(frozen=True)
class Extents(Part):
    """Counts and widths of layers; those of a layer may be a list, one for each.

    Attributes:
        has_loops: layers may be gone through several times.
        prefix: of the names of layers' tensors.
        has_local: local layers may have other extents of heads.
        shares_caches: the last layers may read keys and values of the last ones before them.
        are_halved: feed-forward networks are half as wide as the key says.
    """

    has_loops: bool = False
    prefix: str = ""
    has_local: bool = False
    shares_caches: bool = False
    are_halved: bool = False

    KEYS: ClassVar = (
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv"),
        *("attention.key_length", "attention.value_length"),
    )

    def key_names(self) -> tuple[str, ...]:
        found = [*self.KEYS]
        if self.has_loops:
            found += ["num_loops", "skip_loop_final_norm"]
        if self.has_local:
            found += ["attention.key_length_swa", "attention.value_length_swa"]
        return (*found, "attention.shared_kv_layers") if self.shares_caches else tuple(found)


@dataclass(frozen=True)
class Embedding(Part):
    """The rows of tokens, and what they are multiplied by.

    Attributes:
        scale: "" for nothing, "width" for the root of the width, "key" for what the file says.
        default: of the key; 0 is none.
        has_types: the first row of the types of texts is added, where a file has them.
        has_positions: the row of a token's position is added.
        norm: the kind of a norm behind, as of Norms; "" is none.
    """

    scale: str = ""
    default: float = 0.0
    has_types: bool = False
    has_positions: bool = False
    norm: str = ""

    def key_names(self) -> tuple[str, ...]:
        return ("embedding_scale",) if self.scale == "key" else ()

    def shared(self, whole: Whole) -> Iterator[Needed]:
        yield Needed("token_embd.weight", (whole.vocabulary, whole.width))
        if self.has_types:
            yield Needed("token_types.weight", (whole.types, whole.width), is_optional=True)
        if self.has_positions:
            yield Needed("position_embd.weight", (whole.context, whole.width))
        if self.norm:
            yield from _vectors("token_embd_norm", self.norm, whole.width)


@dataclass(frozen=True)
class Norms(Part):
    """Norms of what attention and the feed-forward network take and give, and of the last layer.

    Attributes:
        kind: "rms", or "layer", which subtracts the mean and may have a bias.
        attention, feed_forward: names of the norms of what they take; "" is none.
        second: the name of the norm of what attention takes where a file has it; the other one is
            the feed-forward network's then.
        after: names of the norms of what the two give; "" is none.
        has_weights: else they only normalise.
        follow_sums: those after are of the sums with what came in.
        first_is_plain: the first layer has no norm of what attention takes.
        last: the name of the norm after the last layer; "" is none.
    """

    kind: str = "rms"
    attention: str = "attn_norm"
    feed_forward: str = "ffn_norm"
    second: str = ""
    after: tuple[str, str] = ("", "")
    has_weights: bool = True
    follow_sums: bool = False
    first_is_plain: bool = False
    last: str = "output_norm"

    @property
    def epsilon(self) -> str:
        """The key of what is added to variances."""
        kinds = {"rms": "layer_norm_rms_epsilon", "layer": "layer_norm_epsilon"}
        return f"attention.{kinds[self.kind]}"

    def key_names(self) -> tuple[str, ...]:
        return (self.epsilon,)

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        if not self.has_weights:
            return
        is_plain = self.first_is_plain and not layer.number
        before, after = ("" if is_plain else self.attention, self.feed_forward), self.after
        for place, is_there in enumerate((layer.heads > 0, layer.hidden > 0)):
            for name in filter(None, (before[place], after[place]) if is_there else ()):
                yield from _vectors(f"{layer.label}.{name}", self.kind, layer.width)
        if self.second and has(f"{layer.label}.{self.second}.weight"):
            yield from _vectors(f"{layer.label}.{self.second}", self.kind, layer.width)

    def shared(self, whole: Whole) -> Iterator[Needed]:
        if self.has_weights and self.last:
            yield from _vectors(self.last, self.kind, whole.width)


@dataclass(frozen=True)
class HeadNorms(Part):
    """Norms of queries and keys.

    Attributes:
        over: "head", with the same weights for each; "heads", with its own for each; or "row", of
            all heads of a token together.
        kind: as of Norms.
        follow_rotation: of rotated queries and keys; else they are rotated afterwards.
        are_optional: a file may have none.
        has_values: values are normalised too, without weights.
    """

    over: str = "head"
    kind: str = "rms"
    follow_rotation: bool = False
    are_optional: bool = False
    has_values: bool = False

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        heads = {"q": layer.heads, "k": layer.groups}
        for name, count in heads.items() if layer.groups else ():
            depth = layer.key_depth
            dims = {"head": (depth,), "heads": (count, depth), "row": (count * depth,)}[self.over]
            label = f"{layer.label}.attn_{name}_norm"
            may_lack = self.are_optional or (name == "k" and layer.shares is not None)
            yield Needed(f"{label}.weight", dims, may_lack, True)
            if self.kind == "layer":
                yield Needed(f"{label}.bias", dims, True, True)


@dataclass(frozen=True)
class Attention(Part):
    """Attention: its matrices, what scores are multiplied by, and what bounds them.

    Attributes:
        scale: "depth" for one by the root of a key's elements, "key" for what the file says or
            else that, "" for none.
        wide_layers: with so many layers, a head's share of the embedding is in the place of a key.
        cap: c of c tanh(s / c), where the file says nothing; None where there is no such key.
        has_temperature: queries grow with the logarithm of their position.
        bias: of scores, by how far a key is away: "" for none, "slopes" of heads (ALiBi), or
            "buckets", a tensor's rows for distances.
        output: the name of the matrix behind.
        keys_may_be_values: where a layer has no matrix of values, they are the keys before norms.
        clamps: a key may say the largest magnitude of queries, keys and values.
    """

    scale: str = "depth"
    wide_layers: int = 0
    cap: float | None = None
    has_temperature: bool = False
    bias: str = ""
    output: str = "attn_output"
    keys_may_be_values: bool = False
    clamps: bool = False

    def key_names(self) -> tuple[str, ...]:
        found = ["attention.scale"] if self.scale == "key" else []
        found += [] if self.cap is None else ["attn_logit_softcapping"]
        found += ["attention.temperature_scale"] if self.has_temperature else []
        found += ["attention.relative_buckets_count"] if self.bias == "buckets" else []
        return (*found, "attention.clamp_kqv") if self.clamps else tuple(found)

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        label, width, rows = f"{layer.label}.attn", layer.width, layer.rows
        mixed = layer.heads * layer.value_depth
        if layer.heads and not layer.groups:
            yield from _linear(f"{layer.label}.{self.output}", width, width)
            return
        if not layer.heads:
            return
        if has(f"{label}_qkv.weight"):
            yield from _linear(f"{label}_qkv", sum(rows.values()), width)
            for name, count in rows.items() if not has(f"{label}_qkv.bias") else ():
                yield Needed(f"{label}_{name}.bias", (count,), is_optional=True)
        else:
            for name, count in rows.items():
                may_lack = name != "q" and layer.shares is not None
                may_lack = may_lack or (name == "v" and self.keys_may_be_values)
                yield from _linear(f"{label}_{name}", count, width, is_optional=may_lack)
        yield from _linear(f"{layer.label}.{self.output}", width, mixed)
        if self.bias == "buckets":
            dims = layer.buckets, layer.heads
            yield Needed(f"{label}_rel_b.weight", dims, layer.number > 0, True)


@dataclass(frozen=True)
class Window(Part):
    """Local layers, whose queries read only keys of a window.

    Attributes:
        default: of tokens, where the file says nothing; 0 is no window.
        period: the last of so many layers is global, others are local; with 1 all are local.
        layers: the default is that of models of so many layers; 0 is all.
        base: of the rotation in local layers; 0 is that of the others.
        is_plain: local layers are not scaled as others are.
        begins_global: the first of so many layers is global.
    """

    default: int = 0
    period: int = 1
    layers: int = 0
    base: float = 0.0
    is_plain: bool = False
    begins_global: bool = False

    def key_names(self) -> tuple[str, ...]:
        only = ("attention.sliding_window",)
        if self.period == 1:
            return only
        return (*only, "attention.sliding_window_pattern", "rope.freq_base_swa")


@dataclass(frozen=True)
class Rope(Part):
    """The rotation of queries and keys.

    Attributes:
        pairs: "halves", of element i and i + half, "neighbours", of 2i and 2i + 1, or "" where
            nothing is rotated.
        factors: tensors by which frequencies are divided: "" for none, "any", or "long" where the
            file need not say that they are for long texts.
        skips: every so many layers one does not rotate; 0 is none.
        is_local: global layers do not rotate, where there are local ones.
        has_sections: pairs may have positions of their own in images, and are halves then; in
            text all are one.
        may_be_absent: a key says that no layer rotates.
        has_ramp: keys say where YaRN's ramp begins and ends.
        has_local: local layers may rotate other counts of elements, and have no factors.
    """

    pairs: str = "halves"
    factors: str = ""
    skips: int = 0
    is_local: bool = False
    has_sections: bool = False
    may_be_absent: bool = False
    has_ramp: bool = False
    has_local: bool = False

    KEYS: ClassVar = (
        *("rope.dimension_count", "rope.freq_base", "rope.scale_linear"),
        *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor"),
        "rope.scaling.original_context_length",
    )

    def key_names(self) -> tuple[str, ...]:
        if not self.pairs:
            return ()
        found = [*self.KEYS]
        if self.has_sections:
            found.append("rope.dimension_sections")
        if self.may_be_absent:
            found.append("rope.scaling.finetuned")
        if self.has_ramp:
            names = ("beta_fast", "beta_slow", "log_multiplier")
            found += [f"rope.scaling.yarn_{name}" for name in names]
        return (*found, "rope.dimension_count_swa") if self.has_local else tuple(found)

    def shared(self, whole: Whole) -> Iterator[Needed]:
        if not self.factors:
            return
        is_long = whole.is_long or self.factors == "long"
        sizes = ("factors_short", "factors_long") if is_long else ("freqs",)
        for name in sizes:
            yield Needed(f"rope_{name}.weight", (whole.pairs,), is_optional=True)


@dataclass(frozen=True)
class FeedForward(Part):
    """The feed-forward network.

    Attributes:
        gate: "own" for a matrix of its own, "fused" for the first rows of ffn_up, "" for none, or
            "found" for what the file has.
        activation: of the gate, or of what there is without one.
        plain_activation: of what there is without one, where that is another.
        is_choice: a key may name the activation.
        has_cuts: a key may say for layers how far above their mean elements of the gate count.
    """

    gate: str = "own"
    activation: str = "silu"
    plain_activation: str = ""
    is_choice: bool = False
    has_cuts: bool = False

    def key_names(self) -> tuple[str, ...]:
        found = ("activation_sparsity_scale",) if self.has_cuts else ()
        return (*found, "hidden_activation") if self.is_choice else found

    def gate_of(self, layer: Layer, has: Has) -> str:
        """The gate of a layer: "own", "fused" or ""."""
        if self.gate != "found":
            return self.gate
        if has(f"{layer.label}.ffn_gate.weight"):
            return "own"
        return "fused" if layer.has_wide_up else ""

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        label, width, hidden = f"{layer.label}.ffn", layer.width, layer.hidden
        if not hidden:
            return
        gate = self.gate_of(layer, has)
        if gate == "own":
            yield from _linear(f"{label}_gate", hidden, width)
        yield from _linear(f"{label}_up", hidden * (2 if gate == "fused" else 1), width)
        yield from _linear(f"{label}_down", width, hidden)


@dataclass(frozen=True)
class Residual(Part):
    """How attention and the feed-forward network are added to what comes in.

    Attributes:
        is_parallel: both take the same; a feed-forward network without a norm takes attention's.
        is_choice: a key says whether they do.
        scale: a key says what both are multiplied by.
        scaled_depth: of the key's default, this over the root of the layers; 0 is none.
        has_layer_factors: what a layer gives may be multiplied by a tensor of one element.
    """

    is_parallel: bool = False
    is_choice: bool = False
    scale: bool = False
    scaled_depth: float = 0.0
    has_layer_factors: bool = False

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        if self.has_layer_factors:
            yield Needed(f"{layer.label}.layer_output_scale.weight", (1,), is_optional=True)

    def key_names(self) -> tuple[str, ...]:
        found = ["use_parallel_residual"] if self.is_choice else []
        return (*found, "residual_scale") if self.scale else tuple(found)


@dataclass(frozen=True)
class Head(Part):
    """Logits.

    Attributes:
        scale: "" for none, "times" or "over" for what the key says.
        needs_scale: the key must be there.
        cap: as of Attention.
    """

    scale: str = ""
    needs_scale: bool = False
    cap: float | None = None

    def key_names(self) -> tuple[str, ...]:
        found = ["logit_scale"] if self.scale else []
        return tuple(found) if self.cap is None else (*found, "final_logit_softcapping")

    def shared(self, whole: Whole) -> Iterator[Needed]:
        yield from _linear("output", whole.vocabulary, whole.width, is_optional=True)


@dataclass(frozen=True)
class Side(Part):
    """Embeddings of tokens for each layer, which gate what the layer adds behind its feed-forward
    network; the file may have none."""

    KEYS: ClassVar = ("embedding_length_per_layer_input",)

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        if layer.side:
            yield from _linear(f"{layer.label}.inp_gate", layer.side, layer.width)
            yield from _linear(f"{layer.label}.proj", layer.width, layer.side)
            yield Needed(f"{layer.label}.post_norm.weight", (layer.width,))

    def shared(self, whole: Whole) -> Iterator[Needed]:
        if whole.side:
            yield Needed("per_layer_token_embd.weight", (whole.vocabulary, whole.side))
            yield from _linear("per_layer_model_proj", whole.side, whole.width)
            yield Needed("per_layer_proj_norm.weight", (whole.side // whole.layers,))


@dataclass(frozen=True)
class Streams(Part):
    """Streams that layers keep beside each other (aot/frontends/gguf/streams.py)."""

    KEYS: ClassVar = ("altup.num_inputs", "altup.active_idx")

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        label, count, width = f"{layer.label}.altup", layer.streams, layer.width
        yield Needed(f"{label}_router.weight", (count, width))
        yield Needed(f"{label}_router_norm.weight", (width,))
        yield Needed(f"{label}_predict_coef.weight", (count * count, count))
        yield Needed(f"{label}_correct_coef.weight", (count, count))
        yield Needed(f"{label}_correct_scale.weight", (width,))

    def shared(self, whole: Whole) -> Iterator[Needed]:
        for name in ("altup_proj", "altup_unembd_proj"):
            yield Needed(f"{name}.weight", (whole.streams - 1, whole.width, whole.width))


@dataclass(frozen=True)
class LowRank(Part):
    """A product of low rank beside attention, of what attention takes: LAuReL,
    https://arxiv.org/abs/2411.07501."""

    def tensors(self, layer: Layer, has: Has) -> Iterator[Needed]:
        label = f"{layer.label}.laurel"
        yield from _linear(f"{label}_l", layer.rank, layer.width)
        yield from _linear(f"{label}_r", layer.width, layer.rank)
        yield Needed(f"{label}_post_norm.weight", (layer.width,))


@dataclass(frozen=True)
class Pooling(Part):
    """How a text's embedding is computed from its tokens' rows, in files of embedding models.

    Attributes:
        is_causal: tokens read only those before them, where the file says nothing. Without that no
            text is continued.
    """

    is_causal: bool = True

    KEYS: ClassVar = ("pooling_type", "attention.causal")


@dataclass(frozen=True)
class Architecture:
    """The parts of the models of a name.

    Attributes:
        models: that are known to be of it.
        head_norms, window, side, streams, low_rank: None where there are none.
        unused: keys that no part needs to read, and what they are of.
    """

    models: str
    extents: Extents = Extents()
    embedding: Embedding = Embedding()
    norms: Norms = Norms()
    head_norms: HeadNorms | None = None
    attention: Attention = Attention()
    window: Window | None = None
    rope: Rope = Rope()
    feed_forward: FeedForward = FeedForward()
    residual: Residual = Residual()
    head: Head = Head()
    pooling: Pooling = Pooling()
    side: Side | None = None
    streams: Streams | None = None
    low_rank: LowRank | None = None
    unused: Mapping[str, str] = field(default_factory=dict)

    def parts(self) -> list[Part]:
        found = (
            *(
                self.extents,
                self.embedding,
                self.norms,
                self.head_norms,
                self.attention,
                self.window,
            ),
            *(self.rope, self.feed_forward, self.residual, self.head, self.pooling, self.side),
            *(self.streams, self.low_rank),
        )
        return [part for part in found if part is not None]

    def key_names(self) -> list[str]:
        """The keys that its parts read, below its name."""
        return [key for part in self.parts() for key in part.key_names()]
