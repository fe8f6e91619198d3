"""Lookups in 256-byte tables, a vector of 8-bit indices at a time.

Owns the instructions that a target has for it; `Target.looks_up_bytes` says whether it has any.
"""

from __future__ import annotations

from aot.backends.cpu.assembler import Assembler, Type, Value, integer

# bytes of a register, and numbers of 8 bits
_BYTES, ENTRIES = 64, 256


def lookup(asm: Assembler, table: Value, numbers: Value, metadata: str) -> Value:
    """The entries of the 256-byte table at `table` for the vector `numbers`, by AVX-512 VBMI.

    An instruction chooses among the 128 bytes of two registers by 7 bits; the 8th chooses between
    the halves of the table.
    """
    lanes = numbers.type.lanes
    if lanes > _BYTES:
        half = lanes // 2
        low, high = (asm.shuffle(numbers, numbers, range(n, n + half)) for n in (0, half))
        return asm.concat([lookup(asm, table, part, metadata) for part in (low, high)])
    register = Type("i8", _BYTES)
    entries = [
        asm.load(register, asm.offset(table, integer(at, Type("i64"))), 1, metadata)
        for at in range(0, ENTRIES, _BYTES)
    ]
    wide = numbers
    if lanes < _BYTES:
        wide = asm.shuffle(numbers, numbers, [*range(lanes), *[-1] * (_BYTES - lanes)])
    halves: list[Value] = []
    for low, high in (entries[:2], entries[2:]):
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        chosen = asm.call(name, register, [low, wide, high])
        halves.append(asm.shuffle(chosen, chosen, range(lanes)) if lanes < _BYTES else chosen)
    is_upper = asm.icmp("slt", numbers, integer(0, numbers.type))
    return asm.select(is_upper, halves[1], halves[0])
