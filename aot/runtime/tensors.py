"""Tensors between numpy and the runtime's C interface: what the module says of them, and arrays in
the form that calls take.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import RuntimeFailure

DTYPES = (
    *("f32", "f16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"),
    "bf16",
)
NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(f"{name[0]}{int(name[1:]) // 8}") for name in DTYPES if name[1:].isdecimal()
}
NUMPY |= {"bool": np.dtype(np.bool_), "bf16": np.dtype(ml_dtypes.bfloat16)}
CODES = {NUMPY[name]: code for code, name in enumerate(DTYPES)}  # of native byte order
MOST_DIMS = 64  # numpy's limit
_NAME, _FUNCTIONS = re.compile(r"[A-Za-z_]\w*"), {"max", "min"}  # of the expressions of extents


class CDimInfo(ctypes.Structure):
    _fields_ = (
        ("extent", ctypes.c_int64),
        ("min", ctypes.c_int64),
        ("max", ctypes.c_int64),
        ("text", ctypes.c_char_p),
    )


class CTensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_uint32),
        ("dims", POINTER(CDimInfo)),
        ("strings", POINTER(ctypes.c_char_p)),
        ("string_count", ctypes.c_uint32),
    )


class Sized(ctypes.Structure):
    """A C structure that its caller makes: it begins with its size."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (("size", ctypes.c_size_t),)

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class CTensor(Sized):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_uint32),
        ("dims", POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as the module declares it.

    Attributes:
        name: its name in the model.
        dtype: such as `"f32"`, `"i64"` or `"bool"`.
        dims: an extent each, or the expression of a symbolic one, such as `"N"` or `"4*W"`.
        bounds: of each extent, inclusive; None is unbounded.
        strings: of a tensor of strings, which the program has as numbers: those that the model
            names; None of any other.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    bounds: tuple[tuple[int, int | None], ...]
    strings: tuple[str, ...] | None = None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype that arrays for it have: of strings, objects."""
        return NUMPY[self.dtype] if self.strings is None else np.dtype(object)

    def __str__(self) -> str:
        dtype = self.dtype if self.strings is None else "string"
        return f"{self.name}: {dtype}[{', '.join(map(str, self.dims))}]"


def text_of(text: bytes | None) -> str:
    """A C string as str."""
    return (text or b"").decode("utf-8", errors="replace")


def tensor_info(info: CTensorInfo) -> TensorInfo:
    """The Python record with the contents of C's."""
    dims = info.dims[: info.rank]
    texts = info.strings[: info.string_count] if info.strings else None
    return TensorInfo(
        name=text_of(info.name),
        dtype=DTYPES[info.dtype],
        dims=tuple(d.extent if d.extent >= 0 else text_of(d.text) or "?" for d in dims),
        bounds=tuple(
            (d.extent, d.extent) if d.extent >= 0 else (d.min, d.max if d.max >= 0 else None)
            for d in dims
        ),
        strings=None if texts is None else tuple(map(text_of, texts)),
    )


class Slot:
    """An input or output of a program, with memory for the runtime's calls that is
    reused by runs.
    """

    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self.dtype = NUMPY[info.dtype]
        self.numbers = None if info.strings is None else number_of(info.strings)
        static = tuple(dim for dim in info.dims if isinstance(dim, int))
        self.shape = static if len(static) == len(info.dims) else None
        self._dims = (ctypes.c_int64 * MOST_DIMS)()
        self._extents: tuple[int, ...] = ()
        self._dtype: np.dtype[Any] | None = None
        self.tensor = CTensor(dims=ctypes.cast(self._dims, POINTER(ctypes.c_int64)))
        self.reference = byref(self.tensor)

    def point_to(self, array: NDArray[Any]) -> None:
        """Makes the tensor the array, in its memory."""
        tensor, shape, dtype = self.tensor, array.shape, array.dtype
        if shape != self._extents or dtype is not self._dtype:
            self._extents, self._dtype = shape, dtype
            tensor.dtype, tensor.rank = CODES[dtype], len(shape)
            self._dims[: len(shape)] = list(shape)
            tensor.bytes = array.nbytes
        tensor.data = address_of(array)


def address_of(array: NDArray[Any]) -> int:
    """The address of an array's elements. Takes the fast way for writable arrays; `array.ctypes`,
    several times slower, serves arrays that are read-only, empty, or of a type without a buffer
    format.
    """
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return int(array.ctypes.data)


def are_decided(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> bool:
    """Whether the outputs' shapes follow from the inputs' shapes alone: their extents are
    expressions of names that are extents of inputs.
    """
    named = {dim for info in inputs for dim in info.dims if isinstance(dim, str) and dim != "?"}
    extents = {dim for info in outputs for dim in info.dims if isinstance(dim, str)} - named
    return all(dim != "?" and set(_NAME.findall(dim)) - _FUNCTIONS <= named for dim in extents)


def number_of(table: Sequence[str]) -> dict[str, int]:
    """The number of each string."""
    return {text: number for number, text in enumerate(table)}


def to_numbers(
    name: str, known: Mapping[str, int], value: ArrayLike, others: dict[str, int]
) -> NDArray[Any]:
    """Strings as a program has them.

    Args:
        name: of the input.
        known: numbers of strings that the model names.
        others: numbers of other strings, in this call; learns more.

    Raises:
        RuntimeFailure: the value is of something else.
    """
    array = np.asarray(value)
    texts = array.reshape(-1).tolist()
    if not all(isinstance(text, str | bytes) for text in texts):
        wrong = next(type(t).__name__ for t in texts if not isinstance(t, str | bytes))
        raise RuntimeFailure(f'input "{name}": expected strings, found {wrong}', "dtype")
    decoded = [text_of(text) if isinstance(text, bytes) else text for text in texts]
    numbers = [
        known[text] if text in known else others.setdefault(text, -1 - len(others))
        for text in decoded
    ]
    return np.array(numbers, np.int64).reshape(array.shape)


def to_strings(table: Sequence[str], numbers: NDArray[Any], others: dict[str, int]) -> NDArray[Any]:
    """A program's string numbers as an array of `str`."""
    texts = np.array([*table, *reversed(others)], object)
    return np.asarray(texts[numbers.reshape(-1)].reshape(numbers.shape))


def to_array(slot: Slot, value: ArrayLike) -> NDArray[Any]:
    """The value as a dense, aligned array in native byte order; only non-arrays are converted."""
    if type(value) is np.ndarray and value.dtype in CODES:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value
    info = slot.info
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.newbyteorder("=") not in CODES:
            raise RuntimeFailure(
                f'input "{info.name}": expected dtype {info.dtype}, found {array.dtype}', "dtype"
            )
    else:
        try:
            array = np.asarray(value, slot.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise RuntimeFailure(
                f'input "{info.name}": expected {info.dtype}: {error}', "dtype"
            ) from error
    # np.require and np.ascontiguousarray would make a scalar one-dimensional.
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    return native if native.flags.c_contiguous and native.flags.aligned else native.copy(order="C")


def check_writeable(info: TensorInfo, value: ArrayLike) -> None:
    """Checks that the model may write to an input that the caller gives.

    Raises:
        RuntimeFailure: it is no array, or a read-only one.
    """
    if not isinstance(value, np.ndarray):
        found = type(value).__name__
    elif value.flags.writeable:
        return
    else:
        found = "a read-only one"
    raise RuntimeFailure(
        f'input "{info.name}": the model writes it: give a numpy array that can be written, '
        f"found {found}",
        "argument",
    )


def to_tensor(array: NDArray[Any]) -> CTensor:
    """An array in its own memory."""
    dims = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    return CTensor(
        dtype=CODES[array.dtype],
        rank=array.ndim,
        dims=ctypes.cast(dims, POINTER(ctypes.c_int64)),
        data=address_of(array),
        bytes=array.nbytes,
    )
