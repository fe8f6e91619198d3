"""What many addresses are counted from is hidden from loop strength reduction."""

from __future__ import annotations

from math import inf

import pytest

from aot.backends.cpu.assembler import PTR, Assembler, Type, Value, integer

I64 = Type("i64")


def text(count: int, many: float, *, in_entry: bool = False) -> str:
    """A block with `count` addresses at known distances from one at an unknown distance."""
    asm = Assembler()
    if not in_entry:
        asm.enter(asm.block("loop"))
    start = asm.offset(Value("%base", PTR), Value("%i", I64))
    for n in range(1, count + 1):
        asm.offset(start, integer(64 * n, I64))
        asm.offset(start, integer(64 * n, I64))  # again: the same address
    if in_entry:
        asm.alloca(I64, 1, 8)
    return "\n".join(asm.current.text(many))


@pytest.mark.parametrize(("count", "is_frozen"), [(0, False), (3, False), (4, True), (9, True)])
def test_what_many_are_counted_from_is_frozen(count: int, is_frozen: bool) -> None:
    found = text(count, 4)
    assert (
        "%v2.open = getelementptr i8, ptr %base, i64 %i\n  %v2 = freeze ptr %v2.open" in found
    ) == is_frozen
    assert found.count("getelementptr i8, ptr %v2, ") == count
    assert "freeze" not in text(count, inf)


def test_the_entry_is_left_alone() -> None:
    found = text(9, 4, in_entry=True)
    assert "freeze" not in found
    assert found.startswith("%slot")
