"""ONNX tensors as arrays: element types, inline and external contents, and limits.

Contents are compared with the declared dims before anything is allocated. Files outside the
model's folder are never read.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from aot.errors import CompileError
from aot.frontends.onnx.stored import NARROW
from aot.frontends.onnx.strings import STRING, StringTable, texts_of
from aot.ir import input_files, limits
from aot.ir.types import Array, DType

DTYPES = {
    TensorProto.FLOAT: DType.F32,
    TensorProto.FLOAT16: DType.F16,
    TensorProto.BFLOAT16: DType.BF16,
    TensorProto.DOUBLE: DType.F64,
    TensorProto.INT8: DType.I8,
    TensorProto.INT16: DType.I16,
    TensorProto.INT32: DType.I32,
    TensorProto.INT64: DType.I64,
    TensorProto.UINT8: DType.U8,
    TensorProto.UINT16: DType.U16,
    TensorProto.UINT32: DType.U32,
    TensorProto.UINT64: DType.U64,
    TensorProto.BOOL: DType.BOOL,
}
MAX_RANK = 32  # numpy's, as far as our code goes; ONNX models have no more than 8
MAX_BYTES = 1 << 62  # no tensor is larger, whatever its dims; sizes fit 64 bits signed
_TYPED_FIELDS = {
    DType.F32: "float_data",
    DType.F64: "double_data",
    DType.I64: "int64_data",
    DType.U64: "uint64_data",
    DType.U32: "uint64_data",
}  # all others lie in int32_data, float16 as its bits


class UnsupportedTypeError(Exception):
    """An element type without a DType; the text is a reason for the user."""


def type_name(elem_type: int) -> str:
    """ONNX's name of an element type."""
    names: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
    return names.get(elem_type, f"type number {elem_type}").lower()


def dtype_of(elem_type: int) -> DType:
    """The DType of an ONNX element type for computation.

    Raises:
        UnsupportedTypeError: there is none.
    """
    found = DTYPES.get(elem_type)  # type: ignore[call-overload]
    if found is None:
        raise UnsupportedTypeError(f"element type {type_name(elem_type)} is not supported")
    return DType(found)


def held_dtype(elem_type: int) -> DType:
    """The DType that represents elements of an ONNX element type, storage-only types included.

    Raises:
        UnsupportedTypeError: there is none.
    """
    if elem_type == STRING:
        return DType.I64  # numbers of a table's
    narrow = NARROW.get(elem_type)
    return dtype_of(elem_type) if narrow is None else narrow.dtype


def tensor_array(
    tensor: Any,
    what: str,
    folder: Path | None,
    own: bytes | None = None,
    strings: StringTable | None = None,
) -> Array:
    """The contents of a TensorProto.

    Args:
        what: names the tensor in messages, such as "initializer 'w'".
        folder: where external data must lie; None where there is no folder.
        own: what its raw_data was before it was emptied; None where it has it.
        strings: what numbers a tensor of strings; None where one is not supported.

    Raises:
        CompileError: contents are missing, or not what the dims say.
        UnsupportedTypeError: the element type has no DType.
    """
    is_of_strings = tensor.data_type == STRING
    if is_of_strings and strings is None:
        raise UnsupportedTypeError("element type string is not supported")
    dtype = held_dtype(tensor.data_type)
    narrow = NARROW.get(tensor.data_type)
    bits = narrow.bits if narrow is not None and narrow.bits < 8 else 0
    dims = [int(d) for d in tensor.dims]
    if len(dims) > MAX_RANK:
        raise CompileError(f"{what} has {len(dims)} dims, expected at most {MAX_RANK}")
    if min(dims, default=0) < 0:
        raise CompileError(f"{what} has dims {dims}: a dim is negative")
    count = math.prod(dims)
    # numpy counts the dims beside an empty one too
    if dtype.storage_bytes(math.prod(max(d, 1) for d in dims)) >= MAX_BYTES:
        raise CompileError(f"{what} has dims {dims}: that is more than fits into memory")
    if own is None:
        own = tensor.raw_data  # once: protobuf copies it at every access
    _check_contents_once(tensor, own, what)
    if is_of_strings and strings is not None:
        texts = texts_of(tensor)
        if len(texts) != count:
            raise CompileError(
                f"{what} has {len(texts)} elements, but its dims {dims} make {count}"
            )
        return strings.numbers(texts).reshape(dims)
    taken = -(-count * bits // 8) if bits else int(dtype.storage_bytes(count))
    stored = dtype.numpy.newbyteorder("<")
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external_bytes(tensor, what, folder, taken)
    elif tensor.HasField("raw_data") and (own or not _typed_data(tensor, dtype)):
        raw = own
    elif bits:  # a number of int32_data is one byte
        raw = _typed(tensor, what, DType.U8, taken).tobytes()
    else:
        return _typed(tensor, what, dtype, count).reshape(dims)
    if len(raw) != taken:
        name = type_name(tensor.data_type) if bits else dtype
        raise CompileError(f"{what} has {len(raw)} bytes, but {name} of dims {dims} takes {taken}")
    if bits:
        return _parts_of_bytes(np.frombuffer(raw, np.uint8), dtype, bits, count).reshape(dims)
    if dtype is DType.BOOL:
        return np.asarray(np.frombuffer(raw, np.uint8).reshape(dims) != 0)
    return np.asarray(np.frombuffer(raw, stored).astype(dtype.numpy, copy=False).reshape(dims))


def _parts_of_bytes(raw: Array, dtype: DType, bits: int, count: int) -> Array:
    """Numbers of `bits` bits each, unpacked from bytes, lowest bits first."""
    parts = [raw >> np.uint8(shift) for shift in range(0, 8, bits)]
    found = np.stack(parts, axis=-1).reshape(-1)[:count]
    top = np.uint8(8 - bits)
    shifted = (found << top).view(dtype.numpy)
    return np.asarray(shifted >> dtype.numpy.type(top))


def _check_contents_once(tensor: Any, own: bytes, what: str) -> None:
    """Checks that a tensor has its contents only once, as readers differ in which of two they
    take."""
    fields = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
    found = [field for field in fields if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        found.insert(0, "raw_data")
    if tensor.data_location == TensorProto.EXTERNAL:
        # exporters leave an empty raw_data behind
        found = ["a file", *(f for f in found if f != "raw_data" or own)]
    elif found[:1] == ["raw_data"] and not own:
        found = found[1:] or found
    if len(found) > 1:
        raise CompileError(f"{what} has its contents twice: in {found[0]} and in {found[1]}")


def _typed_data(tensor: Any, dtype: DType) -> Any:
    return getattr(tensor, _TYPED_FIELDS.get(dtype, "int32_data"))


def _typed(tensor: Any, what: str, dtype: DType, count: int) -> Array:
    values = _typed_data(tensor, dtype)
    if len(values) != count:
        raise CompileError(
            f"{what} has {len(values)} elements, but its dims {list(tensor.dims)} make {count}"
        )
    if dtype.is_float and dtype.bits == 16:
        return np.array(values, np.int64).astype(np.uint16).view(dtype.numpy)
    wide = np.float64 if dtype.is_float else np.uint64 if dtype is DType.U64 else np.int64
    return np.array(values, wide).astype(dtype.numpy)


def _external_bytes(tensor: Any, what: str, folder: Path | None, wanted: int) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise CompileError(
            f"{what} has its data in {location!r}: give the model as a path, so "
            "that the file can be found beside it"
        )
    if "\0" in location:
        raise CompileError(f"{what} has its data in {location!r}, which is no name of a file")
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(root):
        raise CompileError(f"{what} has its data in {location!r}, outside the model's folder")
    try:
        offset = _number(entries.get("offset", "0"))
        length = _number(entries.get("length", str(wanted)))
    except ValueError:
        raise CompileError(f"{what} has an external offset or length that is no number") from None
    if length != wanted:
        raise CompileError(
            f"{what} has {length} bytes in {location!r}, but its dims "
            f"{list(tensor.dims)} take {wanted}"
        )
    try:
        with input_files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if offset < 0 or offset + length > size:
                raise CompileError(
                    f"{what} is at bytes {offset} to {offset + length} of "
                    f"{location!r}, which has {size}"
                )
            limits.extend(length)
            file.seek(offset)
            return bytes(file.read(length))
    except OSError as error:
        raise CompileError(
            f"{what} has its data in {location!r}, which can't be read: {error.strerror}"
        ) from None


def _number(text: str) -> int:
    """Parses a byte count as ONNX writes it: without the underscores and non-ASCII digits that
    int() accepts.

    Raises:
        ValueError: it is none.
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is None:
        raise ValueError(text)
    return int(text)
