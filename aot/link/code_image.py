"""Links a variant's objects into one position-independent code image, and merges such images.

Owns placement, the merging of equal functions and constants, and the promise that an image needs no
relocation and no symbol from outside. Knows nothing of kernels: it gets objects and gives bytes,
and says which parts they have, so that images of several models can be linked again.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.link import wasm
from aot.link.elf import ElfObject, Relocation, Section, Symbol, read_object
from aot.link.relocations import KINDS, Kind
from aot.target.model import Target

ENTRY_NAME = "kernel"
_MACHINES = {
    "x86_64": "x86_64",
    "aarch64": "aarch64",
    "arm": "arm",
    "thumb": "arm",
    "riscv64": "riscv",
    "riscv32": "riscv",
    "wasm32": wasm.MACHINE,
}
# Unwind tables: nothing unwinds through a kernel.
_IGNORED = (".eh_frame", ".ARM.exidx", ".ARM.extab")
# Machines whose relocations' addends are distances from the symbol and nothing else.
_PLAIN_ADDENDS = ("aarch64", "riscv", wasm.MACHINE)
_CODE_ALIGNMENT = 32
_ALIGNMENTS = tuple(1 << n for n in range(17))
_CONSTANT_STEP = 4  # constants are looked for inside others at multiples of it


@dataclass(frozen=True)
class Reference:
    """A place in a function that encodes the distance to something else.

    Attributes:
        place: offset in the function.
        type: the relocation's number on the image's machine.
        target: which constant of the image, or -1 for the function itself.
        offset: in the target; what the instruction itself adds is part of it.
        pair: offset in the function of the other half, for kinds that have one.
    """

    place: int
    type: int
    target: int
    offset: int
    pair: int | None = None


@dataclass(frozen=True)
class Part:
    """A function or constant of an image: its byte range, and its references."""

    offset: int
    length: int
    alignment: int
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class ImageParts:
    """The functions and constants of an image; constants may be inside others."""

    functions: tuple[Part, ...]
    constants: tuple[Part, ...]


@dataclass(frozen=True)
class CodeImage:
    """Machine code and its constants, which run at any address that is a multiple of `alignment`.

    Attributes:
        entries: for each object, the offset of its function. For Thumb bit 0 is set, as in any
            pointer to a Thumb function: the code starts one byte before.
        offsets: for each object, where its function starts, as a module file has it.
        alignment: what the image must be aligned to in memory, the target's page.
        functions_met: objects given, or functions of the images given.
        functions_kept: distinct functions in the image.
        function_bytes_met, function_bytes_kept: their bytes.
        constant_bytes_met: constants that the objects or images brought.
        constant_bytes_kept: constants in the image.
        parts: what it is made of.
    """

    data: bytes
    entries: tuple[int, ...]
    offsets: tuple[int, ...]
    alignment: int
    functions_met: int
    functions_kept: int
    function_bytes_met: int
    function_bytes_kept: int
    constant_bytes_met: int
    constant_bytes_kept: int
    parts: ImageParts


@dataclass(eq=False)
class _Piece:
    """Bytes that are placed as a unit: a section, or an entry of a mergeable one."""

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
    """A relocation whose target is resolved; `place` is its offset in its piece."""

    place: int
    type: int
    kind: Kind
    target: _Target
    # Where the paired relocation stands in the same piece, for kinds that have one.
    pair: int | None = None


def link_image(
    objects: Sequence[bytes], target: Target, names: Sequence[str] | None = None
) -> CodeImage:
    """Links objects into one image, with the function `ENTRY_NAME` of each.

    Args:
        names: what messages call the objects; their sources' names if None.

    Raises:
        InternalError: an object is for another machine, refers to something outside, has writable
            data, or a relocation that is not known.
    """
    linker = _Linker(target.name, target.arch)
    for number, data in enumerate(objects):
        obj = wasm.read_object(data) if linker.is_wasm else read_object(data)
        linker.add(obj, names[number] if names else "")
    return linker.finish(target.page_bytes)


def is_linkable(target: Target, data: bytes) -> bool:
    """Whether an object read from a file can be linked for `target`; the file is not trusted."""
    try:
        link_image([data], target)
    except (InternalError, ValueError, LookupError):
        return False
    return True


def merge_images(
    images: Sequence[tuple[bytes, ImageParts]], arch: str, page_bytes: int
) -> CodeImage:
    """One image with the functions of several images for the same `arch`; equal functions are kept
    once.

    Its `entries` are those of all functions of the first image in the order of its parts, then of
    the second, and so on.

    Raises:
        ValueError: parts do not fit their image.
        InternalError: a relocation that is not known.
    """
    linker = _Linker("merged", arch)
    for data, parts in images:
        linker.add_image(data, parts)
    return linker.finish(page_bytes)


class _Linker:
    """Collects pieces, equal ones once, and then lays them out in an image."""

    def __init__(self, target_name: str, arch: str) -> None:
        self.target_name = target_name
        self.machine = _MACHINES.get(arch)
        if self.machine is None:
            raise InternalError(f"target {target_name}: there is no linker for arch {arch}")
        self.kinds = KINDS[self.machine]
        self.is_wasm = self.machine == wasm.MACHINE
        self.code_alignment = 1 if self.is_wasm else _CODE_ALIGNMENT
        self.offset_mask = ~1 if arch == "thumb" else ~0
        self.code: list[tuple[_Piece, tuple[_Patch, ...]]] = []
        self.constants: dict[bytes, _Piece] = {}
        self.functions: dict[object, _Piece] = {}
        self.entries: list[tuple[_Piece, int]] = []
        self.function_bytes_met = 0
        self.constant_bytes_met = 0

    def add(self, obj: ElfObject, name: str = "") -> None:
        name = name or obj.source or "object"
        if obj.machine != self.machine:
            raise InternalError(
                f"{name}: object is for {obj.machine}, target {self.target_name} "
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
        piece = _Piece(code.data, max(code.alignment, self.code_alignment), is_code=True)
        patches = tuple(self.patch(name, obj, code, piece, r) for r in code.relocations)
        self.add_function(piece, patches, entry.value)

    def add_image(self, data: bytes, parts: ImageParts) -> None:
        """Adds the functions of an image that is already linked."""
        constants = []
        for part in parts.constants:
            _check_part(part, data)
            constants.append(data[part.offset : part.offset + part.length])
            self.constant_bytes_met += part.length
        for part in parts.functions:
            _check_part(part, data)
            code = data[part.offset : part.offset + part.length]
            piece = _Piece(code, part.alignment, is_code=True)
            patches = []
            for r in part.references:
                if not (-1 <= r.target < len(constants) and 0 <= r.place <= part.length - 4):
                    raise ValueError(f"a reference at {r.place} leads outside its image")
                if r.type not in self.kinds:
                    raise InternalError(f"relocation type {r.type} of {self.machine} is not known")
                target = piece
                if r.target >= 0:
                    alignment = parts.constants[r.target].alignment
                    target = self.constant_piece(constants[r.target], alignment)
                found = _Target(target, r.offset)
                patches.append(_Patch(r.place, r.type, self.kinds[r.type], found, r.pair))
            self.add_function(piece, tuple(patches), 0)

    def add_function(self, piece: _Piece, patches: tuple[_Patch, ...], entry: int) -> None:
        """Adds a function, unless one with equal code and equal references was added before."""
        self.function_bytes_met += len(piece.data)
        piece.data = _blank(piece.data, patches)
        key = (
            piece.data,
            tuple(
                (
                    p.place,
                    p.type,
                    p.pair,
                    p.target.offset,
                    None if p.target.piece is piece else id(p.target.piece),
                )
                for p in patches
            ),
        )
        known = self.functions.setdefault(key, piece)
        known.alignment = max(known.alignment, piece.alignment)
        if known is piece:
            self.code.append((piece, patches))
        self.entries.append((known, entry))

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
            raise InternalError(f"{name}: relocation {kind.name} is outside {code.name}")
        place, type = relocation.offset, relocation.type
        if kind.is_paired:
            pair = self.pair_of(name, code, relocation)
            found = self.target_of(name, obj, code, piece, pair, self.kinds[pair.type])
            return _Patch(place, type, kind, found, pair.offset)
        return _Patch(place, type, kind, self.target_of(name, obj, code, piece, relocation, kind))

    def pair_of(self, name: str, code: Section, low: Relocation) -> Relocation:
        """The high-part relocation that is paired with a low-part one."""
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
        """The relocation target of a constant: its entry in a mergeable section, or the whole
        section.

        Where an addend holds the distance from the place to the program counter too, only a named
        symbol says which entry is meant.
        """
        size, at = section.entry_bytes, symbol.value + addend
        is_plain = self.machine in _PLAIN_ADDENDS
        told = at if is_plain else symbol.value
        is_told = is_plain or not symbol.is_section or len(section.data) == size
        if not size or len(section.data) % size or not is_told:
            return _Target(self.constant_piece(section.data, section.alignment), at)
        start = told - told % size
        data = section.data[start : start + size]
        if len(data) != size:
            raise InternalError(f"{name}: {symbol.name!r} is outside section {section.name}")
        return _Target(self.constant_piece(data, section.alignment), at - start)

    def constant_piece(self, data: bytes, alignment: int) -> _Piece:
        piece = self.constants.setdefault(data, _Piece(data, alignment, is_code=False))
        piece.alignment = max(piece.alignment, alignment)
        return piece

    def finish(self, page_bytes: int) -> CodeImage:
        inside = _contained(list(self.constants.values()))
        # Widely aligned constants first: they then need no gaps.
        constants = [p for p in self.constants.values() if p not in inside]
        constants.sort(key=lambda p: -p.alignment)
        if any(p.alignment > page_bytes for p in constants):
            raise InternalError(
                f"target {self.target_name}: constants are aligned to more than "
                f"its pages of {page_bytes} bytes"
            )
        image = self.lay_out([p for p, _ in self.code], constants)
        for piece, (whole, distance) in inside.items():
            piece.offset = whole.offset + distance
        for piece, patches in self.code:
            for patch in patches:
                patch.kind.apply(image, piece.offset + patch.place, _target(patch, piece.offset))
        return CodeImage(
            bytes(image),
            tuple(p.offset + value for p, value in self.entries),
            tuple(p.offset + (value & self.offset_mask) for p, value in self.entries),
            page_bytes,
            functions_met=len(self.entries),
            functions_kept=len(self.code),
            function_bytes_met=self.function_bytes_met,
            function_bytes_kept=sum(len(p.data) for p, _ in self.code),
            constant_bytes_met=self.constant_bytes_met,
            constant_bytes_kept=sum(len(p.data) for p in constants),
            parts=self.parts(),
        )

    def lay_out(self, code: Sequence[_Piece], constants: Sequence[_Piece]) -> bytearray:
        """The image with all pieces; sets the offset of each piece."""
        if self.is_wasm:
            sized = [(p.data, p.alignment) for p in constants]
            image, *places = wasm.lay_out([p.data for p in code], sized)
            for pieces, offsets in zip((code, constants), places, strict=True):
                for piece, offset in zip(pieces, offsets, strict=True):
                    piece.offset = offset
            return image
        image = bytearray()
        for piece in (*code, *constants):
            image.extend(bytes(-len(image) % piece.alignment))
            piece.offset = len(image)
            image.extend(piece.data)
        return image

    def parts(self) -> ImageParts:
        numbers = {piece: n for n, piece in enumerate(self.constants.values())}
        functions = []
        for piece, patches in self.code:
            references = tuple(
                Reference(p.place, p.type, numbers.get(p.target.piece, -1), p.target.offset, p.pair)
                for p in patches
            )
            functions.append(Part(piece.offset, len(piece.data), piece.alignment, references))
        return ImageParts(
            tuple(functions),
            tuple(Part(p.offset, len(p.data), p.alignment) for p in numbers),
        )


def _target(patch: _Patch, start: int) -> int:
    """The image offset that a patch refers to, for a function placed at `start`."""
    target = patch.target.piece.offset + patch.target.offset
    # The low part completes the distance from its partner's place.
    return target if patch.pair is None else target - start - patch.pair


def _blank(code: bytes, patches: Sequence[_Patch]) -> bytes:
    """The code with equal values at all patched places, so that codes which differ only there
    compare equal.

    As if everything began where the page of 4 KiB does that the place is in: near enough for every
    kind of reference, and aligned for every kind of access.
    """
    blank = bytearray(code)
    for patch in patches:
        here = patch.place if patch.pair is None else patch.pair
        begin = here & ~0xFFF
        patch.kind.apply(blank, patch.place, begin if patch.pair is None else begin - here)
    return bytes(blank)


def _contained(constants: Sequence[_Piece]) -> dict[_Piece, tuple[_Piece, int]]:
    """(larger constant, offset in it) of each constant that a larger one contains at an aligned
    offset."""
    lengths = sorted({len(p.data) for p in constants}, reverse=True)
    places: dict[bytes, list[tuple[_Piece, int]]] = {}
    inside: dict[_Piece, tuple[_Piece, int]] = {}
    for piece in sorted(constants, key=lambda p: -len(p.data)):
        for whole, place in places.get(piece.data, ()):
            if place % piece.alignment == 0:
                whole.alignment = max(whole.alignment, piece.alignment)
                inside[piece] = whole, place
                break
        else:
            for length in lengths:
                if length < len(piece.data):
                    for place in range(0, len(piece.data) - length + 1, _CONSTANT_STEP):
                        found = places.setdefault(piece.data[place : place + length], [])
                        found.append((piece, place))
    return inside


def _check_part(part: Part, data: bytes) -> None:
    if not 0 <= part.offset <= part.offset + part.length <= len(data):
        raise ValueError(f"a part of {part.length} bytes at {part.offset} is outside its image")
    if part.alignment not in _ALIGNMENTS:
        raise ValueError(f"a part is aligned to {part.alignment} bytes")
