"""Instructions of a module's program: how they are put into words, taken apart and checked.

Owns what Python knows of the instruction set; numbers and meanings are those of module.fbs. Runs
nothing: that is the runtime's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from aot.errors import InternalError
from aot.link import module_fbs as fbs

Opcode = IntEnum(  # type: ignore[misc]  # the members are the schema's
    "Opcode", {n: v for n, v in vars(fbs.Opcode).items() if isinstance(v, int)}
)


class Operand(Enum):
    """What an operand's word means."""

    REGISTER = "register"
    TARGET = "register that is written"
    BLOCK = "block"
    INPUT = "input"
    OUTPUT = "output"
    AXIS = "axis"
    MESSAGE = "message"
    BUFFER = "buffer"
    CLASS = "class"
    DTYPE = "dtype"
    EXECUTABLE = "executable"
    STATE = "state"
    BITS = "bits"


_KINDS = {
    "rd": Operand.TARGET,
    **dict.fromkeys(("ra", "rb", "rc", "rx", "ry", "rz", "ro", "rdo", "rso"), Operand.REGISTER),
    **dict.fromkeys(("rsize", "rp"), Operand.REGISTER),
    **dict.fromkeys(("b", "btrue", "bfalse"), Operand.BLOCK),
    **dict.fromkeys(("class", "dclass", "sclass"), Operand.CLASS),
    **dict.fromkeys(("lo", "hi", "pattern"), Operand.BITS),
    **{k.value: k for k in (Operand.INPUT, Operand.OUTPUT, Operand.AXIS, Operand.MESSAGE)},
    **{k.value: k for k in (Operand.BUFFER, Operand.DTYPE, Operand.EXECUTABLE, Operand.STATE)},
}

# Operands by name, as module.fbs writes them; "rp..." is any number of registers.
SIGNATURES: dict[str, str] = {
    "NOP": "",
    "CONST": "rd lo hi",
    "MOVE": "rd ra",
    "INPUT_DIM": "rd input axis",
    "OUTPUT_DIM": "output axis ra",
    **dict.fromkeys(("ADD", "SUB", "MUL", "FLOORDIV", "FLOORMOD", "MIN", "MAX"), "rd ra rb"),
    **dict.fromkeys(("EQ", "NE", "LT", "LE", "AND", "OR"), "rd ra rb"),
    "SELECT": "rd rc ra rb",
    "CHECK": "rc message rp...",
    "BUFFER": "buffer ra",
    "LOAD": "rd class ra dtype",
    "DISPATCH": "executable rx ry rz rp...",
    "COPY": "dclass rdo sclass rso rsize",
    "FILL": "class ro rsize pattern",
    "JUMP": "b",
    "BRANCH": "rc btrue bfalse",
    "RETURN": "",
    "STATE": "rd state",
    "SET_STATE": "state ra",
    "STORE": "class ra rb dtype",
    **dict.fromkeys(("TO_HOST", "TO_DEVICE"), "class ro rsize"),
    "BESIDE": "",
}
TERMINATORS = frozenset({"JUMP", "BRANCH", "RETURN"})
# What reads or writes memory.
TOUCHES = frozenset({"LOAD", "STORE", "DISPATCH", "COPY", "FILL", "TO_HOST", "TO_DEVICE"})
MAX_INSTRUCTION_WORDS = (1 << 24) - 1


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction; `at` is the index of its first word in the code."""

    at: int
    name: str
    operands: tuple[int, ...]

    @property
    def kinds(self) -> tuple[Operand, ...]:
        """What each operand means."""
        names = SIGNATURES[self.name].split()
        kinds = [_KINDS[name.removesuffix("...")] for name in names]
        if names and names[-1].endswith("..."):
            kinds += [kinds[-1]] * (len(self.operands) - len(kinds))
        return tuple(kinds[: len(self.operands)])


def encode(name: str, *operands: int) -> tuple[int, ...]:
    """The words of one instruction.

    Raises:
        InternalError: there is no such instruction, it takes another number of operands, or one
            does not fit its word.
    """
    if name not in SIGNATURES:
        raise InternalError(f"no instruction is called {name!r}")
    fixed, is_open = _arity(name)
    if len(operands) < fixed or (len(operands) > fixed and not is_open):
        raise InternalError(f"{name} takes {fixed} operands, got {len(operands)}")
    for operand in operands:
        if not 0 <= operand < 1 << 32:
            raise InternalError(f"operand {operand} of {name} does not fit 32 bits")
    length = 1 + len(operands)
    if length > MAX_INSTRUCTION_WORDS:
        raise InternalError(f"{name} with {len(operands)} operands is too long")
    return (int(Opcode[name]) | length << 8, *operands)


def encode_constant(register: int, value: int) -> tuple[int, ...]:
    """`CONST` for a signed 64-bit value."""
    if not -(1 << 63) <= value < 1 << 63:
        raise InternalError(f"constant {value} does not fit 64 bits")
    bits = value & ((1 << 64) - 1)
    return encode("CONST", register, bits & 0xFFFFFFFF, bits >> 32)


def constant_value(low: int, high: int) -> int:
    """The signed value that `CONST rd low high` sets."""
    bits = low | high << 32
    return bits - (1 << 64) if bits >> 63 else bits


def decode(code: Sequence[int]) -> Iterator[Instruction]:
    """The instructions of a program's words.

    Raises:
        ValueError: a word is no opcode, or a length is wrong.
    """
    names = {int(opcode): opcode.name for opcode in Opcode}
    at = 0
    while at < len(code):
        word = code[at]
        name, length = names.get(word & 0xFF), word >> 8
        if name is None:
            raise ValueError(f"word {at} has opcode {word & 0xFF}, which there is not")
        fixed, is_open = _arity(name)
        count = length - 1
        if count < fixed or (count > fixed and not is_open) or at + length > len(code):
            raise ValueError(f"word {at}: {name} with a length of {length} words")
        yield Instruction(at, name, tuple(int(w) for w in code[at + 1 : at + length]))
        at += length


def _arity(name: str) -> tuple[int, bool]:
    names = SIGNATURES[name].split()
    is_open = bool(names) and names[-1].endswith("...")
    return len(names) - is_open, is_open


def check_structure(
    code: Sequence[int], blocks: Sequence[int], limits: dict[Operand, int]
) -> list[Instruction]:
    """Decodes a program and checks what needs no run: lengths, blocks and operand ranges.

    `limits` holds, for each kind of operand that has one, the number of things there are.

    Raises:
        ValueError: the first thing that is wrong.
    """
    instructions = list(decode(code))
    starts = {i.at for i in instructions}
    if not blocks or blocks[0] != 0 or list(blocks) != sorted(set(blocks)):
        raise ValueError("blocks do not start at word 0 and ascend")
    for number, start in enumerate(blocks):
        if start not in starts:
            raise ValueError(f"block {number} starts inside an instruction")
    limits = {**limits, Operand.BLOCK: len(blocks), Operand.CLASS: 4}
    if Operand.REGISTER in limits:
        limits[Operand.TARGET] = limits[Operand.REGISTER]
    ends = set(blocks[1:]) | {len(code)}
    for instruction, follower in zip(instructions, [*instructions[1:], None], strict=True):
        for operand, kind in zip(instruction.operands, instruction.kinds, strict=True):
            if operand >= limits.get(kind, 1 << 32):
                raise ValueError(
                    f"word {instruction.at}: {instruction.name} names {kind.value} {operand}, "
                    f"there are {limits[kind]}"
                )
        is_last = (len(code) if follower is None else follower.at) in ends
        if is_last != (instruction.name in TERMINATORS):
            problem = "ends a block" if is_last else "stands inside a block"
            raise ValueError(f"word {instruction.at}: {instruction.name} {problem}")
        is_dispatch = follower is not None and follower.name == "DISPATCH"
        if instruction.name == "BESIDE" and not is_dispatch:
            raise ValueError(f"word {instruction.at}: no DISPATCH stands behind BESIDE")
    return instructions
