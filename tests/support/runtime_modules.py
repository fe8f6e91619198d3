"""Small module files for the runtime's tests, written with the schema's own classes.

A writer of its own on purpose: it shares nothing with aot/link, and it can write what no compiler
would. Programs come from a tiny assembler, kernels from a few lines of C.
"""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import flatbuffers
import numpy as np
import xxhash

from aot.link import module_fbs as fbs
from aot.link.flatbuffer import read_structure
from aot.link.reader import IDENTIFIER
from tests.support.runtime_build import RUNTIME

HEADER = struct.Struct("<4sIQQQQQQ")
HEADER_BYTES = 64
PAGE = 16384

DTYPES = {
    "f32": fbs.DType.F32,
    "f16": fbs.DType.F16,
    "f64": fbs.DType.F64,
    "i8": fbs.DType.I8,
    "i16": fbs.DType.I16,
    "i32": fbs.DType.I32,
    "i64": fbs.DType.I64,
    "u8": fbs.DType.U8,
    "u16": fbs.DType.U16,
    "u32": fbs.DType.U32,
    "u64": fbs.DType.U64,
    "bool": fbs.DType.BOOL,
}

CONSTANTS, ARENA, INPUTS, OUTPUTS = range(4)


@dataclass(frozen=True)
class Machine:
    """An instruction set that test kernels are compiled for."""

    arch: int
    compiler: str
    flags: tuple[str, ...]
    word_bytes: int


MACHINES = {
    "x86_64": Machine(fbs.Arch.X86_64, "gcc", (), 8),
    "aarch64": Machine(fbs.Arch.AARCH64, "aarch64-linux-gnu-gcc", (), 8),
    "arm": Machine(fbs.Arch.ARM, "arm-linux-gnueabihf-gcc", ("-marm",), 4),
    "thumb": Machine(fbs.Arch.THUMB, "arm-linux-gnueabihf-gcc", ("-mthumb",), 4),
    "riscv64": Machine(fbs.Arch.RISCV64, "riscv64-linux-gnu-gcc", ("-mno-relax",), 8),
}

# `scale`: outputs[p1 + i] = inputs[p0 + i] * p3, f32, for 16 elements of p2 a workgroup.
# `stash`: arena[p1 + i] = inputs[p0 + i] + constants[p2 + i], f32, one element a workgroup.
# `gather`: outputs[p1 + i] = arena[p0 + i] + arena[p2 + i], f32, one element a workgroup.
# `trace`: appends z << 16 | y << 8 | x to the u32 list at outputs + p0, whose head is its length.
# `scratch`: leaves p1 bytes of scratch dirty, writes its address modulo 64 to outputs + p0.
# `widths`: outputs[p0] = p1 as an i64 of a word's width.
# `private`: adds 1 to the u32 at outputs + p0 with index x + 20 * y + 100 * z, and 256 if p1 bytes
#   of scratch did not stay its own.
# `stray`: outputs + p0 = a byte that is p2 from the start of scratch (p1 = 0) or the arena (1), as
#   an u32; or writes 1 there (2 and 3).
KERNELS = """
#include "aot/abi.h"
#define KERNEL(name) void name(const aot_dispatch_t *d, uint32_t x, uint32_t y, uint32_t z)
#define P(i) (((const uintptr_t *)d->params)[i])
#define UNUSED (void)x, (void)y, (void)z
KERNEL(scale) {
  union { uint32_t bits; float value; } factor = {(uint32_t)P(3)};
  const float *in = (const float *)(d->inputs + P(0));
  float *out = (float *)(d->outputs + P(1));
  UNUSED;
  for (uintptr_t i = 16 * (uintptr_t)x; i < 16 * (uintptr_t)x + 16 && i < P(2); ++i)
    out[i] = in[i] * factor.value;
}
KERNEL(stash) {
  UNUSED;
  ((float *)(d->arena + P(1)))[x] =
      ((const float *)(d->inputs + P(0)))[x] + ((const float *)(d->constants + P(2)))[x];
}
KERNEL(gather) {
  UNUSED;
  ((float *)(d->outputs + P(1)))[x] =
      ((float *)(d->arena + P(0)))[x] + ((float *)(d->arena + P(2)))[x];
}
KERNEL(trace) {
  uint32_t *list = (uint32_t *)(d->outputs + P(0));
  list[++list[0]] = z << 16 | y << 8 | x;
}
KERNEL(scratch) {
  UNUSED;
  for (uintptr_t i = 0; i < P(1); ++i) ((volatile uint8_t *)d->scratch)[i] = 0xee;
  *(uint32_t *)(d->outputs + P(0)) = (uint32_t)((uintptr_t)d->scratch % 64);
}
KERNEL(private) {
  volatile uint8_t *scratch = (volatile uint8_t *)d->scratch;
  uint32_t wrong = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    for (uintptr_t i = 0; i < P(1); ++i) scratch[i] = (uint8_t)(x + round);
    for (uintptr_t i = 0; i < P(1); ++i) wrong |= scratch[i] != (uint8_t)(x + round);
  }
  ((uint32_t *)(d->outputs + P(0)))[x + 20 * y + 100 * z] += wrong ? 257 : 1;
}
KERNEL(stray) {
  volatile uint8_t *place = (volatile uint8_t *)(P(1) & 1 ? d->arena : d->scratch) + P(2);
  UNUSED;
  if (P(1) >= 2) *place = 1;
  *(uint32_t *)(d->outputs + P(0)) = P(1) < 2 ? *place : 0;
}
KERNEL(widths) {
  UNUSED;
  *(int64_t *)(d->outputs + P(0)) = (int64_t)(intptr_t)P(1);
}
"""
KERNEL_PARAMS = {"scale": 4, "stash": 3, "gather": 3, "trace": 1, "scratch": 2, "widths": 2}
KERNEL_PARAMS |= {"private": 2, "stray": 3}
LINK_SCRIPT = "SECTIONS { . = 0; .image : { *(.text*) *(.rodata*) } /DISCARD/ : { *(*) } }"


@dataclass(frozen=True)
class Code:
    """A position-free code image and where each kernel starts in it."""

    image: bytes
    offsets: dict[str, int]


@cache
def compile_kernels(machine: str) -> Code | None:
    """The test kernels for a key of MACHINES; None where its compiler is missing."""
    compiler = shutil.which(MACHINES[machine].compiler)
    if compiler is None:
        return None
    prefix = compiler.removesuffix("gcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernels.c").write_text(KERNELS)
        (folder / "link.ld").write_text(LINK_SCRIPT)
        flags = ["-O1", "-fPIC", "-ffreestanding", "-fno-stack-protector", "-fno-jump-tables"]
        flags += ["-fno-asynchronous-unwind-tables", "-nostdlib", "-static", "-Wl,--build-id=none"]
        flags += [f"-I{RUNTIME / 'include'}", *MACHINES[machine].flags, "-Wl,-T,link.ld"]
        _run([compiler, *flags, "kernels.c", "-o", "kernels.elf"], folder)
        _run([f"{prefix}objcopy", "-O", "binary", "kernels.elf", "kernels.bin"], folder)
        symbols = _run([f"{prefix}nm", "kernels.elf"], folder)
        offsets = {}
        for line in symbols.splitlines():
            address, _, symbol = line.split()
            if symbol in KERNEL_PARAMS:
                offsets[symbol] = int(address, 16) & ~int(machine == "thumb")
        return Code((folder / "kernels.bin").read_bytes(), offsets)


def _run(command: Sequence[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{command[0]}:\n{result.stderr}")
    return result.stdout


def host_machine() -> str:
    """This machine as a key of MACHINES."""
    return {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64"}[platform.machine()]


class Assembler:
    """Writes a program: open a block, emit instructions, say where execute begins."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.blocks: list[int] = []
        self.execute_block = 0
        self._registers = 0

    def block(self) -> int:
        """Opens the next block and returns its index."""
        self.blocks.append(len(self.words))
        return len(self.blocks) - 1

    def execute(self) -> int:
        """Opens the first block of the execute part."""
        self.execute_block = self.block()
        return self.execute_block

    def register(self, value: int | None = None) -> int:
        """A register of its own; with `value`, set to it here."""
        self._registers += 1
        if value is not None:
            self.const(self._registers - 1, value)
        return self._registers - 1

    def emit(self, name: str, *operands: int) -> None:
        """One instruction."""
        opcode: int = getattr(fbs.Opcode, name)
        self.words += [opcode | (1 + len(operands)) << 8, *(o & 0xFFFFFFFF for o in operands)]

    def const(self, register: int, value: int) -> None:
        """CONST of a signed 64-bit value."""
        self.emit("CONST", register, value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF)

    def binary(self, name: str, a: int, b: int) -> int:
        """A new register that gets `a name b`."""
        result = self.register()
        self.emit(name, result, a, b)
        return result

    def program(self, **fields: object) -> fbs.ProgramT:
        """The program's table; `fields` are those of fbs.ProgramT not known here."""
        table = fbs.ProgramT(
            registerCount=self._registers,
            code=self.words,
            blocks=self.blocks,
            executeBlock=self.execute_block,
        )
        for name, value in fields.items():
            assert hasattr(table, name), name
            setattr(table, name, value)
        return table


def dim(extent: int | str, minimum: int = 0, maximum: int = -1) -> fbs.DimT:
    """A static extent, or a symbolic one by its text."""
    if isinstance(extent, int):
        return fbs.DimT(extent=extent)
    return fbs.DimT(extent=-1, min=minimum, max=maximum, text=extent)


def tensor(name: str, dtype: str, *dims: int | fbs.DimT) -> fbs.TensorT:
    """An input or output."""
    tables = [d if isinstance(d, fbs.DimT) else dim(d) for d in dims]
    return fbs.TensorT(name=name, dtype=DTYPES[dtype], dims=tables)


@dataclass(frozen=True)
class Variant:
    """A variant before it is laid out."""

    entries: list[fbs.EntryPointT]
    machine: str = ""  # of MACHINES; "" is this one
    kernels: tuple[str, ...] = ()
    scratch_bytes: int = 0
    features: tuple[str, ...] = ()
    target: str = "test"
    device: int = fbs.Device.CPU
    code: Code | None = None  # instead of the compiled kernels


@dataclass(frozen=True)
class ModuleFile:
    """A module before it is laid out; `parts` are (offset in rodata, length)."""

    variants: list[Variant]
    rodata: bytes = b""
    parts: list[tuple[int, int]] = field(default_factory=list)
    version: int = 0
    page: int = PAGE

    def to_bytes(self) -> bytes:
        """The file."""
        # Twice: the second time with the offsets that the first pass's size gives.
        structure = self._structure({})
        places, end = self._place(HEADER_BYTES + len(structure))
        structure = self._structure(places)
        file = bytearray(end)
        for data, offset in places.values():
            file[offset : offset + len(data)] = data
        file[HEADER_BYTES : HEADER_BYTES + len(structure)] = structure
        return stamp(bytes(file), len(structure))

    def _segments(self) -> dict[str, tuple[bytes, int]]:
        segments = {"rodata": (self.rodata, 64)}
        for index, variant in enumerate(self.variants):
            if variant.kernels:
                segments[f"code{index}"] = (_code(variant).image, self.page)
        return segments

    def _place(self, end: int) -> tuple[dict[str, tuple[bytes, int]], int]:
        places = {}
        for name, (data, alignment) in self._segments().items():
            offset = -(-end // alignment) * alignment
            places[name] = (data, offset)
            end = offset + len(data)
        return places, end

    def _segment(self, places: dict[str, tuple[bytes, int]], name: str) -> fbs.SegmentT:
        data, alignment = self._segments()[name]
        offset = places[name][1] if places else 1
        return fbs.SegmentT(offset, len(data), alignment, xxhash.xxh64_intdigest(data) or 1)

    def _structure(self, places: dict[str, tuple[bytes, int]]) -> bytes:
        rodata = self._segment(places, "rodata")
        parts = []
        for offset, length in self.parts:
            digest = xxhash.xxh64_intdigest(self.rodata[offset : offset + length])
            parts.append(fbs.SegmentT(rodata.offset + offset, length, 1, digest or 1))
        variants = []
        for index, variant in enumerate(self.variants):
            machine = MACHINES[variant.machine or host_machine()]
            code = self._segment(places, f"code{index}") if variant.kernels else None
            executables = [
                fbs.ExecutableT(
                    name=name,
                    codeOffset=_code(variant).offsets[name],
                    paramWords=KERNEL_PARAMS[name],
                    scratchBytes=variant.scratch_bytes,
                )
                for name in variant.kernels
            ]
            is_cpu = variant.device == fbs.Device.CPU
            variants.append(
                fbs.VariantT(
                    target=variant.target,
                    device=variant.device,
                    arch=machine.arch if is_cpu else fbs.Arch.NONE,
                    wordBytes=machine.word_bytes if is_cpu else 4,
                    features=list(variant.features),
                    code=code,
                    executables=executables,
                    entryPoints=variant.entries,
                )
            )
        root = fbs.ModuleT(
            version=self.version,
            producer="runtime tests",
            variants=variants,
            rodata=rodata,
            rodataSegments=parts,
        )
        return pack(root)


def _code(variant: Variant) -> Code:
    code = variant.code or compile_kernels(variant.machine or host_machine())
    assert code is not None, "the compiler for test kernels is missing"
    return code


def pack(root: fbs.ModuleT) -> bytes:
    """The flatbuffer of a module's table."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(root.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def stamp(file: bytes, structure_bytes: int, version: int = 0) -> bytes:
    """The file with a header whose checksums fit what follows it."""
    structure = file[HEADER_BYTES : HEADER_BYTES + structure_bytes]
    digest = xxhash.xxh64_intdigest(structure)
    head = HEADER.pack(IDENTIFIER, version, len(file), HEADER_BYTES, structure_bytes, digest, 0, 0)
    return head + struct.pack("<Q", xxhash.xxh64_intdigest(head)) + file[HEADER_BYTES:]


def structure_bytes_of(file: bytes) -> int:
    """The structure's length as the header has it."""
    return int(HEADER.unpack_from(file)[4])


def segments(root: fbs.ModuleT) -> Iterator[fbs.SegmentT]:
    """The tables of all segments."""
    shaders = [s for v in root.variants for e in v.executables for s in (e.spirv, e.texelSpirv)]
    codes = [v.code for v in root.variants]
    every = [
        root.rodata,
        *(root.rodataSegments or []),
        root.notes,
        root.vocabulary,
        *codes,
        *shaders,
    ]
    yield from (s for s in every if s is not None)


def with_structure(file: bytes, change: Callable[[fbs.ModuleT], object]) -> bytes:
    """The file with its structure changed, its segments moved to make room, and stamped anew."""
    size, room = structure_bytes_of(file), 1 << 16
    root = read_structure(file[HEADER_BYTES : HEADER_BYTES + size], IDENTIFIER)
    for table in segments(root):
        table.offset += room
    change(root)
    structure = pack(root)
    body = structure.ljust(size + room, b"\0") + file[HEADER_BYTES + size :]
    return stamp(file[:HEADER_BYTES] + body, len(structure))


def entry(
    program: fbs.ProgramT,
    inputs: Sequence[fbs.TensorT] = (),
    outputs: Sequence[fbs.TensorT] = (),
    name: str = "main",
) -> fbs.EntryPointT:
    """An entry point."""
    return fbs.EntryPointT(name=name, inputs=list(inputs), outputs=list(outputs), program=program)


def module(
    program: fbs.ProgramT,
    inputs: Sequence[fbs.TensorT] = (),
    outputs: Sequence[fbs.TensorT] = (),
    *,
    kernels: tuple[str, ...] = (),
    rodata: bytes = b"",
    machine: str = "",
    **variant_fields: object,
) -> ModuleFile:
    """A module of one variant with one entry point."""
    variant = Variant([entry(program, inputs, outputs)], machine=machine, kernels=kernels)
    return ModuleFile([replace(variant, **variant_fields)], rodata)  # type: ignore[arg-type]


def float_bits(value: float) -> int:
    """The bits of an f32, for a parameter word."""
    return int(np.float32(value).view(np.uint32))


def scale_module(factor: float = 2.0, machine: str = "", **fields: object) -> ModuleFile:
    """y[N, 3] = x[N, 3] * factor, 1 <= N <= 64: the grid is computed on the device."""
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("OUTPUT_DIM", 0, 0, n)
    count = asm.binary("MUL", n, asm.register(3))
    groups = asm.binary("FLOORDIV", asm.binary("ADD", count, asm.register(15)), asm.register(16))
    one, bits = asm.register(1), asm.register(float_bits(factor))
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, groups, one, one, offset_in, offset_out, count, bits)
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[offset_in], outputOffsetRegisters=[offset_out])
    rows = dim("N", 1, 64)
    return module(
        program,
        [tensor("x", "f32", rows, 3)],
        [tensor("y", "f32", rows, 3)],
        kernels=("scale",),
        machine=machine,
        **fields,
    )


def arena_module(machine: str = "", **fields: object) -> ModuleFile:
    """y[N] = 2 * (x[N] + c[N]) through two arena buffers whose size is known on the device."""
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("OUTPUT_DIM", 0, 0, n)
    size = asm.binary("MUL", n, asm.register(4))
    asm.emit("BUFFER", 0, size)
    asm.emit("BUFFER", 1, size)
    one, zero = asm.register(1), asm.register(0)
    first, second, offset_in, offset_out = (asm.register() for _ in range(4))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, n, one, one, offset_in, first, zero)
    asm.emit("COPY", ARENA, second, ARENA, first, size)
    asm.emit("DISPATCH", 1, n, one, one, first, offset_out, second)
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[offset_in],
        outputOffsetRegisters=[offset_out],
        arenaBytes=100,
        buffers=[fbs.ArenaBufferT(0, 2, first, 64), fbs.ArenaBufferT(1, 2, second, 64)],
    )
    return module(
        program,
        [tensor("x", "f32", dim("N", 0, 1000))],
        [tensor("y", "f32", dim("N", 0, 1000))],
        kernels=("stash", "gather"),
        rodata=np.arange(1000, dtype=np.float32).tobytes(),
        machine=machine,
        **fields,
    )


def widths_program(value: int) -> fbs.ProgramT:
    """Writes one constant through the kernel `widths`."""
    asm = Assembler()
    asm.block()
    one, offset, constant = asm.register(1), asm.register(), asm.register(value)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, one, one, one, offset, constant)
    asm.emit("RETURN")
    return asm.program(outputOffsetRegisters=[offset])
