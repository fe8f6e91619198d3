"""Keys and values of the tokens before, as states that grow: in 16 bits, or in 8 with scales.

Owns how they are stored and read. A run reads what earlier runs stored, and what it stores itself,
in the same way, so that a prompt gives the same however it is cut into pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType, TensorType

F16, F32, I8 = DType.F16, DType.F32, DType.I8
PAST = dims.symbol("past")  # tokens before a run
HELD = dims.symbol("held")  # those of them that a window of tokens still has
_LARGEST = 127  # of a number in 8 bits


class Keeper(Protocol):
    """An object that can declare states, as DecoderBuilder does."""

    def keep(self, name: str, type: TensorType, window: int) -> Value: ...

    def kept(self, name: str, grown: Value) -> None: ...


class Cache(ABC):
    """The keys or the values of a layer, [..., groups, past, depth].

    Args:
        rows: the extents before the past: those of several sequences, and the groups.
        window: tokens before a run that are looked at; 0 is all.

    Attributes:
        past: rows before a run.
    """

    def __init__(
        self, name: str, keeper: Keeper, rows: tuple[int, ...], depth: int, *, window: int = 0
    ) -> None:
        self.name = name
        self.keeper = keeper
        self.past = HELD if window else PAST
        self._past = {
            name: keeper.keep(name, TensorType(dtype, (*rows, self.past, columns)), window)
            for name, (dtype, columns) in self._parts(depth).items()
        }

    @abstractmethod
    def _parts(self, depth: int) -> Mapping[str, tuple[DType, int]]:
        """The states by name: their elements, and how many of them a row has."""

    @abstractmethod
    def grown(self, place: Place, fresh: Value) -> Value:
        """All rows f32[..., groups, past + tokens, depth], once the state has what is new.

        Args:
            fresh: f32[..., tokens, groups, depth].
        """

    def _append(self, place: Place, name: str, rows: Value) -> Value:
        grown = place.emit("concat", self._past[name], rows, axis=rows.type.rank - 2)
        self.keeper.kept(name, grown)
        return grown


class HalfCache(Cache):
    """A cache of keys or values in f16."""

    def _parts(self, depth: int) -> Mapping[str, tuple[DType, int]]:
        return {self.name: (F16, depth)}

    def grown(self, place: Place, fresh: Value) -> Value:
        rows = by_heads(place, place.cast(fresh, F16))
        return place.cast(self._append(place, self.name, rows), F32)


class ByteCache(Cache):
    """A cache of keys or values as whole numbers up to 127 times a scale for each row. The scale,
    f16, is the largest magnitude of the row divided by 127, so that an element is wrong by at most
    half a scale.
    """

    @property
    def _scales(self) -> str:
        return f"{self.name}.scale"

    def _parts(self, depth: int) -> Mapping[str, tuple[DType, int]]:
        return {self.name: (I8, depth), self._scales: (F16, 1)}

    def grown(self, place: Place, fresh: Value) -> Value:
        rows = by_heads(place, fresh)
        ends = (rows.type.rank - 1,)
        largest = place.emit("reduce_max", place.emit("abs", rows), axes=ends, keepdims=True)
        share = place.emit("mul", largest, place.scalar(1 / _LARGEST, F32))
        scales = place.cast(share, F16)
        numbers = place.emit("div", rows, _at_least_tiny(place, place.cast(scales, F32)))
        numbers = place.emit("round", numbers)
        for op, bound in (("minimum", _LARGEST), ("maximum", -_LARGEST)):
            numbers = place.emit(op, numbers, place.scalar(bound, F32))
        codes = self._append(place, self.name, place.cast(numbers, I8))
        scales = self._append(place, self._scales, scales)
        return place.emit("mul", place.cast(codes, F32), place.cast(scales, F32))


def by_heads(place: Place, x: Value) -> Value:
    """[..., tokens, heads, depth] as [..., heads, tokens, depth], or back."""
    *lead, rows, columns, depth = range(x.type.rank)
    return place.emit("transpose", x, perm=(*lead, columns, rows, depth))


def _at_least_tiny(place: Place, scales: Value) -> Value:
    """Scales that are divided by: where one is 0, so is what is multiplied by it."""
    return place.emit("maximum", scales, place.scalar(2.0**-24, F32))


CACHES: Mapping[str, type[Cache]] = {"f16": HalfCache, "int8": ByteCache}
