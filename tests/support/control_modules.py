"""Modules whose runs a host has something to control of: many workgroups, and no end."""

from __future__ import annotations

from tests.support.runtime_modules import Assembler, ModuleFile, module, tensor

GROUPS = 400


def endless_module(part: str) -> ModuleFile:
    """A program whose prepare or execute part, or whose fills in it, never end."""
    asm = Assembler()
    asm.block()
    offset, size = asm.register(), asm.register(4)
    if part == "prepare":
        asm.emit("JUMP", 1)
        asm.block()
        asm.emit("JUMP", 1)
    else:
        asm.emit("RETURN")
    start = asm.execute()
    asm.emit("JUMP", start + 1)
    asm.block()
    if part == "fills":
        asm.emit("FILL", 3, offset, size, 0)
    asm.emit("JUMP", start + 1)
    program = asm.program(outputOffsetRegisters=[offset])
    return module(program, [], [tensor("y", "u32", 1)])


def counting_module() -> ModuleFile:
    """counts[i] = 3 for each of some workgroups, with scratch of their own."""
    asm = Assembler()
    asm.block()
    one, size, groups = asm.register(1), asm.register(2000), asm.register(GROUPS)
    zero_bytes, offset = asm.register(4 * GROUPS), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", 3, offset, zero_bytes, 0)
    for _ in range(3):
        asm.emit("DISPATCH", 0, groups, one, one, offset, size)
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=[offset])
    outputs = [tensor("counts", "u32", GROUPS)]
    return module(program, [], outputs, kernels=("private",), scratch_bytes=2000)
