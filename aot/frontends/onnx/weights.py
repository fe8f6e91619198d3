"""Reads ONNX files without their weights, which make up most of a file and which protobuf would
copy twice.

Owns the walk over the wire format that finds the contents of initializers. Judges nothing: where a
file is not plainly what it seems, it is left whole to protobuf, whose say it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from aot.errors import CompileError
from aot.ir import input_files

_CUT_BYTES = 4096  # contents smaller than this stay where they are
_WINDOW_BYTES = 1 << 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Numbers of fields, of onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9


class BrokenError(Exception):
    """The bytes are not a protobuf message, or cannot be read in parts."""


class Source:
    """Random access to a model's bytes; a context manager, which keeps the file open.

    Raises:
        OSError: the file can't be read.
    """

    def __init__(self, model: str | os.PathLike[str] | bytes) -> None:
        self._data = model if isinstance(model, bytes) else None
        self._stack = ExitStack()
        if self._data is None:
            assert not isinstance(model, bytes)
            self._stream = self._stack.enter_context(input_files.opened(model))
            self.size = os.fstat(self._stream.fileno()).st_size
        if self._data is not None:
            self.size = len(self._data)
        self._window, self._start = b"", 0

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, start: int, end: int) -> bytes:
        """The file's bytes from `start` to `end`.

        Raises:
            CompileError: there are none any more.
            OSError: they can't be read.
        """
        if self._data is not None:
            return self._data[start:end]
        self._stream.seek(start)
        data = self._stream.read(end - start)
        while len(data) < end - start:  # a system reads some 2 GB at a time
            more = self._stream.read(end - start - len(data))
            if not more:
                raise CompileError("has become shorter while it was read")
            data += more
        return data

    def whole(self) -> bytes:
        """All bytes of the file."""
        return self.read(0, self.size)

    def varint(self, place: int, end: int) -> tuple[int, int]:
        """(number, position after it): a varint of the wire format."""
        value = shift = 0
        while shift < 64 and place < end:
            if not self._start <= place < self._start + len(self._window):
                self._start = place
                self._window = self.read(place, min(place + _WINDOW_BYTES, self.size))
            byte = self._window[place - self._start]
            value |= (byte & 127) << shift
            place += 1
            if byte < 128:
                return value, place
            shift += 7
        raise BrokenError


class _Field(NamedTuple):
    number: int
    kind: int
    start: int  # of its tag
    content: int
    end: int


def without_weights(source: Source) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """(model bytes with large initializers emptied, position and size of each one's contents by
    initializer number).

    Raises:
        BrokenError: the model is best read whole.
        CompileError: it changes meanwhile.
        OSError: it can't be read.
    """
    graphs: list[_Field] = []
    for field in _fields(source, 0, source.size):
        if field.number == _MODEL_FUNCTIONS:
            raise BrokenError  # calls are replaced by bodies, initializers get other numbers
        if field.number == _MODEL_GRAPH:
            graphs.append(field)
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        raise BrokenError
    (graph,) = graphs
    body, places = _graph_without(source, graph)
    head = source.read(0, graph.start)
    rest = source.read(graph.end, source.size)
    return b"".join((head, _message(_MODEL_GRAPH, body), rest)), places


def _graph_without(source: Source, graph: _Field) -> tuple[bytes, dict[int, tuple[int, int]]]:
    pieces: list[bytes] = []
    places: dict[int, tuple[int, int]] = {}
    number, copied = -1, graph.content
    for field in _fields(source, graph.content, graph.end):
        if field.number != _GRAPH_INITIALIZER:
            continue
        number += 1
        if field.kind != _BYTES:
            raise BrokenError
        if field.end - field.content < _CUT_BYTES:
            continue
        raw = [f for f in _fields(source, field.content, field.end) if f.number == _TENSOR_RAW_DATA]
        if len(raw) != 1 or raw[0].kind != _BYTES or raw[0].end - raw[0].content < _CUT_BYTES:
            continue
        places[number] = raw[0].content, raw[0].end
        tensor = source.read(field.content, raw[0].start), source.read(raw[0].end, field.end)
        pieces.append(source.read(copied, field.start))
        pieces.append(_message(_GRAPH_INITIALIZER, _message(_TENSOR_RAW_DATA, b"").join(tensor)))
        copied = field.end
    pieces.append(source.read(copied, graph.end))
    return b"".join(pieces), places


def _fields(source: Source, start: int, end: int) -> Iterator[_Field]:
    while start < end:
        tag, content = source.varint(start, end)
        kind = tag & 7
        if kind == _BYTES:
            length, content = source.varint(content, end)
            after = content + length
        elif kind == _VARINT:
            _, after = source.varint(content, end)
        elif kind in (_FIXED64, _FIXED32):
            after = content + (8 if kind == _FIXED64 else 4)
        else:
            raise BrokenError
        if after > end:
            raise BrokenError
        yield _Field(tag >> 3, kind, start, content, after)
        start = after


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
