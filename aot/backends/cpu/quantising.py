"""Quantisation to 8 and 16 bits on x86, whose conversion to i32 rounds to even.

Owns two forms of quantised numbers, `cast(round(x) + zero)`, and that minus `zero` as f32. Both
saturate before they round: bounds and zero point are integers, so that this changes no result.
Several registers of them that become one of bytes saturate as they are packed.
Whoever evaluates expressions asks for them; what it has evaluated for the casts is left unused.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.backends.cpu.assembler import Assembler, Type, Value, integer, real
from aot.backends.cpu.traits import Traits
from aot.base.records import dataclass
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Unary
from aot.ir.types import DType

F32, I32 = DType.F32, DType.I32
_NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)
# registers of i32 that are packed to one of bytes
PACKED = 4
# by a register's bytes: what rounds to i32, the set that packs, the last part of its names
_PACKING = {
    64: ("avx512.mask.cvtps2dq.512", "avx512", ".512"),
    32: ("avx.cvt.ps2dq.256", "avx2", ""),
    16: ("sse2.cvtps2dq", "sse2", ".128"),
}


@dataclass(frozen=True)
class Quantised:
    """A quantisation: `cast(round(number) + cast(zero, F32), dtype)`.

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
    """The quantisation that `e` computes; None for other expressions."""
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
    """The quantisation of which `e` is the result minus its zero point, as f32; None for others."""
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


def packs(traits: Traits, dtype: DType) -> bool:
    """Whether few instructions pack `PACKED` registers of numbers into one of `dtype`."""
    return traits.target.packs_bytes and dtype in (DType.U8, DType.I8)


def quantise(
    asm: Assembler, traits: Traits, q: Quantised, number: Value, zero: Value | None
) -> Value:
    """Emits a quantisation to numbers of 8 or 16 bits."""
    registers = 4 * number.type.lanes / traits.target.vector_bytes
    is_uniform = zero is None or not zero.type.lanes
    if packs(traits, q.dtype) and registers in (2, PACKED) and is_uniform:
        return _packed(asm, traits, q, number, zero)
    whole = _rounded(asm, q, number, zero)
    if zero is not None:
        whole = asm.op("add", whole, asm.splat(_wide(asm, q, zero), number.type.lanes))
    if q.bounds[0]:
        whole = asm.select(asm.fcmp("uno", number, number), integer(0, whole.type), whole)
    return asm.cast("trunc", whole, f"i{q.dtype.bits}")


def _packed(
    asm: Assembler, traits: Traits, q: Quantised, number: Value, zero: Value | None
) -> Value:
    """Packs two or four registers of numbers into bytes.

    What is too great for i32 is cut before it is rounded; what is too small rounds to the least
    i32. Packing saturates to 16 bits, to which the zero point is added, and then to 8.
    """
    size = traits.target.vector_bytes
    lanes = size // 4
    rounding, family, suffix = _PACKING[size]
    taken = None if zero is None else _wide(asm, q, zero)
    top = real(float(q.bounds[1]), Type("float"))
    if taken is not None:
        top = asm.op("fsub", top, asm.cast("sitofp", taken, "float"))
    most = asm.splat(top, lanes)
    wholes = []
    for start in range(0, number.type.lanes, lanes):
        part = asm.shuffle(number, number, range(start, start + lanes))
        # NaN stays, and rounds to the least i32
        part = asm.select(asm.fcmp("olt", most, part), most, part)
        type_ = Type("i32", lanes)
        operands = [part]
        if size == 64:
            all_lanes, mode = integer(-1, Type("i16")), integer(4, Type("i32"))
            operands += [integer(0, type_), all_lanes, mode]
        whole = asm.call(f"llvm.x86.{rounding}", type_, operands)
        if q.bounds[0]:
            none = integer(0, type_)
            if taken is not None:
                none = asm.op("sub", none, asm.splat(taken, lanes))
            whole = asm.select(asm.fcmp("uno", part, part), none, whole)
        wholes.append(whole)
    pairs = []
    for low, high in zip(wholes[::2], wholes[1::2], strict=True):
        words = asm.call(f"llvm.x86.{family}.packssdw{suffix}", Type("i16", size // 2), [low, high])
        if taken is not None:
            short = asm.splat(asm.cast("trunc", taken, "i16"), size // 2)
            words = asm.call("llvm.sadd.sat", words.type, [words, short], words.type.mangled)
        pairs.append(words)
    name = "packsswb" if q.dtype.is_signed else "packuswb"
    bytes_ = asm.call(f"llvm.x86.{family}.{name}{suffix}", Type("i8", size), [pairs[0], pairs[-1]])
    # each quarter of a register has a word of each of the four
    quarters = size // 16
    order = [4 * quarter + n for n in range(PACKED) for quarter in range(quarters)]
    words = asm.bitcast_to(bytes_, Type("i32", lanes))
    bytes_ = asm.bitcast_to(asm.shuffle(words, words, order), bytes_.type)
    if number.type.lanes == size:
        return bytes_
    return asm.shuffle(bytes_, bytes_, range(number.type.lanes))


def quantise_centred(
    asm: Assembler, traits: Traits, q: Quantised, number: Value, zero: Value | None
) -> Value:
    """Emits a quantisation whose codes, less their zero point, are given as f32."""
    whole = _rounded(asm, q, number, zero)
    if q.bounds[0]:
        none = integer(0, whole.type)
        if zero is not None:
            none = asm.op("sub", none, asm.splat(_wide(asm, q, zero), number.type.lanes))
        whole = asm.select(asm.fcmp("uno", number, number), none, whole)
    return asm.cast("sitofp", whole, "float")


def _wide(asm: Assembler, q: Quantised, zero: Value) -> Value:
    """The zero point in i32; a scalar if uniform."""
    assert q.zero is not None
    return asm.cast("sext" if q.zero.dtype.is_signed else "zext", zero, "i32")


def _rounded(asm: Assembler, q: Quantised, number: Value, zero: Value | None) -> Value:
    """Rounded numbers in i32, without their zero point, saturated to the dtype's range; the least
    for NaN."""
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
