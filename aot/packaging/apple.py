"""Writes Mach-O objects that contain bytes under names, and archives of them, for Apple's linker.

The counterpart of `objects` for arm64. An object names no platform, so that one serves macOS and
iOS. The same contents give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aot.packaging.objects import Blob

_MAGIC, _ARM64, _OBJECT = 0xFEEDFACF, 0x0100000C, 1
_SEGMENT, _SYMBOLS = 0x19, 2
_INSTRUCTIONS = 0x80000400
_DEFINED = 0x0F  # in a section, and seen from outside
_HEADER_BYTES, _SEGMENT_BYTES, _SECTION_BYTES, _SYMTAB_BYTES = 32, 72, 80, 24
_MEMBER_ALIGNMENT = 8


def macho_object(blobs: Sequence[Blob]) -> bytes:
    """An arm64 object with code in __TEXT,__text and everything else in __TEXT,__const."""
    code = [b for b in blobs if b.is_code]
    data = [b for b in blobs if not b.is_code]
    commands = _SEGMENT_BYTES + 2 * _SECTION_BYTES + _SYMTAB_BYTES
    start = _HEADER_BYTES + commands
    body = bytearray()
    sections, symbols = [], []
    strings = bytearray(b"\0")
    for number, (name, group, flags) in enumerate(
        (("__text", code, _INSTRUCTIONS), ("__const", data, 0)), 1
    ):
        alignment = max((b.alignment for b in group), default=1)
        body += bytes(-len(body) % alignment)
        begin = len(body)
        for blob in group:
            body += bytes(-len(body) % blob.alignment)
            symbols.append(struct.pack("<IBBHQ", len(strings), _DEFINED, number, 0, len(body)))
            strings += f"_{blob.symbol}".encode() + b"\0"
            body += blob.data
        size, power = len(body) - begin, alignment.bit_length() - 1
        names = struct.pack("<16s16s", name.encode(), b"__TEXT")
        place = struct.pack("<QQII", begin, size, start + begin, power)
        sections.append(names + place + struct.pack("<6I", 0, 0, flags, 0, 0, 0))
    size = len(body)
    body += bytes(-len(body) % 8)
    strings += bytes(-len(strings) % 8)
    symbols_at = start + len(body)
    strings_at = symbols_at + 16 * len(symbols)
    segment_bytes = _SEGMENT_BYTES + 2 * _SECTION_BYTES
    segment = struct.pack("<II16sQQQQ", _SEGMENT, segment_bytes, b"", 0, size, start, size)
    segment += struct.pack("<4I", 7, 7, len(sections), 0)
    symtab = (_SYMBOLS, _SYMTAB_BYTES, symbols_at, len(symbols), strings_at, len(strings))
    header = struct.pack("<8I", _MAGIC, _ARM64, 0, _OBJECT, 2, commands, 0, 0)
    table = struct.pack("<6I", *symtab)
    return b"".join([header, segment, *sections, table, body, *symbols, strings])


def apple_archive(name: str, data: bytes, symbols: Sequence[str]) -> bytes:
    """An archive of one object with a symbol table; members are aligned to 8 bytes."""
    names, offsets = bytearray(), []
    for symbol in symbols:
        offsets.append(len(names))
        names += f"_{symbol}".encode() + b"\0"
    names += bytes(-len(names) % 8)
    table_bytes = 4 + 8 * len(symbols) + 4 + len(names)
    first = _member(8, "__.SYMDEF", bytes(table_bytes))
    member_at = 8 + len(first)
    table = struct.pack("<I", 8 * len(symbols))
    table += b"".join(struct.pack("<II", offset, member_at) for offset in offsets)
    table += struct.pack("<I", len(names)) + names
    return b"!<arch>\n" + _member(8, "__.SYMDEF", table) + _member(member_at, name, data)


def _member(at: int, name: str, data: bytes) -> bytes:
    """An archive member at offset `at`: header, name and data, padded so that the data is
    aligned."""
    text = name.encode() + b"\0"
    text += bytes(-(at + 60 + len(text)) % _MEMBER_ALIGNMENT)
    data += bytes(-len(data) % _MEMBER_ALIGNMENT)
    size = len(text) + len(data)
    header = f"{f'#1/{len(text)}':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n"
    return header.encode() + text + data
