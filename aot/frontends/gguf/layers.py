"""Facts of a model and its layers, as numbers: what parts give tensors their shapes by.

Owns records only. aot/frontends/gguf/model.py reads them from a file's keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aot.base.records import dataclass
from aot.ir.types import Array

Has = Callable[[str], bool]  # whether a file has a tensor
LEAST_RAMP = 0.001  # of YaRN, in pairs


@dataclass(frozen=True)
class Needed:
    """A tensor that a part reads.

    Attributes:
        dims: that it must have, the outermost first.
        is_optional: the part does without it where the file has none.
        is_norm: its elements must be floats, as those of vectors must.
    """

    name: str
    dims: tuple[int, ...]
    is_optional: bool = False
    is_norm: bool = False

    @property
    def has_floats(self) -> bool:
        return self.is_norm or len(self.dims) == 1


@dataclass(frozen=True)
class Rotation:
    """The rotation of a layer's queries and keys.

    Attributes:
        elements: of a head that are rotated, the first ones.
        base: of the frequencies, base ** (-2i / elements).
        scale: a factor of all frequencies.
        ramp: the pair before which none is scaled and that from which all are, linearly between
            them; None where all are. That is YaRN, https://arxiv.org/abs/2309.00071.
        factor: of rotated elements.
        has_factors: tensors may divide the frequencies.
        are_neighbours: elements 2i and 2i + 1 are rotated together; else i and i + half.
    """

    elements: int
    base: float
    scale: float
    ramp: tuple[float, float] | None = None
    factor: float = 1.0
    are_neighbours: bool = False
    has_factors: bool = True

    def frequencies(self) -> Array:
        """Radians a position, f64[elements / 2]."""
        places = np.arange(self.elements // 2, dtype=np.float64) * -2 / self.elements
        if self.ramp is None:
            return np.asarray(self.scale * self.base**places)
        low, high = self.ramp
        along = (np.arange(self.elements // 2) - low) / max(LEAST_RAMP, high - low)
        scaled = np.clip(along, 0.0, 1.0)
        return np.asarray(self.base**places * (self.scale * scaled + 1 - scaled))


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
        prefix, number: of its tensors' names, which several layers may share.
        width, hidden: of what it gives, and inside the feed-forward network; 0 where it has none.
        heads, groups: of queries, and of keys and values. Without heads there is no attention,
            with heads and no groups it is a matrix.
        key_depth, value_depth: of a head.
        window: tokens that a query reads, its own among them; 0 is all.
        rotation: None where queries and keys are not rotated.
        shares: the layer whose keys and values it reads, by its place; None for its own.
        side: elements of the embedding that each token has for the layer; 0 is none.
        buckets: of distances, which have biases of scores; 0 where they have none.
        has_wide_up: its matrix ffn_up has twice the hidden rows.
        streams: that layers keep beside each other; 0 where they have one.
        rank: of the product beside attention; 0 where there is none.
        cut: deviations above their mean below which elements of the gate are 0.
    """

    number: int
    width: int
    hidden: int
    heads: int
    groups: int
    key_depth: int
    value_depth: int
    window: int
    rotation: Rotation | None
    prefix: str = ""
    shares: int | None = None
    side: int = 0
    buckets: int = 0
    has_wide_up: bool = False
    streams: int = 0
    rank: int = 0
    cut: float = -math.inf

    @property
    def label(self) -> str:
        """What its tensors' names begin with."""
        return f"{self.prefix}blk.{self.number}"

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the matrices of queries, keys and values."""
        keys = self.groups * self.key_depth
        return {
            "q": self.heads * self.key_depth,
            "k": keys,
            "v": self.groups * self.value_depth,
        }


@dataclass(frozen=True)
class Whole:
    """Extents of the tensors that no layer has.

    Attributes:
        types: of texts; 0 where the file has none.
        context: positions that the model was made for.
        side: elements of all layers' embeddings of a token together.
        layers: that have tensors.
        pairs: of elements that are rotated.
        is_long: the file says that frequencies have factors for short and long texts.
        streams: that layers keep beside each other; 0 where they have one.
    """

    width: int
    vocabulary: int
    types: int
    context: int
    side: int
    layers: int
    pairs: int
    is_long: bool
    streams: int
