"""Rounding to numbers of 8 and 16 bits on x86, whose conversion to i32 rounds to even.

Owns two forms of quantised numbers, `cast(round(x) + zero)`, and that minus `zero` as f32. Both
saturate before they round: bounds and zero point are integers, so that this changes no result.
Whoever evaluates expressions asks for them; what it has evaluated for the casts is left unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.backends.cpu.assembler import Assembler, Value, integer, real
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Unary
from aot.ir.types import DType

F32, I32 = DType.F32, DType.I32
_NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)


@dataclass(frozen=True)
class Quantised:
    """`cast(round(number) + cast(zero, F32), dtype)`.

    Attributes:
        zero: an integer of at most 16 bits; None for 0.
    """

    number: Expr
    zero: Expr | None
    dtype: DType

    @property
    def operands(self) -> Sequence[Expr]:
        return (self.number,) if self.zero is None else (self.number, self.zero)

    @property
    def bounds(self) -> tuple[int, int]:
        bits = self.dtype.bits
        low = -(1 << bits - 1) if self.dtype.is_signed else 0
        return low, low + (1 << bits) - 1


def quantised(e: Cast) -> Quantised | None:
    """What `e` quantises, if it does."""
    if e.dtype not in _NARROW or e.a.dtype is not F32:
        return None
    number: Expr = e.a
    zero: Expr | None = None
    if isinstance(number, Binary) and number.op == "add":
        added, number = number.b, number.a
        if not isinstance(added, Cast) or added.a.dtype not in _NARROW:
            return None
        zero = added.a
    if not isinstance(number, Unary) or number.op != "round":
        return None
    return Quantised(number.a, zero, e.dtype)


def centred(e: Cast) -> Quantised | None:
    """What is quantised where `e` is that number without its zero point, as f32."""
    if e.dtype is not F32 or e.a.dtype is not I32:
        return None
    number: Expr = e.a
    zero: Expr | None = None
    if isinstance(number, Binary) and number.op == "sub":
        taken, number = number.b, number.a
        if not isinstance(taken, Cast):
            return None
        zero = taken.a
    if not isinstance(number, Cast) or not isinstance(number.a, Cast):
        return None
    found = quantised(number.a)
    is_one = found is not None and _is_same(found.zero, zero)
    return found if is_one else None


def _is_same(a: Expr | None, b: Expr | None) -> bool:
    if a is b:
        return True
    if isinstance(a, Const) and isinstance(b, Const):
        return a.dtype is b.dtype and a.value == b.value
    if not isinstance(a, Load) or not isinstance(b, Load):
        return False
    if a.source is not b.source or a.dtype is not b.dtype or a.guard is not b.guard:
        return False
    return len(a.indices) == len(b.indices) and all(map(_is_same, a.indices, b.indices))


def quantise(asm: Assembler, q: Quantised, number: Value, zero: Value | None) -> Value:
    """The numbers of 8 or 16 bits."""
    whole = _rounded(asm, q, number, zero)
    if zero is not None:
        whole = asm.op("add", whole, asm.splat(_wide(asm, q, zero), number.type.lanes))
    if q.bounds[0]:
        whole = asm.select(asm.fcmp("uno", number, number), integer(0, whole.type), whole)
    return asm.cast("trunc", whole, f"i{q.dtype.bits}")


def quantise_centred(asm: Assembler, q: Quantised, number: Value, zero: Value | None) -> Value:
    """The numbers without their zero point, as f32."""
    whole = _rounded(asm, q, number, zero)
    if q.bounds[0]:
        none = integer(0, whole.type)
        if zero is not None:
            none = asm.op("sub", none, asm.splat(_wide(asm, q, zero), number.type.lanes))
        whole = asm.select(asm.fcmp("uno", number, number), none, whole)
    return asm.cast("sitofp", whole, "float")


def _wide(asm: Assembler, q: Quantised, zero: Value) -> Value:
    """A zero point in i32; one of all lanes is a scalar."""
    assert q.zero is not None
    return asm.cast("sext" if q.zero.dtype.is_signed else "zext", zero, "i32")


def _rounded(asm: Assembler, q: Quantised, number: Value, zero: Value | None) -> Value:
    """The numbers without their zero point in i32, saturated; the least where it is NaN."""
    type_ = number.type if zero is None else zero.type.of("float")
    least, most = (real(float(bound), type_) for bound in q.bounds)
    if zero is not None:
        taken = asm.cast("sitofp", _wide(asm, q, zero), "float")
        lanes = number.type.lanes
        least, most = (asm.splat(asm.op("fsub", x, taken), lanes) for x in (least, most))
    above = asm.select(asm.fcmp("ogt", number, least), number, least)
    inside = asm.select(asm.fcmp("olt", above, most), above, most)
    whole = inside.type.of("i32")
    return asm.call("llvm.lrint", whole, [inside], f"{whole.mangled}.{inside.type.mangled}")
