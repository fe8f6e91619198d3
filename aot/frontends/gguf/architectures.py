"""The decoder architectures of GGUF files: one table of what they share and where they differ.

An architecture is a row; a model is that row and the numbers of its file. Knows no tensors'
contents and makes no ops. The meaning of keys is that of llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.frontends.gguf.reader import GgufFile

MOST_SHOWN = 80  # characters of a text
ELEMENTS_PER_BYTE = 8  # of a tensor, whatever its block type


@dataclass(frozen=True)
class Architecture:
    """How decoders of a name are made.

    Attributes:
        pairs_are_neighbours: elements 2i and 2i + 1 of a head are rotated together; else i and
            i + half.
        scales_embedding: by the root of its width.
        activation: of the gate.
        has_fused_gate: rows of ffn_up are the gate's, then those of what it gates.
        normalises_heads: queries and keys have norms of their own.
        has_post_norms: of what attention and the feed-forward network give.
        attention_cap, logit_cap: of tanh over scores and logits where the file says nothing; 0 is
            none.
        window: of local layers where the file says nothing; 0 is none.
        period: the last of so many layers is global, others are local; with 1 all are alike.
        local_base: of the rotation in local layers; 0 is that of the others.
        wide_scale_layers: with so many layers, a head's share of the embedding scales scores.
    """

    pairs_are_neighbours: bool = False
    scales_embedding: bool = False
    activation: str = "silu"
    has_fused_gate: bool = False
    normalises_heads: bool = False
    has_post_norms: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    window: int = 0
    period: int = 1
    local_base: float = 0.0
    wide_scale_layers: int = 0


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(pairs_are_neighbours=True),
    "qwen2": Architecture(),
    "qwen3": Architecture(normalises_heads=True),
    "gemma2": Architecture(
        scales_embedding=True,
        activation="gelu",
        has_post_norms=True,
        attention_cap=50.0,
        logit_cap=30.0,
        window=4096,
        period=2,
        wide_scale_layers=46,
    ),
    "gemma3": Architecture(
        scales_embedding=True,
        activation="gelu",
        normalises_heads=True,
        has_post_norms=True,
        period=6,
        local_base=10000.0,
        wide_scale_layers=62,
    ),
    "phi3": Architecture(has_fused_gate=True),
}


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer's queries and keys.

    Attributes:
        elements: of a head that are rotated, the first ones.
        base: of the frequencies, base ** (-2i / elements).
        scale: a factor of all frequencies.
    """

    elements: int
    base: float
    scale: float


@dataclass(frozen=True)
class Decoder:
    """A model: its architecture and its numbers.

    Attributes:
        width, hidden: of what layers give, and inside the feed-forward network.
        heads, groups: of queries, and of keys and values.
        key_depth, value_depth: of a head.
        scale: of scores.
        context: positions that the model was made for.
        original_context: those that it was made for before its frequencies were changed.
        rotation_factor: of rotated elements.
    """

    name: str
    architecture: Architecture
    layers: int
    width: int
    hidden: int
    heads: int
    groups: int
    key_depth: int
    value_depth: int
    epsilon: float
    scale: float
    context: int
    original_context: int
    attention_cap: float
    logit_cap: float
    window: int
    global_rotation: Rotation
    local_rotation: Rotation
    rotation_factor: float

    def is_local(self, layer: int) -> bool:
        """Whether a layer's queries read only keys of its window."""
        period = self.architecture.period
        return self.window > 0 and (period == 1 or layer % period < period - 1)

    def rotation(self, layer: int) -> Rotation:
        return self.local_rotation if self.is_local(layer) else self.global_rotation


class _Keys:
    """Numbers of an architecture in a file's metadata.

    Raises:
        CompileError: one is missing, or of another kind or range.
    """

    def __init__(self, file: GgufFile, name: str) -> None:
        self.file = file
        self.name = name

    def _error(self, key: str, value: Any, expected: str) -> CompileError:
        shown = repr(value[:MOST_SHOWN] if isinstance(value, str) else value)
        return CompileError(
            f"{self.file.where}: key {self.name + '.' + key!r} is {shown}, expected {expected}"
        )

    def get(self, key: str, default: Any) -> Any:
        found = self.file.metadata.get(f"{self.name}.{key}", default)
        if found is None:
            raise CompileError(f"{self.file.where}: key {self.name + '.' + key!r} is missing")
        if isinstance(found, list):  # a number for each layer
            if not found or any(n != found[0] for n in found):
                raise UnsupportedError(
                    f"{self.file.where}: layers that differ in their extents are not supported:",
                    [f"key {self.name + '.' + key!r} is {found[:8]}"],
                )
            return found[0]
        return found

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found < 1 << 31:
            raise self._error(key, found, f"a whole number, {least} or more")
        return found

    def extent(self, key: str, default: int | None = None, times: int = 1) -> int:
        """A count that is an extent of a tensor, with `times` others: the file has the elements."""
        found = self.count(key, default)
        most = ELEMENTS_PER_BYTE * sum(t.data.nbytes for t in self.file.tensors.values())
        if found * times > most:
            raise self._error(key, found, f"at most {most // times}, by the bytes of the tensors")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self._error(key, found, "a number")
        if not math.isfinite(found) or found < 0:
            raise self._error(key, found, "a number, 0 or more")
        return float(found)

    def positive(self, key: str, default: float | None = None) -> float:
        found = self.number(key, default)
        if found == 0:
            raise self._error(key, found, "a number above 0")
        return found


def decoder_of(file: GgufFile) -> Decoder:
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
        raise UnsupportedError(
            f"{file.where}: the architecture is not supported, expected "
            f"{', '.join(sorted(ARCHITECTURES))}:",
            [ascii(name[:MOST_SHOWN])[1:-1]],
        )
    keys = _Keys(file, name)
    if keys.count("expert_count", 0, 0):
        raise UnsupportedError(
            f"{file.where}: mixtures of experts are not supported:",
            [f"key '{name}.expert_count' is {keys.get('expert_count', 0)}"],
        )
    return _decoder(keys, name, architecture)


def _decoder(keys: _Keys, name: str, architecture: Architecture) -> Decoder:
    width, heads = keys.extent("embedding_length"), keys.extent("attention.head_count")
    groups = keys.extent("attention.head_count_kv", heads)
    if heads % groups:
        raise keys._error("attention.head_count_kv", groups, f"a divisor of {heads}, the heads")
    share = width // heads
    key_depth = keys.extent("attention.key_length", share or None, heads)
    elements = keys.count("rope.dimension_count", key_depth)
    if elements % 2 or elements > key_depth:
        raise keys._error(
            "rope.dimension_count", elements, f"an even number up to {key_depth}, a key's elements"
        )
    layers = keys.count("block_count")
    if layers > len(keys.file.tensors):
        most = f"at most {len(keys.file.tensors)}, the tensors of the file"
        raise keys._error("block_count", layers, most)
    context = keys.count("context_length")
    is_wide = layers == architecture.wide_scale_layers
    scale = keys.number("attention.scale", 0.0) or (share if is_wide else key_depth) ** -0.5
    base = keys.positive("rope.freq_base", 10000.0)
    frequency = _frequency_scale(keys)
    local_base = keys.positive("rope.freq_base_swa", architecture.local_base or base)
    has_own = architecture.local_base != 0  # local layers were made before the context was widened
    return Decoder(
        name=name,
        architecture=architecture,
        layers=layers,
        width=width,
        hidden=keys.extent("feed_forward_length"),
        heads=heads,
        groups=groups,
        key_depth=key_depth,
        value_depth=keys.extent("attention.value_length", share or None, groups),
        epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        scale=scale,
        context=context,
        original_context=keys.count("rope.scaling.original_context_length", context),
        attention_cap=keys.number("attn_logit_softcapping", architecture.attention_cap),
        logit_cap=keys.number("final_logit_softcapping", architecture.logit_cap),
        window=keys.count("attention.sliding_window", architecture.window, 0),
        global_rotation=Rotation(elements, base, frequency),
        local_rotation=Rotation(elements, local_base, 1.0 if has_own else frequency),
        rotation_factor=keys.positive("rope.scaling.attn_factor", 1.0),
    )


def _frequency_scale(keys: _Keys) -> float:
    """The factor of all frequencies; one where factors are tensors, or there is none."""
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    if kind == "linear":
        return 1 / factor if factor else 1.0
    if kind in ("none", "longrope"):
        return 1.0
    raise UnsupportedError(
        f"{keys.file.where}: the scaling of positions is not supported, expected linear, longrope "
        "or none:",
        [f"key '{keys.name}.rope.scaling.type' is {kind!r}"],
    )
