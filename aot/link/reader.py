"""The module file's reader: from bytes back to a `ModuleImage`, everything checked.

For inspection and tools. The runtime has its own reader, written for files from strangers; this
one checks as much, but speaks of what it finds in the compiler's words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from aot.errors import CompileError, InternalError
from aot.ir.types import DType
from aot.link import module_fbs as fbs
from aot.link.image import (
    Arch,
    ArenaBuffer,
    Device,
    DimInfo,
    EntryPointImage,
    ExecutableImage,
    HostImage,
    ModuleImage,
    ProgramImage,
    TensorInfo,
    VariantImage,
    check_image,
)
from aot.link.rodata import RodataSegment

IDENTIFIER = b"AOTM"
FILE_VERSION = 0
HEADER_BYTES = 64
HEADER = struct.Struct("<4sI6Q")  # aot_file_header_t less its last field, header_checksum

DTYPE_CODES: dict[DType, int] = {
    d: getattr(fbs.DType, d.name) for d in DType if d is not DType.INDEX
}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}

T = TypeVar("T")
Source = bytes | str | os.PathLike[str]


@dataclass(frozen=True)
class FileSegment:
    """A stretch of the file outside the structure: what it is and where it lies, in bytes."""

    what: str
    offset: int
    length: int
    alignment: int


@dataclass(frozen=True)
class ModuleFile:
    """A module as read from a file: what it holds, and what only the file tells."""

    image: ModuleImage
    file_bytes: int
    structure_bytes: int
    segments: tuple[FileSegment, ...]


class _Malformed(Exception):
    """What is wrong with a file, without its name."""


def read_module(source: Source, *, verify_rodata: bool = True) -> ModuleImage:
    """The contents of a module, from its bytes or a path; raises as `read_module_file` does."""
    return read_module_file(source, verify_rodata=verify_rodata).image


def read_module_file(source: Source, *, verify_rodata: bool = True) -> ModuleFile:
    """Reads a module from its bytes or a path.

    Every checksum is verified, rodata's unless told otherwise, every offset and every program.

    Raises:
        CompileError: it cannot be read, is no module, is truncated or damaged.
    """
    name = "module" if isinstance(source, bytes) else os.fspath(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {name}: {reason}") from error
    try:
        return _Reader(data, verify_rodata).module()
    except _Malformed as error:
        raise CompileError(f"{name}: {error}") from error
    except InternalError as error:  # check_image: for a file, it is not our bug
        raise CompileError(f"{name}: the structure is malformed: {error}") from error


class _Reader:
    """One file; the methods mirror the tables of module.fbs."""

    def __init__(self, data: bytes, verify_rodata: bool) -> None:
        self.data = data
        self.verify_rodata = verify_rodata
        self.segments_begin = 0
        self.segments: dict[tuple[int, int], FileSegment] = {}

    def module(self) -> ModuleFile:
        structure = self.structure()
        try:
            root = fbs.ModuleT.InitFromPackedBuf(structure)
            image = self.image(root)
        except _Malformed:
            raise
        # What flatbuffers' Python raises for offsets that lead outside, or absent tables.
        except (struct.error, LookupError, TypeError, ValueError, AttributeError) as error:
            raise _Malformed(f"the structure is malformed: {error}") from error
        check_image(image)
        places = sorted(self.segments.values(), key=lambda s: (s.offset, s.length))
        return ModuleFile(image, len(self.data), len(structure), tuple(places))

    def structure(self) -> bytes:
        data = self.data
        if data[:4] != IDENTIFIER[: len(data[:4])]:
            raise _Malformed('not a module: it does not start with "AOTM"')
        if len(data) < HEADER_BYTES:
            raise _Malformed(f"truncated: {len(data)} bytes of a {HEADER_BYTES}-byte header")
        _, version, file_bytes, offset, size, checksum, _, _ = HEADER.unpack_from(data)
        if version != FILE_VERSION:
            raise _Malformed(f"format version {version}, this aotc reads version {FILE_VERSION}")
        (header_checksum,) = struct.unpack_from("<Q", data, HEADER.size)
        if xxhash.xxh64_intdigest(data[: HEADER.size]) != header_checksum:
            raise _Malformed("the file header's checksum is wrong")
        if len(data) < file_bytes:
            raise _Malformed(f"truncated: {len(data)} of {file_bytes} bytes")
        if offset != HEADER_BYTES or offset + size > file_bytes:
            raise _Malformed("the file header places the structure outside the file")
        structure = data[offset : offset + size]
        if xxhash.xxh64_intdigest(structure) != checksum:
            raise _Malformed("the structure's checksum is wrong")
        if structure[4:8] != IDENTIFIER:
            raise _Malformed("the structure is no AOTM flatbuffer")
        self.segments_begin = offset + size
        return structure

    def segment(self, table: fbs.SegmentT | None, what: str, *, verify: bool = True) -> bytes:
        if table is None:
            raise _Malformed(f"{what} is missing")
        end = table.offset + table.length
        alignment = table.alignment
        if table.length and (table.offset < self.segments_begin or end > len(self.data)):
            raise _Malformed(f"{what} lies outside the file's segments")
        if alignment < 1 or alignment & (alignment - 1) or table.offset % alignment:
            raise _Malformed(f"{what} is not aligned to {alignment} bytes")
        data = self.data[table.offset : end]
        if verify and xxhash.xxh64_intdigest(data) != table.checksum:
            raise _Malformed(f"the checksum of {what} is wrong")
        place = FileSegment(what, table.offset, table.length, alignment)
        self.segments.setdefault((table.offset, table.length), place)
        return data

    def image(self, root: fbs.ModuleT) -> ModuleImage:
        if root.version != FILE_VERSION:
            raise _Malformed(f"structure version {root.version}, {FILE_VERSION} expected")
        pool = _present(root.rodata, "rodata")
        segments = []
        for number, part in enumerate(root.rodataSegments or ()):
            self.segment(part, f"rodata segment {number}", verify=self.verify_rodata)
            segments.append(RodataSegment(part.offset - pool.offset, part.length, part.alignment))
        # After its parts, so that damage is reported by the part's number.
        rodata = self.segment(pool, "rodata", verify=self.verify_rodata)
        return ModuleImage(
            variants=_each(root.variants, self.variant, "variants"),
            rodata=rodata,
            rodata_segments=tuple(segments),
            producer=_text(root.producer),
            notes=b"" if root.notes is None else self.segment(root.notes, "notes"),
        )

    def variant(self, table: fbs.VariantT) -> VariantImage:
        target = _text(table.target)
        code, page_bytes = b"", 4096
        if table.code is not None:
            code = self.segment(table.code, f"the code of variant {target!r}")
            page_bytes = table.code.alignment
        return VariantImage(
            target=target,
            device=Device(table.device),
            arch=Arch(table.arch),
            word_bytes=table.wordBytes,
            executables=_each(table.executables, self.executable, "executables"),
            entry_points=_each(table.entryPoints, _entry_point, "entry points"),
            features=tuple(_text(f) for f in table.features or ()),
            code=code,
            page_bytes=page_bytes,
            limits=tuple((_text(limit.name), limit.value) for limit in table.limits or ()),
            host=None if table.host is None else _host(table.host),
        )

    def executable(self, table: fbs.ExecutableT) -> ExecutableImage:
        name = _text(table.name)
        what = f"the shader of executable {name!r}"
        spirv, texels = (
            None if s is None else self.segment(s, what) for s in (table.spirv, table.texelSpirv)
        )
        sizes = _words(table.workgroupSize) or (1, 1, 1)
        if len(sizes) != 3:
            raise _Malformed(f"executable {name!r} has a workgroup size of {len(sizes)} numbers")
        return ExecutableImage(
            name=name,
            param_words=table.paramWords,
            code_offset=table.codeOffset,
            spirv=spirv,
            scratch_bytes=table.scratchBytes,
            workgroup_size=(sizes[0], sizes[1], sizes[2]),
            param_buffer_bytes=table.paramBufferBytes,
            texel_spirv=texels,
        )


def _host(table: fbs.HostT) -> HostImage:
    features = tuple(_text(f) for f in table.features or ())
    target = _text(_present(table.target, "the target of a host"))
    return HostImage(target, Arch(table.arch), table.wordBytes, features)


def _entry_point(table: fbs.EntryPointT) -> EntryPointImage:
    program = _present(table.program, "a program")
    return EntryPointImage(
        name=_text(table.name),
        inputs=_each(table.inputs, _tensor, "inputs"),
        outputs=_each(table.outputs, _tensor, "outputs"),
        program=ProgramImage(
            register_count=program.registerCount,
            code=_words(program.code),
            blocks=_words(program.blocks),
            execute_block=program.executeBlock,
            messages=tuple(_text(m) for m in program.messages or ()),
            buffers=tuple(
                ArenaBuffer(b.first, b.last, b.offsetRegister, b.alignment, b.boundOffset)
                for b in program.buffers or ()
            ),
            arena_bytes=program.arenaBytes,
            input_offset_registers=_words(program.inputOffsetRegisters),
            output_offset_registers=_words(program.outputOffsetRegisters),
            arena_bound_bytes=program.arenaBoundBytes or None,
            state_bytes=program.stateBytes,
            state_count=program.stateCount,
            state_key_count=program.stateKeyCount,
            scratch_offset=None if program.scratchOffset < 0 else program.scratchOffset,
        ),
        states=_each(table.states or (), _tensor, "states"),
    )


def _tensor(table: fbs.TensorT) -> TensorInfo:
    return TensorInfo(_text(table.name), _DTYPES[table.dtype], _each(table.dims, _dim, "dims"))


def _dim(table: fbs.DimT) -> DimInfo:
    if table.extent < -1 or table.min < 0 or (table.max != -1 and table.max < table.min):
        raise _Malformed(f"a dim of {table.extent} with bounds {table.min} to {table.max}")
    extent = None if table.extent == -1 else table.extent
    return DimInfo(extent, table.min, None if table.max == -1 else table.max, _text(table.text))


def _present(value: T | None, what: str) -> T:
    if value is None:
        raise _Malformed(f"{what} is missing")
    return value


S = TypeVar("S")


def _each(tables: Sequence[S] | None, read: Callable[[S], T], what: str) -> tuple[T, ...]:
    return tuple(read(table) for table in _present(tables, f"the list of {what}"))


def _text(value: str | bytes | None) -> str:
    # flatbuffers' Python hands strings out as bytes.
    return value.decode("utf-8") if isinstance(value, bytes) else value or ""


def _words(values: Any) -> tuple[int, ...]:
    # A list, a numpy array, or nothing; flatc's object API leaves 0 for an absent vector.
    return () if values is None or isinstance(values, int) else tuple(int(v) for v in values)
