"""Reads module files: from bytes back to a `ModuleImage`, with everything checked.

For inspection and tools. The runtime has its own reader, of which this one is the twin: both are
for files from strangers, and what both check of each field is generated from one table.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import xxhash

from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.ir import input_files
from aot.ir.large_arrays import Data
from aot.ir.types import DType
from aot.link import module_fbs as fbs
from aot.link.flatbuffer import Malformed, read_structure
from aot.link.image import (
    Arch,
    ArenaBuffer,
    Device,
    DimInfo,
    EntryPointImage,
    ExecutableImage,
    Growth,
    HostImage,
    ModuleImage,
    ProgramImage,
    TensorInfo,
    VariantImage,
)
from aot.link.image_check import check_image
from aot.link.module_schema import RULES, segment
from aot.link.rodata import ALIGNMENT, JOINED_BYTES, Pieces, RodataSegment, checksum
from aot.link.vocabulary import read_vocabulary

IDENTIFIER = b"AOTM"
FILE_VERSION = 0
HEADER_BYTES = 64
HEADER = struct.Struct("<4sI6Q")  # aot_file_header_t less its last field, header_checksum

DTYPE_CODES: dict[DType, int] = {d: getattr(fbs.DType, d.name) for d in DType if d.is_stored}
DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}

Source = bytes | str | os.PathLike[str]


@dataclass(frozen=True)
class FileSegment:
    """A segment of the file outside the FlatBuffer: what it contains, and its byte range."""

    what: str
    offset: int
    length: int
    alignment: int


@dataclass(frozen=True)
class ModuleFile:
    """A module as read from a file: its contents, and facts about the file itself."""

    image: ModuleImage
    file_bytes: int
    structure_bytes: int
    segments: tuple[FileSegment, ...]


def read_module(source: Source, *, verify_rodata: bool = True) -> ModuleImage:
    """Reads the contents of a module from its bytes or a path; raises what `read_module_file`
    does."""
    return read_module_file(source, verify_rodata=verify_rodata).image


def read_module_file(source: Source, *, verify_rodata: bool = True) -> ModuleFile:
    """Reads a module from its bytes or a path.

    Every checksum is verified, rodata's unless told otherwise, every offset and every program.

    Raises:
        CompileError: it cannot be read, is no module, is truncated or damaged.
    """
    name = "module" if isinstance(source, bytes) else os.fspath(source)
    try:
        data = source if isinstance(source, bytes) else _contents(Path(source))
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {name}: {reason}") from error
    try:
        return _Reader(data, verify_rodata).module()
    except Malformed as error:
        raise CompileError(f"{name}: {error}") from error
    except InternalError as error:  # check_image: for a file, it is not our bug
        raise CompileError(f"{name}: the structure is malformed: {error}") from error


def _contents(path: Path) -> Data:
    """The bytes of a file; a large file is memory-mapped."""
    with input_files.opened(path) as stream:
        if os.fstat(stream.fileno()).st_size <= JOINED_BYTES:
            return stream.read()
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


class _Reader:
    """Reads one file; the methods mirror the tables of module.fbs."""

    def __init__(self, data: Data, verify_rodata: bool) -> None:
        self.data = memoryview(data)
        self.verify_rodata = verify_rodata
        self.around = SimpleNamespace(file_bytes=0, segments_begin=0)
        self.segments: dict[tuple[int, int], FileSegment] = {}

    def module(self) -> ModuleFile:
        structure = self.structure()
        image = self.image(read_structure(structure, IDENTIFIER))
        check_image(image)
        places = sorted(self.segments.values(), key=lambda s: (s.offset, s.length))
        return ModuleFile(image, len(self.data), len(structure), tuple(places))

    def structure(self) -> bytes:
        data = self.data
        if data[:4] != IDENTIFIER[: len(data[:4])]:
            raise Malformed('not a module: it does not start with "AOTM"')
        if len(data) < HEADER_BYTES:
            raise Malformed(f"truncated: {len(data)} bytes of a {HEADER_BYTES}-byte header")
        _, version, file_bytes, offset, size, checksum, *flags = HEADER.unpack_from(data)
        if version != FILE_VERSION:
            raise Malformed(f"format version {version}, this aotc reads version {FILE_VERSION}")
        (header_checksum,) = struct.unpack_from("<Q", data, HEADER.size)
        if xxhash.xxh64_intdigest(data[: HEADER.size]) != header_checksum:
            raise Malformed("the file header's checksum is wrong")
        for flag in filter(None, flags):
            raise Malformed(
                f"the file header has the flags {flag:x}, which this aotc does not know"
            )
        if len(data) < file_bytes:
            raise Malformed(f"truncated: {len(data)} of {file_bytes} bytes")
        if offset != HEADER_BYTES or offset + size > file_bytes or size >= 1 << 31:
            raise Malformed("the file header places the structure outside the file")
        structure = bytes(data[offset : offset + size])
        if xxhash.xxh64_intdigest(structure) != checksum:
            raise Malformed("the structure's checksum is wrong")
        self.around = SimpleNamespace(file_bytes=file_bytes, segments_begin=offset + size)
        return structure

    def check(self, kind: str, name: str | None, table: object) -> None:
        """Raises Malformed for the first rule that a table breaks, as the runtime would."""
        for rule in RULES[type(table).__name__.removesuffix("T")]:
            if rule.is_for(self.around, table) and not rule.holds(self.around, table):
                raise Malformed(f'{kind} "{name or ""}": {rule.message}')

    def check_segment(self, table: fbs.SegmentT | None, field: str) -> None:
        """Checks the segment of a field, if it is present."""
        if table is not None:
            self.check("segment", field, table)

    def read(self, table: fbs.SegmentT, what: str, *, verify: bool = True) -> Pieces:
        """The bytes of a segment at a checked place; messages call them `what`."""
        data = Pieces([self.data[table.offset : table.offset + table.length]])
        if table.length and verify and checksum(data) != table.checksum:
            raise Malformed(f"the checksum of {what} is wrong")
        place = FileSegment(what, table.offset, table.length, table.alignment)
        self.segments.setdefault((table.offset, table.length), place)
        return data

    def image(self, root: fbs.ModuleT) -> ModuleImage:
        if root.version != FILE_VERSION:
            raise Malformed(f"structure version {root.version}, {FILE_VERSION} expected")
        pool = segment(root.rodata)
        known = (root.rodata, "rodata"), (root.notes, "notes"), (root.vocabulary, "vocabulary")
        for table, name in known:
            self.check_segment(table, name)
        for part in root.rodataSegments or ():
            self.check_segment(part, "rodata_segments")
        self.check("module", root.producer, root)
        parts = []
        for number, part in enumerate(root.rodataSegments or ()):
            self.read(part, f"rodata segment {number}", verify=self.verify_rodata)
            parts.append(RodataSegment(part.offset - pool.offset, part.length, part.alignment))
        # After its parts, so that damage is reported by the part's number.
        rodata = self.read(pool, "rodata", verify=self.verify_rodata)
        return ModuleImage(
            variants=tuple(self.variant(v) for v in root.variants),
            rodata=bytes(rodata) if len(rodata) <= JOINED_BYTES else rodata,
            rodata_segments=tuple(parts),
            producer=root.producer or "",
            notes=b"" if root.notes is None else bytes(self.read(root.notes, "notes")),
            vocabulary=self.vocabulary(root.vocabulary),
            metadata={m.key or "": m.value or "" for m in reversed(root.metadata or ())},
        )

    def vocabulary(self, table: fbs.SegmentT | None) -> bytes:
        if not segment(table).length:
            return b""
        data = bytes(self.read(segment(table), "vocabulary"))
        read_vocabulary(data)
        return data

    def variant(self, table: fbs.VariantT) -> VariantImage:
        target, host = table.target or "", table.host
        self.around.variant = table
        self.around.cpu = host if table.device == Device.VULKAN.value else table
        self.check_segment(table.code, "code")
        if host is not None:
            self.check("host", host.target, host)
        self.check("variant", target, table)
        code, page_bytes = b"", 4096
        if segment(table.code).length:
            code = bytes(self.read(segment(table.code), f"the code of variant {target!r}"))
            page_bytes = segment(table.code).alignment
        return VariantImage(
            target=target,
            device=Device(table.device),
            arch=Arch(table.arch),
            word_bytes=table.wordBytes,
            executables=tuple(self.executable(e) for e in table.executables),
            entry_points=tuple(self.entry_point(e) for e in table.entryPoints),
            features=tuple(map(str, table.features or ())),
            code=code,
            page_bytes=page_bytes,
            limits=tuple((limit.name or "", limit.value) for limit in table.limits or ()),
            host=None if host is None else _host(host),
        )

    def executable(self, table: fbs.ExecutableT) -> ExecutableImage:
        self.check_segment(table.spirv, "spirv")
        self.check_segment(table.texelSpirv, "texel_spirv")
        self.check("executable", table.name, table)
        spirv, texels = (
            bytes(self.read(segment(s), f"the shader of executable {table.name!r}"))
            if segment(s).length
            else None
            for s in (table.spirv, table.texelSpirv)
        )
        x, y, z = table.workgroupSize or (1, 1, 1)
        return ExecutableImage(
            name=table.name or "",
            param_words=table.paramWords,
            code_offset=table.codeOffset,
            spirv=spirv,
            scratch_bytes=table.scratchBytes,
            workgroup_size=(x, y, z),
            param_buffer_bytes=table.paramBufferBytes,
            group_ns=table.groupNs,
            windows=tuple((w >> 16, w & 0xFFFF) for w in table.windows or ()),
            texel_spirv=texels,
        )

    def entry_point(self, table: fbs.EntryPointT) -> EntryPointImage:
        assert table.program is not None, "the schema says that it is there"
        self.around.entry, self.around.program = table, table.program
        inputs, outputs, states = (
            tuple(self.tensor(t) for t in tensors or ())
            for tensors in (table.inputs, table.outputs, table.states)
        )
        for buffer in table.program.buffers or ():
            self.check("entry point", table.name, buffer)
        for growth in table.program.growths or ():
            self.check("entry point", table.name, growth)
        self.check("entry point", table.name, table.program)
        return EntryPointImage(table.name or "", inputs, outputs, _program(table.program), states)

    def tensor(self, table: fbs.TensorT) -> TensorInfo:
        for dim in table.dims:
            self.check("tensor", table.name, dim)
        strings = None if table.strings is None else tuple(map(str, table.strings))
        dims = tuple(map(_dim, table.dims))
        return TensorInfo(table.name or "", DTYPES[table.dtype], dims, strings)


def _host(table: fbs.HostT) -> HostImage:
    features = tuple(map(str, table.features or ()))
    return HostImage(table.target or "", Arch(table.arch), table.wordBytes, features)


def _program(table: fbs.ProgramT) -> ProgramImage:
    return ProgramImage(
        register_count=table.registerCount,
        code=tuple(table.code),
        blocks=tuple(table.blocks),
        execute_block=table.executeBlock,
        messages=tuple(map(str, table.messages or ())),
        buffers=tuple(
            ArenaBuffer(b.first, b.last, b.offsetRegister, b.alignment or ALIGNMENT, b.boundOffset)
            for b in table.buffers or ()
        ),
        arena_bytes=table.arenaBytes,
        input_offset_registers=tuple(table.inputOffsetRegisters or ()),
        output_offset_registers=tuple(table.outputOffsetRegisters or ()),
        updates=tuple(table.updates or ()),
        arena_bound_bytes=table.arenaBoundBytes or None,
        state_bytes=table.stateBytes,
        state_count=table.stateCount,
        state_key_count=table.stateKeyCount,
        scratch_offset=None if table.scratchOffset < 0 else table.scratchOffset,
        growths=tuple(
            Growth(g.offset, g.blocks, g.strideBytes, g.rowBytes, g.scalar, g.window)
            for g in table.growths or ()
        ),
    )


def _dim(table: fbs.DimT) -> DimInfo:
    extent = None if table.extent == -1 else table.extent
    return DimInfo(extent, table.min, None if table.max == -1 else table.max, table.text or "")
