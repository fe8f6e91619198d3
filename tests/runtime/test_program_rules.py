"""The rules of a program's instructions (runtime/module_rules.toml): whatever word of a program is
changed, the runtime and the reader in Python take it or refuse it, at the same word and in the same
words.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from aot.link.module_schema import INSTRUCTION_RULES, INSTRUCTIONS, OPERANDS
from aot.link.program import Opcode, decode, encode
from tests.support.module_rules import ALONE, CPU, HOSTED, whole_module
from tests.support.runtime_modules import fbs, stamp, structure_bytes_of, with_structure
from tests.support.two_readers import reader_failure, reading_for_gpus, runtime_failure

BINARY = ("ADD", "SUB", "MUL", "FLOORDIV", "FLOORMOD", "MIN", "MAX", "EQ", "NE", "LT", "LE", "AND")


def program_of(number: int) -> tuple[list[int], list[int], int]:
    """A program of every instruction that a variant may have: its code, its blocks, and the one
    that execute begins with. It is only read, never run."""
    prepare = [
        [
            *(encode("NOP"), encode("CONST", 0, number, 0), encode("MOVE", 5, 4)),
            *(encode("INPUT_DIM", 0, 0, 1), encode("OUTPUT_DIM", 0, 0, 0)),
            *(encode(name, 1, 2, 3) for name in (*BINARY, "OR")),
            *(encode("SELECT", 0, 1, 2, 3), encode("CHECK", 0, 0), encode("CHECK", 0, 0, 5, 1)),
            *(encode("BUFFER", 0, 5), encode("STATE", 1, 0), encode("JUMP", 1)),
        ],
        [encode("BRANCH", 0, 0, 2)],
        [encode("RETURN")],
    ]
    execute = [
        [
            *(encode("LOAD", 0, 3, 1, fbs.DType.I64), encode("DISPATCH", 0, 5, 1, 2, 3, 4)),
            *(encode("COPY", 1, 0, 2, 1, 5), encode("FILL", 3, 0, 1, 77), encode("STATE", 1, 1)),
            *(encode("SET_STATE", 1, 5), encode("STORE", 1, 0, 5, fbs.DType.BOOL)),
            *([encode("BESIDE"), encode("DISPATCH", 0, 0, 0, 0, 0, 0)] if number != CPU else []),
            *([encode("TO_HOST", 1, 0, 1)] if number == HOSTED else []),
            *([encode("TO_DEVICE", 3, 0, 1)] if number == HOSTED else []),
            encode("BRANCH", 0, 4, 5),
        ],
        [encode("JUMP", 5)],
        [encode("RETURN")],
    ]
    code: list[int] = []
    blocks: list[int] = []
    for block in (*prepare, *execute):
        blocks.append(len(code))
        code += [word for instruction in block for word in instruction]
    return code, blocks, len(prepare)


@cache
def module(number: int, blocks: tuple[int, ...] | None = None, cut: int | None = None) -> bytes:
    """The whole module with that program in a variant; `cut` leaves its words from there on out."""
    code, own_blocks, execute_block = program_of(number)

    def change(root: fbs.ModuleT) -> None:
        program = root.variants[number].entryPoints[0].program
        assert program is not None
        program.code, program.executeBlock = code[:cut], execute_block
        program.blocks = list(blocks or own_blocks)
        program.stateCount = 2

    return with_structure(whole_module(), change)


def with_word(number: int, index: int, word: int) -> bytes:
    """The module with one word of the program changed."""
    data, (code, _, _) = bytearray(module(number)), program_of(number)
    packed = struct.pack(f"<{len(code)}I", *code)
    assert data.count(packed) == 1
    struct.pack_into("<I", data, data.index(packed) + 4 * index, word)
    return stamp(bytes(data), structure_bytes_of(bytes(data)))


def changed_words(number: int) -> Iterator[tuple[int, int]]:
    """Each word of the program as others: small numbers, the largest, and its neighbours; of first
    words of instructions, every opcode."""
    code, _, _ = program_of(number)
    starts = {i.at for i in decode(code)}
    for index, word in enumerate(code):
        values = {0, 1, 2, 4, 6, 11, 12, 255, 1 << 31, (1 << 32) - 1, word ^ 1, word + 1, word + 3}
        values |= {word + 256, word + 512, word - 256, word - 1}
        if index in starts:
            values |= {word & ~0xFF | int(opcode) for opcode in Opcode}
        for value in sorted(v for v in values if 0 <= v < 1 << 32 and v != word):
            yield index, value


def verdicts(data: bytes) -> tuple[str | None, str | None]:
    """What the reader and the runtime say is wrong: of an instruction, without where it stands."""

    def of(message: str | None) -> str | None:
        found = re.search(r"word \d+: .*$", message or "")
        return message if found is None else found[0]

    return of(reader_failure(data)), of(runtime_failure(data))


def check(number: int, datas: Iterator[bytes], saw: Callable[[str], None]) -> None:
    with reading_for_gpus():
        for data in datas:
            reader, runtime = verdicts(data)
            assert reader == runtime
            if reader is not None:
                saw(reader.split(": ", 1)[1])


@pytest.mark.parametrize("number", [CPU, ALONE, HOSTED])
def test_the_whole_program_is_taken(number: int) -> None:
    with reading_for_gpus():
        assert verdicts(module(number)) == (None, None)
    names = {i.name for i in decode(program_of(number)[0])}
    absent = {
        CPU: {"BESIDE", "TO_HOST", "TO_DEVICE"},
        ALONE: {"TO_HOST", "TO_DEVICE"},
        HOSTED: set(),
    }
    assert names == set(INSTRUCTIONS) - absent[number]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.sweep), 7])
def test_readers_agree_on_changed_words(every: int) -> None:
    seen = set[str]()
    for number in (CPU, ALONE, HOSTED):
        changes = list(changed_words(number))[number::every]
        check(number, (with_word(number, *change) for change in changes), seen.add)
    rules = {r.fault for r in OPERANDS.values() if r.fault} | {r.fault for r in INSTRUCTION_RULES}
    walked = {
        *(
            "no such instruction",
            "the instruction crosses its block",
            "the instruction is too short",
        ),
        *("the instruction is too long", "no dispatch stands behind the instruction"),
        *("an instruction follows the end of its block", "the block has no terminator"),
        "the instruction is not allowed in this part",
    }
    assert seen == rules - {"the executable's scratch is not in the arena"} | walked


@pytest.mark.parametrize("number", [CPU, ALONE, HOSTED])
def test_readers_agree_on_blocks(number: int) -> None:
    code, blocks, _ = program_of(number)
    changes: list[tuple[int, ...]] = []
    for index, at in enumerate(blocks):
        for value in (at - 1, at + 1, at + 4, 0, len(code), len(code) + 1, 1 << 31):
            if 0 <= value != at:
                changes.append((*blocks[:index], value, *blocks[index + 1 :]))
    changes += [tuple(blocks[:-1]), (*blocks, len(code)), (*blocks, blocks[-1])]
    seen = set[str]()
    check(number, (module(number, change) for change in changes), seen.add)
    check(number, (module(number, None, cut) for cut in range(1, len(code), 3)), seen.add)
    assert "blocks are not in ascending order from word 0" in seen


def test_readers_agree_on_scratch() -> None:
    """Which fits the arena's fixed part to the last byte, or does not."""
    for bytes_, fault in ((128, None), (129, "the executable's scratch is not in the arena")):

        def change(root: fbs.ModuleT, bytes_: int = bytes_) -> None:
            root.variants[CPU].executables[0].scratchBytes = bytes_

        reader, runtime = verdicts(with_structure(whole_module(), change))
        assert reader == runtime
        assert (reader is None) == (fault is None) and (reader or "").endswith(fault or "")
