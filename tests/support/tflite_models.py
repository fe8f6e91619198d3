"""Writes TFLite files: graphs of a few operators, for the tests of their importer.

`serialised` writes any table by the importer's description of the format; `Builder` collects
tensors and operators and knows which options an operator has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np

from aot.frontends.tflite.schema import ENUMS, TABLES

Array = np.ndarray[Any, Any]

NUMBERS = {name: {v: k for k, v in members.items()} for name, members in ENUMS.items()}
KINDS = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "float64": "FLOAT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "bool": "BOOL",
    "complex64": "COMPLEX64",
}
_PREPEND = {
    "bool": "PrependBoolSlot",
    "i8": "PrependInt8Slot",
    "u8": "PrependUint8Slot",
    "i16": "PrependInt16Slot",
    "u16": "PrependUint16Slot",
    "i32": "PrependInt32Slot",
    "u32": "PrependUint32Slot",
    "i64": "PrependInt64Slot",
    "u64": "PrependUint64Slot",
    "f32": "PrependFloat32Slot",
    "f64": "PrependFloat64Slot",
}
_DTYPES = {
    "bool": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "f32": np.float32,
}


def table(kind: str, **fields: Any) -> dict[str, Any]:
    """A table to be written."""
    return {"": kind, **fields}


def serialised(root: Mapping[str, Any]) -> bytes:
    """A file whose root is a table."""
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(_written(builder, root), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _written(builder: Any, made: Mapping[str, Any]) -> int:
    fields = [f for f in TABLES[made[""]] if made.get(f.name) is not None]
    places = {f.name: _place(builder, f.type, made[f.name]) for f in fields}
    builder.StartObject(max((f.slot for f in TABLES[made[""]]), default=-1) + 1)
    for f in fields:
        if f.type in _PREPEND:
            getattr(builder, _PREPEND[f.type])(f.slot, made[f.name], f.default)
        else:
            builder.PrependUOffsetTRelativeSlot(f.slot, places[f.name], 0)
    return int(builder.EndObject())


def _place(builder: Any, kind: str, value: Any) -> int:
    """Writes what a field refers to."""
    if kind in _PREPEND:
        return 0
    if kind == "string":
        return int(builder.CreateString(value))
    if not kind.startswith("["):
        return _written(builder, value)
    element = kind[1:-1]
    if element in _DTYPES:
        array = np.asarray(value, _DTYPES[element])
        return _vector(builder, array)
    places = [
        builder.CreateString(v) if element == "string" else _written(builder, v) for v in value
    ]
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


def _vector(builder: Any, array: Array) -> int:
    builder.StartVector(array.itemsize, array.size, 16)
    data = array.tobytes()
    builder.head = builder.head - len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return int(builder.EndVector())


@dataclass
class Builder:
    """A graph that is being written; tensors are known by their numbers."""

    tensors: list[dict[str, Any]] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    file: File | None = None

    def __post_init__(self) -> None:
        self.file = self.file or File()

    def tensor(
        self,
        shape: Sequence[int],
        dtype: Any = np.float32,
        *,
        data: Array | None = None,
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
        signature: Sequence[int] | None = None,
        name: str | None = None,
        **more: Any,
    ) -> int:
        """A tensor; a constant where there is data, quantised where there is a scale."""
        assert self.file is not None
        quantization = None
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape)
            quantization = table(
                "QuantizationParameters", scale=scales, zero_point=zeros, quantized_dimension=axis
            )
        self.tensors.append(
            table(
                "Tensor",
                shape=list(shape),
                type=NUMBERS["TensorType"][KINDS.get(np.dtype(dtype).name, "FLOAT32")],
                buffer=0 if data is None else self.file.buffer(data),
                name=name or f"t{len(self.tensors)}",
                quantization=quantization,
                shape_signature=signature,
                has_rank=True,
                **more,
            )
        )
        return len(self.tensors) - 1

    def constant(self, data: Any, **how: Any) -> int:
        """A tensor with contents."""
        array = np.ascontiguousarray(data)
        return self.tensor(np.shape(data), array.dtype, data=array, **how)

    def op(
        self,
        name: str,
        /,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str | None = None,
        custom: bytes | None = None,
        **fields: Any,
    ) -> None:
        """An operator with options of a kind; custom ones have bytes."""
        assert self.file is not None
        made = table(
            "Operator",
            opcode_index=self.file.code(name, is_custom=custom is not None),
            inputs=list(inputs),
            outputs=list(outputs),
            custom_options=None if custom is None else np.frombuffer(custom, np.uint8),
        )
        if options is not None:
            union = "builtin_options"
            number = NUMBERS["BuiltinOptions"].get(options)
            if number is None:
                union, number = "builtin_options2", NUMBERS["BuiltinOptions2"][options]
            made |= {f"{union}_type": number, union: table(options, **fields)}
        self.operators.append(made)

    def graph(self, inputs: Sequence[int], outputs: Sequence[int], name: str = "main") -> None:
        """Ends the graph."""
        assert self.file is not None
        self.file.graphs.append(
            table(
                "SubGraph",
                tensors=self.tensors,
                inputs=list(inputs),
                outputs=list(outputs),
                operators=self.operators,
                name=name,
            )
        )

    def model(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The file of this graph alone."""
        assert self.file is not None
        self.graph(inputs, outputs)
        return self.file.model()


@dataclass
class File:
    """What the graphs of a file share."""

    graphs: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[dict[str, Any]] = field(default_factory=lambda: [table("Buffer")])
    codes: list[tuple[str, bool]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)  # other fields of the model

    def buffer(self, data: Array) -> int:
        """The number of a buffer with the elements."""
        stored = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.buffers.append(table("Buffer", data=stored))
        return len(self.buffers) - 1

    def code(self, name: str, *, is_custom: bool = False) -> int:
        """The number of an operator's code."""
        if (name, is_custom) not in self.codes:
            self.codes.append((name, is_custom))
        return self.codes.index((name, is_custom))

    def model(self, signatures: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """The bytes of the file."""
        codes = [
            table("OperatorCode", deprecated_builtin_code=32, builtin_code=32, custom_code=name)
            if is_custom
            else table(
                "OperatorCode",
                deprecated_builtin_code=min(NUMBERS["BuiltinOperator"][name], 127),
                builtin_code=NUMBERS["BuiltinOperator"][name],
                version=VERSIONS.get(name, 1),
            )
            for name, is_custom in self.codes
        ]
        return serialised(
            table(
                "Model",
                version=3,
                operator_codes=codes,
                subgraphs=self.graphs,
                description="test",
                buffers=self.buffers,
                signature_defs=list(signatures) or None,
                **self.more,
            )
        )


# of operators of which the oracle has no first version, or that means something else
VERSIONS = {"BATCH_MATMUL": 3, "BROADCAST_TO": 2, "FULLY_CONNECTED": 4}


def signature(
    key: str, graph: int, inputs: Mapping[str, int], outputs: Mapping[str, int]
) -> dict[str, Any]:
    """An entry point: names of tensors of a graph."""

    def maps(found: Mapping[str, int]) -> list[dict[str, Any]]:
        return [table("TensorMap", name=n, tensor_index=i) for n, i in found.items()]

    return table(
        "SignatureDef",
        inputs=maps(inputs),
        outputs=maps(outputs),
        signature_key=key,
        subgraph_index=graph,
    )
