"""Links a variant's objects into one position-free code image.

Owns placement, the merging of equal functions and constants, and the promise that an image needs no
relocation and no symbol from outside. Knows nothing of kernels: it gets objects and gives bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.errors import InternalError
from aot.link.elf import ElfObject, Relocation, Section, Symbol, read_object
from aot.link.relocations import KINDS, Kind
from aot.target import Target

ENTRY_NAME = "kernel"
_MACHINES = {
    "x86_64": "x86_64",
    "aarch64": "aarch64",
    "arm": "arm",
    "thumb": "arm",
    "riscv64": "riscv",
    "riscv32": "riscv",
}
# Unwind tables: nothing unwinds through a kernel.
_IGNORED = (".eh_frame", ".ARM.exidx", ".ARM.extab")
_CODE_ALIGNMENT = 32


@dataclass(frozen=True)
class CodeImage:
    """Machine code and its constants, to be mapped at any address that is a multiple of
    `alignment`.

    Attributes:
        entries: for each object, the offset of its function. For Thumb bit 0 is set, as in any
            pointer to a Thumb function: the code starts one byte before.
        alignment: what the image must be aligned to in memory, the target's page.
        functions_met: objects given.
        functions_kept: distinct functions in the image.
        constant_bytes_met: constants that the objects brought.
        constant_bytes_kept: constants in the image.
    """

    data: bytes
    entries: tuple[int, ...]
    alignment: int
    functions_met: int
    functions_kept: int
    constant_bytes_met: int
    constant_bytes_kept: int


@dataclass(eq=False)
class _Piece:
    """Bytes that are placed as one: a section, or an entry of a mergeable one."""

    data: bytes
    alignment: int
    is_code: bool
    offset: int = -1


@dataclass(frozen=True)
class _Target:
    """A relocation's target: `offset` bytes into a piece."""

    piece: _Piece
    offset: int


@dataclass(frozen=True)
class _Patch:
    """A relocation of a piece with its target found; `place` is the offset in the piece."""

    place: int
    kind: Kind
    target: _Target
    # Where the paired relocation stands in the same piece, for kinds that have one.
    pair: int | None = None


def link_image(objects: Sequence[bytes], target: Target) -> CodeImage:
    """One image with the function `ENTRY_NAME` of each object.

    Raises:
        InternalError: an object is for another machine, refers to something outside, has writable
            data, or a relocation that is not known.
    """
    linker = _Linker(target)
    for data in objects:
        linker.add(read_object(data))
    return linker.finish()


class _Linker:
    """Collects pieces, equal ones once, and then lays them out."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.machine = _MACHINES.get(target.arch)
        if self.machine is None:
            raise InternalError(f"target {target.name}: there is no linker for arch {target.arch}")
        self.kinds = KINDS[self.machine]
        self.code: list[tuple[_Piece, tuple[_Patch, ...]]] = []
        self.constants: dict[tuple[bytes, int], _Piece] = {}
        self.functions: dict[object, _Piece] = {}
        self.entries: list[tuple[_Piece, int]] = []
        self.constant_bytes_met = 0

    def add(self, obj: ElfObject) -> None:
        name = obj.source or "object"
        if obj.machine != self.machine:
            raise InternalError(
                f"{name}: object is for {obj.machine}, target {self.target.name} "
                f"needs {self.machine}"
            )
        entry = next((s for s in obj.symbols if s.name == ENTRY_NAME and s.is_global), None)
        if entry is None or entry.section is None or not obj.sections[entry.section].is_code:
            raise InternalError(f"{name}: object does not define function {ENTRY_NAME!r}")
        linked = {
            i: s for i, s in obj.sections.items() if s.data and not s.name.startswith(_IGNORED)
        }
        for section in linked.values():
            if section.is_writable:
                raise InternalError(f"{name}: section {section.name} is writable")
            if section.is_code and section is not obj.sections[entry.section]:
                raise InternalError(f"{name}: code outside the entry's section, in {section.name}")
            if not section.is_code and section.relocations:
                raise InternalError(f"{name}: constants in {section.name} need relocation")
            if not section.is_code:
                self.constant_bytes_met += len(section.data)
        code = linked[entry.section]
        piece = _Piece(code.data, max(code.alignment, _CODE_ALIGNMENT), is_code=True)
        patches = tuple(self.patch(name, obj, code, piece, r) for r in code.relocations)
        key = (
            code.data,
            code.alignment,
            tuple(
                (
                    p.place,
                    p.kind.name,
                    p.pair,
                    p.target.offset,
                    None if p.target.piece is piece else id(p.target.piece),
                )
                for p in patches
            ),
        )
        if key not in self.functions:
            self.functions[key] = piece
            self.code.append((piece, patches))
        self.entries.append((self.functions[key], entry.value))

    def patch(
        self, name: str, obj: ElfObject, code: Section, piece: _Piece, relocation: Relocation
    ) -> _Patch:
        kind = self.kinds.get(relocation.type)
        label = relocation.symbol.name
        if relocation.symbol.section is None:
            raise InternalError(
                f"{name}: {label!r} is not defined: generated code may call and "
                "use nothing outside its object"
            )
        if kind is None:
            raise InternalError(
                f"{name}: relocation type {relocation.type} of {obj.machine} at "
                f"{relocation.offset:#x} to {label!r} is not known"
            )
        if relocation.offset + 4 > len(code.data):
            raise InternalError(f"{name}: relocation {kind.name} lies outside {code.name}")
        if kind.is_paired:
            pair = self.pair_of(name, code, relocation)
            found = self.target_of(name, obj, code, piece, pair, self.kinds[pair.type])
            return _Patch(relocation.offset, kind, found, pair.offset)
        return _Patch(
            relocation.offset, kind, self.target_of(name, obj, code, piece, relocation, kind)
        )

    def pair_of(self, name: str, code: Section, low: Relocation) -> Relocation:
        """The high part that a low part's symbol stands at."""
        for other in code.relocations:
            kind = self.kinds.get(other.type)
            if other.offset == low.symbol.value and kind is not None and not kind.is_paired:
                return other
        raise InternalError(
            f"{name}: relocation at {low.offset:#x} has no partner at {low.symbol.value:#x}"
        )

    def target_of(
        self,
        name: str,
        obj: ElfObject,
        code: Section,
        piece: _Piece,
        relocation: Relocation,
        kind: Kind,
    ) -> _Target:
        symbol = relocation.symbol
        assert symbol.section is not None
        addend = relocation.addend
        if addend is None:
            if kind.addend is None:
                raise InternalError(f"{name}: relocation {kind.name} has no addend")
            addend = kind.addend(code.data, relocation.offset)
        section = obj.sections.get(symbol.section)
        if section is None or section.name.startswith(_IGNORED):
            raise InternalError(
                f"{name}: relocation {kind.name} to {symbol.name!r}, which has no bytes at run time"
            )
        if section is code:
            return _Target(piece, symbol.value + addend)
        return self.constant(name, section, symbol, addend)

    def constant(self, name: str, section: Section, symbol: Symbol, addend: int) -> _Target:
        """Where a constant lies: the entry that the symbol is in, or the whole section.

        An addend holds the distance from the place to the program counter, so only a named symbol
        tells which entry is meant.
        """
        size = section.entry_bytes
        is_whole = symbol.is_section and len(section.data) != size
        if not size or len(section.data) % size or is_whole:
            return _Target(
                self.constant_piece(section.data, section.alignment), symbol.value + addend
            )
        start = symbol.value - symbol.value % size
        data = section.data[start : start + size]
        if len(data) != size:
            raise InternalError(f"{name}: {symbol.name!r} lies outside section {section.name}")
        return _Target(self.constant_piece(data, section.alignment), symbol.value - start + addend)

    def constant_piece(self, data: bytes, alignment: int) -> _Piece:
        return self.constants.setdefault((data, alignment), _Piece(data, alignment, is_code=False))

    def finish(self) -> CodeImage:
        # Widely aligned constants first: they then need no gaps.
        constants = sorted(self.constants.values(), key=lambda p: -p.alignment)
        image = bytearray()
        for piece in [*(p for p, _ in self.code), *constants]:
            image.extend(bytes(-len(image) % piece.alignment))
            piece.offset = len(image)
            image.extend(piece.data)
        for piece, patches in self.code:
            for patch in patches:
                self.apply(image, piece, patch)
        alignment = self.target.page_bytes
        if any(p.alignment > alignment for p in constants):
            raise InternalError(
                f"target {self.target.name}: constants are aligned to more than "
                f"its pages of {alignment} bytes"
            )
        return CodeImage(
            bytes(image),
            tuple(p.offset + value for p, value in self.entries),
            alignment,
            functions_met=len(self.entries),
            functions_kept=len(self.code),
            constant_bytes_met=self.constant_bytes_met,
            constant_bytes_kept=sum(len(p.data) for p in constants),
        )

    def apply(self, image: bytearray, piece: _Piece, patch: _Patch) -> None:
        target = patch.target.piece.offset + patch.target.offset
        if patch.pair is not None:
            # The low part completes the distance from its partner's place.
            target -= piece.offset + patch.pair
        patch.kind.apply(image, piece.offset + patch.place, target)
