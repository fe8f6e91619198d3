"""Types of values: element type, logical dims, and the layout in memory.

A layout never changes what an op means; it only says where element (i, j, ...) is stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, overload

import ml_dtypes  # noqa: F401  numpy learns of bfloat16
import numpy as np

from aot.base.records import dataclass
from aot.ir.dims import Dim, ceil_divide, multiply, product

Array = np.ndarray[Any, Any]  # elements of any dtype, or dims as objects


class DTypeKind(Enum):
    """The kind of an element type: how its bits are interpreted. INDEX is as wide as the target's
    pointers; PACKED has several neighbouring elements in a word, as dot product instructions take
    them."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"
    INDEX = "index"
    PACKED = "packed"


@dataclass(frozen=True)
class DTypeFacts:
    """Target-independent facts about an element type.

    Attributes:
        bits: of an element in memory; a bool takes a byte, 0 or 1.
        numpy: name of numpy's dtype for values of it.
        accumulator: name of the dtype that sums of its elements are kept in; "" is its own. An op
            whose result has another dtype may sum in another one.
        widens_to: name of the dtype of 32 bits in which a target that has no arithmetic of its own
            for it computes; "" where there is none.
        narrows_to: the same of types wider than 32 bits.
        is_storage_only: no target computes in it: what is read is widened at once.
        bits_as: name of the integer dtype as which kernels load, move and store it; "" where they
            know it.
        loads_as: name of the dtype that a load makes of an element at no cost worth storing that
            for; "" where there is none.
        block: how many elements lie in whole bytes together; more than 1 where one takes less.
        part: name of the dtype of the elements that a PACKED word has, lowest bits first.
    """

    kind: DTypeKind
    bits: int
    numpy: str
    accumulator: str = ""
    widens_to: str = ""
    narrows_to: str = ""
    is_storage_only: bool = False
    bits_as: str = ""
    loads_as: str = ""
    block: int = 1
    part: str = ""

    @property
    def element_bytes(self) -> int:
        """The distance between consecutive elements, in bytes.

        Raises:
            ValueError: they share bytes.
        """
        if self.block != 1:
            raise ValueError(f"elements of {self.bits} bits share bytes")
        return self.bits // 8

    def storage_bytes(self, count: Dim) -> Dim:
        """Bytes of `count` consecutive elements; the last block may be partial."""
        return multiply(ceil_divide(count, self.block), self.bits * self.block // 8)


_FACTS = {
    "f32": DTypeFacts(DTypeKind.FLOAT, 32, "float32"),
    # half precision would lose most of a sum
    "f16": DTypeFacts(
        DTypeKind.FLOAT, 16, "float16", accumulator="f32", widens_to="f32", loads_as="f32"
    ),
    "bf16": DTypeFacts(
        DTypeKind.FLOAT,
        16,
        "bfloat16",
        accumulator="f32",
        widens_to="f32",
        is_storage_only=True,
        bits_as="u16",
        loads_as="f32",
    ),
    "f64": DTypeFacts(DTypeKind.FLOAT, 64, "float64", narrows_to="f32"),
    "i8": DTypeFacts(DTypeKind.SIGNED, 8, "int8", widens_to="i32", loads_as="f32"),
    "i16": DTypeFacts(DTypeKind.SIGNED, 16, "int16", widens_to="i32"),
    "i32": DTypeFacts(DTypeKind.SIGNED, 32, "int32"),
    "i64": DTypeFacts(DTypeKind.SIGNED, 64, "int64", narrows_to="i32"),
    "u8": DTypeFacts(DTypeKind.UNSIGNED, 8, "uint8", widens_to="u32"),
    "u16": DTypeFacts(DTypeKind.UNSIGNED, 16, "uint16", widens_to="u32"),
    "u32": DTypeFacts(DTypeKind.UNSIGNED, 32, "uint32"),
    "u64": DTypeFacts(DTypeKind.UNSIGNED, 64, "uint64", narrows_to="u32"),
    "bool": DTypeFacts(DTypeKind.BOOL, 8, "bool"),
    "index": DTypeFacts(DTypeKind.INDEX, 64, "int64"),
    "i8x4": DTypeFacts(DTypeKind.PACKED, 32, "uint32", part="i8"),
    "u8x4": DTypeFacts(DTypeKind.PACKED, 32, "uint32", part="u8"),
    # bytes below 128: the products of two with signed bytes fit 16 bits together
    "u7x4": DTypeFacts(DTypeKind.PACKED, 32, "uint32", part="u8"),
    "i16x2": DTypeFacts(DTypeKind.PACKED, 32, "uint32", part="i16"),
    # the bits of two bf16, as kernels store them
    "bf16x2": DTypeFacts(DTypeKind.PACKED, 32, "uint32", part="u16"),
}


class DType(Enum):
    """Element types; each value is the name in text IR. INDEX and packed types occur only in
    kernels.

    Attributes:
        kind, bits, is_storage_only: as DTypeFacts has them.
        is_integer: signed or unsigned, index included; bool is not an integer.
        is_packed: a word of several elements.
        is_stored: whether tensors have elements of it; the others are for kernels only.
        numpy: numpy's dtype for values of it.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
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
    I8X4 = "i8x4"
    U8X4 = "u8x4"
    U7X4 = "u7x4"
    I16X2 = "i16x2"
    BF16X2 = "bf16x2"

    kind: DTypeKind
    bits: int
    is_storage_only: bool
    is_float: bool
    is_signed: bool
    is_integer: bool
    is_packed: bool
    is_stored: bool
    numpy: np.dtype[Any]
    _bytes: int

    def __init__(self, name: str) -> None:
        facts = _FACTS[name]
        self.kind, self.bits = facts.kind, facts.bits
        self._bytes = facts.element_bytes if facts.block == 1 else 0
        self.is_storage_only = facts.is_storage_only
        self.is_float = facts.kind is DTypeKind.FLOAT
        self.is_signed = facts.kind in (DTypeKind.SIGNED, DTypeKind.INDEX)
        self.is_integer = self.is_signed or facts.kind is DTypeKind.UNSIGNED
        self.is_packed = facts.kind is DTypeKind.PACKED
        self.is_stored = not (self.is_packed or facts.kind is DTypeKind.INDEX)
        self.numpy = np.dtype(facts.numpy)

    @property
    def facts(self) -> DTypeFacts:
        """The facts about this dtype, from the table."""
        return _FACTS[self._value_]  # `value` is a call of Python

    # Members are single objects; an enum's own hash is a call of Python at every look-up.
    __hash__ = object.__hash__

    @property
    def bytes(self) -> int:
        """The distance between consecutive elements, in bytes.

        Raises:
            ValueError: they share bytes; `storage_bytes` says what all of them take.
        """
        return self._bytes or self.facts.element_bytes

    @overload
    def storage_bytes(self, count: int) -> int: ...

    @overload
    def storage_bytes(self, count: Dim) -> Dim: ...

    def storage_bytes(self, count: Dim) -> Dim:
        """Bytes of `count` consecutive elements."""
        return self.facts.storage_bytes(count)

    @property
    def accumulator(self) -> DType:
        """The dtype in which elements are accumulated."""
        return DType(self.facts.accumulator) if self.facts.accumulator else self

    @property
    def widens_to(self) -> DType | None:
        """The 32-bit dtype in which a target without arithmetic in this dtype computes; None if
        there is none.
        """
        return DType(self.facts.widens_to) if self.facts.widens_to else None

    @property
    def narrows_to(self) -> DType | None:
        """The 32-bit dtype that replaces this wider one; None if there is none."""
        return DType(self.facts.narrows_to) if self.facts.narrows_to else None

    @property
    def bits_as(self) -> DType:
        """The dtype as which kernels load, move and store it."""
        return DType(self.facts.bits_as) if self.facts.bits_as else self

    @property
    def part(self) -> DType:
        """The element dtype of a packed word; other dtypes return themselves."""
        return DType(self.facts.part) if self.facts.part else self

    @property
    def parts(self) -> int:
        """The number of elements in a packed word; 1 for other dtypes."""
        return self.bits // self.part.bits

    def is_loaded_as(self, wide: DType) -> bool:
        """Whether loads widen this dtype to `wide` so cheaply that storing it widened does not
        pay."""
        return bool(self.facts.loads_as == wide.value)

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
        return str(self.value)


_FROM_NUMPY = {d.facts.numpy: d for d in DType if d.is_stored}


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor's elements in memory.

    Attributes:
        splits: (dim, factor) pairs: the logical dim becomes two physical ones, outer and inner of
            `factor` elements; inner ones are numbered after the logical dims, in order. A factor is
            a number, or in an executable a parameter.
        order: a permutation of the physical dims, outermost first; empty is the natural order.
        strides: elements between neighbours along each physical dim, in natural order; empty means
            dense in `order`. Strides may exceed the extent; the gaps are never read.
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
        from aot.ir.dim_parser import parse as parse_dim

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
    """Parses a split, `dim/factor`."""
    from aot.ir.dim_parser import parse as parse_dim

    dim, _, factor = text.partition("/")
    return int(dim), parse_dim(factor)


MAX_BYTES = 1 << 47  # the address space of 64-bit systems; offsets then never overflow


_DENSE = Layout()


def _natural_extents(dims: tuple[Dim, ...], layout: Layout) -> list[Dim]:
    extents = list(dims)
    for dim, factor in layout.splits:
        extents[dim] = ceil_divide(extents[dim], factor)
        extents.append(factor)
    return extents


@lru_cache(maxsize=1 << 12)
def _physical_strides(dims: tuple[Dim, ...], layout: Layout) -> tuple[Dim, ...]:
    if layout.strides:
        return layout.strides
    extents = _natural_extents(dims, layout)
    strides: list[Dim] = [1] * len(extents)
    step: Dim = 1
    for d in reversed(layout.order or range(len(extents))):
        strides[d] = step
        step = multiply(step, extents[d])
    return tuple(strides)


@dataclass(frozen=True)
class TensorType:
    """A tensor type: dtype, logical dims (outermost first), and a layout, where None is dense
    row-major."""

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
        """The dims as ints, for a static type.

        Raises:
            ValueError: a dim is symbolic.
        """
        if not self.is_static:
            raise ValueError(f"type {self} is not static")
        return tuple(d for d in self.dims if isinstance(d, int))

    @property
    def strides(self) -> tuple[Dim, ...]:
        """The stride of each logical dim in elements, for layouts without splits."""
        layout = self.layout or _DENSE
        if layout.splits:
            raise ValueError(f"type {self} splits a dim: it has no logical strides")
        return self.physical_strides

    @property
    def physical_strides(self) -> tuple[Dim, ...]:
        """The stride of each physical dim in elements, in natural order."""
        return _physical_strides(self.dims, self.layout or _DENSE)

    @property
    def _natural_extents(self) -> list[Dim]:
        """Extents of the physical dims: outer parts of split dims, then their inner ones."""
        return _natural_extents(self.dims, self.layout or _DENSE)

    @property
    def bytes(self) -> Dim:
        """Bytes of a buffer of this type, from its first element to its last."""
        return self.dtype.storage_bytes(self.span)

    @property
    def span(self) -> Dim:
        """The number of elements that a buffer of this type spans, from the first to the last."""
        layout = self.layout or _DENSE
        if not layout.strides:
            return product(self.physical_dims)
        span: Dim = 1
        for extent, stride in zip(self._natural_extents, layout.strides, strict=True):
            if extent == 0:
                return 0
            span = span + multiply(extent - 1, stride)
        return span

    @property
    def problem(self) -> str | None:
        """Why the type is invalid: a negative extent, more than MAX_BYTES, or a layout that does
        not fit the dims; None if it is valid.
        """
        known = [d for d in self.dims if isinstance(d, int)]
        if min(known, default=0) < 0:
            return "an extent is negative"
        # those beside an extent of 0 count too: strides are computed from them
        if self.dtype.storage_bytes(math.prod(d for d in known if d)) > MAX_BYTES:
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
        """The extents of the dense array in memory, outermost first: splits round up, then `order`
        is applied."""
        layout = self.layout or _DENSE
        extents = self._natural_extents
        order = layout.order or tuple(range(len(extents)))
        return tuple(extents[d] for d in order)

    def lies_as(self, other: TensorType) -> bool:
        """Whether elements have the same positions in memory as in `other`, a type with the same
        dims: layouts are equal, or differ only in spelling out strides.
        """
        mine, theirs = self.layout or _DENSE, other.layout or _DENSE
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


def to_physical(array: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """A logical array in memory order, under the type's layout; padding is zero.

    Layouts with strides are a matter of buffers, not of constants, and are refused.
    """
    layout = type.layout or _DENSE
    if layout.strides:
        raise ValueError(f"type {type} has strides: it has no dense physical array")
    if len(layout.splits) == 1:
        ((dim, factor),) = layout.splits
        return _split(array, dim, int(factor), layout.order)
    for dim, factor in layout.splits:
        outer = -(-array.shape[dim] // factor)
        padding = [(0, 0)] * array.ndim
        padding[dim] = (0, outer * factor - array.shape[dim])
        padded = np.pad(array, padding)
        shape = (*array.shape[:dim], outer, factor, *array.shape[dim + 1 :])
        array = np.moveaxis(padded.reshape(shape), dim + 1, -1)
    order = layout.order or tuple(range(array.ndim))
    return np.asarray(array.transpose(order), order="C")  # ascontiguousarray gives rank 0 a dim


def _split(
    array: np.ndarray[Any, Any], dim: int, factor: int, order: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """A logical array with one dim split, in memory order, without another copy."""
    extent, rank = array.shape[dim], array.ndim
    order = order or tuple(range(rank + 1))
    shape = [*array.shape, factor]
    shape[dim] = -(-extent // factor)
    made = np.zeros([shape[d] for d in order], array.dtype)
    # [..., outer, inner, ...]
    pieces = np.moveaxis(made.transpose(np.argsort(order)), rank, dim + 1)
    before = (slice(None),) * dim
    whole = extent // factor
    split = (*array.shape[:dim], whole, factor, *array.shape[dim + 1 :])
    pieces[(*before, slice(whole))] = array[(*before, slice(whole * factor))].reshape(split)
    if whole * factor < extent:
        rest = array[(*before, slice(whole * factor, None))]
        pieces[(*before, whole, slice(extent - whole * factor))] = rest
    return made


def to_logical(array: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """The logical array of a physical one; the inverse of `to_physical`."""
    layout = type.layout or _DENSE
    order = layout.order or tuple(range(array.ndim))
    array = array.transpose(np.argsort(order))
    for number, (dim, factor) in reversed(list(enumerate(layout.splits))):
        inner = type.rank + number
        array = np.moveaxis(array, inner, dim + 1)
        shape = (*array.shape[:dim], array.shape[dim] * factor, *array.shape[dim + 2 :])
        array = array.reshape(shape)
        array = np.take(array, range(type.shape[dim]), axis=dim)
    return np.asarray(array, order="C")
