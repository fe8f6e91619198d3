"""Keys and values of the tokens before, as states that grow: in 16 bits, or in 8 or 4 with scales.

Owns how they are stored and read. A run reads what earlier runs stored, and what it stores itself,
in the same way, so that a prompt gives the same however it is cut into pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from aot.errors import CompileError
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import Array, DType, TensorType

F16, F32, I8, I32, U8 = DType.F16, DType.F32, DType.I8, DType.I32, DType.U8
PAST = dims.symbol("past")  # tokens before a run
HELD = dims.symbol("held")  # those of them that a window of tokens still has
_LARGEST = 127  # of a number in 8 bits
_GROUP = 32  # neighbours of a row in 4 bits that share a scale and a minimum
_CODES = 16  # of 4 bits


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
        """All rows of the cache, f32[..., groups, past + tokens, depth], after the state has taken
        `fresh`; in the cache's axes, which may be rotated.

        Args:
            fresh: f32[..., tokens, groups, depth].
        """

    def turned(self, place: Place, x: Value) -> Value:
        """Rows f32[..., depth] in the axes in which they are kept, or back."""
        return x

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


class NibbleCache(Cache):
    """A cache of values in 4 bits: whole numbers from 0 to 15 times a scale, plus a minimum,
    both f16, for each 32 neighbours of a row. Rows are rotated first, so that a few large elements
    become many smaller ones. Two numbers are in a byte: that of the row's first half in its lower
    bits.
    """

    def _parts(self, depth: int) -> Mapping[str, tuple[DType, int]]:
        if depth % 2:
            raise CompileError(
                f"--cache-type int4 is for heads of an even depth, and {depth} is odd"
            )
        groups = depth // self._group(depth)
        parts = {self.name: (U8, depth // 2)}
        return {**parts, **dict.fromkeys(self._parameters, (F16, groups))}

    @property
    def _parameters(self) -> tuple[str, str]:
        return f"{self.name}.scale", f"{self.name}.minimum"

    def _group(self, depth: int) -> int:
        return _GROUP if depth % _GROUP == 0 else depth

    def turned(self, place: Place, x: Value) -> Value:
        depth = x.type.dims[-1]
        assert isinstance(depth, int)
        matrix = hadamard(depth & -depth)
        parts = place.reshape(x, (*x.type.dims[:-1], depth // len(matrix), len(matrix)))
        parts = place.emit("matmul", parts, place.constant(matrix))
        return place.reshape(parts, x.type.dims)

    def grown(self, place: Place, fresh: Value) -> Value:
        rows = by_heads(place, self.turned(place, fresh))
        *lead, depth = rows.type.dims
        assert isinstance(depth, int)
        size = self._group(depth)
        parts = place.reshape(rows, (*lead, depth // size, size))
        axes = (parts.type.rank - 1,)
        most, least = (
            place.emit(op, parts, axes=axes, keepdims=True) for op in ("reduce_max", "reduce_min")
        )
        range_ = place.emit("sub", most, least)
        share = place.emit("mul", range_, place.scalar(1 / ((_CODES - 1) * _CODES), F32))
        scales, least = place.cast(share, F16), place.cast(least, F16)
        step = place.emit("mul", place.cast(scales, F32), place.scalar(float(_CODES), F32))
        numbers = place.emit("sub", parts, place.cast(least, F32))
        numbers = place.emit("round", place.emit("div", numbers, _at_least_tiny(place, step)))
        for op, bound in (("minimum", _CODES - 1), ("maximum", 0)):
            numbers = place.emit(op, numbers, place.scalar(bound, F32))
        codes = self._append(
            place, self.name, _paired(place, place.reshape(numbers, rows.type.dims))
        )
        scales, least = (
            self._append(place, name, place.reshape(x, (*lead, depth // size)))
            for name, x in zip(self._parameters, (scales, least), strict=True)
        )
        return self._read(place, codes, scales, least, size)

    def _read(self, place: Place, codes: Value, scales: Value, least: Value, size: int) -> Value:
        """Rows f32[..., depth] of codes, scales and minimums. Codes stay a multiple of 16, which
        the scales allow for."""
        *lead, half = codes.type.dims
        pairs = place.reshape(place.cast(codes, I32), (*lead, 1, half))
        raised = place.emit("mul", pairs, place.constant(np.array([[_CODES], [1]], np.int32)))
        high = place.emit("bit_and", raised, place.scalar(_CODES * (_CODES - 1), I32))
        groups = scales.type.dims[-1]
        parts = place.reshape(place.cast(high, F32), (*lead, groups, size))
        factors, added = (
            place.reshape(place.cast(x, F32), (*lead, groups, 1)) for x in (scales, least)
        )
        rows = place.emit("add", place.emit("mul", parts, factors), added)
        return place.reshape(rows, (*lead, dims.multiply(half, 2)))


def _paired(place: Place, numbers: Value) -> Value:
    """Whole numbers from 0 to 15, f32[..., 2 * n], two in a byte: u8[..., n]."""
    *lead, depth = numbers.type.dims
    assert isinstance(depth, int)
    steps = (1,) * numbers.type.rank
    low, high = (
        place.emit(
            "slice",
            numbers,
            starts=(*(0 for _ in lead), start),
            stops=(*lead, start + depth // 2),
            steps=steps,
        )
        for start in (0, depth // 2)
    )
    raised = place.emit("mul", high, place.scalar(float(_CODES), F32))
    return place.cast(place.emit("add", low, raised), U8)


def hadamard(size: int) -> Array:
    """Sylvester's Hadamard matrix of a power of two, divided by its root: orthonormal, symmetric
    and its own inverse, f32[size, size]."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), np.float32)


def by_heads(place: Place, x: Value) -> Value:
    """[..., tokens, heads, depth] as [..., heads, tokens, depth], or back."""
    *lead, rows, columns, depth = range(x.type.rank)
    return place.emit("transpose", x, perm=(*lead, columns, rows, depth))


def _at_least_tiny(place: Place, scales: Value) -> Value:
    """Scales that are divided by: where one is 0, so is what is multiplied by it."""
    return place.emit("maximum", scales, place.scalar(2.0**-24, F32))


# How keys are kept, and values. Keys in 4 bits would round eight times as much as values do.
CACHES: Mapping[str, tuple[type[Cache], type[Cache]]] = {
    "f16": (HalfCache, HalfCache),
    "int8": (ByteCache, ByteCache),
    "int4": (ByteCache, NibbleCache),
}
