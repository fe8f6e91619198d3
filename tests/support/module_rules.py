"""A module with all fields of module.fbs, and a change for each rule that breaks it alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from aot.ir.dims import symbol
from aot.ir.types import DType
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
from aot.link.module import module_bytes
from aot.link.module_schema import Rule
from aot.link.program import encode
from aot.link.rodata import RodataSegment
from aot.link.vocabulary import encode_vocabulary
from tests.support.runtime_modules import fbs, host_machine, with_structure
from tests.support.vocabularies import byte_vocabulary

CPU, ALONE, HOSTED = range(3)  # the variants of the module
ARCH, FEATURE = {
    "x86_64": (Arch.X86_64, "sse2"),
    "aarch64": (Arch.AARCH64, "neon"),
}[host_machine()]
# Which variants have something that a sort of rule is for.
VARIANTS = {
    "": (CPU, ALONE, HOSTED),
    "cpu": (CPU,),
    "gpu": (ALONE, HOSTED),
    "alone": (ALONE,),
    "hosted": (HOSTED,),
    "function": (CPU, HOSTED),
    "shader": (ALONE, HOSTED),
}


def _entry(is_cpu: bool) -> EntryPointImage:
    prepare = [*encode("INPUT_DIM", 0, 0, 0), *encode("OUTPUT_DIM", 0, 0, 0)]
    prepare += [*encode("STATE", 1, 0), *encode("BUFFER", 0, 0), *encode("RETURN")]
    execute = [*encode("DISPATCH", 0, 0, 0, 0, 3, 2), *encode("RETURN")]
    program = ProgramImage(
        register_count=6,
        code=(*prepare, *execute),
        blocks=(0, len(prepare)),
        execute_block=1,
        messages=("the batch is too large",),
        buffers=(ArenaBuffer(0, 1, 3, bound_offset=192),),
        arena_bytes=192,
        input_offset_registers=(4,),
        output_offset_registers=(5,),
        arena_bound_bytes=256,
        state_bytes=64,
        state_count=1,
        state_key_count=1,
        scratch_offset=64 if is_cpu else None,
        growths=(Growth(16, 2, 24, 4, 0, 6),),
        updates=(1,),
    )
    dims = (DimInfo.of(symbol("N"), {"N": (1, 8)}), DimInfo.of(16))
    tensors = [(TensorInfo(name, DType.F32, dims),) for name in ("x", "y", "kept")]
    return EntryPointImage("main", tensors[0], tensors[1], program, tensors[2])


@cache
def whole_module() -> bytes:
    """Every field, in a variant of each sort."""
    code, spirv = b"\xc3" * 256, struct.pack("<5I", 0x07230203, 0x00010300, 0, 10, 0)
    function = ExecutableImage("function", 2, code_offset=64, scratch_bytes=128)
    shader = ExecutableImage(
        *("shader", 2, 0, spirv, 32, (64, 1, 1)), param_buffer_bytes=16384, texel_spirv=spirv[::-1]
    )
    limits = (("maxComputeSharedMemorySize", 32),)
    gpu = (Device.VULKAN, Arch.NONE, 4)
    variants = (
        VariantImage(*("cpu", Device.CPU, ARCH, 8, (function,), (_entry(True),), (FEATURE,), code)),
        VariantImage("gpu", *gpu, (shader,), (_entry(False),), ("shaderInt16",), limits=limits),
        VariantImage(
            *("hosted", *gpu, (function, shader), (_entry(False),)),
            code=code,
            limits=limits,
            host=HostImage("cpu", ARCH, 8, (FEATURE,)),
        ),
    )
    rodata = bytes(range(256))
    parts = (RodataSegment(0, 64, 64), RodataSegment(64, 192, 64))
    return module_bytes(
        ModuleImage(
            variants,
            rodata,
            parts,
            "tests",
            b"{}",
            encode_vocabulary(byte_vocabulary()),
            {"author": "nobody", "licence": ""},
        )
    )


def put(table: Any, **fields: Any) -> None:
    """Sets fields; an element or a field of a field by `a__b`."""
    for name, value in fields.items():
        *path, last = name.split("__")
        target = table
        for step in path:
            target = getattr(target, step)
        assert hasattr(target, last), name
        setattr(target, last, value)


def segment(offset: int, length: int) -> fbs.SegmentT:
    """A segment that is aligned to nothing."""
    return fbs.SegmentT(offset, length, 1, 0)


def _arch(arch: int, code_offset: int) -> Callable[[Any, Any], None]:
    def change(variant: Any, table: Any) -> None:
        put(variant.host or variant, arch=arch)
        put(table, codeOffset=code_offset)

    return change


def _fields(**fields: Any) -> Callable[[Any, Any], None]:
    return lambda variant, table: put(table, **fields)


BIG = (1 << 64) - 1
# A program without buffers and growths, which does nothing but declare its output.
PREPARE = [*encode("INPUT_DIM", 0, 0, 0), *encode("OUTPUT_DIM", 0, 0, 0), *encode("RETURN")]
BARE: dict[str, Any] = {
    "code": [*PREPARE, *encode("RETURN")],
    "blocks": [0, len(PREPARE)],
    "buffers": [],
    "growths": [],
}
# How a rule is broken: changes to the table that it is for, inside of a variant.
BREAKS: dict[str, list[Callable[[Any, Any], None]]] = {
    "Module.variants must not be empty": [_fields(variants=[])],
    "Module.rodata must start at a multiple of 64 bytes": [
        lambda variant, table: put(
            table,
            rodata=segment(table.rodata.offset + 4, table.rodata.length - 4),
            rodataSegments=[],
        )
    ],
    "Module.vocabulary must start at a multiple of 64 bytes": [
        lambda variant, table: put(
            table,
            vocabulary=segment(table.vocabulary.offset + 4, table.vocabulary.length - 4),
        )
    ],
    "Module.rodata_segments must lie inside rodata": [
        lambda variant, table: put(table.rodataSegments[0], offset=table.rodata.offset - 64),
        lambda variant, table: put(table.rodataSegments[1], length=193),
    ],
    "Segment.offset must lie behind the structure and inside the file": [
        _fields(offset=64),
        _fields(offset=1 << 60),
        _fields(offset=1 << 60, length=0),
    ],
    "Segment.length must end inside the file": [_fields(length=BIG), _fields(length=1 << 20)],
    "Segment.alignment must be a power of two that divides the offset": [
        _fields(alignment=0),
        _fields(alignment=3),
        _fields(alignment=1 << 30),
    ],
    "Dim.extent must be at least -1": [_fields(extent=-2), _fields(extent=-1 << 63)],
    "Dim.min must be at least 0": [_fields(min=-1)],
    "Dim.max must be -1 or at least min": [_fields(max=-2), _fields(min=9), _fields(max=0)],
    "ArenaBuffer.last must be at least first": [_fields(first=2)],
    "ArenaBuffer.offset_register must be below register_count": [_fields(offsetRegister=6)],
    "ArenaBuffer.alignment must be a power of two up to 64, or 0 for 64": [
        _fields(alignment=3),
        _fields(alignment=128),
    ],
    "ArenaBuffer.bound_offset must be a multiple of alignment": [
        _fields(boundOffset=193),
        _fields(boundOffset=200, alignment=16),
        _fields(boundOffset=200, alignment=0),
    ],
    "ArenaBuffer.bound_offset must lie from arena_bytes to arena_bound_bytes, unless that is 0": [
        _fields(boundOffset=128),
        _fields(boundOffset=320),
    ],
    "Program.register_count must be no more than the program can name": [
        _fields(registerCount=1 << 31),
        _fields(registerCount=(1 << 32) - 1),
    ],
    "Program.execute_block must leave a block of the prepare part and one of the execute part": [
        _fields(executeBlock=0),
        _fields(executeBlock=2),
    ],
    "Program.input_offset_registers must be one for each input, or none": [
        _fields(inputOffsetRegisters=[4, 4])
    ],
    "Program.input_offset_registers must be below register_count": [
        _fields(inputOffsetRegisters=[6])
    ],
    "Program.output_offset_registers must be one for each output, or none": [
        _fields(outputOffsetRegisters=[4, 4])
    ],
    "Program.output_offset_registers must be below register_count": [
        _fields(outputOffsetRegisters=[6])
    ],
    "Program.updates must be one for each output, or none": [_fields(updates=[1, 0])],
    "Program.updates must be at most the number of inputs": [_fields(updates=[2])],
    # A reset would write zeros behind an arena that is smaller than the state.
    "Program.arena_bound_bytes must be 0 or at least arena_bytes": [
        _fields(arenaBoundBytes=64, stateBytes=192, **BARE),
        _fields(arenaBoundBytes=64, arenaBytes=1 << 20, stateBytes=1 << 20, **BARE),
    ],
    "Growth.offset must lie inside the state": [
        _fields(offset=65),
        _fields(offset=1 << 63),
    ],
    "Growth.blocks must end inside the state": [
        _fields(offset=17),
        _fields(blocks=3),
        _fields(blocks=(1 << 32) - 1, strideBytes=(1 << 32) - 4),
    ],
    "Growth.row_bytes must divide stride_bytes": [
        _fields(rowBytes=0),
        _fields(rowBytes=5),
        _fields(rowBytes=48),
    ],
    "Growth.scalar must be below state_count": [_fields(scalar=1)],
    "Growth.window must be rows that fit into a block": [
        _fields(window=7),
        _fields(window=(1 << 32) - 1),
    ],
    "Program.state_bytes must be at most arena_bytes": [
        _fields(stateBytes=193),
        _fields(stateBytes=1 << 63),
    ],
    "Program.state_count must be no more than the program can name": [_fields(stateCount=1000)],
    "Program.state_key_count must be at most state_count": [_fields(stateKeyCount=2)],
    "Program.scratch_offset must be -1, or a multiple of 64 up to arena_bytes": [
        _fields(scratchOffset=-2),
        _fields(scratchOffset=-64),
        _fields(scratchOffset=96),
        _fields(scratchOffset=256),
    ],
    # The host's driver has scratch of its own, and would have none where a program placed it.
    "Program.scratch_offset must be -1 in a variant for a GPU": [
        _fields(scratchOffset=64),
        _fields(scratchOffset=-2),
    ],
    "Executable.param_words must be below 2^24, as the length of an instruction is": [
        _fields(paramWords=1 << 24),
        _fields(paramWords=1 << 30),
    ],
    "Executable.code_offset must lie inside the code image": [
        _fields(codeOffset=256),
        _fields(codeOffset=1 << 40),
    ],
    "Executable.code_offset must be a multiple of 4 on aarch64 and Arm": [
        _arch(fbs.Arch.AARCH64, 66),
        _arch(fbs.Arch.ARM, 65),
    ],
    "Executable.code_offset must be a multiple of 2 on Thumb and RISC-V": [
        _arch(fbs.Arch.THUMB, 65),
        _arch(fbs.Arch.RISCV64, 63),
        _arch(fbs.Arch.RISCV32, 3),
    ],
    "Executable.spirv must be empty in a variant for a CPU": [
        lambda variant, table: put(table, spirv=segment(variant.code.offset, 4))
    ],
    # What reads texels would run where there are texels, and nothing where there are none.
    "Executable.spirv must not be empty in a variant for a GPU without a host": [
        _fields(spirv__length=0),
        _fields(spirv=None, texelSpirv=None),
    ],
    "Executable.spirv must be whole words": [
        _fields(spirv__length=6),
        lambda variant, table: put(table, spirv=segment(table.spirv.offset + 2, 4)),
    ],
    "Executable.texel_spirv must be empty where spirv is": [
        lambda variant, table: put(table, texelSpirv=segment(variant.code.offset, 4))
    ],
    "Executable.texel_spirv must be whole words": [
        _fields(texelSpirv__length=6),
        lambda variant, table: put(table, texelSpirv=segment(table.spirv.offset + 2, 4)),
    ],
    "Executable.workgroup_size must be three numbers, or none": [
        _fields(workgroupSize=[1]),
        _fields(workgroupSize=[1, 1, 1, 1]),
    ],
    "Executable.workgroup_size must be greater than 0": [_fields(workgroupSize=[1, 0, 1])],
    "Executable.param_buffer_bytes must be 0 where there is no SPIR-V": [
        _fields(paramBufferBytes=16384)
    ],
    "Executable.param_buffer_bytes must be 0, or 16384 with at most as many bytes of parameters": [
        _fields(paramBufferBytes=64),
        _fields(paramWords=4097),
    ],
    "Host.arch must be that of a CPU": [_fields(arch=0)],
    "Host.word_bytes must be 4 or 8": [_fields(wordBytes=5)],
    "Variant.arch must be that of a CPU": [_fields(arch=0)],
    "Variant.arch must be NONE in a variant for a GPU": [_fields(arch=1)],
    "Variant.word_bytes must be 4 or 8": [_fields(wordBytes=7), _fields(wordBytes=0)],
    "Variant.word_bytes must be 4 in a variant for a GPU": [_fields(wordBytes=8)],
    "Variant.code must be empty in a variant for a GPU without a host": [
        lambda variant, table: put(table, code=segment(table.executables[0].spirv.offset, 4))
    ],
    "Variant.limits must be empty in a variant for a CPU": [
        _fields(limits=[fbs.LimitT("maxComputeSharedMemorySize", 1)])
    ],
    "Variant.device must be VULKAN beside a host": [
        _fields(device=0, arch=fbs.Arch.X86_64, wordBytes=8, limits=None)
    ],
}


def tables_of(root: fbs.ModuleT, table: str, number: int, sort: str) -> list[tuple[str, Any]]:
    """The tables of a kind in a variant, or around it, that a sort of rule is for; each with what a
    message calls it."""
    variant: Any = root.variants[number]
    entry = variant.entryPoints[0]
    hosts = [] if variant.host is None else [('host "cpu"', variant.host)]
    executables = [(f'executable "{e.name}"', e) for e in variant.executables]
    if sort in ("function", "shader"):
        executables = [e for e in executables if sort in e[0]]
    segments = [(name, s) for _, e in executables for name, s in (("spirv", e.spirv),)]
    segments += [("texel_spirv", e.texelSpirv) for _, e in executables]
    segments += [("code", variant.code), ("rodata", root.rodata), ("vocabulary", root.vocabulary)]
    segments += [("rodata_segments", s) for s in root.rodataSegments]
    found: dict[str, list[tuple[str, Any]]] = {
        "Module": [('module "tests"', root)],
        "Segment": [(f'segment "{name}"', s) for name, s in segments if s is not None],
        "Dim": [
            (f'tensor "{tensors[0].name}"', tensors[0].dims[0])
            for tensors in (entry.inputs, entry.outputs, entry.states)
        ],
        "ArenaBuffer": [('entry point "main"', entry.program.buffers[0])],
        "Growth": [('entry point "main"', entry.program.growths[0])],
        "Program": [('entry point "main"', entry.program)],
        "Executable": executables,
        "Host": hosts,
        "Variant": [(f'variant "{variant.target}"', variant)],
    }
    return found[table]


def places_of(rule: Rule, table: str) -> list[tuple[int, int]]:
    """Where the tables are that a rule is for: the variant, and the number among those of it."""
    found: list[tuple[int, int]] = []

    def look(root: fbs.ModuleT) -> None:
        for variant in VARIANTS[rule.sort]:
            count = len(tables_of(root, table, variant, rule.sort))
            found.extend((variant, index) for index in range(count))

    with_structure(whole_module(), look)
    return found


def broken(
    rule: Rule, table: str, place: tuple[int, int], change: Callable[[Any, Any], None]
) -> tuple[str, bytes]:
    """The message that is due to a change of the table at a place, and the file."""
    names: list[str] = []

    def apply(root: fbs.ModuleT) -> None:
        variant, index = place
        name, found = tables_of(root, table, variant, rule.sort)[index]
        names.append(name)
        change(root.variants[variant], found)

    data = with_structure(whole_module(), apply)
    return f"{names[0]}: {rule.message}", data
