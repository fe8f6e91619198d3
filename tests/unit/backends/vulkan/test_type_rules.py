"""Types of the operands of SPIR-V's instructions: the emitter refuses what spirv-val does, no more.

spirv-val has not read our rules: an operand of a valid shader is replaced by another id; where
it then complains of types our check must, and where our check does, spirv-val must complain.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable

import pytest

import aot
from aot.backends.vulkan.assembler import Assembler, FunctionBody
from aot.backends.vulkan.spirv import Op
from aot.backends.vulkan.type_rules import check_types, instructions
from aot.errors import InternalError
from aot.target.files import names
from tests.support.samples_module import samples_module
from tests.support.vulkan_running import validate

SEED = int(os.environ.get("AOT_SHADER_SEED") or random.SystemRandom().randrange(1 << 31))
GPUS = [name for name in names() if aot.target.selection.load(name).gpu is not None]
MUTANTS, FEW = 4000, 250
# what spirv-val says where an operand has a type that its instruction does not take
ABOUT_TYPES = ("expected", "type", "components", "bit width", "pointer", "operand")
HEADER_WORDS = 5


def shaders_of(target: str) -> list[bytes]:
    """Each shader of all ops' samples once; what no GPU runs a CPU does."""
    module = aot.compile(samples_module(), targets=[target, "x86-64-v2"])
    (variant,) = (v for v in module.image.variants if v.target == target)
    return list(dict.fromkeys(s for e in variant.executables for s in e.shaders))


def parts(shader: bytes) -> tuple[list[int], list[int]]:
    """(declarations, function) of a shader, as words."""
    words = list(struct.unpack(f"<{len(shader) // 4}I", shader))[HEADER_WORDS:]
    found: list[int] = []
    for op, operands in instructions(words):
        if op is Op.FUNCTION:
            return found, words
        size = len(operands) + 1
        if op.name.startswith(("TYPE_", "CONSTANT", "VARIABLE")):
            found += words[:size]
        words = words[size:]
    raise AssertionError("a shader without a function")


def is_refused(shader: bytes) -> bool:
    try:
        check_types(*parts(shader))
    except InternalError:
        return True
    return False


def complaint(shader: bytes) -> str:
    """The first line of what spirv-val says; "" where a shader is valid."""
    try:
        validate(shader)
    except AssertionError as error:
        return str(error).splitlines()[0].lower()
    return ""


def mutant(shader: bytes, rng: random.Random) -> bytes:
    """The shader with one operand of an instruction of its function replaced by another id that is
    defined before."""
    words = list(struct.unpack(f"<{len(shader) // 4}I", shader))
    at, defined, places = HEADER_WORDS, list[int](), list[tuple[int, int]]()
    is_inside = False
    while at < len(words):
        count, op = words[at] >> 16, Op(words[at] & 0xFFFF)
        is_inside |= op is Op.LABEL
        has_result = op in _MUTATED
        if is_inside and has_result:
            places += [(n, len(defined)) for n in range(at + 3, at + count)]
        if has_result or op in (Op.CONSTANT, Op.CONSTANT_TRUE, Op.CONSTANT_FALSE, Op.LOAD):
            defined.append(words[at + 2])
        at += count
    place, known = rng.choice(places)
    words[place] = rng.choice(defined[:known])
    return struct.pack(f"<{len(words)}I", *words)


_MUTATED = frozenset(
    {
        *(Op.I_ADD, Op.I_SUB, Op.I_MUL, Op.F_ADD, Op.F_SUB, Op.F_MUL, Op.F_DIV, Op.F_NEGATE),
        *(Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR, Op.SHIFT_LEFT_LOGICAL, Op.SELECT),
        *(Op.SHIFT_RIGHT_LOGICAL, Op.SHIFT_RIGHT_ARITHMETIC, Op.I_EQUAL, Op.I_NOT_EQUAL),
        *(Op.S_LESS_THAN, Op.U_LESS_THAN, Op.F_ORD_LESS_THAN, Op.LOGICAL_AND, Op.LOGICAL_OR),
        *(Op.LOGICAL_NOT, Op.U_CONVERT, Op.S_CONVERT, Op.F_CONVERT, Op.CONVERT_F_TO_S),
        *(Op.CONVERT_S_TO_F, Op.CONVERT_F_TO_U, Op.BITCAST, Op.BIT_FIELD_S_EXTRACT),
        *(Op.BIT_FIELD_U_EXTRACT,),
    }
)


def check_mutants(shaders: list[bytes], seed: int, count: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for number in range(count):
        changed = mutant(rng.choice(shaders), rng)
        said = complaint(changed)
        is_about_types = any(word in said for word in ABOUT_TYPES)
        assert is_refused(changed) == is_about_types, f"mutant {number} of seed {seed}: {said}"
        refused += is_about_types
    assert refused > count // 5


@pytest.fixture(scope="module")
def narrow() -> list[bytes]:
    """The shaders of a target that computes in bytes and f16."""
    return shaders_of("mali-valhall-fp16")


def test_all_samples_of_a_target_with_native_bytes_are_valid(narrow: list[bytes]) -> None:
    """Products of bytes were multiplied in 32 bits as they were loaded, in 8."""
    assert len(narrow) > 300
    for shader in narrow:
        validate(shader)


def test_operands_that_spirv_val_refuses_are_refused(narrow: list[bytes]) -> None:
    check_mutants(narrow, 1, FEW)


@pytest.mark.gate
def test_validity_with_a_new_seed(narrow: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants, and all samples of a target by chance."""
    with capsys.disabled():
        print(f"\nshaders: AOT_SHADER_SEED={SEED}")
    check_mutants(narrow, SEED, 2 * FEW)
    for shader in shaders_of(random.Random(SEED).choice(GPUS)):
        validate(shader)


@pytest.mark.sweep
@pytest.mark.parametrize("target", GPUS)
def test_all_samples_are_valid(target: str) -> None:
    for shader in shaders_of(target):
        validate(shader)


@pytest.mark.sweep
@pytest.mark.parametrize("target", GPUS)
def test_many_operands_that_spirv_val_refuses_are_refused(target: str) -> None:
    check_mutants(shaders_of(target), 2, MUTANTS)


def _shader(write: Callable[[Assembler, FunctionBody], None]) -> bytes:
    asm = Assembler()
    body = FunctionBody(asm)
    write(asm, body)
    return asm.finish(body, (1, 1, 1))


def test_a_wrong_type_is_an_internal_error_that_names_both() -> None:
    def bytes_in_words(asm: Assembler, body: FunctionBody) -> None:
        byte = body.result(Op.U_CONVERT, asm.integer(8), asm.constant(asm.u32, 300))
        body.result(Op.I_MUL, asm.u32, byte, asm.constant(asm.u32, 2))

    with pytest.raises(
        InternalError, match="I_MUL does not take these types: .*integer32.*integer8"
    ):
        _shader(bytes_in_words)


def test_what_nothing_defines_is_an_internal_error() -> None:
    def undefined(asm: Assembler, body: FunctionBody) -> None:
        body.result(Op.I_ADD, asm.u32, asm.constant(asm.u32, 1), asm.fresh_id())

    with pytest.raises(InternalError, match="nothing defines the operand"):
        _shader(undefined)
