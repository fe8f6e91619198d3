"""Shaders as the least exact driver that Vulkan allows would run them, by other SPIR-V.

Where the specification leaves a driver a choice, another choice is written out, in instructions
of which all drivers make the same: division and square root by the ulp that they may be off, a
fused product in two steps, comparisons and clamps as they may come out of a NaN. What a module
computes must not depend on it. Knows SPIR-V by its specification, and nothing of our emitter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aot.link import module as modules
from aot.link.reader import read_module

HEADER_WORDS = 5
EXT_INST, CONSTANT, CONSTANT_COMPOSITE, FUNCTION = 12, 43, 44, 54
TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR = 20, 21, 22, 23
BITCAST, I_ADD, F_ADD, I_SUB, F_MUL, F_DIV = 124, 128, 129, 130, 133, 136
SELECT, U_LESS_THAN, BITWISE_AND = 169, 176, 199
SQRT, FMA = 31, 50
# A comparison that is false of a NaN, and the one that is true: "ordered" and "unordered".
FIRST_COMPARISON, LAST_COMPARISON = 180, 191
# Of GLSL.std.450: extrema and clamp that may drop a NaN, as those that do.
NUMBERS_ONLY = {37: 79, 40: 80, 43: 81}
# The ulp by which a quotient may be off are 2.5, and half of one is its own rounding.
QUOTIENT_ULP = 2
# A square root may be off by about 4.5 ulp, as 1 / inversesqrt(x) is; these are 2 to 4.
UP, DOWN = 1 + 2.0**-22, 1 - 2.0**-22
LEAST_NORMAL, INFINITY, MAGNITUDE = 0x00800000, 0x7F800000, 0x7FFFFFFF


@dataclass
class Shader:
    """The instructions of a shader, to which constants may be added.

    Attributes:
        bound: one more than the largest id.
        floats: the width of each type of floats.
        words: types of words that are not floats: "bool", "u32".
        vectors: (type of an element, count) of each type of vectors.
        constants: ids of constants that were added, by type and value.
        added: their instructions, which go before the first function.
    """

    bound: int
    floats: dict[int, int] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    vectors: dict[int, tuple[int, int]] = field(default_factory=dict)
    constants: dict[tuple[int, float], int] = field(default_factory=dict)
    added: list[int] = field(default_factory=list)

    def fresh(self) -> int:
        self.bound += 1
        return self.bound - 1

    def note(self, opcode: int, operands: list[int]) -> None:
        """Remembers a type that an instruction declares."""
        if opcode == TYPE_FLOAT:
            self.floats[operands[0]] = operands[1]
        elif opcode == TYPE_VECTOR:
            self.vectors[operands[0]] = (operands[1], operands[2])
        elif opcode == TYPE_BOOL:
            self.words["bool"] = operands[0]
        elif opcode == TYPE_INT and operands[1:] == [32, 0]:
            self.words["u32"] = operands[0]

    def word(self, name: str) -> int:
        """The type "bool" or "u32"."""
        if name not in self.words:
            made = self.words[name] = self.fresh()
            operands = (TYPE_BOOL, made) if name == "bool" else (TYPE_INT, made, 32, 0)
            self.added += instruction(*operands)
        return self.words[name]

    def bits(self, value: int) -> int:
        """The id of a constant of u32."""
        key = (self.word("u32"), value)
        if key not in self.constants:
            self.constants[key] = self.fresh()
            self.added += instruction(CONSTANT, key[0], self.constants[key], value & 0xFFFFFFFF)
        return self.constants[key]

    def constant(self, type: int, value: float) -> int | None:
        """The id of a constant of f32, or of a vector of these; None of other types."""
        key = (type, value)
        if key in self.constants:
            return self.constants[key]
        if self.floats.get(type) == 32:
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
            operands = [bits]
            opcode = CONSTANT
        elif type in self.vectors:
            element, count = self.vectors[type]
            one = self.constant(element, value)
            if one is None:
                return None
            operands, opcode = [one] * count, CONSTANT_COMPOSITE
        else:
            return None
        made = self.constants[key] = self.fresh()
        self.added += instruction(opcode, type, made, *operands)
        return made


def instruction(opcode: int, *operands: int) -> list[int]:
    return [(len(operands) + 1) << 16 | opcode, *operands]


Adversary = Callable[[Shader, int, list[int]], list[int] | None]
"""Words in place of an instruction of an opcode and operands; None: it stays."""


def scaled(factor: float, number: int) -> Adversary:
    """Results in f32 of an instruction of GLSL.std.450, by its number, times a factor."""

    def change(shader: Shader, opcode: int, operands: list[int]) -> list[int] | None:
        if opcode != EXT_INST or operands[3] != number:
            return None
        type, result = operands[:2]
        by = shader.constant(type, factor)
        if by is None:
            return None
        exact = shader.fresh()
        return [
            *instruction(opcode, type, exact, *operands[2:]),
            *instruction(F_MUL, type, result, exact, by),
        ]

    return change


def off_by(ulp: int) -> Adversary:
    """Quotients in f32 with a magnitude so many ulp larger, where that is a normal number."""

    def change(shader: Shader, opcode: int, operands: list[int]) -> list[int] | None:
        if opcode != F_DIV or shader.floats.get(operands[0]) != 32:
            return None
        type, result = operands[:2]
        u32, boolean = shader.word("u32"), shader.word("bool")
        exact, bits, size, above, is_normal, moved, inexact = (shader.fresh() for _ in range(7))
        first = LEAST_NORMAL + abs(ulp)
        span = INFINITY - abs(ulp) - first
        return [
            *instruction(F_DIV, type, exact, *operands[2:]),
            *instruction(BITCAST, u32, bits, exact),
            *instruction(BITWISE_AND, u32, size, bits, shader.bits(MAGNITUDE)),
            *instruction(I_SUB, u32, above, size, shader.bits(first)),
            *instruction(U_LESS_THAN, boolean, is_normal, above, shader.bits(span)),
            *instruction(I_ADD, u32, moved, bits, shader.bits(ulp)),
            *instruction(BITCAST, type, inexact, moved),
            *instruction(SELECT, type, result, is_normal, inexact, exact),
        ]

    return change


def unfused(shader: Shader, opcode: int, operands: list[int]) -> list[int] | None:
    """A fused product is rounded before its sum."""
    if opcode != EXT_INST or operands[3] != FMA:
        return None
    type, result, _, _, a, b, c = operands
    product = shader.fresh()
    return [*instruction(F_MUL, type, product, a, b), *instruction(F_ADD, type, result, product, c)]


def without_nan(shader: Shader, opcode: int, operands: list[int]) -> list[int] | None:
    """As if no NaN occurred: a comparison of one comes out the other way, extrema drop it."""
    if FIRST_COMPARISON <= opcode <= LAST_COMPARISON:
        return instruction(opcode ^ 1, *operands)
    if opcode == EXT_INST and operands[3] in NUMBERS_ONLY:
        return instruction(opcode, *operands[:3], NUMBERS_ONLY[operands[3]], *operands[4:])
    return None


ADVERSARIES: dict[str, Adversary] = {
    "division-up": off_by(QUOTIENT_ULP),
    "division-down": off_by(-QUOTIENT_ULP),
    "sqrt-up": scaled(UP, SQRT),
    "sqrt-down": scaled(DOWN, SQRT),
    "unfused": unfused,
    "without-nan": without_nan,
}


def instructions(words: tuple[int, ...]) -> Iterator[tuple[int, list[int]]]:
    """The opcode and operands of each instruction of a shader's words."""
    at = HEADER_WORDS
    while at < len(words):
        count = words[at] >> 16
        yield words[at] & 0xFFFF, list(words[at + 1 : at + count])
        at += count


def changed(spirv: bytes, adversary: Adversary) -> bytes:
    """The shader with the instructions that an adversary has in place of some."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    shader = Shader(words[3])
    before: list[int] = []
    behind: list[int] = []
    into = before
    for opcode, operands in instructions(words):
        shader.note(opcode, operands)
        if opcode == FUNCTION:
            into = behind
        found = adversary(shader, opcode, operands)
        into += instruction(opcode, *operands) if found is None else found
    made = [*words[:3], shader.bound, words[4], *before, *shader.added, *behind]
    return struct.pack(f"<{len(made)}I", *made)


Patch = Callable[[bytes], bytes]


def adversarial(module: bytes, *names: str, patches: Sequence[Patch] = ()) -> bytes:
    """A module whose shaders run as the adversaries of these names, and then patches, have them."""
    changes = [*(partial(changed, adversary=ADVERSARIES[name]) for name in names), *patches]
    image = read_module(module)
    return modules.module_bytes(
        replace(image, variants=tuple(_variant(v, changes) for v in image.variants))
    )


def shaders_of(module: bytes) -> list[bytes]:
    """All shaders of a module."""
    variants = read_module(module).variants
    return [s for v in variants for e in v.executables for s in e.shaders]


def _variant(variant: Any, patches: Sequence[Patch]) -> Any:
    executables = []
    for executable in variant.executables:
        shaders = {"spirv": executable.spirv, "texel_spirv": executable.texel_spirv}
        for kind, spirv in shaders.items():
            for patch in patches:
                spirv = None if spirv is None else patch(spirv)
            shaders[kind] = spirv
        executables.append(replace(executable, **shaders))
    return replace(variant, executables=tuple(executables))
