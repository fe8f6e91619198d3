"""Types of values: element type, logical dims, and the layout that puts them in memory.

A layout never changes what an op means; it only says where element (i, j, ...) lies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from aot.ir.dims import Dim, DimExpr, ceil_divide, multiply, product


class DType(Enum):
    """Element types; the value is the name in text IR. INDEX exists in kernels only."""

    F32 = "f32"
    F16 = "f16"
    F64 = "f64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"
    INDEX = "index"

    # Members are single objects; an enum's own hash is a call of Python at every look-up.
    __hash__ = object.__hash__

    @property
    def bytes(self) -> int:
        """Size in memory; bool takes one byte, 0 or 1."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.F32, DType.F64)

    @property
    def is_signed(self) -> bool:
        return self in (DType.I8, DType.I16, DType.I32, DType.I64, DType.INDEX)

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned, index included; bool is not an integer."""
        return not self.is_float and self is not DType.BOOL

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(_NUMPY[self])

    @staticmethod
    def of(dtype: Any) -> DType:
        """The DType of a numpy dtype or an array.

        Raises:
            ValueError: there is none.
        """
        name = np.dtype(getattr(dtype, "dtype", dtype)).name
        if name not in _FROM_NUMPY:
            raise ValueError(f"element type {name} is not supported")
        return _FROM_NUMPY[name]

    def __str__(self) -> str:
        return self.value


_NUMPY = {
    DType.F32: "float32",
    DType.F16: "float16",
    DType.F64: "float64",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.BOOL: "bool",
    DType.INDEX: "int64",
}
_BYTES = {d: int(np.dtype(n).itemsize) for d, n in _NUMPY.items()}
_FROM_NUMPY = {n: d for d, n in _NUMPY.items() if d is not DType.INDEX}


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie.

    Attributes:
        splits: (dim, factor) pairs: the logical dim becomes two physical ones, outer and inner of
            `factor` elements; inner ones are numbered after the logical dims, in order. A factor is
            a number, or in an executable a parameter.
        order: a permutation of the physical dims, outermost first; empty is the natural order.
        strides: elements between neighbours along each physical dim, in natural order; empty means
            dense in `order`. Strides may exceed the extent; what lies between is never read.
    """

    splits: tuple[tuple[int, Dim], ...] = ()
    order: tuple[int, ...] = ()
    strides: tuple[Dim, ...] = ()

    def map_dims(self, fn: Callable[[Dim], Dim]) -> Layout:
        """The layout with `fn` applied to its factors and strides."""
        splits = tuple((dim, fn(factor)) for dim, factor in self.splits)
        return Layout(splits, self.order, tuple(map(fn, self.strides)))

    def __str__(self) -> str:
        parts = []
        if self.splits:
            parts.append("splits=" + ":".join(f"{d}/{f}" for d, f in self.splits))
        if self.order:
            parts.append("order=" + ":".join(map(str, self.order)))
        if self.strides:
            parts.append("strides=" + ":".join(map(str, self.strides)))
        return "{" + " ".join(parts) + "}"

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that `str` printed (braces included).

        Raises:
            ValueError: `text` is not a layout.
        """
        from aot.ir.dims import parse as parse_dim

        text = text.strip()
        if not (text.startswith("{") and text.endswith("}")):
            raise ValueError(f"layout {text!r} does not stand in braces")
        lead, *parts = re.split(r"(?:^| )(splits|order|strides)=", text[1:-1])
        names = parts[::2]
        if lead or len(set(names)) != len(names):
            raise ValueError(f"layout {text!r}: expected splits=, order= or strides=, each once")
        fields: dict[str, Any] = {}
        for name, body in zip(names, parts[1::2], strict=True):
            items = body.split(":")
            if name == "strides":
                fields[name] = tuple(map(parse_dim, items))
                continue
            pattern = r"[0-9]{1,9}/[^/].*" if name == "splits" else r"[0-9]{1,9}"
            if not all(re.fullmatch(pattern, item) for item in items):
                raise ValueError(
                    f"layout field {name}={body} is not a list of "
                    + ("dim/factor" if name == "splits" else "numbers")
                )
            fields[name] = tuple(
                _split_of(item) if name == "splits" else int(item) for item in items
            )
        return Layout(**fields)


def _split_of(text: str) -> tuple[int, Dim]:
    """`dim/factor`."""
    from aot.ir.dims import parse as parse_dim

    dim, _, factor = text.partition("/")
    return int(dim), parse_dim(factor)


MAX_BYTES = 1 << 47  # the address space of 64-bit systems; offsets then never overflow


@dataclass(frozen=True)
class TensorType:
    """dtype, logical dims (outermost first), and a layout; no layout is dense row-major."""

    dtype: DType
    dims: tuple[Dim, ...]
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element_count(self) -> Dim:
        return product(self.dims)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims as ints.

        Raises:
            ValueError: a dim is symbolic.
        """
        if not self.is_static:
            raise ValueError(f"type {self} is not static")
        return tuple(d for d in self.dims if isinstance(d, int))

    @property
    def strides(self) -> tuple[Dim, ...]:
        """Elements between neighbours along each logical dim, for layouts without splits."""
        layout = self.layout or Layout()
        if layout.splits:
            raise ValueError(f"type {self} splits a dim: it has no logical strides")
        return self.physical_strides

    @property
    def physical_strides(self) -> tuple[Dim, ...]:
        """Elements between neighbours along each physical dim, in natural order."""
        layout = self.layout or Layout()
        if layout.strides:
            return layout.strides
        extents = self._natural_extents
        strides: list[Dim] = [1] * len(extents)
        step: Dim = 1
        for d in reversed(layout.order or range(len(extents))):
            strides[d] = step
            step = multiply(step, extents[d])
        return tuple(strides)

    @property
    def _natural_extents(self) -> list[Dim]:
        """Extents of the physical dims: outer parts of split dims, then their inner ones."""
        layout = self.layout or Layout()
        extents = list(self.dims)
        for dim, factor in layout.splits:
            extents[dim] = ceil_divide(extents[dim], factor)
            extents.append(factor)
        return extents

    @property
    def bytes(self) -> Dim:
        """Bytes that a buffer of this type takes, from its first element to its last."""
        layout = self.layout or Layout()
        if not layout.strides:
            return multiply(product(self.physical_dims), self.dtype.bytes)
        span: Dim = 1
        for extent, stride in zip(self._natural_extents, layout.strides, strict=True):
            if extent == 0:
                return 0
            span = span + multiply(extent - 1, stride)
        return multiply(span, self.dtype.bytes)

    @property
    def problem(self) -> str | None:
        """What no type may be: a negative extent, known extents that make more than MAX_BYTES, or a
        layout that does not fit the dims."""
        known = [d for d in self.dims if isinstance(d, int)]
        if min(known, default=0) < 0:
            return "an extent is negative"
        # those beside an extent of 0 count too: strides are computed from them
        if math.prod(d for d in known if d) * self.dtype.bytes > MAX_BYTES:
            return "that is more than fits into memory"
        layout = self.layout
        if layout is None:
            return None
        if any(
            not 0 <= dim < self.rank or (isinstance(factor, int) and factor < 1)
            for dim, factor in layout.splits
        ):
            return "a split names no dim or has no factor"
        rank = self.rank + len(layout.splits)
        if layout.order and sorted(layout.order) != list(range(rank)):
            return f"order is not a permutation of {rank} physical dims"
        if layout.strides and len(layout.strides) != rank:
            return f"there are {len(layout.strides)} strides for {rank} physical dims"
        return None

    @property
    def physical_dims(self) -> tuple[Dim, ...]:
        """Extents of the dense array in memory, outermost first: splits round up, then `order`."""
        layout = self.layout or Layout()
        extents = self._natural_extents
        order = layout.order or tuple(range(len(extents)))
        return tuple(extents[d] for d in order)

    def lies_as(self, other: TensorType) -> bool:
        """Whether elements lie as those of `other`, which has the same dims, do: layouts are equal,
        or differ in that one says which strides it has."""
        mine, theirs = self.layout or Layout(), other.layout or Layout()
        if mine == theirs or mine.splits or theirs.splits or mine.order != theirs.order:
            return mine == theirs
        strides = zip(self.dims, self.strides, other.strides, strict=True)
        return all(extent == 1 or a == b for extent, a, b in strides)

    def with_dims(self, dims: tuple[Dim, ...]) -> TensorType:
        return TensorType(self.dtype, dims)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.dims, self.layout)

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(map(str, self.dims))}]"
        return text if self.layout is None else text + str(self.layout)


def is_symbolic(dim: Dim) -> bool:
    """Whether `dim` is an expression and not a number."""
    return isinstance(dim, DimExpr)


def to_physical(array: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """A logical array as it lies in memory under the type's layout; padding is zero.

    Layouts with strides are a matter of buffers, not of constants, and are refused.
    """
    layout = type.layout or Layout()
    if layout.strides:
        raise ValueError(f"type {type} has strides: it has no dense physical array")
    for dim, factor in layout.splits:
        outer = -(-array.shape[dim] // factor)
        padding = [(0, 0)] * array.ndim
        padding[dim] = (0, outer * factor - array.shape[dim])
        padded = np.pad(array, padding)
        shape = (*array.shape[:dim], outer, factor, *array.shape[dim + 1 :])
        array = np.moveaxis(padded.reshape(shape), dim + 1, -1)
    order = layout.order or tuple(range(array.ndim))
    return np.asarray(array.transpose(order), order="C")  # ascontiguousarray gives rank 0 a dim


def to_logical(array: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """The inverse of `to_physical`."""
    layout = type.layout or Layout()
    order = layout.order or tuple(range(array.ndim))
    array = array.transpose(np.argsort(order))
    for number, (dim, factor) in reversed(list(enumerate(layout.splits))):
        inner = type.rank + number
        array = np.moveaxis(array, inner, dim + 1)
        shape = (*array.shape[:dim], array.shape[dim] * factor, *array.shape[dim + 2 :])
        array = array.reshape(shape)
        array = np.take(array, range(type.shape[dim]), axis=dim)
    return np.asarray(array, order="C")
