"""ONNX tensors as arrays: element types, the several places where contents may lie, and limits.

Contents are compared with the declared dims before anything is allocated. Files outside the
model's folder are never read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from aot.errors import CompileError
from aot.ir.types import DType

Array = np.ndarray[Any, Any]

DTYPES = {
    TensorProto.FLOAT: DType.F32, TensorProto.FLOAT16: DType.F16, TensorProto.DOUBLE: DType.F64,
    TensorProto.INT8: DType.I8, TensorProto.INT16: DType.I16, TensorProto.INT32: DType.I32,
    TensorProto.INT64: DType.I64, TensorProto.UINT8: DType.U8, TensorProto.UINT16: DType.U16,
    TensorProto.UINT32: DType.U32, TensorProto.UINT64: DType.U64, TensorProto.BOOL: DType.BOOL,
}
_TYPED_FIELDS = {
    DType.F32: "float_data", DType.F64: "double_data", DType.I64: "int64_data",
    DType.U64: "uint64_data", DType.U32: "uint64_data",
}  # all others lie in int32_data, float16 as its bits


class UnsupportedTypeError(Exception):
    """An element type that there is no DType for; the text is a reason for the user."""


def type_name(elem_type: int) -> str:
    """ONNX's name of an element type."""
    names: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
    return names.get(elem_type, f"type number {elem_type}").lower()


def dtype_of(elem_type: int) -> DType:
    """The DType of an ONNX element type.

    Raises:
        UnsupportedTypeError: there is none.
    """
    found = DTYPES.get(elem_type)  # type: ignore[call-overload]
    if found is None:
        raise UnsupportedTypeError(f"element type {type_name(elem_type)} is not supported")
    return DType(found)


def tensor_array(tensor: Any, what: str, folder: Path | None) -> Array:
    """The contents of a TensorProto.

    Args:
        what: names the tensor in messages, such as "initializer 'w'".
        folder: where external data must lie; None where there is no folder.

    Raises:
        CompileError: contents are missing, or not what the dims say.
        UnsupportedTypeError: the element type has no DType.
    """
    dtype = dtype_of(tensor.data_type)
    dims = [int(d) for d in tensor.dims]
    if min(dims, default=0) < 0:
        raise CompileError(f"{what} has dims {dims}: a dim is negative")
    count = math.prod(dims)
    # numpy refuses more, and counts the dims beside an empty one too
    if len(dims) > 32 or math.prod(max(d, 1) for d in dims) * dtype.bytes >= 1 << 62:
        raise CompileError(f"{what} has dims {dims}: that is more than fits into memory")
    stored = dtype.numpy.newbyteorder("<")
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external_bytes(tensor, what, folder, count * dtype.bytes)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        return _typed(tensor, what, dtype, count).reshape(dims)
    if len(raw) != count * dtype.bytes:
        raise CompileError(f"{what} has {len(raw)} bytes, but {dtype} of dims {dims} takes "
                           f"{count * dtype.bytes}")
    if dtype is DType.BOOL:
        return np.asarray(np.frombuffer(raw, np.uint8).reshape(dims) != 0)
    return np.asarray(np.frombuffer(raw, stored).astype(dtype.numpy, copy=False).reshape(dims))


def _typed(tensor: Any, what: str, dtype: DType, count: int) -> Array:
    values = getattr(tensor, _TYPED_FIELDS.get(dtype, "int32_data"))
    if len(values) != count:
        raise CompileError(f"{what} has {len(values)} elements, but its dims {list(tensor.dims)} "
                           f"make {count}")
    if dtype is DType.F16:
        return np.array(values, np.int64).astype(np.uint16).view(np.float16)
    wide = np.float64 if dtype.is_float else np.uint64 if dtype is DType.U64 else np.int64
    return np.array(values, wide).astype(dtype.numpy)


def _external_bytes(tensor: Any, what: str, folder: Path | None, wanted: int) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise CompileError(f"{what} has its data in {location!r}: give the model as a path, so "
                           "that the file can be found beside it")
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(root):
        raise CompileError(f"{what} has its data in {location!r}, outside the model's folder")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", wanted))
    except ValueError:
        raise CompileError(f"{what} has an external offset or length that is no number") from None
    if length != wanted:
        raise CompileError(f"{what} has {length} bytes in {location!r}, but its dims "
                           f"{list(tensor.dims)} take {wanted}")
    try:
        size = path.stat().st_size
        if offset < 0 or offset + length > size:
            raise CompileError(f"{what} lies at bytes {offset} to {offset + length} of "
                               f"{location!r}, which has {size}")
        with path.open("rb") as file:
            file.seek(offset)
            return bytes(file.read(length))
    except OSError as error:
        raise CompileError(f"{what} has its data in {location!r}, which can't be read: "
                           f"{error.strerror}") from None
