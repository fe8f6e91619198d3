"""A lazy reader of a TFLite file's tables, which validates every offset in the file.

Owns the wire format of flatbuffers by `schema.py`. Vectors of numbers are views of the file's
memory. Tables that are referred to often count each time against what the file can hold, so that
what is shared does not unfold without end.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from aot.frontends.tflite.schema import ENUMS, TABLES, Field

IDENTIFIER = b"TFL3"
_FORMATS = {
    "bool": "<?",
    "i8": "<b",
    "u8": "<B",
    "i16": "<h",
    "u16": "<H",
    "i32": "<i",
    "u32": "<I",
    "i64": "<q",
    "u64": "<Q",
    "f32": "<f",
    "f64": "<d",
}
_DTYPES = {kind: np.dtype(format) for kind, format in _FORMATS.items()}
_FIELDS = {name: {field.name: field for field in fields} for name, fields in TABLES.items()}


class DamagedError(Exception):
    """A structural fault in the file, with its byte position."""


class Flatbuffer:
    """A file's bytes; `root` is its first table."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.budget = len(data)
        if len(data) < 8 or bytes(data[4:8]) != IDENTIFIER:
            raise self.fault(0, "the file identifier is missing")

    def root(self, kind: str) -> Table:
        """The root, as a table of the given kind."""
        return self.table(0, kind)

    def fault(self, position: int, what: str) -> DamagedError:
        return DamagedError(f"the file is damaged at byte {position}: {what}")

    def number(self, kind: str, position: int) -> Any:
        """The number at a position, after a bounds check."""
        return struct.unpack_from(_FORMATS[kind], self.data, position)[0]

    def check(self, position: int, size: int, what: str) -> None:
        """Checks that `size` bytes at `position` are inside the file."""
        if not 0 <= position <= len(self.data) - size:
            raise self.fault(position, f"{what} is outside of the file")

    def follow(self, at: int, what: str) -> int:
        """The position that the offset at `at` refers to."""
        self.check(at, 4, f"the offset of {what}")
        position = at + int(self.number("u32", at))
        self.check(position, 4, what)
        return position

    def table(self, at: int, kind: str) -> Table:
        """The table whose offset is at `at`."""
        position = self.follow(at, f"a table {kind}")
        vtable = position - int(self.number("i32", position))
        self.check(vtable, 4, f"the vtable of {kind}")
        vtable_bytes = int(self.number("u16", vtable))
        table_bytes = int(self.number("u16", vtable + 2))
        self.check(vtable, vtable_bytes, f"the vtable of {kind}")
        self.check(position, table_bytes, f"a table {kind}")
        if vtable_bytes < 4 or table_bytes < 4:
            raise self.fault(position, f"the vtable of {kind} is too short")
        self.budget -= max(table_bytes, 4)
        if self.budget < 0:
            raise self.fault(position, "tables are shared too often")
        return Table(self, kind, position, vtable, vtable_bytes, table_bytes)

    def vector(self, at: int, size: int, what: str) -> tuple[int, int]:
        """(position of the first element, number of elements) of a vector; `size` is an element's
        bytes.
        """
        position = self.follow(at, what)
        count = int(self.number("u32", position))
        self.check(position + 4, count * size, what)
        return position + 4, count

    def string(self, at: int, what: str) -> str:
        """The string whose offset is at `at`; invalid UTF-8 is replaced."""
        first, count = self.vector(at, 1, what)
        return bytes(self.data[first : first + count]).decode("utf-8", "replace")


class Table:
    """A table in the file; its fields are attributes, read on access."""

    def __init__(
        self,
        file: Flatbuffer,
        kind: str,
        position: int,
        vtable: int,
        vtable_bytes: int,
        table_bytes: int,
    ) -> None:
        self._file = file
        self.kind = kind
        self._position = position
        self._vtable = vtable
        self._extents = vtable_bytes, table_bytes

    def __getattr__(self, name: str) -> Any:
        field = _FIELDS[self.kind].get(name)
        if field is None:
            raise AttributeError(f"{self.kind} has no field {name}")
        value = self._read(field)
        setattr(self, name, value)
        return value

    def has(self, name: str) -> bool:
        """Whether tables of this kind define a field."""
        return name in _FIELDS[self.kind]

    def _place(self, slot: int, size: int) -> int:
        """The position of a field in the file; 0 if it is absent."""
        vtable_bytes, table_bytes = self._extents
        if 6 + 2 * slot > vtable_bytes:
            return 0
        offset = int(self._file.number("u16", self._vtable + 4 + 2 * slot))
        if offset and (offset < 4 or offset + size > table_bytes):
            raise self._file.fault(self._position, f"a field of {self.kind} is outside the table")
        return self._position + offset if offset else 0

    def _read(self, field: Field) -> Any:
        file, kind = self._file, field.type
        if kind in _FORMATS:
            at = self._place(field.slot, _DTYPES[kind].itemsize)
            return file.number(kind, at) if at else field.default
        at = self._place(field.slot, 4)
        what = f"{self.kind}.{field.name}"
        if not at:
            return [] if kind in ("[string]",) or _is_table_vector(kind) else None
        if kind == "string":
            return file.string(at, what)
        if kind.startswith("|"):
            return self._union(field, at)
        if not kind.startswith("["):
            return file.table(at, kind)
        element = kind[1:-1]
        if element in _FORMATS:
            dtype = _DTYPES[element]
            first, count = file.vector(at, dtype.itemsize, what)
            return np.frombuffer(file.data, dtype, count, first)
        first, count = file.vector(at, 4, what)
        places = range(first, first + 4 * count, 4)
        return [file.table(place, element) for place in places]

    def _union(self, field: Field, at: int) -> Table | None:
        """The table of a union; None for a kind without fields here."""
        before = Field(field.slot - 1, "", "u8", 0)
        members = ENUMS[field.type.strip("|")]
        kind = members.get(int(self._read(before)), "")
        return self._file.table(at, kind) if kind in TABLES else None


def _is_table_vector(kind: str) -> bool:
    return kind.startswith("[") and kind[1:-1] in TABLES
