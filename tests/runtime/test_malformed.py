"""Structures and programs that are not valid although their checksums are: refused at load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import flatbuffers
import pytest

from tests.support.runtime_api import CountingAllocator, failure, open_failure, run_once
from tests.support.runtime_modules import (
    HEADER_BYTES,
    Assembler,
    ModuleFile,
    Variant,
    arena_module,
    compile_kernels,
    entry,
    fbs,
    host_machine,
    pack,
    scale_module,
    stamp,
    structure_bytes_of,
    tensor,
)


def with_structure(file: bytes, change: Callable[[fbs.ModuleT], None]) -> bytes:
    """The file with its structure changed, in place when it keeps its size, and stamped anew."""
    size = structure_bytes_of(file)
    root = fbs.ModuleT.InitFromPackedBuf(file[HEADER_BYTES : HEADER_BYTES + size])
    change(root)
    structure = pack(root)
    rest = file[HEADER_BYTES + max(size, len(structure)) :]
    body = structure.ljust(size, b"\0")
    return stamp(file[:HEADER_BYTES] + body + rest, len(structure))


def set_path(path: str, value: object) -> Callable[[fbs.ModuleT], None]:
    """Sets a field such as `variants.0.code.offset`."""

    def change(root: fbs.ModuleT) -> None:
        target: object = root
        *steps, last = path.split(".")
        for step in steps:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        assert hasattr(target, last)
        setattr(target, last, value)

    return change


ENTRY = "variants.0.entryPoints.0"
CODE = "the code image's length"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "variants.0.code.offset",
            1 << 60,
            "code image: {code} bytes at offset 1152921504606846976",
        ),
        ("variants.0.code.offset", 64, "code image: {code} bytes at offset 64 lie outside"),
        ("variants.0.code.length", (1 << 64) - 1, "code image: 18446744073709551615 bytes"),
        ("variants.0.code.alignment", 3, "is not aligned to 3, or that is no power of two"),
        ("variants.0.code.alignment", 1 << 20, "is not aligned to 1048576, or that"),
        ("variants.0.code", None, 'executable "scale": code offset 0 is outside the image'),
        ("variants.0.executables.0.codeOffset", CODE, "code offset {code} is outside the image"),
        ("variants.0.executables.0.paramWords", 5, "the parameter count is not the executable's"),
        ("variants.0.wordBytes", 7, 'variant "test": parameter words of 7 bytes, 4 or 8 expected'),
        ("variants.0.arch", 8, "an enum has a value that this version doesn't know"),
        ("variants.0.device", 2, "an enum has a value that this version doesn't know"),
        ("variants.0.target", None, "Variant at byte "),
        ("variants.0.executables", None, "a required field is missing"),
        ("rodata", None, "a required field is missing"),
        ("rodata.offset", 1 << 40, "rodata: 0 bytes at offset 1099511627776 lie outside"),
        (f"{ENTRY}.inputs.0.dtype", 12, "an enum has a value"),
        (f"{ENTRY}.inputs.0.dims.0.extent", -2, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.inputs.0.dims.0.min", -1, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.inputs.0.dims.0.min", 65, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.outputs.0.dims.0.max", -2, 'tensor "y": the extent or bounds of axis 0'),
        (f"{ENTRY}.program.registerCount", 3, "no such register"),
        (f"{ENTRY}.program.registerCount", 1 << 31, "more registers than the program can name"),
        (f"{ENTRY}.program.executeBlock", 0, "there must be a block of the prepare part"),
        (f"{ENTRY}.program.executeBlock", 2, "there must be a block of the prepare part"),
        (f"{ENTRY}.program.blocks", [0, 1], "word 0: the instruction crosses its block"),
        (f"{ENTRY}.program.blocks", [0, 0], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [1, 40], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [0, 1 << 30], "blocks are not in ascending order"),
        (f"{ENTRY}.program.code", [], "blocks are not in ascending order"),
        (f"{ENTRY}.program.inputOffsetRegisters", [1, 2], "2 offset registers for 1 inputs"),
        (f"{ENTRY}.program.inputOffsetRegisters", [99], "no such offset register"),
        (f"{ENTRY}.program.outputOffsetRegisters", [99], "no such offset register"),
    ],
)
def test_malformed_structures(path: str, value: object, message: str) -> None:
    kernels = compile_kernels(host_machine())
    assert kernels is not None
    code = len(kernels.image)
    # Pages of 64 KiB leave room for a structure that grows.
    file = replace(scale_module(), page=1 << 16).to_bytes()
    change = set_path(path, code if value == CODE else value)
    found = open_failure(with_structure(file, change))
    assert found.status == "malformed"
    assert message.format(code=code) in found.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("alignment", 3, "arena buffer 0: its alignment, lifetime or offset is not valid"),
        ("alignment", 128, "arena buffer 0: its alignment, lifetime or offset is not valid"),
        ("first", 3, "arena buffer 0: its alignment, lifetime or offset is not valid"),
        ("boundOffset", 3, "arena buffer 0: its alignment, lifetime or offset is not valid"),
        ("offsetRegister", 1000, "no such register for a buffer's offset"),
    ],
)
def test_malformed_arena_buffers(field: str, value: int, message: str) -> None:
    file = replace(arena_module(), page=1 << 16).to_bytes()
    change = set_path(f"{ENTRY}.program.buffers.0.{field}", value)
    found = open_failure(with_structure(file, change))
    assert found.status == "malformed"
    assert message in found.message


def test_rodata_must_be_aligned() -> None:
    def change(root: fbs.ModuleT) -> None:
        root.rodata.offset += 4
        root.rodata.alignment = 4
        root.rodata.length -= 4

    found = open_failure(with_structure(arena_module().to_bytes(), change))
    assert found.message == "rodata is not aligned to 64 bytes"


def test_shared_tables_do_not_multiply() -> None:
    """A few kilobytes that would unfold to millions of tensors are refused, and quickly."""
    file = replace(scale_module(), page=1 << 16).to_bytes()
    size = structure_bytes_of(file)
    root = fbs.ModuleT.InitFromPackedBuf(file[HEADER_BYTES : HEADER_BYTES + size])
    builder = flatbuffers.Builder(1024)
    variant = root.variants[0].Pack(builder)
    fbs.ModuleStartVariantsVector(builder, 2000)
    for _ in range(2000):
        builder.PrependUOffsetTRelative(variant)
    variants = builder.EndVector()
    rodata = root.rodata.Pack(builder)
    fbs.ModuleStart(builder)
    fbs.ModuleAddVariants(builder, variants)
    fbs.ModuleAddRodata(builder, rodata)
    builder.Finish(fbs.ModuleEnd(builder), file_identifier=b"AOTM")
    structure = bytes(builder.Output())
    rest = file[HEADER_BYTES + len(structure) :]
    allocator = CountingAllocator()
    found = open_failure(
        stamp(file[:HEADER_BYTES] + structure + rest, len(structure)), allocator=allocator
    )
    assert found.status == "malformed"
    assert "shared too often" in found.message
    assert not allocator.live


@pytest.mark.parametrize(
    ("prepare", "execute", "message"),
    [
        ([(99,)], [], "word 0: no such instruction"),
        ([("ADD", 0, 1)], [], "word 0: the instruction is too short"),
        ([("MOVE", 0, 1, 2)], [], "word 0: the instruction is too long"),
        ([("MOVE", 0, 3)], [], "word 2: no such register"),
        ([("MOVE", 1 << 31, 0)], [], "word 1: no such register"),
        ([("INPUT_DIM", 0, 1, 0)], [], "word 2: no such input"),
        ([("INPUT_DIM", 0, 0, 1)], [], "word 3: no such axis"),
        ([("OUTPUT_DIM", 1, 0, 0)], [], "word 1: no such output"),
        ([("OUTPUT_DIM", 0, 1, 0)], [], "word 2: no such axis"),
        ([("CHECK", 0, 1)], [], "word 2: no such message"),
        ([("BUFFER", 1, 0)], [], "word 1: no such arena buffer"),
        ([("JUMP", 9)], [], "word 1: no such block in this part"),
        ([("JUMP", 1)], [], "word 1: no such block in this part"),
        ([], [("JUMP", 0)], "word 2: no such block in this part"),
        ([], [("BRANCH", 0, 1, 0)], "word 4: no such block in this part"),
        ([], [("OUTPUT_DIM", 0, 0, 0)], "word 1: the instruction is not allowed in this part"),
        ([], [("BUFFER", 0, 0)], "word 1: the instruction is not allowed in this part"),
        ([("LOAD", 0, 0, 0, 6)], [], "word 0: the instruction is not allowed in this part"),
        ([("COPY", 1, 0, 1, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([("FILL", 1, 0, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([("DISPATCH", 0, 0, 0, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([], [("LOAD", 0, 4, 0, 6)], "word 3: no such buffer class"),
        ([], [("LOAD", 0, 0, 0, 0)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 1)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 2)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 12)], "word 5: not an integer dtype"),
        ([], [("COPY", 0, 0, 1, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("COPY", 2, 0, 1, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("FILL", 2, 0, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("FILL", 9, 0, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("DISPATCH", 1, 0, 0, 0, 0)], "word 2: no such executable"),
        ([], [("DISPATCH", 0, 0, 0, 0)], "word 1: the parameter count is not the executable's"),
        ([], [("DISPATCH", 0, 0, 0, 0, 9)], "word 6: no such register"),
        ([("BESIDE",)], [], "word 0: no dispatch stands behind the instruction"),
        ([], [("BESIDE",)], "word 1: no dispatch stands behind the instruction"),
        ([], [("BESIDE",), ("NOP",)], "word 1: no dispatch stands behind the instruction"),
        ([], [("BESIDE",), ("DISPATCH", 0)], "word 1: the instruction is not for a CPU"),
        ([("RETURN",), ("NOP",)], [], "word 1: an instruction follows the end of its block"),
    ],
)
def test_malformed_programs(
    prepare: list[tuple[object, ...]], execute: list[tuple[object, ...]], message: str
) -> None:
    asm = Assembler()
    asm._registers = 3

    def emit(instructions: list[tuple[object, ...]]) -> None:
        for name, *operands in instructions:
            if isinstance(name, str):
                asm.emit(name, *operands)  # type: ignore[arg-type]
            else:
                asm.words.append(int(name) | 1 << 8)  # type: ignore[call-overload]
        if not instructions or instructions[-1][0] not in ("RETURN", "JUMP", "BRANCH"):
            asm.emit("RETURN")

    asm.block()
    emit(prepare)
    asm.execute()
    emit(execute)
    program = asm.program(messages=["m"], buffers=[fbs.ArenaBufferT(0, 0, 0, 64)])
    variant = Variant(
        [entry(program, [tensor("x", "u8", 2)], [tensor("y", "u8", 2)])], kernels=("trace",)
    )
    found = open_failure(ModuleFile([variant]).to_bytes())
    assert found.status == "malformed"
    assert found.message == f'program of entry point "main", {message}'


def test_a_block_without_an_end() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("NOP")
    asm.execute()
    asm.emit("RETURN")
    file = ModuleFile([Variant([entry(asm.program())])]).to_bytes()
    found = open_failure(file)
    assert found.message == 'program of entry point "main", word 0: the block has no terminator'


def test_a_long_message_is_cut_off() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("CHECK", asm.register(), 0)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    file = ModuleFile([Variant([entry(asm.program(messages=["m" * 2000]))])]).to_bytes()
    found = failure(lambda: run_once(file))
    assert found.status == "check"
    assert found.message == "m" * 507
