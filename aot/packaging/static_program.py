"""Encodes programs for the static runtime, runtime/packaging/static/aot_static.c.

Owns that form, the arena's layout behind what the program places, and what a program must have to
run without an allocator: bounds of all its shapes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.link.image import Arch, EntryPointImage, ProgramImage, TensorInfo, VariantImage
from aot.link.program import Instruction, decode

VERSION = 1
ALIGNMENT = 64
_HEADER_WORDS = 21
_NO_REGISTERS = 0xFFFFFFFF
_WORD_LIMIT = 1 << 32


@dataclass(frozen=True)
class StaticProgram:
    """A program for the static runtime, and its memory sizes.

    Attributes:
        data: the words, little endian.
        arena_bytes: what the program places, its largest shapes taken.
        scratch_bytes: what its kernels share.
        loader_bytes: the loader's registers and parameters.
    """

    data: bytes
    arena_bytes: int
    scratch_bytes: int
    loader_bytes: int

    @property
    def memory_bytes(self) -> int:
        """The size in bytes of the memory that the caller provides."""
        return _up(self.arena_bytes + self.scratch_bytes + self.loader_bytes)


def static_program(
    variant: VariantImage, entry: EntryPointImage, weights_bytes: int
) -> StaticProgram:
    """Encodes the program of an entry point.

    Raises:
        UnsupportedError: shapes are open and not bounded.
        CompileError: a size does not fit 32 bits.
    """
    program = entry.program
    _check_bounds(entry)
    instructions = list(decode(program.code))
    arena = _up(max(program.arena_bytes, program.arena_bound_bytes or 0))
    used = {i.operands[0] for i in instructions if i.name == "DISPATCH"}
    scratch = _up(max((variant.executables[e].scratch_bytes for e in used), default=0))
    params = _most_params(instructions)
    words = program.register_count + params + 2 * program.state_count
    parts: list[Sequence[int]] = [
        program.code,
        program.blocks,
        [e.code_offset for e in variant.executables],
        [word for b in program.buffers for word in (b.offset_register, b.bound_offset)],
        program.input_offset_registers,
        program.output_offset_registers,
        [word for t in (*entry.inputs, *entry.outputs) for word in _tensor_words(t)],
    ]
    at, places = _HEADER_WORDS, []
    for part in parts:
        places.append(at)
        at += len(part)
    for index, registers in (
        (4, program.input_offset_registers),
        (5, program.output_offset_registers),
    ):
        if not registers:
            places[index] = _NO_REGISTERS
    header = [
        VERSION,
        variant.word_bytes,
        int(variant.arch is Arch.THUMB),
        arena,
        scratch,
        weights_bytes,
        program.state_bytes,
        program.state_count,
        program.register_count,
        params,
        program.execute_block,
        len(entry.inputs),
        len(entry.outputs),
        len(program.buffers),
        *places,
    ]
    flat = [*header, *(word for part in parts for word in part)]
    if any(not 0 <= word < _WORD_LIMIT for word in flat):
        raise CompileError(
            f"entry point {entry.name!r}: a size or extent of it does not fit 32 bits, which a "
            "static library's program is made of"
        )
    return StaticProgram(struct.pack(f"<{len(flat)}I", *flat), arena, scratch, 8 * words)


def element_count(tensor: TensorInfo) -> int:
    """The greatest number of elements of a tensor, whose dims must be bounded."""
    count = 1
    for dim in tensor.dims:
        count *= dim.extent if dim.extent is not None else dim.maximum or 0
    return count


def _most_params(instructions: Sequence[Instruction]) -> int:
    counts = (len(i.operands) - 4 for i in instructions if i.name == "DISPATCH")
    return max(counts, default=0)


def _tensor_words(tensor: TensorInfo) -> Iterator[int]:
    yield tensor.dtype.bytes
    yield len(tensor.dims)
    for dim in tensor.dims:
        if dim.extent is not None:
            yield from (dim.extent, dim.extent)
        else:
            yield from (dim.minimum, dim.maximum or 0)


def _check_bounds(entry: EntryPointImage) -> None:
    program: ProgramImage = entry.program
    open_dims = [
        f"{kind} {tensor.name!r}: axis {axis}, {dim}, has no upper bound"
        for kind, tensors in (("input", entry.inputs), ("output", entry.outputs))
        for tensor in tensors
        for axis, dim in enumerate(tensor.dims)
        if dim.extent is None and dim.maximum is None
    ]
    if program.buffers and program.arena_bound_bytes is None and not open_dims:
        open_dims = ["the memory between inputs and outputs has no upper bound"]
    if open_dims:
        raise UnsupportedError(
            f"entry point {entry.name!r}: a static library allocates nothing, so that all shapes "
            "must be bounded; compile with --input-shape, as in x=1x3xH:..640xW:..640:",
            open_dims,
        )


def _up(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
