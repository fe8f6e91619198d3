"""Loads by AVX-512's two-vector permute: lanes select elements of two vectors by index. Finds such
loads, and emits them."""

from __future__ import annotations

from aot.backends.cpu.addresses import from_memory
from aot.backends.cpu.assembler import Type, Value
from aot.backends.cpu.memory import Memory
from aot.ir.expr import Binary, Cast, Const, Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space

# by bytes of an element: numbers of lanes, the instruction, and the type it has for elements
_BY_BYTES = {
    1: (DType.I8, "qi", Type("i8", 64)),
    2: (DType.I16, "hi", Type("i16", 32)),
    4: (DType.I32, "d", Type("i32", 16)),
}


def is_picked(memory: Memory, load: Load) -> bool:
    """Whether a load selects by index, as wide as an element, from scratch as large as two
    vectors."""
    source = load.source
    if not isinstance(source, Scratch) or source.space is not Space.PRIVATE:
        return False
    if source.dtype is not load.dtype or load.guard is not None:
        return False
    if not memory.traits.target.picks_lanes(source.dtype.bytes):
        return False
    numbers, _, vector = _BY_BYTES[source.dtype.bytes]
    (index, *others) = load.indices
    is_by_lane = isinstance(index, Cast) and index.a.dtype is numbers and not others
    is_pair = source.shape == (2 * vector.lanes,)
    return is_by_lane and is_pair and memory.lanes.count == vector.lanes


def picked(memory: Memory, load: Load) -> Value | None:
    """The elements that lanes select from two vectors, by one instruction; None where all lanes
    select the same.
    """
    assert isinstance(load.source, Scratch) and isinstance(load.indices[0], Cast)
    dtype = load.source.dtype
    _, name, vector = _BY_BYTES[dtype.bytes]
    numbers = memory.evaluate(_unmasked(load.indices[0].a, vector.lanes))
    if not isinstance(numbers, Value) or numbers.type.lanes != vector.lanes:
        return None
    asm = memory.asm
    base, metadata = memory.addresses.base(load.source), memory.metadata(load.source, is_load=True)
    element = memory.traits.memory_element(dtype)
    if element == "float":
        name, vector = "ps", Type(element, vector.lanes)
    low, high = (
        asm.load(vector, asm.offset(base, memory.lanes.constant(at)), dtype.bytes, metadata)
        for at in (0, dtype.bytes * vector.lanes)
    )
    found = asm.call(f"llvm.x86.avx512.vpermi2var.{name}.512", vector, [low, numbers, high])
    found = (
        found if vector.element == element else asm.bitcast_to(found, Type(element, vector.lanes))
    )
    return from_memory(asm, found, dtype)


def _unmasked(number: Expr, lanes: int) -> Expr:
    """Lane indices without a mask of the low bits, which the instruction ignores anyway."""
    match number:
        case Binary(op="and", a=whole, b=Const(value=mask)) if mask == 2 * lanes - 1:
            return whole
    return number
