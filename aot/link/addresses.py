"""Addresses of constants in programs: finds them, and replaces symbolic addresses by offsets.

A program is emitted, and merged with others, before the pool of constants is placed: its `CONST`
instructions hold addresses (see `aot.link.rodata`). Owns which words those are. Knows nothing of
what a program computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from aot.analysis.memory.storage import CONSTANTS
from aot.ir.large_arrays import Data, is_same
from aot.link.image import ProgramImage
from aot.link.program import Instruction, Operand, constant_value, decode, encode, encode_constant
from aot.link.rodata import ADDRESSES, RodataPool


def address_words(program: ProgramImage) -> tuple[int, ...]:
    """Word numbers of the `CONST` instructions of a program that hold addresses."""
    return tuple(i.at for i in decode(program.code) if _address(i) is not None)


def addresses(program: ProgramImage) -> Iterator[int]:
    """The addresses in a program, in program order."""
    for instruction in decode(program.code):
        found = _address(instruction)
        if found is not None:
            yield found


def _address(instruction: Instruction) -> int | None:
    if instruction.name != "CONST":
        return None
    _, low, high = instruction.operands
    value = constant_value(low, high)
    return value if value >= ADDRESSES else None


def move_constants(
    program: ProgramImage, words: Sequence[int], moved: Callable[[int], int]
) -> ProgramImage:
    """The program with `moved` applied to the values of the `CONST` instructions at `words`.

    Raises:
        ValueError: there is none at one of them.
    """
    code = list(program.code)
    for at in words:
        instruction = next(decode(code[at : at + 4])) if 0 <= at < len(code) else None
        if instruction is None or instruction.name != "CONST":
            raise ValueError(f"word {at} is not a CONST")
        register, low, high = instruction.operands
        code[at : at + 4] = encode_constant(register, moved(constant_value(low, high)))
    return replace(program, code=tuple(code))


def fill_from_splats(program: ProgramImage, pool: RodataPool) -> ProgramImage:
    """The program with each copy of a constant that repeats four bytes replaced by a fill.

    No word changes its place. An address that nothing reads any more becomes 0.
    """
    code = list(program.code)
    instructions = list(decode(code))
    written = Counter(v for i in instructions for v in _operands(i, Operand.TARGET))
    held = {
        i.operands[0]: address
        for i in instructions
        if (address := _address(i)) is not None and written[i.operands[0]] == 1
    }
    for instruction in instructions:
        if instruction.name != "COPY":
            continue
        to, to_offset, source, source_offset, size = instruction.operands
        pattern = None
        if source == CONSTANTS and source_offset in held:
            pattern = _pattern(*pool.bytes_at(held[source_offset]))
        if pattern is not None:
            fill = encode("FILL", to, to_offset, size, pattern)
            code[instruction.at : instruction.at + 6] = [*fill, *encode("NOP")]
    read = {v for i in decode(code) for v in _operands(i, Operand.REGISTER)}
    for instruction in instructions:
        if _address(instruction) is not None and instruction.operands[0] not in read:
            at = instruction.at
            code[at : at + 4] = encode_constant(instruction.operands[0], 0)
    return replace(program, code=tuple(code))


def _operands(instruction: Instruction, wanted: Operand) -> Iterator[int]:
    for value, kind in zip(instruction.operands, instruction.kinds, strict=True):
        if kind is wanted:
            yield value


def _pattern(data: Data, distance: int) -> int | None:
    """The four bytes that `data` repeats from `distance` on, as a number; None if it does not
    repeat."""
    left = memoryview(data)[distance:]
    word = left[:4]
    if len(word) < 4 or not is_same(left[4:], left[:-4]):
        return None
    return int.from_bytes(word, "little")
