"""A model's numbers: what its architecture's parts read in the metadata of a file.

Makes no ops and reads no tensors' contents. Every key is read by the part that names it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.frontends.gguf.architectures import ARCHITECTURES
from aot.frontends.gguf.keys import MOST_SHOWN, Keys, nearest
from aot.frontends.gguf.layers import Layer, Rotation
from aot.frontends.gguf.parts import Architecture, Extents, Part, Window
from aot.frontends.gguf.reader import GgufFile

SCALINGS = ("none", "linear", "yarn", "longrope")
BETAS = (32.0, 1.0)  # of YaRN: turns in the first context, where its ramp begins and ends
_ACTIVATIONS = {
    "gelu": "gelu",
    "geglu": "gelu",
    "relu": "relu",
    "reglu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
}
_POOLINGS = ("none", "mean", "cls", "last")  # by llama.cpp's number
MOST_LAYERS = 1 << 16  # gone through


@dataclass(frozen=True)
class Model:
    """A model: its architecture and its numbers.

    Attributes:
        keys: those of the file, and which of them were read.
        width: of what layers give.
        embedding_scale, residual_scale: factors of what tokens' rows are, and of what attention
            and the feed-forward network give.
        is_parallel: the two take the same.
        norms_loops: the last norm follows each loop through the layers.
        scale: of scores.
        temperature: queries of the position p are multiplied by
            1 + temperature * ln(1 + floor(p / original_context)); 0 for none.
        context: positions that the model was made for.
        original_context: those that it was made for before its frequencies were changed.
        is_long: frequencies may have factors for short and long texts.
        clamp: the largest magnitude of queries, keys and values; 0 is none.
        activation: of the feed-forward network's gate.
        pooling: "" of a model that continues texts; else what is a text's embedding: "mean",
            "cls" for the first token's, "last", or "none" for those of all.
        is_causal: tokens read only those before them.
        logit_scale: a factor of logits, before their cap.
    """

    name: str
    architecture: Architecture
    keys: Keys
    layers: tuple[Layer, ...]
    width: int
    epsilon: float
    embedding_scale: float
    residual_scale: float
    is_parallel: bool
    loops: int
    norms_loops: bool
    scale: float
    temperature: float
    context: int
    original_context: int
    is_long: bool
    clamp: float
    activation: str
    pooling: str
    is_causal: bool
    attention_cap: float
    logit_cap: float
    logit_scale: float

    @property
    def matrices(self) -> int:
        """Layers that have tensors of their own."""
        return len(self.layers) // self.loops

    @property
    def pairs(self) -> int:
        """Pairs of elements whose frequencies may have factors."""
        rotations = [layer.rotation for layer in self.layers]
        return max((r.elements // 2 for r in rotations if r and r.has_factors), default=0)


def model_of(file: GgufFile) -> Model:
    """The model that a file holds.

    Raises:
        CompileError: a key is missing or wrong.
        UnsupportedError: its architecture is not known, or has parts that are not.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CompileError(f"{file.where}: key 'general.architecture' is {name!r}, expected a text")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        likely = nearest(name, ARCHITECTURES)
        raise UnsupportedError(
            f"{file.where}: the architecture is not supported, expected "
            f"{', '.join(sorted(ARCHITECTURES))}:",
            [ascii(name[:MOST_SHOWN])[1:-1] + (f", the nearest is {likely}" if likely else "")],
        )
    return _Reading(file, name, architecture).model()


class _Reading:
    """Reads the keys of one file, part by part."""

    def __init__(self, file: GgufFile, name: str, architecture: Architecture) -> None:
        self.file = file
        self.name = name
        self.row = architecture
        self.keys = Keys(file, name, architecture.key_names())
        self.extents = self._of(architecture.extents)
        self.count = self._layer_count()
        self.context = self.extents.count("context_length")

    def _of(self, part: Part) -> Keys:
        return self.keys.only(part.key_names())

    def model(self) -> Model:
        row = self.row
        self._check_experts()
        layers, scale = self._layers(), self._scale()
        attention, head, norms = self._of(row.attention), self._of(row.head), self._of(row.norms)
        temperature = "attention.temperature_scale"
        loops, norms_loops = self._loops(row.extents)
        original = self.context
        if row.rope.pairs:
            original = self._of(row.rope).count("rope.scaling.original_context_length", original)
        return Model(
            name=self.name,
            architecture=row,
            keys=self.keys,
            layers=layers * loops,
            width=self.width,
            epsilon=norms.number(row.norms.epsilon),
            embedding_scale=self._embedding_scale(),
            residual_scale=self._residual_scale(),
            is_parallel=self._is_parallel(),
            loops=loops,
            norms_loops=norms_loops,
            scale=scale,
            temperature=attention.number(temperature, 0.0) if row.attention.has_temperature else 0,
            context=self.context,
            original_context=original,
            is_long=self.scaling == "longrope",
            clamp=attention.number("attention.clamp_kqv", 0.0) if row.attention.clamps else 0,
            activation=self._activation(),
            pooling=self._pooling(),
            is_causal=self.is_causal,
            attention_cap=self._cap(attention, "attn", row.attention.cap),
            logit_cap=self._cap(head, "final", row.head.cap),
            logit_scale=self._logit_scale(head),
        )

    def _check_experts(self) -> None:
        count = self.keys.only(["expert_count"]).count("expert_count", 0, 0)
        if count:
            raise UnsupportedError(
                f"{self.file.where}: mixtures of experts are not supported:",
                [f"key '{self.name}.expert_count' is {count}"],
            )

    # extents

    def _layer_count(self) -> int:
        count = self.extents.count("block_count")
        if count > len(self.file.tensors):
            most = f"at most {len(self.file.tensors)}, the tensors of the file"
            raise self.extents.error("block_count", count, most)
        return count

    def _loops(self, part: Extents) -> tuple[int, bool]:
        """(how many times the layers are repeated, whether a norm follows each time)."""
        if not part.has_loops:
            return 1, False
        loops = self.extents.count("num_loops", 1)
        if loops * self.count > MOST_LAYERS:
            most = f"at most {MOST_LAYERS // self.count}, of {self.count} layers"
            raise self.extents.error("num_loops", loops, most)
        return loops, not self.extents.flag("skip_loop_final_norm", False)

    def _layers(self) -> tuple[Layer, ...]:
        keys, count = self.extents, self.count
        self.width = keys.extent("embedding_length")
        all_heads = keys.counts("attention.head_count", count, None, 0)
        groups = keys.counts("attention.head_count_kv", count, max(all_heads), 0)
        hidden = keys.counts("feed_forward_length", count, None, 0)
        for key, values in (
            ("attention.head_count", all_heads),
            ("attention.head_count_kv", groups),
            ("feed_forward_length", hidden),
        ):
            if not isinstance(keys.get(key, values[0]), list) and not values[0]:
                raise keys.error(key, 0, "a whole number, 1 or more")
            keys.at_most(key, max(values))
        if self.row.extents.are_halved:
            hidden = tuple(n // 2 for n in hidden)
        for heads, group in zip(all_heads, groups, strict=True):
            if group and heads % group:
                expected = f"a divisor of {heads}, the heads"
                raise keys.error("attention.head_count_kv", group, expected)
        self.heads = max(all_heads) or 1
        share = self.width // self.heads
        self.key_depth = keys.extent("attention.key_length", share or None, self.heads)
        value_depth = keys.extent("attention.value_length", share or None, max(groups))
        depths = {False: (self.key_depth, value_depth)}
        depths[True] = self._local_depths(*depths[False], max(groups))
        self.local_depth = depths[True][0]
        is_local = self._local_layers()
        shares, side = self._shares(is_local), self._side()
        rotations, cuts, streams = self._rotations(is_local), self._cuts(), self._streams()
        return tuple(
            Layer(
                number=number,
                width=self.width,
                hidden=hidden[number],
                heads=all_heads[number],
                groups=groups[number],
                key_depth=depths[is_local[number]][0],
                value_depth=depths[is_local[number]][1],
                window=self.window if is_local[number] else 0,
                rotation=rotations[number],
                prefix=self.row.extents.prefix,
                shares=shares[number],
                side=side,
                buckets=self._buckets(),
                has_wide_up=self._has_wide_up(number, hidden[number]),
                streams=streams,
                rank=self._rank(number),
                cut=cuts[number],
            )
            for number in range(count)
        )

    def _local_depths(self, key_depth: int, value_depth: int, groups: int) -> tuple[int, int]:
        """The extents of a key and a value in local layers."""
        if not self.row.extents.has_local:
            return key_depth, value_depth
        keys = self.extents
        found = keys.extent("attention.key_length_swa", key_depth, self.heads)
        return found, keys.extent("attention.value_length_swa", value_depth, groups)

    def _shares(self, is_local: list[bool]) -> list[int | None]:
        """The layer whose keys and values each layer reads, where that is another: the last of its
        kind before those that have none."""
        key, found = "attention.shared_kv_layers", [None] * self.count
        shared = self.extents.count(key, 0, 0) if self.row.extents.shares_caches else 0
        if not shared:
            return [*found]
        first = self.count - shared
        if first < 2:
            raise self.extents.error(
                key, shared, f"at most {self.count - 2} of {self.count} layers"
            )
        kinds = {local: first - (2 if local else 1) for local in (True, False)}
        for local, source in kinds.items():
            if local in is_local[first:] and is_local[source] is not local:
                raise self.extents.error(
                    key, shared, f"a layer {source} of the same kind of window"
                )
        return [*found[:first], *(kinds[local] for local in is_local[first:])]

    def _side(self) -> int:
        part = self.row.side
        if part is None:
            return 0
        keys, key = self._of(part), "embedding_length_per_layer_input"
        return keys.at_most(key, keys.count(key, None, 0), self.count)

    def _streams(self) -> int:
        part = self.row.streams
        if part is None:
            return 0
        keys, key = self._of(part), "altup.active_idx"
        if keys.count(key, 0, 0):
            raise keys.error(key, keys.get(key, 0), "0: layers work on the first")
        key = "altup.num_inputs"
        count = keys.count(key, None, 2)
        return keys.at_most(key, count, count)

    def _rank(self, number: int) -> int:
        """The rank of a layer's product beside attention, which the matrix alone says."""
        if self.row.low_rank is None:
            return 0
        found = self.file.tensors.get(f"{self.row.extents.prefix}blk.{number}.laurel_l.weight")
        return 1 if found is None else found.dims[0]

    def _cuts(self) -> tuple[float, ...]:
        part, default = self.row.feed_forward, -math.inf
        if not part.has_cuts:
            return (default,) * self.count
        return self._of(part).numbers("activation_sparsity_scale", self.count, default)

    # windows

    def _local_layers(self) -> list[bool]:
        """Which layers have a window."""
        part = self.row.window
        self.window = self._window(part) if part is not None else 0
        if part is None or not self.window:
            return [False] * self.count
        keys, key = self._of(part), "attention.sliding_window_pattern"
        period: int = part.period
        if period > 1:
            found = keys.get(key, period)
            if isinstance(found, list):
                if len(found) != self.count or not all(isinstance(n, bool) for n in found):
                    expected = f"a number, or {self.count} times true or false"
                    raise keys.error(key, found, expected)
                return found
            period = keys.count(key, period, 0)
        if part.period == 1 or not period:
            return [True] * self.count
        if part.begins_global:
            return [layer % period != 0 for layer in range(self.count)]
        return [layer % period < period - 1 for layer in range(self.count)]

    def _window(self, part: Window) -> int:
        default = part.default if part.layers in (0, self.count) else 0
        return self._of(part).count("attention.sliding_window", default, 0)

    # rotations

    def _rotations(self, is_local: list[bool]) -> list[Rotation | None]:
        part = self.row.rope
        if not part.pairs:
            self.scaling = "none"
            return [None] * self.count
        keys = self._of(part)
        elements = keys.count("rope.dimension_count", self.key_depth)
        if elements % 2 or elements > self.key_depth:
            raise keys.error(
                "rope.dimension_count",
                elements,
                f"an even number up to {self.key_depth}, a key's elements",
            )
        is_image = part.has_sections and self._has_sections(keys)
        self.are_neighbours = part.pairs == "neighbours" and not is_image
        self.scaling = keys.text("rope.scaling.type", "linear", SCALINGS)
        common = self._rotation(keys, elements)
        own = self._local_rotation(common)
        rotates = not part.may_be_absent or keys.flag("rope.scaling.finetuned", True)
        has_local = any(is_local)
        found: list[Rotation | None] = []
        for layer, local in enumerate(is_local):
            skips = part.skips and (layer + 1) % part.skips == 0
            skips = skips or (part.is_local and has_local and not local)
            rotation = own if local else common
            found.append(rotation if rotates and not skips else None)
        return found

    def _has_sections(self, keys: Keys) -> bool:
        """Whether pairs have positions of their own in images; in text they have one.

        Raises:
            CompileError: some have none in text.
        """
        key = "rope.dimension_sections"
        found = keys.get(key, [0, 0, 0, 0])
        is_list = isinstance(found, list) and 1 <= len(found) <= 4
        if not is_list or any(isinstance(n, bool) or not isinstance(n, int) for n in found):
            raise keys.error(key, found, "up to four whole numbers")
        if found[3:] not in ([], [0]):
            raise keys.error(key, found, "no pairs of a fourth kind, which text does not rotate")
        return all(n > 0 for n in [*found, 0, 0][:2])

    def _rotation(self, keys: Keys, elements: int) -> Rotation:
        base = keys.positive("rope.freq_base", 10000.0)
        factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
        scale = 1 / factor if factor and self.scaling != "none" else 1.0
        own = keys.positive("rope.scaling.attn_factor", 1.0)
        if self.scaling != "yarn":
            return Rotation(elements, base, scale, None, own, self.are_neighbours)
        context = keys.count("rope.scaling.original_context_length", self.context)
        betas, share = BETAS, 0.0
        if self.row.rope.has_ramp:
            fast, slow = (
                keys.positive(f"rope.scaling.yarn_beta_{n}", beta)
                for n, beta in zip(("fast", "slow"), BETAS, strict=True)
            )
            betas, share = (fast, slow), keys.number("rope.scaling.yarn_log_multiplier", 0.0)
        low, high = (self._turning(keys, elements, context, beta, base) for beta in betas)
        ramp = max(0.0, math.floor(low)), min(elements - 1.0, math.ceil(high))
        growth = 0.1 * math.log(max(1 / scale, 1.0))
        size = (1 + growth) / (1 + share * growth) if share else 1 + growth
        return Rotation(elements, base, scale, ramp, own * size, self.are_neighbours)

    def _turning(self, keys: Keys, elements: int, context: int, turns: float, base: float) -> float:
        """The pair that turns so many times within a context: YaRN's equation 17."""
        if base == 1:
            raise keys.error("rope.freq_base", base, "another number, by which pairs differ")
        return elements * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    def _local_rotation(self, common: Rotation) -> Rotation:
        """The rotation of local layers."""
        part = self.row.window
        if part is None:
            return common
        base = part.base or common.base
        if part.period > 1:
            base = self._of(part).positive("rope.freq_base_swa", base)
        if self.row.rope.has_local:
            rope, key = self._of(self.row.rope), "rope.dimension_count_swa"
            elements = rope.count(key, min(common.elements, self.local_depth))
            if elements % 2 or elements > self.local_depth:
                expected = f"an even number up to {self.local_depth}, a local key's elements"
                raise rope.error(key, elements, expected)
            common = replace(common, elements=elements, has_factors=False)
        if not part.is_plain:
            return replace(common, base=base)
        own = self._of(self.row.rope).positive("rope.scaling.attn_factor", 1.0)
        return replace(common, base=base, scale=1.0, ramp=None, factor=own)

    # what else differs

    def _buckets(self) -> int:
        part = self.row.attention
        key = "attention.relative_buckets_count"
        if part.bias != "buckets":
            return 0
        found = self._of(part).extent(key)
        if found % 4:
            raise self.keys.error(key, found, "a multiple of 4")
        return found

    def _has_wide_up(self, number: int, hidden: int) -> bool:
        tensor = self.file.tensors.get(f"{self.row.extents.prefix}blk.{number}.ffn_up.weight")
        return tensor is not None and tensor.dims[0] == 2 * hidden

    def _activation(self) -> str:
        part = self.row.feed_forward
        if not part.is_choice:
            return part.activation
        found = self._of(part).text("hidden_activation", part.activation, tuple(_ACTIVATIONS))
        return _ACTIVATIONS[found]

    def _pooling(self) -> str:
        """Sets whether the model is causal, too."""
        part = self.row.pooling
        keys = self._of(part)
        number = keys.count("pooling_type", 0, 0)
        if number >= len(_POOLINGS):
            raise keys.error("pooling_type", number, f"a number up to {len(_POOLINGS) - 1}")
        self.is_causal = keys.flag("attention.causal", part.is_causal)
        if part.is_causal and not number:
            if not self.is_causal:
                raise keys.error("attention.causal", False, "a pooling_type beside it")
            return ""
        return _POOLINGS[number]

    def _scale(self) -> float:
        """The factor of scores."""
        part = self.row.attention
        keys = self._of(part)
        if not part.scale:
            return 1.0
        is_wide = self.count == part.wide_layers
        usual = (self.width // self.heads if is_wide else self.key_depth) ** -0.5
        return (keys.number("attention.scale", 0.0) if part.scale == "key" else 0.0) or usual

    def _cap(self, keys: Keys, what: str, default: float | None) -> float:
        return 0.0 if default is None else keys.number(f"{what}_logit_softcapping", default)

    def _embedding_scale(self) -> float:
        part = self.row.embedding
        if part.scale == "key":
            return self._of(part).number("embedding_scale", part.default) or 1.0
        return self.width**0.5 if part.scale == "width" else 1.0

    def _residual_scale(self) -> float:
        part = self.row.residual
        if not part.scale:
            return 1.0
        default = part.scaled_depth * self.count**-0.5
        return self._of(part).number("residual_scale", default) or 1.0

    def _is_parallel(self) -> bool:
        part = self.row.residual
        return self._of(part).flag("use_parallel_residual") if part.is_choice else part.is_parallel

    def _logit_scale(self, keys: Keys) -> float:
        part = self.row.head
        if not part.scale:
            return 1.0
        found = keys.number("logit_scale", None if part.needs_scale else 0.0) or 1.0
        return 1 / found if part.scale == "over" else found
