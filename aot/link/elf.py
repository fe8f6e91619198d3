"""A strict reader of the ELF relocatable objects that LLVM writes: 32 or 64 bits, little endian.

Owns the format's numbers and bounds checks. Reads sections, symbols and relocations, and judges
nothing: what may be linked is `code_image`'s to say.
"""

from __future__ import annotations

import struct

from aot.base.records import dataclass
from aot.errors import InternalError

_RELOCATABLE = 1
_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC, _SHF_MERGE = 0x1, 0x2, 0x4, 0x10
_STT_FUNC, _STT_SECTION, _STT_FILE = 2, 3, 4
_STB_LOCAL = 0
_SHN_UNDEF, _SHN_LORESERVE = 0, 0xFF00

MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv"}


@dataclass(frozen=True)
class Symbol:
    """A symbol; `section` is None if the symbol is undefined, absolute or the name of a file."""

    name: str
    value: int
    section: int | None
    is_function: bool
    is_section: bool
    is_global: bool


@dataclass(frozen=True)
class Relocation:
    """A relocation: a place in a section to patch. If the addend is None, it is stored in the place
    itself.
    """

    offset: int
    type: int
    symbol: Symbol
    addend: int | None


@dataclass(frozen=True)
class Section:
    """A section with bytes at run time; `entry_bytes` is set where equal entries may be merged."""

    name: str
    data: bytes
    alignment: int
    is_code: bool
    is_writable: bool
    entry_bytes: int
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class ElfObject:
    """An object file: its allocated sections by index, its symbols, and the name of its source."""

    machine: str
    is_64: bool
    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    source: str


@dataclass(frozen=True)
class _Header:
    """A section header of the file."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


def read_object(data: bytes) -> ElfObject:
    """Parses an ELF object.

    Raises:
        InternalError: it is not a well-formed relocatable object.
    """
    return _Reader(data).read()


class _Reader:
    """Reads structures of an object file at checked offsets."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data[:4] != b"\x7fELF" or len(data) < 52 or data[4] not in (1, 2) or data[5] != 1:
            raise InternalError("object is not a little-endian elf file")
        self.is_64 = data[4] == 2

    def unpack(self, code: str, offset: int) -> tuple[int, ...]:
        size = struct.calcsize("<" + code)
        if offset < 0 or offset + size > len(self.data):
            raise InternalError(
                f"object is truncated: {size} bytes at {offset} of {len(self.data)}"
            )
        return struct.unpack_from("<" + code, self.data, offset)

    def bytes_at(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise InternalError(
                f"object is truncated: {size} bytes at {offset} of {len(self.data)}"
            )
        return self.data[offset : offset + size]

    def read(self) -> ElfObject:
        if self.is_64:
            kind, machine, _, _, _, start, _, _, _, _, size, count, names = self.unpack(
                "HHIQQQIHHHHHH", 16
            )
        else:
            kind, machine, _, _, _, start, _, _, _, _, size, count, names = self.unpack(
                "HHIIIIIHHHHHH", 16
            )
        if kind != _RELOCATABLE:
            raise InternalError(f"object has elf type {kind}, expected a relocatable object")
        if machine not in MACHINES:
            raise InternalError(f"object is for unknown elf machine {machine}")
        headers = self.headers(start, size, count, names)
        symbols, source = self.symbols(headers)
        relocations = self.relocations(headers, symbols)
        sections = {
            i: Section(
                h.name,
                self.content(h),
                max(1, h.alignment),
                bool(h.flags & _SHF_EXEC),
                bool(h.flags & _SHF_WRITE),
                h.entry_bytes if h.flags & _SHF_MERGE else 0,
                tuple(relocations.get(i, ())),
            )
            for i, h in enumerate(headers)
            if h.flags & _SHF_ALLOC
        }
        return ElfObject(MACHINES[machine], self.is_64, sections, tuple(symbols), source)

    def headers(self, start: int, size: int, count: int, names: int) -> list[_Header]:
        code = "IIQQQQIIQQ" if self.is_64 else "IIIIIIIIII"
        if size != struct.calcsize("<" + code) or names >= count:
            raise InternalError("object has a wrong section table")
        raw = [self.unpack(code, start + i * size) for i in range(count)]
        table = self.bytes_at(raw[names][4], raw[names][5])
        return [
            _Header(_string(table, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8], r[9])
            for r in raw
        ]

    def content(self, header: _Header) -> bytes:
        if header.type == _SHT_NOBITS:
            return bytes(header.size)
        return self.bytes_at(header.offset, header.size)

    def symbols(self, headers: list[_Header]) -> tuple[list[Symbol], str]:
        tables = [h for h in headers if h.type == _SHT_SYMTAB]
        if len(tables) != 1:
            raise InternalError(f"object has {len(tables)} symbol tables")
        table = tables[0]
        if table.link >= len(headers):
            raise InternalError("object has a symbol table without names")
        names = self.content(headers[table.link])
        symbols, source = [], ""
        code = "IBBHQQ" if self.is_64 else "IIIBBH"
        step = struct.calcsize("<" + code)
        for offset in range(table.offset, table.offset + table.size, step):
            raw = self.unpack(code, offset)
            name, info, index, value = (
                (raw[0], raw[1], raw[3], raw[4]) if self.is_64 else (raw[0], raw[3], raw[5], raw[1])
            )
            kind = info & 15
            if kind == _STT_FILE:
                source = _string(names, name)
            is_defined = _SHN_UNDEF < index < _SHN_LORESERVE
            if is_defined and index >= len(headers):
                raise InternalError(f"object has a symbol in section {index} of {len(headers)}")
            label = (
                headers[index].name
                if kind == _STT_SECTION and is_defined
                else (_string(names, name))
            )
            symbols.append(
                Symbol(
                    label,
                    value,
                    index if is_defined else None,
                    kind == _STT_FUNC,
                    kind == _STT_SECTION,
                    info >> 4 != _STB_LOCAL,
                )
            )
        return symbols, source

    def relocations(
        self, headers: list[_Header], symbols: list[Symbol]
    ) -> dict[int, list[Relocation]]:
        found: dict[int, list[Relocation]] = {}
        for header in headers:
            if header.type not in (_SHT_RELA, _SHT_REL):
                continue
            has_addend = header.type == _SHT_RELA
            code = ("QQ" if self.is_64 else "II") + (
                ("q" if self.is_64 else "i") if has_addend else ""
            )
            step = struct.calcsize("<" + code)
            for at in range(header.offset, header.offset + header.size, step):
                raw = self.unpack(code, at)
                info = raw[1]
                index, kind = (
                    (info >> 32, info & 0xFFFFFFFF) if self.is_64 else (info >> 8, info & 0xFF)
                )
                if index >= len(symbols):
                    raise InternalError(
                        f"object has a relocation of symbol {index} of {len(symbols)}"
                    )
                found.setdefault(header.info, []).append(
                    Relocation(raw[0], kind, symbols[index], raw[2] if has_addend else None)
                )
        return found


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset > len(table) or end < 0:
        raise InternalError(f"object has a name outside its string table, at {offset}")
    return table[offset:end].decode("utf-8", "replace")
