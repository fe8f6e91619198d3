"""Writes module files, and re-exports the records of their contents.

A file is a header, the flatbuffer (structure), then segments: SPIR-V and rodata at 64 bytes, code
images at their target's page. Same image, same bytes. Written whole or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import astuple
from itertools import chain
from os import PathLike

import flatbuffers

from aot.base.records import dataclass
from aot.ir.large_arrays import Data
from aot.link import module_fbs as fbs
from aot.link.files import write_atomically
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
)
from aot.link.image_check import check_image
from aot.link.reader import (
    DTYPE_CODES,
    FILE_VERSION,
    HEADER,
    HEADER_BYTES,
    IDENTIFIER,
    read_module,
)
from aot.link.rodata import ALIGNMENT, Pieces, RodataSegment, checksum, pieces_of

__all__ = [
    "Arch",
    "ArenaBuffer",
    "Device",
    "DimInfo",
    "EntryPointImage",
    "ExecutableImage",
    "HostImage",
    "ModuleImage",
    "ProgramImage",
    "RodataSegment",
    "TensorInfo",
    "VariantImage",
    "module_bytes",
    "read_module",
    "write_module",
]


def module_bytes(image: ModuleImage) -> bytes:
    """The contents of the file of a module.

    Raises:
        InternalError: the image is not one that the runtime would take.
    """
    return b"".join(_file_chunks(image))


def write_module(image: ModuleImage, path: str | PathLike[str]) -> None:
    """Writes the module file atomically: readers of `path` see the old file or the new one.

    Raises:
        CompileError: `path` cannot be written; a file that was there is untouched.
        InternalError: the image is not one that the runtime would take.
    """
    write_atomically(path, _file_chunks(image))


@dataclass(frozen=True)
class _Placed:
    """Bytes of a segment, and the table with their place in the file."""

    data: bytes | Pieces
    table: fbs.SegmentT


class _Layout:
    """Collects the segments of a file, equal ones once, and assigns their offsets."""

    def __init__(self) -> None:
        self._segments: list[_Placed] = []
        self._parts: list[tuple[fbs.SegmentT, fbs.SegmentT, int]] = []  # part, whole, distance
        # By checksum, which is needed anyway, rather than by another hash of all weights.
        self._known: dict[tuple[int, int], list[_Placed]] = {}

    def add(self, data: bytes | Pieces, alignment: int) -> fbs.SegmentT:
        table = _segment_table(data, alignment)
        same = self._known.setdefault((table.checksum, alignment), [])
        for placed in same:
            if placed.data == data:
                return placed.table
        same.append(_Placed(data, table))
        self._segments.append(same[-1])
        return table

    def add_part(
        self, whole: fbs.SegmentT, distance: int, data: Data, alignment: int
    ) -> fbs.SegmentT:
        """Adds a segment for bytes that are part of another segment, at `distance` in it."""
        table = _segment_table(data, alignment)
        self._parts.append((table, whole, distance))
        return table

    def place(self, start: int) -> int:
        """Assigns the offsets of all segments from `start` on; returns the file's size."""
        end = start
        for placed in self._segments:
            alignment = placed.table.alignment
            placed.table.offset = -(-end // alignment) * alignment
            end = placed.table.offset + len(placed.data)
        for part, whole, distance in self._parts:
            part.offset = whole.offset + distance
        return end

    def chunks(self, start: int) -> Iterator[Data]:
        """The segments' bytes with the padding between them, after `place`."""
        end = start
        for placed in self._segments:
            yield bytes(placed.table.offset - end)
            yield from pieces_of(placed.data)
            end = placed.table.offset + len(placed.data)


def _segment_table(data: Data | Pieces, alignment: int) -> fbs.SegmentT:
    # The offset is set later. It is never 0, which a flatbuffer would leave out: the structure's
    # size must be known before the offsets are.
    return fbs.SegmentT(1, len(data), alignment, checksum(data))


def _file_chunks(image: ModuleImage) -> Iterator[Data]:
    check_image(image)
    layout = _Layout()
    root = _module_table(image, layout)
    size = len(_pack(root))
    start = HEADER_BYTES + size
    file_bytes = layout.place(start)
    structure = _pack(root)
    assert len(structure) == size, "offsets changed the structure's size"
    head = HEADER.pack(
        IDENTIFIER, FILE_VERSION, file_bytes, HEADER_BYTES, size, checksum(structure), 0, 0
    )
    return chain([head, struct.pack("<Q", checksum(head)), structure], layout.chunks(start))


def _pack(root: fbs.ModuleT) -> bytes:
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(root.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _module_table(image: ModuleImage, layout: _Layout) -> fbs.ModuleT:
    # Notes, vocabulary, shaders, rodata, then code images: only the latter, aligned to a page,
    # need much padding, and nothing but padding shares a page with code.
    notes = layout.add(image.notes, ALIGNMENT) if image.notes else None
    vocabulary = layout.add(image.vocabulary, ALIGNMENT) if image.vocabulary else None
    for variant in image.variants:
        for executable in variant.executables:
            for shader in executable.shaders:
                layout.add(shader, ALIGNMENT)
    rodata = layout.add(image.rodata, ALIGNMENT)
    view = image.rodata if isinstance(image.rodata, Pieces) else memoryview(image.rodata)
    parts = [
        layout.add_part(rodata, s.offset, view[s.offset : s.offset + s.length], s.alignment)
        for s in image.rodata_segments
    ]
    return fbs.ModuleT(
        version=FILE_VERSION,
        producer=image.producer,
        variants=[_variant_table(v, layout) for v in image.variants],
        rodata=rodata,
        rodataSegments=parts or None,
        notes=notes,
        vocabulary=vocabulary,
        metadata=[fbs.MetadataT(key, image.metadata[key]) for key in sorted(image.metadata)]
        or None,
    )


def _variant_table(variant: VariantImage, layout: _Layout) -> fbs.VariantT:
    return fbs.VariantT(
        target=variant.target,
        device=variant.device.value,
        arch=variant.arch.value,
        wordBytes=variant.word_bytes,
        features=list(variant.features) or None,
        code=layout.add(variant.code, variant.page_bytes) if variant.code else None,
        executables=[_executable_table(e, variant, layout) for e in variant.executables],
        entryPoints=[_entry_point_table(e) for e in variant.entry_points],
        limits=[fbs.LimitT(name, value) for name, value in variant.limits] or None,
        host=_host_table(variant.host),
    )


def _host_table(host: HostImage | None) -> fbs.HostT | None:
    if host is None:
        return None
    return fbs.HostT(host.target, host.arch.value, host.word_bytes, list(host.features) or None)


def _executable_table(
    executable: ExecutableImage, variant: VariantImage, layout: _Layout
) -> fbs.ExecutableT:
    is_shader = executable.spirv is not None
    texels = executable.texel_spirv
    return fbs.ExecutableT(
        name=executable.name,
        codeOffset=executable.code_offset,
        spirv=layout.add(executable.spirv, ALIGNMENT) if executable.spirv is not None else None,
        paramWords=executable.param_words,
        scratchBytes=executable.scratch_bytes,
        workgroupSize=list(executable.workgroup_size) if is_shader else None,
        paramBufferBytes=executable.param_buffer_bytes,
        groupNs=executable.group_ns,
        windows=[c << 16 | word for c, word in executable.windows] or None,
        texelSpirv=None if texels is None else layout.add(texels, ALIGNMENT),
    )


def _entry_point_table(entry: EntryPointImage) -> fbs.EntryPointT:
    program = entry.program
    return fbs.EntryPointT(
        name=entry.name,
        inputs=[_tensor_table(t) for t in entry.inputs],
        outputs=[_tensor_table(t) for t in entry.outputs],
        program=fbs.ProgramT(
            registerCount=program.register_count,
            code=list(program.code),
            blocks=list(program.blocks),
            executeBlock=program.execute_block,
            messages=list(program.messages) or None,
            buffers=[
                fbs.ArenaBufferT(b.first, b.last, b.offset_register, b.alignment, b.bound_offset)
                for b in program.buffers
            ]
            or None,
            arenaBytes=program.arena_bytes,
            inputOffsetRegisters=list(program.input_offset_registers) or None,
            outputOffsetRegisters=list(program.output_offset_registers) or None,
            updates=list(program.updates) or None,
            arenaBoundBytes=program.arena_bound_bytes or 0,
            stateBytes=program.state_bytes,
            stateCount=program.state_count,
            stateKeyCount=program.state_key_count,
            scratchOffset=-1 if program.scratch_offset is None else program.scratch_offset,
            growths=[fbs.GrowthT(*astuple(g)) for g in program.growths] or None,
        ),
        states=[_tensor_table(t) for t in entry.states] or None,
    )


def _tensor_table(tensor: TensorInfo) -> fbs.TensorT:
    return fbs.TensorT(
        name=tensor.name,
        dtype=DTYPE_CODES[tensor.dtype],
        dims=[
            fbs.DimT(
                extent=-1 if d.extent is None else d.extent,
                min=d.minimum,
                max=-1 if d.maximum is None else d.maximum,
                text=d.text or None,
            )
            for d in tensor.dims
        ],
        strings=None if tensor.strings is None else list(tensor.strings),
    )
