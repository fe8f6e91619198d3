"""Encodes and decodes the instructions of a module's programs.

Owns what Python knows of the instruction set; numbers and meanings are those of module.fbs. Runs
nothing: that is the runtime's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.link import module_fbs as fbs
from aot.link.module_schema import INSTRUCTIONS, OPERANDS

Opcode = IntEnum(  # type: ignore[misc]  # the members are the schema's
    "Opcode", {n: v for n, v in vars(fbs.Opcode).items() if isinstance(v, int)}
)


class Operand(Enum):
    """The meaning of the word of an operand."""

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


# Operands by name, as module.fbs writes them; "rp..." is any number of registers.
SIGNATURES: dict[str, str] = {n: " ".join(i.operands) for n, i in INSTRUCTIONS.items()}
TERMINATORS = frozenset(n for n, i in INSTRUCTIONS.items() if i.is_terminator)
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
        """The meaning of each operand of the instruction."""
        names = SIGNATURES[self.name].split()
        kinds = [Operand(OPERANDS[name.removesuffix("...")].kind) for name in names]
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
    """The words of a `CONST` instruction for a signed 64-bit value."""
    if not -(1 << 63) <= value < 1 << 63:
        raise InternalError(f"constant {value} does not fit 64 bits")
    bits = value & ((1 << 64) - 1)
    return encode("CONST", register, bits & 0xFFFFFFFF, bits >> 32)


def constant_value(low: int, high: int) -> int:
    """The signed value that `CONST rd low high` sets."""
    bits = low | high << 32
    return bits - (1 << 64) if bits >> 63 else bits


def decode(code: Sequence[int]) -> Iterator[Instruction]:
    """Decodes the words of a program into instructions.

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
