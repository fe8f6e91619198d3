"""Checks that the runtime would accept a module's contents, including each word of its programs.

What must hold of instructions is generated from runtime/module_rules.toml, for the runtime too.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from aot.errors import InternalError
from aot.link import module_fbs as fbs
from aot.link.image import (
    Arch,
    Device,
    EntryPointImage,
    ExecutableImage,
    ModuleImage,
    ProgramImage,
    VariantImage,
)
from aot.link.module_schema import INSTRUCTION_RULES, INSTRUCTIONS, OPERANDS, Signature
from aot.link.program import Opcode
from aot.link.rodata import ALIGNMENT


def check_image(image: ModuleImage) -> None:
    """Raises an InternalError if the runtime would refuse the module.

    Raises:
        InternalError: the first thing that is wrong and where it stands.
    """
    if not image.variants:
        raise InternalError("module has no variant")
    for segment in image.rodata_segments:
        end = segment.offset + segment.length
        if segment.offset < 0 or end > len(image.rodata) or segment.offset % segment.alignment:
            raise InternalError(f"rodata segment {segment} is outside the pool or misaligned")
    for variant in image.variants:
        where = f"variant {variant.target!r}"
        _check_variant(variant, where)
        for executable in variant.executables:
            _check_executable(executable, variant, f"{where}, executable {executable.name!r}")
        names = [e.name for e in variant.entry_points]
        if not names or len(set(names)) != len(names):
            raise InternalError(f"{where}: entry points {names} are none or not distinct")
        for entry in variant.entry_points:
            _check_entry_point(entry, variant, f"{where}, entry point {entry.name!r}")


def _check_variant(variant: VariantImage, where: str) -> None:
    page = variant.page_bytes
    if variant.word_bytes not in (4, 8):
        raise InternalError(f"{where}: parameter words of {variant.word_bytes} bytes")
    if variant.code and (page < ALIGNMENT or page & (page - 1)):
        raise InternalError(f"{where}: pages of {page} bytes")
    if (variant.device is Device.CPU) != (variant.arch is not Arch.NONE):
        raise InternalError(f"{where}: device {variant.device} with arch {variant.arch}")
    host = variant.host
    if host is None:
        return
    if variant.device is Device.CPU or host.arch is Arch.NONE or host.word_bytes not in (4, 8):
        raise InternalError(
            f"{where}: on {variant.device} with a host of {host.arch}, whose parameter words have "
            f"{host.word_bytes} bytes"
        )


def _check_executable(executable: ExecutableImage, variant: VariantImage, where: str) -> None:
    if variant.device is Device.VULKAN and not variant.is_cpu_fallback(executable):
        if not executable.spirv or len(executable.spirv) % 4:
            raise InternalError(f"{where}: no SPIR-V, or not whole words")
        if executable.texel_spirv is not None and len(executable.texel_spirv) % 4:
            raise InternalError(f"{where}: SPIR-V of texels is not whole words")
    elif executable.shaders:
        raise InternalError(f"{where}: SPIR-V in a CPU variant")
    elif not 0 <= executable.code_offset < len(variant.code):
        raise InternalError(f"{where}: code offset {executable.code_offset} is outside the image")


def _check_entry_point(entry: EntryPointImage, variant: VariantImage, where: str) -> None:
    program = entry.program
    for tensors, registers in (
        (entry.inputs, program.input_offset_registers),
        (entry.outputs, program.output_offset_registers),
    ):
        names = [t.name for t in tensors]
        if len(set(names)) != len(names):
            raise InternalError(f"{where}: names {names} are not distinct")
        if registers and len(registers) != len(tensors):
            raise InternalError(f"{where}: {len(registers)} offset registers for {len(names)}")
    written = [
        *program.input_offset_registers,
        *program.output_offset_registers,
        *(b.offset_register for b in program.buffers),
    ]
    if any(not 0 <= r < program.register_count for r in written):
        raise InternalError(f"{where}: an offset register is not below {program.register_count}")
    if not 0 < program.execute_block < len(program.blocks):
        raise InternalError(f"{where}: execute starts at block {program.execute_block}")
    if not 0 <= program.state_bytes <= program.arena_bytes:
        raise InternalError(
            f"{where}: a state of {program.state_bytes} bytes in a fixed part of "
            f"{program.arena_bytes}"
        )
    scratch = program.scratch_offset
    if scratch is not None and not (0 <= scratch <= program.arena_bytes and scratch % 64 == 0):
        raise InternalError(f"{where}: scratch at {scratch} of {program.arena_bytes} bytes")
    if not 0 <= program.state_key_count <= program.state_count:
        raise InternalError(
            f"{where}: {program.state_key_count} of {program.state_count} state scalars are keys"
        )
    try:
        check_program(program, entry, variant)
    except ProgramFault as error:
        raise InternalError(f"{where}: {error}") from error


# ---- programs ----


class ProgramFault(ValueError):
    """An error in a program, in the runtime's words, with the number of the code word."""

    def __init__(self, word: int, fault: str) -> None:
        super().__init__(f"word {word}: {fault}")


def check_program(program: ProgramImage, entry: EntryPointImage, variant: VariantImage) -> None:
    """Checks a program as the runtime does at load: lengths, operands, blocks, and which
    instruction may be in which part. Assumes that the fields' own rules hold.

    Raises:
        ProgramFault: the first thing that is wrong.
    """
    around = SimpleNamespace(program=program, entry=entry, variant=variant)
    around.is_gpu = variant.device is not Device.CPU
    around.scratch_offset = -1 if program.scratch_offset is None else program.scratch_offset
    ends = [*program.blocks[1:], len(program.code)]
    for number, (begin, end) in enumerate(zip(program.blocks, ends, strict=True)):
        if (number == 0 and begin != 0) or begin >= end or end > len(program.code):
            raise ProgramFault(begin, "blocks are not in ascending order from word 0")
        around.is_execute = number >= program.execute_block
        _check_block(program.code, begin, end, around)


_NAMES = {int(opcode): opcode.name for opcode in Opcode}


def _check_block(code: Sequence[int], begin: int, end: int, around: SimpleNamespace) -> None:
    at, is_ended = begin, False
    while at < end:
        if is_ended:
            raise ProgramFault(at, "an instruction follows the end of its block")
        name, length = _NAMES.get(code[at] & 0xFF), code[at] >> 8
        if name is None:
            raise ProgramFault(at, "no such instruction")
        if not 0 < length <= end - at:
            raise ProgramFault(at, "the instruction crosses its block")
        _check_operands(code, at, length, INSTRUCTIONS[name], around)
        follower = code[at + length] & 0xFF if at + length < end else None
        if name == "BESIDE" and follower != fbs.Opcode.DISPATCH:
            raise ProgramFault(at, "no dispatch stands behind the instruction")
        _check_instruction(code, at, length, name, around)
        is_ended = INSTRUCTIONS[name].is_terminator
        at += length
    if not is_ended:
        raise ProgramFault(end - 1, "the block has no terminator")


def _check_operands(
    code: Sequence[int], at: int, length: int, signature: Signature, around: SimpleNamespace
) -> None:
    used = 1
    for name in signature.operands:
        is_any_number = name.endswith("...")
        if used >= length and not is_any_number:
            raise ProgramFault(at, "the instruction is too short")
        rule = OPERANDS[name.removesuffix("...")]
        for place in range(at + used, at + (length if is_any_number else used + 1)):
            if not rule.holds(around, code[place]):
                raise ProgramFault(place, rule.fault)
            used += 1
        if name in ("input", "output"):
            tensors = around.entry.inputs if name == "input" else around.entry.outputs
            around.rank = len(tensors[code[at + used - 1]].dims)
    if used != length:
        raise ProgramFault(at, "the instruction is too long")


def _check_instruction(
    code: Sequence[int], at: int, length: int, name: str, around: SimpleNamespace
) -> None:
    if name == "DISPATCH":
        around.executable = around.variant.executables[code[at + 1]]
        around.param_count = length - 5
    for rule in INSTRUCTION_RULES:
        if name in rule.names and not rule.holds(around):
            raise ProgramFault(at, rule.fault)
    if INSTRUCTIONS[name].part not in ("", "execute" if around.is_execute else "prepare"):
        raise ProgramFault(at, "the instruction is not allowed in this part")
