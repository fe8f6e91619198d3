"""A TFLite file as graphs of tensors and operators, with all indices validated.

Weights are views of the file's memory. Knows the format and no op of ours.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.tflite.flatbuffer import DamagedError, Flatbuffer, Table
from aot.frontends.tflite.schema import ENUMS
from aot.frontends.tflite.sparse import dense
from aot.ir import input_files
from aot.ir.types import Array, DType

_NUMPY: Mapping[str, Any] = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "INT32": np.int32,
    "UINT8": np.uint8,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "INT16": np.int16,
    "INT8": np.int8,
    "FLOAT64": np.float64,
    "UINT64": np.uint64,
    "UINT32": np.uint32,
    "UINT16": np.uint16,
    "BFLOAT16": ml_dtypes.bfloat16,
    "INT4": np.int8,  # two in a byte, as they are stored
}
NONE = -1  # an operand that is left out


@dataclass(frozen=True)
class Quantization:
    """A quantisation: an integer q stands for (q - zero) * scale, with one scale, or one per index
    of an axis.
    """

    scale: Array
    zero: Array
    axis: int

    @property
    def is_per_tensor(self) -> bool:
        return self.scale.size == 1

    def equals(self, other: Quantization | None) -> bool:
        """Whether two quantisations map every integer to the same number."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero, other.zero)
            and (self.is_per_tensor or self.axis == other.axis)
        )


class Tensor:
    """A tensor of a graph.

    Attributes:
        label: its number and name, for messages.
        dims: extents as the file has them; -1 of open ones.
        kind: its element type as the format calls it.
        buffer: the stored bytes; None where there are none.
    """

    def __init__(self, model: Model, number: int, table: Table) -> None:
        self.name: str = table.name or f"tensor_{number}"
        self.number = number
        self.label = f"tensor {number} {self.name!r}"
        self.kind = ENUMS["TensorType"].get(int(table.type), f"type {table.type}")
        shape = _numbers(table.shape)
        signature = _numbers(table.shape_signature)
        self.dims = tuple(signature if len(signature) == len(shape) else shape)
        self.is_variable: bool = table.is_variable
        self._table = table
        self._model = model
        if any(n < -1 for n in self.dims):
            raise CompileError(f"{self.label} has the shape {list(self.dims)}")

    @property
    def dtype(self) -> DType:
        """The element type of the tensor.

        Raises:
            UnsupportedNodeError: we have none that is like it.
        """
        if self.kind not in _NUMPY:
            raise UnsupportedNodeError(f"{self.label} has elements of {self.kind}")
        return DType.of(np.empty(0, _NUMPY[self.kind]))

    @property
    def is_complex(self) -> bool:
        """Whether elements are pairs of floats; values represent them by an additional dim."""
        return self.kind == "COMPLEX64"

    @cached_property
    def quantization(self) -> Quantization | None:
        """The tensor's quantisation; None if its elements are plain numbers."""
        table = self._table.quantization
        if table is None or table.scale is None or table.scale.size == 0:
            if table is not None and table.details is not None:
                raise UnsupportedNodeError(f"{self.label} is quantised by {table.details.kind}")
            return None
        scale = np.asarray(table.scale, np.float32)
        zero = table.zero_point
        zero = np.zeros(scale.size, np.int64) if zero is None or not zero.size else np.array(zero)
        if zero.size == 1:
            zero = np.broadcast_to(zero, scale.shape)
        axis = int(table.quantized_dimension)
        if zero.size != scale.size or not (np.isfinite(scale).all() and (scale >= 0).all()):
            raise CompileError(f"{self.label} has scales or zero points that are none")
        if scale.size > 1 and not (
            0 <= axis < len(self.dims) and self.dims[axis] in (scale.size, -1)
        ):
            raise CompileError(
                f"{self.label} of shape {list(self.dims)} has {scale.size} scales along dim {axis}"
            )
        return Quantization(scale, zero, axis)

    @property
    def has_data(self) -> bool:
        """Whether the file contains the tensor's elements."""
        return self._model.buffer(self._table.buffer, self.label) is not None

    @cached_property
    def data(self) -> Array | None:
        """The tensor's elements, in the file's memory where they are stored densely; None for a
        tensor that an operator computes.

        Raises:
            CompileError: the file has fewer or more bytes than its shape needs.
            UnsupportedNodeError: we have no such element type.
        """
        stored = self._model.buffer(self._table.buffer, self.label)
        if stored is None:
            return None
        if any(n < 0 for n in self.dims):
            raise CompileError(f"{self.label} is a constant of the shape {list(self.dims)}")
        dtype = np.dtype(_NUMPY[self.kind]) if self.dtype else None
        if self._table.sparsity is not None:
            return dense(self._table.sparsity, stored, dtype, self.dims, self.label)
        count = math.prod(self.dims)
        bits = 4 if self.kind == "INT4" else 8 * dtype.itemsize
        if len(stored) != -(-count * bits // 8):
            raise CompileError(
                f"{self.label} of {count} elements of {self.kind} has {len(stored)} bytes"
            )
        if self.kind == "INT4":
            return _nibbles(stored, count).reshape(self.dims)
        return np.frombuffer(stored, dtype, count).reshape(self.dims)


def _nibbles(stored: memoryview, count: int) -> Array:
    """Signed 4-bit numbers, the low half of each byte first."""
    packed = np.frombuffer(stored, np.uint8)
    pairs = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[:count]
    return np.asarray(((pairs ^ 8).astype(np.int16) - 8).astype(np.int8))


@dataclass
class Operator:
    """An operator of a graph.

    Attributes:
        name: as the format's enum has it; of custom ones, their own name.
        inputs, outputs: numbers of tensors, NONE of operands that are left out.
    """

    name: str
    is_custom: bool
    version: int
    number: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Table | None
    custom_options: bytes


@dataclass
class Graph:
    """A graph of the model."""

    name: str
    tensors: list[Tensor]
    inputs: Sequence[int]
    outputs: Sequence[int]
    operators: list[Operator] = field(default_factory=list)


@dataclass(frozen=True)
class Signature:
    """An entry point: names of a graph's inputs and outputs, by tensor number."""

    name: str
    graph: int
    inputs: Mapping[int, str]
    outputs: Sequence[tuple[str, int]]


class Model:
    """A TFLite file.

    Raises:
        CompileError: it is damaged, or what it says cannot be.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        self.data = memoryview(source) if isinstance(source, bytes) else _mapped(source)
        try:
            self._read()
        except DamagedError as error:
            raise CompileError(str(error)) from None

    def _read(self) -> None:
        self._root = Flatbuffer(self.data).root("Model")
        self._buffers: list[Table] = self._root.buffers
        if self._root.external_buffers:
            raise CompileError("its weights are in other files, which is not supported")
        self._codes = [self._code(table) for table in self._root.operator_codes]
        self.graphs = [self._graph(table) for table in self._root.subgraphs]
        if not self.graphs:
            raise CompileError("the file has no graph")
        self.signatures = [self._signature(table) for table in self._root.signature_defs]

    @property
    def description(self) -> str:
        """What the file says of itself; "" where it says nothing."""
        return self._root.description or ""

    def metadata(self) -> Iterator[tuple[str, memoryview | None]]:
        """The names of buffers that are no tensors', and their bytes."""
        for table in self._root.metadata or ():
            name = table.name or ""
            yield name, self._buffer(int(table.buffer), f"metadata {name!r}")

    def buffer(self, number: int, label: str) -> memoryview | None:
        """The bytes of a buffer; None for an empty one."""
        try:
            return self._buffer(number, label)
        except DamagedError as error:
            raise CompileError(str(error)) from None

    def _buffer(self, number: int, label: str) -> memoryview | None:
        if not 0 <= number < len(self._buffers):
            raise CompileError(f"{label} has buffer {number} of {len(self._buffers)}")
        table = self._buffers[number]
        if table.offset > 1:  # larger models keep their weights behind the tables
            if table.offset + table.size > len(self.data):
                raise CompileError(f"{label} has its elements outside of the file")
            return self.data[table.offset : table.offset + table.size]
        found = table.data
        return None if found is None or not found.size else memoryview(found)

    def _code(self, table: Table) -> tuple[str, bool, int]:
        code = max(int(table.builtin_code), int(table.deprecated_builtin_code))
        name = ENUMS["BuiltinOperator"].get(code, f"operator {code}")
        if name == "CUSTOM":
            return table.custom_code or "", True, int(table.version)
        return name, False, int(table.version)

    def _graph(self, table: Table) -> Graph:
        tensors = [Tensor(self, number, t) for number, t in enumerate(table.tensors)]
        name = table.name or ""

        def numbers(found: Any, what: str, *, may_lack: bool = False) -> list[int]:
            result = _numbers(found)
            for number in result:
                if not (0 <= number < len(tensors) or (may_lack and number == NONE)):
                    raise CompileError(f"{what} names tensor {number} of {len(tensors)}")
            return result

        graph = Graph(
            name,
            tensors,
            numbers(table.inputs, f"graph {name!r}"),
            numbers(table.outputs, f"graph {name!r}"),
        )
        for number, op in enumerate(table.operators):
            if not 0 <= op.opcode_index < len(self._codes):
                raise CompileError(f"operator {number} has code {op.opcode_index}")
            code, is_custom, version = self._codes[op.opcode_index]
            what = f"operator {number} {code}"
            options = op.builtin_options or op.builtin_options2
            custom = op.custom_options
            graph.operators.append(
                Operator(
                    code,
                    is_custom,
                    version,
                    number,
                    numbers(op.inputs, what, may_lack=True),
                    numbers(op.outputs, what),
                    options,
                    b"" if custom is None else custom.tobytes(),
                )
            )
        return graph

    def _signature(self, table: Table) -> Signature:
        name = table.signature_key or "main"
        if not 0 <= table.subgraph_index < len(self.graphs):
            raise CompileError(f"signature {name!r} has graph {table.subgraph_index}")
        count = len(self.graphs[table.subgraph_index].tensors)
        pairs = [
            [(t.name or "", int(t.tensor_index)) for t in tensors]
            for tensors in (table.inputs, table.outputs)
        ]
        for tensor, number in (*pairs[0], *pairs[1]):
            if number >= count:
                raise CompileError(f"signature {name!r}: {tensor!r} is tensor {number} of {count}")
        inputs = {number: tensor for tensor, number in pairs[0]}
        return Signature(name, int(table.subgraph_index), inputs, pairs[1])


def _numbers(found: Array | None) -> list[int]:
    return [] if found is None else [int(n) for n in found]


def _mapped(path: str | os.PathLike[str]) -> memoryview:
    """A file's bytes, memory-mapped while anything refers to them."""
    try:
        with input_files.opened(path) as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot be read: {reason}") from error
