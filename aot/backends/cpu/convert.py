"""Conversions between element types; f16 in integer arithmetic where the target lacks it.

Owns Cast: saturation, NaN to 0, one rounding. Like all emission, inline code only.
"""

from __future__ import annotations

from aot.backends.cpu.assembler import Assembler, Type, Value, integer, real
from aot.backends.cpu.traits import Traits
from aot.errors import InternalError
from aot.ir.types import DType


def convert(asm: Assembler, traits: Traits, a: Value, source: DType, to: DType) -> Value:
    """`a`, of dtype `source`, converted by value; scalar or vector."""
    if source is to:
        return a
    if to is DType.BOOL:
        return _to_bool(asm, traits, a, source)
    if to.is_float:
        if source.is_float:
            return _float_to_float(asm, traits, a, source, to)
        return _integer_to_float(asm, traits, a, source, to)
    if source.is_float:
        return _float_to_integer(asm, traits, a, source, to)
    element = traits.element(to)
    if source is DType.BOOL:
        return asm.cast("zext", a, element)
    width = type_bits(element)
    if width == a.type.bits:
        return a
    if width < a.type.bits:
        return asm.cast("trunc", a, element)
    return asm.cast("sext" if source.is_signed else "zext", a, element)


def type_bits(element: str) -> int:
    """The width of an integer type, from its name."""
    return int(element[1:])


def _to_bool(asm: Assembler, traits: Traits, a: Value, source: DType) -> Value:
    if source is DType.F16:
        bits = asm.cast("bitcast", a, "i16")
        size = asm.op("and", bits, integer(0x7FFF, bits.type))
        return asm.icmp("ne", size, integer(0, bits.type))
    if source.is_float:
        return asm.fcmp("une", a, real(0.0, a.type))
    return asm.icmp("ne", a, integer(0, a.type))


def _clamped(asm: Assembler, a: Value, low: float, high: float) -> Value:
    """`a` clamped to [low, high]; `low` for NaN."""
    least, most = real(low, a.type), real(high, a.type)
    # the comparison is false on NaN, which gives the least: one maxps
    above = asm.select(asm.fcmp("ogt", a, least), a, least)
    return asm.select(asm.fcmp("olt", above, most), above, most)


def _float_to_i32(asm: Assembler, a: Value) -> Value:
    """Converts vectors of floats to i32 with saturation. As the greatest i32 is no float, it is
    selected afterwards; NaN gives 0."""
    number = asm.cast("fptosi", _clamped(asm, a, -(2.0**31), 2.0**31 - 128), "i32")
    is_beyond = asm.fcmp("oge", a, real(2.0**31, a.type))
    number = asm.select(is_beyond, integer(2**31 - 1, number.type), number)
    return asm.select(asm.fcmp("uno", a, a), integer(0, number.type), number)


def _float_to_i64(asm: Assembler, a: Value) -> Value:
    """Float to i64, saturating; NaN gives 0."""
    bits = 24 if a.type.element == "float" else 53  # of a significand
    number = asm.cast("fptosi", _clamped(asm, a, -(2.0**63), 2.0**63 - 2.0 ** (63 - bits)), "i64")
    is_beyond = asm.fcmp("oge", a, real(2.0**63, a.type))
    number = asm.select(is_beyond, integer(2**63 - 1, number.type), number)
    return asm.select(asm.fcmp("uno", a, a), integer(0, number.type), number)


def _float_to_narrow(asm: Assembler, a: Value, to: DType, element: str) -> Value:
    """Converts floats to narrow integers, saturating while they are floats: LLVM's saturating
    conversion works lane by lane on x86."""
    bits = type_bits(element)
    low = -(1 << bits - 1) if to.is_signed else 0
    high = (1 << bits - (1 if to.is_signed else 0)) - 1
    clamped = _clamped(asm, a, low, high)
    if low:
        clamped = asm.select(asm.fcmp("uno", a, a), real(0.0, a.type), clamped)
    return asm.cast("trunc", asm.cast("fptosi", clamped, "i32"), element)


def _float_to_integer(asm: Assembler, traits: Traits, a: Value, source: DType, to: DType) -> Value:
    if source is DType.F16:
        a = half_to_float(asm, traits, a)
    element = traits.element(to)
    _check_wide(traits, a.type.element, type_bits(element))
    is_f32, arch = a.type.element == "float", traits.target.arch
    # QEMU 7.2, which the tests run RISC-V code under, fails on a vfncvt.rtz behind a vsetvli
    if is_f32 and type_bits(element) < 32 and arch in ("x86_64", "riscv64"):
        return _float_to_narrow(asm, a, to, element)
    if is_f32 and arch == "x86_64" and a.type.lanes and to is DType.I32:
        return _float_to_i32(asm, a)
    if to is DType.I64 and a.type.lanes and traits.target.has("avx512dq"):
        return _float_to_i64(asm, a)
    name = "llvm.fptosi.sat" if to.is_signed else "llvm.fptoui.sat"
    result = a.type.of(element)
    return asm.call(name, result, [a], f"{result.mangled}.{a.type.mangled}")


def _integer_to_float(asm: Assembler, traits: Traits, a: Value, source: DType, to: DType) -> Value:
    # By way of f32 to f16: integers that f32 rounds are beyond f16's range.
    element = "float" if to is DType.F16 else traits.element(to)
    _check_wide(traits, element, a.type.bits)
    value = asm.cast("sitofp" if source.is_signed else "uitofp", a, element)
    return float_to_half(asm, traits, value) if to is DType.F16 else value


def _check_wide(traits: Traits, float_element: str, integer_bits: int) -> None:
    """Checks that no conversion of 64-bit integers, or of f64 without an FPU for it, has to be
    inlined."""
    target = traits.target
    if integer_bits == 64 and not traits.has_wide_integers:
        raise InternalError(
            f"a cast between floats and 64-bit integers reached code generation for {target.name}"
        )
    if float_element == "double" and not target.computes(DType.F64):
        raise InternalError(f"a cast with f64 reached code generation for {target.name}")


def _float_to_float(asm: Assembler, traits: Traits, a: Value, source: DType, to: DType) -> Value:
    if source is DType.F16:
        a = half_to_float(asm, traits, a)
        if to is DType.F32:
            return a
    elif to is DType.F16 and source is DType.F64:
        return float_to_half(asm, traits, _double_to_odd_float(asm, traits, a))
    elif to is DType.F16:
        return float_to_half(asm, traits, a)
    _check_wide(traits, "double", 32)
    return asm.cast("fpext" if to is DType.F64 else "fptrunc", a, traits.element(to))


def _double_to_odd_float(asm: Assembler, traits: Traits, a: Value) -> Value:
    """f64 to f32 rounded to odd, so that rounding again to f16 rounds only once."""
    _check_wide(traits, "double", 32)
    near = asm.cast("fptrunc", a, "float")
    back = asm.cast("fpext", near, "double")
    bits = asm.cast("bitcast", near, "i32")
    size = asm.call("llvm.fabs", a.type, [a], a.type.mangled)
    back_size = asm.call("llvm.fabs", a.type, [back], a.type.mangled)
    is_above = asm.cast("zext", asm.fcmp("ogt", back_size, size), "i32")
    is_inexact = asm.cast("zext", asm.fcmp("one", back, a), "i32")
    odd = asm.op("or", asm.op("sub", bits, is_above), is_inexact)
    # A value that overflowed f32 stays infinite: stepping back gives f32's largest, beyond f16's.
    return asm.cast("bitcast", odd, "float")


def half_to_float(asm: Assembler, traits: Traits, a: Value) -> Value:
    """Converts f16, or its bits as integers, to f32."""
    if traits.has_half:
        if traits.has_neon_half and a.type.lanes % 4 == 0 and a.type.lanes:
            return _by_fours(asm, asm.cast("bitcast", a, "i16"), "vcvthf2fp", "float")
        return asm.cast("fpext", a, "float")
    wide = asm.cast("sext", a, "i32")

    def constant(value: int) -> Value:
        return integer(value, wide.type)

    def where(condition: Value, value: int) -> Value:
        return asm.op("and", asm.cast("sext", condition, "i32"), constant(value))

    moved = asm.op("and", asm.op("shl", wide, constant(13)), constant(0x0FFFE000))
    sign = asm.op("and", wide, constant(0x80000000))
    # Rebias the exponent by 127 - 15; infinity and NaN go all the way up.
    bits = asm.op("add", moved, constant(112 << 23))
    bits = asm.op("add", bits, where(asm.icmp("sge", moved, constant(0x0F800000)), 112 << 23))
    # A denormal becomes 2^-14 and a fraction, from which 2^-14 is taken: no unit can flush it.
    # From others 0 is taken, which makes a signalling NaN quiet, as an instruction does.
    is_small = asm.icmp("slt", moved, constant(1 << 23))
    bits = asm.op("add", bits, where(is_small, 1 << 23))
    excess = asm.cast("bitcast", where(is_small, 113 << 23), "float")
    size = asm.op("fsub", asm.cast("bitcast", bits, "float"), excess)
    return asm.cast("bitcast", asm.op("or", asm.cast("bitcast", size, "i32"), sign), "float")


def float_to_half(asm: Assembler, traits: Traits, a: Value) -> Value:
    """Converts f32 to f16, or to its bits; to nearest, ties to even."""
    if traits.has_half:
        if traits.has_neon_half and a.type.lanes % 4 == 0 and a.type.lanes:
            bits = _by_fours(asm, a, "vcvtfp2hf", "i16")
            return asm.cast("bitcast", bits, "half")
        return asm.cast("fptrunc", a, "half")
    bits = asm.cast("bitcast", a, "i32")

    def constant(value: int) -> Value:
        return integer(value, bits.type)

    size = asm.op("and", bits, constant(0x7FFFFFFF))
    sign = asm.op("lshr", asm.op("and", bits, constant(0x80000000)), constant(16))
    # Normal: rebias, round half to even on the 13 bits that go; a carry moves the exponent.
    odd = asm.op("and", asm.op("lshr", size, constant(13)), constant(1))
    rounded = asm.op("add", asm.op("add", size, constant(0xFFF - (112 << 23))), odd)
    normal = asm.op("lshr", rounded, constant(13))
    # Denormal: adding 0.5 aligns the value so that its last bit weighs 2^-24.
    half = real(0.5, a.type)
    aligned = asm.op("fadd", asm.cast("bitcast", size, "float"), half)
    small = asm.op("sub", asm.cast("bitcast", aligned, "i32"), constant(0x3F000000))
    result = asm.select(asm.icmp("ult", size, constant(0x38800000)), small, normal)
    # 65520 and above round to infinity.
    result = asm.select(asm.icmp("uge", size, constant(0x477FF000)), constant(0x7C00), result)
    payload = asm.op(
        "or", asm.op("and", asm.op("lshr", size, constant(13)), constant(0x3FF)), constant(0x7E00)
    )
    result = asm.select(asm.icmp("ugt", size, constant(0x7F800000)), payload, result)
    return asm.cast("trunc", asm.op("or", result, sign), "i16")


def _by_fours(asm: Assembler, a: Value, name: str, element: str) -> Value:
    """NEON's four-element conversion for 32-bit Arm, where LLVM would convert a vector element by
    element."""
    four, made = Type(element, 4), []
    for start in range(0, a.type.lanes, 4):
        part = asm.shuffle(a, a, range(start, start + 4))
        made.append(asm.call(f"llvm.arm.neon.{name}", four, [part]))
    return asm.concat(made)
