"""Images of small modules, filled by hand."""

from __future__ import annotations

import struct
from dataclasses import replace

from aot.ir.dims import symbol
from aot.ir.types import DType
from aot.link.module import (
    Arch,
    ArenaBuffer,
    Device,
    DimInfo,
    EntryPointImage,
    ExecutableImage,
    ModuleImage,
    ProgramImage,
    TensorInfo,
    VariantImage,
)
from aot.link.program import encode, encode_constant
from aot.link.rodata import RodataPool


def small_program() -> ProgramImage:
    prepare = [
        *encode("INPUT_DIM", 0, 0, 0),
        *encode("OUTPUT_DIM", 0, 0, 0),
        *encode_constant(1, 64),
        *encode("MUL", 2, 0, 1),
        *encode("BUFFER", 0, 2),
        *encode("RETURN"),
    ]
    execute = [*encode("DISPATCH", 0, 0, 1, 1, 3, 2), *encode("RETURN")]
    return ProgramImage(
        register_count=6,
        code=(*prepare, *execute),
        blocks=(0, len(prepare)),
        execute_block=1,
        messages=("the batch is too large",),
        buffers=(ArenaBuffer(0, 1, 3),),
        arena_bytes=128,
        input_offset_registers=(4,),
        output_offset_registers=(5,),
    )


def small_image() -> ModuleImage:
    """One CPU and one Vulkan variant with every kind of field filled."""
    pool = RodataPool()
    pool.add(b"weights" * 10)
    pool.add(b"bias" * 4)
    placed = pool.place()
    rodata, segments = placed.data, placed.segments
    dims = (DimInfo.of(symbol("N"), {"N": (1, 8)}), DimInfo.of(16))
    entry = EntryPointImage(
        "main",
        (TensorInfo("x", DType.F32, dims),),
        (TensorInfo("y", DType.I64, (DimInfo.of(symbol("N") + 1),)),),
        small_program(),
    )
    cpu = VariantImage(
        target="x86-64-v3",
        device=Device.CPU,
        arch=Arch.X86_64,
        word_bytes=8,
        executables=(ExecutableImage("add", 2, code_offset=1, scratch_bytes=256),),
        entry_points=(entry,),
        features=("avx2", "fma"),
        code=b"\x90\xc3" * 30,
        page_bytes=16384,
    )
    spirv = struct.pack("<5I", 0x07230203, 0x00010300, 0, 10, 0)
    texels = struct.pack("<5I", 0x07230203, 0x00010300, 0, 11, 0)
    shader = ExecutableImage("add", 2, spirv=spirv, workgroup_size=(64, 1, 1), texel_spirv=texels)
    vulkan = VariantImage(
        target="vulkan11",
        device=Device.VULKAN,
        arch=Arch.NONE,
        word_bytes=4,
        executables=(shader, replace(shader, name="add_again")),
        entry_points=(entry,),
    )
    return ModuleImage((cpu, vulkan), rodata, segments, "aotc 0.1.0", b"{}")
