"""Reads WebAssembly objects that LLVM writes, and lays out the modules that are code images of
wasm32.

Owns both formats. An object is read in the terms of `elf`: each function and data segment is a
section. Judges what a kernel may be (one signature, two globals from outside); places bytes, and
leaves relocations to `code_image`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot.errors import InternalError
from aot.link.elf import ElfObject, Relocation, Section, Symbol

MACHINE = "wasm32"
_MAGIC = b"\0asm\x01\0\0\0"
_CUSTOM, _TYPE, _IMPORT, _FUNCTION, _ELEMENT, _CODE, _DATA = 0, 1, 2, 3, 9, 10, 11
_I32, _FUNCREF, _FUNC_TYPE = 0x7F, 0x70, 0x60
_GLOBAL_GET, _END = 0x23, 0x0B
# An aot_kernel_t: (dispatch, x, y, z), no result.
_KERNEL_TYPE = bytes([_FUNC_TYPE, 4, _I32, _I32, _I32, _I32, 0])

# What an image imports from module "env". The stack's pointer and the image's own address are what
# its code may use; the table's base is where its functions go, in the order of their places.
STACK_POINTER, MEMORY_BASE, TABLE_BASE = "__stack_pointer", "__memory_base", "__table_base"
_GLOBALS = (STACK_POINTER, MEMORY_BASE, TABLE_BASE)
_MUTABLE_GLOBALS = (STACK_POINTER,)
_CONSTANTS_NAME = "aot.constants"

# Symbols and relocations, as the tool conventions number them
_SYMBOL_FUNCTION, _SYMBOL_DATA, _SYMBOL_GLOBAL, _SYMBOL_SECTION = 0, 1, 2, 3
_SYMBOL_LOCAL, _SYMBOL_UNDEFINED, _SYMBOL_HAS_NAME = 0x2, 0x10, 0x40
_SEGMENT_INFO, _SYMBOL_TABLE = 5, 8
_RELOCATION_GLOBAL = 7
_RELOCATIONS_WITH_ADDEND = (3, 4, 5, 8, 9, 11, 14, 15, 16, 17, 21, 22, 23, 25)


class _Cursor:
    """Reads numbers and names from a range of bytes."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def bytes(self, count: int) -> bytes:
        if not 0 <= count <= self.end - self.at:
            raise InternalError(f"object is truncated: {count} bytes at {self.at} of {self.end}")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.bytes(1)[0]

    def number(self) -> int:
        """Reads an unsigned 32-bit number in LEB128."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise InternalError(f"object has a number that does not end at {self.at}")

    def signed(self) -> int:
        """Reads a signed number of up to 64 bits in LEB128."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - (1 << shift + 7) if byte & 0x40 else value
        raise InternalError(f"object has a number that does not end at {self.at}")

    def name(self) -> str:
        return self.bytes(self.number()).decode("utf-8", "replace")

    def numbers(self) -> Iterator[int]:
        """Reads a count; returns an iterator of 0, 1, ... below it."""
        return iter(range(self.number()))

    def part(self, size: int) -> _Cursor:
        """A cursor over the next `size` bytes, which this cursor skips."""
        start = self.at
        self.bytes(size)
        return _Cursor(self.data, start, self.at)


def read_object(data: bytes) -> ElfObject:
    """Parses a wasm object.

    Raises:
        InternalError: it is not a well-formed relocatable object, a function has another type than
            kernels have, or a global is used that images don't have.
    """
    return _Reader(data).read()


class _Reader:
    """Reads an object section by section; facts from several sections are joined at the end."""

    def __init__(self, data: bytes) -> None:
        if data[: len(_MAGIC)] != _MAGIC:
            raise InternalError("object is not a webassembly file")
        self.data = data
        self.types: list[bytes] = []
        self.imports: dict[int, list[str]] = {}  # names by kind
        self.function_types: list[int] = []
        self.code_at = 0
        self.functions: list[tuple[int, int]] = []  # bodies: start in the file, size
        self.segments: list[bytes] = []
        self.segment_infos: list[tuple[str, int]] = []  # name, alignment
        self.symbols: list[tuple[int, Symbol]] = []  # kind, symbol
        self.relocations: list[tuple[int, int, int, int]] = []  # type, offset, symbol, addend

    def read(self) -> ElfObject:
        readers = {
            _TYPE: self.read_types,
            _IMPORT: self.read_imports,
            _FUNCTION: self.read_function_types,
            _CODE: self.read_code,
            _DATA: self.read_data,
            _CUSTOM: self.read_custom,
        }
        file = _Cursor(self.data, len(_MAGIC))
        while file.at < file.end:
            kind = file.byte()
            section = file.part(file.number())
            if kind in readers:
                readers[kind](section)
        if len(self.function_types) != len(self.functions):
            raise InternalError("object has functions without a type, or types without a function")
        for type in self.function_types:
            if type >= len(self.types) or self.types[type] != _KERNEL_TYPE:
                raise InternalError("object has a function of another type than kernels have")
        if len(self.segment_infos) != len(self.segments):
            raise InternalError("object has data segments that nothing is known of")
        sections = {n: self.code_section(n) for n in range(len(self.functions))}
        for n, (segment, (name, alignment)) in enumerate(
            zip(self.segments, self.segment_infos, strict=True), len(self.functions)
        ):
            is_writable = not name.startswith(".rodata")
            sections[n] = Section(name, segment, alignment, False, is_writable, 0, ())
        symbols = tuple(symbol for _, symbol in self.symbols)
        for symbol in symbols:
            if symbol.section is not None and symbol.section not in sections:
                raise InternalError(f"object has a symbol {symbol.name!r} of nothing")
        return ElfObject(MACHINE, False, sections, symbols, "")

    def read_types(self, section: _Cursor) -> None:
        for _ in section.numbers():
            start = section.at
            section.byte()
            section.bytes(section.number())
            section.bytes(section.number())
            self.types.append(self.data[start : section.at])

    def read_imports(self, section: _Cursor) -> None:
        for _ in section.numbers():
            section.name()
            name, kind = section.name(), section.byte()
            if kind == 0:  # a function
                section.number()
            elif kind in (1, 2):  # a table, a memory
                if kind == 1:
                    section.byte()
                has_maximum = section.byte() & 1
                section.number()
                if has_maximum:
                    section.number()
            elif kind == 3:  # a global
                section.bytes(2)
            else:
                raise InternalError(f"object imports {name!r} of unknown kind {kind}")
            self.imports.setdefault(kind, []).append(name)

    def read_function_types(self, section: _Cursor) -> None:
        self.function_types = [section.number() for _ in section.numbers()]

    def read_code(self, section: _Cursor) -> None:
        self.code_at = section.at
        for _ in section.numbers():
            size = section.number()
            self.functions.append((section.at, size))
            section.bytes(size)

    def read_data(self, section: _Cursor) -> None:
        for _ in section.numbers():
            flags = section.number()
            if flags not in (0, 1):
                raise InternalError(f"object has a data segment with flags {flags}")
            if flags == 0:  # an offset, which means nothing before linking
                section.byte()
                section.signed()
                section.byte()
            self.segments.append(section.bytes(section.number()))

    def read_custom(self, section: _Cursor) -> None:
        name = section.name()
        if name == "linking":
            self.read_linking(section)
        elif name == "reloc.CODE":
            section.number()
            for _ in section.numbers():
                type, offset, symbol = section.byte(), section.number(), section.number()
                addend = section.signed() if type in _RELOCATIONS_WITH_ADDEND else 0
                self.relocations.append((type, offset, symbol, addend))
        elif name == "reloc.DATA":
            raise InternalError("object has constants that need relocation")

    def read_linking(self, section: _Cursor) -> None:
        version = section.number()
        if version != 2:
            raise InternalError(f"object has linking data of version {version}")
        while section.at < section.end:
            kind = section.byte()
            part = section.part(section.number())
            if kind == _SEGMENT_INFO:
                for _ in part.numbers():
                    name, power, _ = part.name(), part.number(), part.number()
                    self.segment_infos.append((name, 1 << min(power, 31)))
            elif kind == _SYMBOL_TABLE:
                for _ in part.numbers():
                    self.symbols.append(self.read_symbol(part))

    def read_symbol(self, part: _Cursor) -> tuple[int, Symbol]:
        kind, flags = part.byte(), part.number()
        is_defined = not flags & _SYMBOL_UNDEFINED
        name, value, section = "", 0, None
        if kind == _SYMBOL_DATA:
            name = part.name()
            if is_defined:
                segment, value, _ = part.number(), part.number(), part.number()
                section = len(self.functions) + segment
        elif kind == _SYMBOL_SECTION:
            part.number()
        else:
            index = part.number()
            found = self.imports.get({_SYMBOL_FUNCTION: 0, _SYMBOL_GLOBAL: 3}.get(kind, -1), [])
            if is_defined or flags & _SYMBOL_HAS_NAME:
                name = part.name()
            elif index < len(found):
                name = found[index]
            if kind == _SYMBOL_FUNCTION and is_defined:
                section = index - len(found)
        is_function = kind == _SYMBOL_FUNCTION
        is_global = not flags & _SYMBOL_LOCAL
        return kind, Symbol(name, value, section, is_function, False, is_global)

    def code_section(self, number: int) -> Section:
        """The body of a function as a section, with the fixed numbers of the image's globals filled
        in."""
        start, size = self.functions[number]
        data = bytearray(self.data[start : start + size])
        relocations = []
        for type, offset, index, addend in self.relocations:
            place = self.code_at + offset - start
            if not 0 <= place < size:
                continue  # of another function
            if place + 5 > size:
                raise InternalError(f"object has a relocation at {place} of {size} bytes")
            if index >= len(self.symbols):
                raise InternalError(f"object has a relocation of symbol {index}")
            kind, symbol = self.symbols[index]
            if type == _RELOCATION_GLOBAL and kind == _SYMBOL_GLOBAL and symbol.name in _GLOBALS:
                data[place : place + 5] = padded(_GLOBALS.index(symbol.name))
            else:
                relocations.append(Relocation(place, type, symbol, addend))
        return Section(".text", bytes(data), 1, True, False, 0, tuple(relocations))


# Modules ------------------------------------------------------------------------------------------


def padded(value: int) -> bytes:
    """A number in LEB128, padded to the five bytes of a place to patch. It is from -2^31 to 2^31; a
    non-negative one reads the same signed and unsigned."""
    return bytes((value >> shift & 0x7F) | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))


def lay_out(
    functions: Sequence[bytes], constants: Sequence[tuple[bytes, int]]
) -> tuple[bytearray, list[int], list[int]]:
    """Lays out a WebAssembly module: `functions`, which are bodies of kernels, are elements of the
    imported table, and `constants`, each with its alignment, are in a custom section.

    The module's bytes lie in the memory that it imports: constants are read there, so that nothing
    is copied when it is instantiated.

    Returns:
        the module, where in it the functions start, and the constants.
    """
    count = len(functions)
    image = bytearray(_MAGIC)
    image += _section(_TYPE, _number(1) + _KERNEL_TYPE)
    image += _section(_IMPORT, _imports(count))
    image += _section(_FUNCTION, _number(count) + bytes(count))
    base = bytes([_GLOBAL_GET, _GLOBALS.index(TABLE_BASE), _END])
    numbers = b"".join(_number(n) for n in range(count))
    image += _section(_ELEMENT, _number(1) + _number(0) + base + _number(count) + numbers)
    code, places = bytearray(_number(count)), []
    for body in functions:
        code += _number(len(body))
        places.append(len(code))
        code += body
    image += _header(_CODE, len(code))
    starts = [len(image) + place for place in places]
    image += code
    if not constants:
        return image, starts, []
    name = _CONSTANTS_NAME.encode()
    image.append(_CUSTOM)
    size_at = len(image)
    image += padded(0) + _number(len(name)) + name
    found = []
    for data, alignment in constants:
        image += bytes(-len(image) % alignment)
        found.append(len(image))
        image += data
    image[size_at : size_at + 5] = padded(len(image) - size_at - 5)
    return image, starts, found


def _imports(count: int) -> bytes:
    entries = [
        ("memory", bytes([2, 0]) + _number(1)),
        ("__indirect_function_table", bytes([1, _FUNCREF, 0]) + _number(count)),
        *((name, bytes([3, _I32, name in _MUTABLE_GLOBALS])) for name in _GLOBALS),
    ]
    text = b"".join(_text("env") + _text(name) + kind for name, kind in entries)
    return _number(len(entries)) + text


def _section(kind: int, data: bytes) -> bytes:
    return _header(kind, len(data)) + data


def _header(kind: int, size: int) -> bytes:
    return bytes([kind]) + _number(size)


def _text(text: str) -> bytes:
    return _number(len(text)) + text.encode()


def _number(value: int) -> bytes:
    """The unsigned LEB128 encoding of a number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
