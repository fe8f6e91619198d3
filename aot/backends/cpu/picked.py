"""Elements of two vectors that lanes pick by numbers, as one instruction of AVX-512 does. Owns
which loads are such, and what they become."""

from __future__ import annotations

from aot.backends.cpu.assembler import Type, Value
from aot.backends.cpu.memory import Memory
from aot.ir.expr import Cast, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space

# lanes of a vector of 512 bits
LANES = 16


def is_picked(memory: Memory, load: Load) -> bool:
    """Whether lanes choose by numbers of 32 bits among scratch that is as large as two vectors."""
    source = load.source
    if not isinstance(source, Scratch) or source.shape != (2 * LANES,) or load.guard is not None:
        return False
    if source.space is not Space.WORKGROUP or not source.dtype is load.dtype is DType.F32:
        return False
    (index,) = load.indices
    has_instruction = memory.traits.target.has("avx512f") and memory.lanes.count == LANES
    return has_instruction and isinstance(index, Cast) and index.a.dtype is DType.I32


def picked(memory: Memory, load: Load) -> Value | None:
    """The elements of such a load; None where all lanes choose the same."""
    assert isinstance(load.source, Scratch) and isinstance(load.indices[0], Cast)
    numbers = memory.evaluate(load.indices[0].a)
    if not isinstance(numbers, Value) or numbers.type.lanes != LANES:
        return None
    asm, vector = memory.asm, Type("float", LANES)
    base, metadata = memory.base(load.source), memory.metadata(load.source, is_load=True)
    low, high = (
        asm.load(vector, asm.offset(base, memory.lanes.constant(at)), 4, metadata)
        for at in (0, 4 * LANES)
    )
    return asm.call("llvm.x86.avx512.vpermi2var.ps.512", vector, [low, numbers, high])
