"""Structures and programs that are not valid although their checksums are: refused at load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.runtime_api import failure, open_failure, run_once
from tests.support.runtime_modules import (
    Assembler,
    ModuleFile,
    Variant,
    entry,
    fbs,
    scale_module,
    tensor,
    with_structure,
)


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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("variants.0.executables.0.paramWords", 5, "the parameter count is not the executable's"),
        ("variants.0.arch", 8, "an enum has a value that this version doesn't know"),
        ("variants.0.device", 2, "an enum has a value that this version doesn't know"),
        ("variants.0.target", None, "Variant at byte "),
        ("variants.0.executables", None, "a required field is missing"),
        ("rodata", None, "a required field is missing"),
        (f"{ENTRY}.inputs.0.dtype", 13, "an enum has a value"),
        (f"{ENTRY}.program.blocks", [0, 1], "word 0: the instruction crosses its block"),
        (f"{ENTRY}.program.blocks", [0, 0], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [1, 40], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [0, 1 << 30], "blocks are not in ascending order"),
        (f"{ENTRY}.program.code", [], "blocks are not in ascending order"),
    ],
)
def test_malformed_structures(path: str, value: object, message: str) -> None:
    file = scale_module().to_bytes()
    change = set_path(path, value)
    found = open_failure(with_structure(file, change))
    assert found.status == "malformed"
    assert message in found.message


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
