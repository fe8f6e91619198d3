"""Writes relocatable ELF objects that contain bytes under names, and archives of them.

Owns both formats as far as bytes without relocations need them. The same contents give the same
bytes: no times, no users.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aot.base.records import dataclass
from aot.link.image import Arch

# machine number, bits
_MACHINES = {
    Arch.X86_64: (62, 64),
    Arch.AARCH64: (183, 64),
    Arch.ARM: (40, 32),
    Arch.THUMB: (40, 32),
    Arch.RISCV64: (243, 64),
    Arch.RISCV32: (243, 32),
}
# Symbols that tell tools how bytes are to be read
_MAPPING = {Arch.ARM: "$a", Arch.THUMB: "$t", Arch.AARCH64: "$x"}
_ARM_EABI = 0x05000000
_RISCV_COMPRESSED, _RISCV_SINGLE, _RISCV_DOUBLE = 1, 2, 4

_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOCATED, _EXECUTED = 2, 4
_LOCAL, _GLOBAL = 0, 1
_OBJECT = 1


@dataclass(frozen=True)
class Blob:
    """Bytes under a symbol in an object file.

    Attributes:
        symbol: what they are called; a C compiler sees an array.
        is_code: whether they are executable; else they are read-only data.
    """

    symbol: str
    data: bytes
    alignment: int
    is_code: bool = False


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    flags: int
    data: bytes
    alignment: int
    link: int = 0
    info: int = 0
    entry_bytes: int = 0


def elf_flags(arch: Arch, features: Sequence[str]) -> int:
    """The ELF header flags of an object, which name its ABI."""
    if arch in (Arch.ARM, Arch.THUMB):
        return _ARM_EABI
    if arch not in (Arch.RISCV64, Arch.RISCV32):
        return 0
    floats = _RISCV_DOUBLE if "d" in features else _RISCV_SINGLE if "f" in features else 0
    return floats | (_RISCV_COMPRESSED if "c" in features else 0)


def elf_object(arch: Arch, features: Sequence[str], blobs: Sequence[Blob]) -> bytes:
    """An ELF object with a section for each blob, so that linkers can drop unused ones."""
    machine, bits = _MACHINES[arch]
    sections = [_Section("", 0, 0, b"", 0)]
    for blob in blobs:
        kind = ".text" if blob.is_code else ".rodata"
        flags = _ALLOCATED | (_EXECUTED if blob.is_code else 0)
        name = f"{kind}.{blob.symbol}"
        sections.append(_Section(name, _PROGBITS, flags, blob.data, blob.alignment))
    sections.append(_Section(".note.GNU-stack", _PROGBITS, 0, b"", 1))
    symbols, strings, local_count = _symbol_table(arch, blobs, bits)
    entry_bytes = 24 if bits == 64 else 16
    strings_at = len(sections) + 1
    sections.append(
        _Section(".symtab", _SYMTAB, 0, symbols, bits // 8, strings_at, local_count, entry_bytes)
    )
    sections.append(_Section(".strtab", _STRTAB, 0, strings, 1))
    names = b"\0" + b"".join(s.name.encode() + b"\0" for s in sections[1:]) + b".shstrtab\0"
    sections.append(_Section(".shstrtab", _STRTAB, 0, names, 1))
    return _elf_file(machine, bits, elf_flags(arch, features), sections)


def _symbol_table(arch: Arch, blobs: Sequence[Blob], bits: int) -> tuple[bytes, bytes, int]:
    """(symbols, their names, number of local ones) of an object; local symbols come first."""
    strings = bytearray(b"\0")
    rows = [(0, 0, 0, 0)]  # name, info, section, size
    for number, blob in enumerate(blobs, 1):
        if blob.is_code and arch in _MAPPING:
            rows.append((_add(strings, _MAPPING[arch]), _LOCAL << 4, number, 0))
    local_count = len(rows)
    for number, blob in enumerate(blobs, 1):
        rows.append((_add(strings, blob.symbol), _GLOBAL << 4 | _OBJECT, number, len(blob.data)))
    if bits == 64:
        packed = [struct.pack("<IBBHQQ", n, i, 0, section, 0, size) for n, i, section, size in rows]
    else:
        packed = [struct.pack("<IIIBBH", n, 0, size, i, 0, section) for n, i, section, size in rows]
    return b"".join(packed), bytes(strings), local_count


def _add(strings: bytearray, text: str) -> int:
    at = len(strings)
    strings += text.encode() + b"\0"
    return at


def _elf_file(machine: int, bits: int, flags: int, sections: Sequence[_Section]) -> bytes:
    header_bytes, row_bytes = (64, 64) if bits == 64 else (52, 40)
    body = bytearray(header_bytes)
    offsets = []
    for section in sections:
        body += bytes(-len(body) % max(section.alignment, 1))
        offsets.append(len(body) if section.type else 0)
        body += section.data
    body += bytes(-len(body) % 8)
    table_at = len(body)
    form = "<IIQQQQIIQQ" if bits == 64 else "<IIIIIIIIII"
    names = 0
    for section, offset in zip(sections, offsets, strict=True):
        row = (section.type, section.flags, 0, offset, len(section.data), section.link)
        more = (section.info, section.alignment, section.entry_bytes)
        body += struct.pack(form, names if section.name else 0, *row, *more)
        names += len(section.name) + 1
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    form = "<HHIQQQIHHHHHH" if bits == 64 else "<HHIIIIIHHHHHH"
    count = len(sections)
    fields = (1, machine, 1, 0, 0, table_at, flags, header_bytes, 0, 0, row_bytes, count, count - 1)
    body[:header_bytes] = ident + struct.pack(form, *fields)
    return bytes(body)


def archive(name: str, data: bytes, symbols: Sequence[str]) -> bytes:
    """An archive of one object, with the index of symbols that linkers need."""
    index = struct.pack(">I", len(symbols))
    listed = b"".join(s.encode() + b"\0" for s in symbols)
    listed += b"\0" * (len(listed) % 2)
    member_at = 8 + 60 + 4 * (1 + len(symbols)) + len(listed)
    index += struct.pack(">I", member_at) * len(symbols) + listed
    return b"!<arch>\n" + _member("/", index, "0") + _member(f"{name}/", data, "644")


def _member(name: str, data: bytes, mode: str) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{mode:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
