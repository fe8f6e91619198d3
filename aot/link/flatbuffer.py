"""Reads the structure of a module file into the schema's classes, as runtime/src/flatbuffer.c does.

Every offset, length and alignment is checked. Tables and vectors may not take more bytes, counted
each time that they are referred to, than the structure has: what is shared must not unfold without
end.
"""

from __future__ import annotations

import struct
from typing import Any

from aot.link import module_fbs as fbs
from aot.link.module_schema import FEATURES, FIELDS, Field

_SCALARS = {"ubyte": "<B", "uint": "<I", "ulong": "<Q", "long": "<q"}


class Malformed(Exception):
    """An error in the structure, with the position of the byte."""


def read_structure(data: bytes, identifier: bytes, kind: str = "Module") -> Any:
    """Reads a whole FlatBuffer and returns its root, a table of kind `kind` in module.fbs.

    Raises:
        Malformed: the first fault.
    """
    reader = _Reader(data)
    if len(data) < 8 or data[4:8] != identifier:
        raise reader.fault(0, kind, "the file identifier is missing")
    return reader.table(0, kind)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = len(data)
        self.strings: dict[int, str] = {}  # those that are shared are one

    def fault(self, position: int, kind: str, what: str) -> Malformed:
        return Malformed(f"the structure is malformed: {kind} at byte {position}: {what}")

    def is_inside(self, position: int, size: int, alignment: int) -> bool:
        return 0 <= position <= len(self.data) - size and position % alignment == 0

    def u16(self, position: int) -> int:
        return int.from_bytes(self.data[position : position + 2], "little")

    def u32(self, position: int) -> int:
        return int.from_bytes(self.data[position : position + 4], "little")

    def spend(self, size: int, position: int, kind: str, what: str) -> None:
        if size > self.budget:
            raise self.fault(position, kind, f"{what} are shared too often")
        self.budget -= size

    def table(self, at: int, kind: str) -> Any:
        """The table that the offset at `at` refers to."""
        position = at + self.u32(at)
        if not self.is_inside(position, 4, 4):
            raise self.fault(at, kind, "its offset points outside")
        vtable = position - struct.unpack_from("<i", self.data, position)[0]
        if not self.is_inside(vtable, 4, 2):
            raise self.fault(position, kind, "its vtable is outside")
        vtable_bytes, table_bytes = self.u16(vtable), self.u16(vtable + 2)
        if (
            vtable_bytes < 4
            or vtable_bytes % 2
            or table_bytes < 4
            or not self.is_inside(vtable, vtable_bytes, 2)
            or not self.is_inside(position, table_bytes, 4)
        ):
            raise self.fault(position, kind, "its vtable or its length is not valid")
        self.spend(table_bytes, position, kind, "tables")
        result = getattr(fbs, f"{kind}T")()
        fields = list(enumerate(FIELDS[kind]))
        for number, field in sorted(fields, key=lambda f: f[1].name != "requires"):
            offset = self.u16(vtable + 4 + 2 * number) if 6 + 2 * number <= vtable_bytes else 0
            size = struct.calcsize(_SCALARS.get(field.type, "<I"))
            place = position + offset
            if offset and (offset < 4 or offset + size > table_bytes or place % size):
                what = "a field is outside the table or is misaligned"
                raise self.fault(position, kind, what)
            if not offset and field.is_required:
                raise self.fault(position, kind, "a required field is missing")
            value = self.field(field, place, kind) if offset else _absent(field)
            if field.values and value >= field.values:
                what = "an enum has a value that this version doesn't know"
                raise self.fault(position, kind, what)
            setattr(result, field.name, value)
            for name in value if field.name == "requires" and value else ():
                if name not in FEATURES:
                    # The fields that this version knows may mean something else beside it.
                    of = "module" if kind == "Module" else "variant"
                    raise Malformed(f'the {of} needs "{name}", which this aotc does not know')
        return result

    def field(self, field: Field, at: int, kind: str) -> Any:
        if field.type in _SCALARS:
            return struct.unpack_from(_SCALARS[field.type], self.data, at)[0]
        if field.type == "string":
            return self.string(at, kind)
        if not field.type.startswith("["):
            return self.table(at, field.type)
        element = field.type[1:-1]
        size = struct.calcsize(_SCALARS.get(element, "<I"))
        first, count = self.vector(at, size, kind)
        self.spend(size * count, first, kind, "vectors")
        if element == "ubyte":
            return self.data[first : first + count]
        if element == "uint":
            return list(struct.unpack_from(f"<{count}I", self.data, first))
        if element == "string":
            return [self.string(first + 4 * i, "strings") for i in range(count)]
        return [self.table(first + 4 * i, element) for i in range(count)]

    def vector(self, at: int, element_bytes: int, kind: str) -> tuple[int, int]:
        """(position of the first element, number of elements) of the vector referred to by the
        offset at `at`.
        """
        position = at + self.u32(at)
        if not self.is_inside(position, 4, 4):
            raise self.fault(at, kind, "a vector's offset points outside")
        count = self.u32(position)
        if not self.is_inside(position + 4, count * element_bytes, element_bytes):
            what = "a vector is longer than the structure or misaligned"
            raise self.fault(position, kind, what)
        return position + 4, count

    def string(self, at: int, kind: str) -> str:
        first, count = self.vector(at, 1, kind)
        found = self.strings.get(first)
        if found is not None:
            return found
        if self.data[first + count : first + count + 1] != b"\0":
            raise self.fault(first, kind, "a string is not terminated")
        try:
            text = self.data[first : first + count].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(first, kind, "a string is not UTF-8") from error
        return self.strings.setdefault(first, text)


def _absent(field: Field) -> Any:
    return field.default if field.type in _SCALARS else None
