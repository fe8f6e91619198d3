"""Expression operators as LLVM instructions, for scalars and vectors.

Owns what `aot.ir.expr` says of NaN, zero divisors, saturation and rounding. Every operation here is
inline code: nothing may become a call of a support library.
"""

from __future__ import annotations

from aot.backends.cpu.assembler import Assembler, Type, Value, integer, real
from aot.backends.cpu.convert import convert, half_to_float
from aot.backends.cpu.traits import Traits
from aot.errors import InternalError
from aot.ir.types import DType

_SIGNED = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_UNSIGNED = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "eq": "eq", "ne": "ne"}
_ORDERED = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUNDING = {
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "trunc": "llvm.trunc",
    "round": "llvm.roundeven",
}


def unary(asm: Assembler, traits: Traits, op: str, a: Value, dtype: DType) -> Value:
    """`op(a)` where `a` has `dtype`."""
    if dtype is DType.BOOL:
        if op != "not":
            raise InternalError(f"{op} of a bool")
        return asm.op("xor", a, integer(1, a.type))
    if dtype.is_float:
        return _float_unary(asm, traits, op, a, dtype)
    match op:
        case "neg":
            return asm.op("sub", integer(0, a.type), a)
        case "bitnot":
            return asm.op("xor", a, integer(-1, a.type))
        case "abs":
            if not dtype.is_signed:
                return a
            return asm.call("llvm.abs", a.type, [a, integer(0, Type("i1"))], a.type.mangled)
    raise InternalError(f"{op} of {dtype}")


def _float_unary(asm: Assembler, traits: Traits, op: str, a: Value, dtype: DType) -> Value:
    if dtype is DType.F16 and not traits.has_half_math:
        if op in ("neg", "abs"):
            bits = asm.cast("bitcast", a, "i16")
            bits = asm.op(
                *(
                    ("xor", bits, integer(0x8000, bits.type))
                    if op == "neg"
                    else ("and", bits, integer(0x7FFF, bits.type))
                )
            )
            return asm.cast("bitcast", bits, a.type.element)
        wide = _float_unary(asm, traits, op, half_to_float(asm, traits, a), DType.F32)
        return wide if op == "isnan" else convert(asm, traits, wide, DType.F32, DType.F16)
    match op:
        case "neg":
            return asm.fneg(a)
        case "abs":
            return asm.call("llvm.fabs", a.type, [a], a.type.mangled)
        case "sqrt":
            return asm.call("llvm.sqrt", a.type, [a], a.type.mangled)
        case "isnan":
            return asm.fcmp("uno", a, a)
        case "floor" | "ceil" | "trunc" | "round":
            if traits.has_rounding:
                return asm.call(_ROUNDING[op], a.type, [a], a.type.mangled)
            return _round_by_addition(asm, op, a)
    raise InternalError(f"{op} of {dtype} reached code generation")


def _round_by_addition(asm: Assembler, op: str, a: Value) -> Value:
    """Rounds a float with the FPU's own rounding: adding and subtracting 2^(mantissa bits) leaves
    the nearest integer, ties to even; the other directions correct that by one."""
    type_ = a.type
    limit = real(2.0 ** (52 if type_.element == "double" else 23), type_)
    size = asm.call("llvm.fabs", type_, [a], type_.mangled)
    nearest = asm.op("fsub", asm.op("fadd", size, limit), limit)
    one = real(1.0, type_)
    if op in ("floor", "ceil"):
        nearest = asm.call("llvm.copysign", type_, [nearest, a], type_.mangled)
        is_beyond = asm.fcmp("ogt" if op == "floor" else "olt", nearest, a)
        stepped = asm.op("fsub" if op == "floor" else "fadd", nearest, one)
        rounded = asm.select(is_beyond, stepped, nearest)
    elif op == "trunc":
        rounded = asm.select(asm.fcmp("ogt", nearest, size), asm.op("fsub", nearest, one), nearest)
    else:
        rounded = nearest
    # The sign of zero results, and values that are integers, infinite or NaN already.
    rounded = asm.call("llvm.copysign", type_, [rounded, a], type_.mangled)
    return asm.select(asm.fcmp("olt", size, limit), rounded, a)


def compare(asm: Assembler, traits: Traits, op: str, a: Value, b: Value, dtype: DType) -> Value:
    """`a op b` as i1."""
    if dtype.is_float:
        if dtype is DType.F16 and not traits.has_half_math:
            a, b = half_to_float(asm, traits, a), half_to_float(asm, traits, b)
        return asm.fcmp(_ORDERED[op], a, b)
    return asm.icmp((_SIGNED if dtype.is_signed else _UNSIGNED)[op], a, b)


def binary(
    asm: Assembler,
    traits: Traits,
    op: str,
    a: Value,
    b: Value,
    dtype: DType,
    *,
    is_nonnegative: bool = False,
) -> Value:
    """`a op b` for operands of `dtype`; comparisons are in `compare`.

    Args:
        is_nonnegative: both operands are known not to be negative.
    """
    if dtype is DType.BOOL:
        if op not in ("and", "or", "xor"):
            raise InternalError(f"{op} of bools")
        return asm.op(op, a, b)
    if dtype.is_float:
        return _float_binary(asm, traits, op, a, b, dtype)
    match op:
        case "add" | "sub" | "mul" | "and" | "or" | "xor":
            return asm.op(op, a, b)
        case "min" | "max":
            if a.number is not None and b.number is not None and dtype.is_signed:
                pick = min if op == "min" else max
                return integer(pick(a.number, b.number), a.type)
            name = f"llvm.{'s' if dtype.is_signed else 'u'}{op}"
            return asm.call(name, a.type, [a, b], a.type.mangled)
        case "shl" | "shr":
            # Amounts beyond the width have no meaning, but must not poison what they meet.
            amount = asm.op("and", b, integer(a.type.bits - 1, b.type))
            name = "shl" if op == "shl" else "ashr" if dtype.is_signed else "lshr"
            return asm.op(name, a, amount)
        case "div" | "floordiv" | "floormod":
            return divide(asm, traits, op, a, b, is_signed=dtype.is_signed and not is_nonnegative)
    raise InternalError(f"{op} of {dtype}")


def _float_binary(
    asm: Assembler, traits: Traits, op: str, a: Value, b: Value, dtype: DType
) -> Value:
    if dtype is DType.F16 and not traits.has_half_math:
        wide = _float_binary(
            asm, traits, op, half_to_float(asm, traits, a), half_to_float(asm, traits, b), DType.F32
        )
        return convert(asm, traits, wide, DType.F32, DType.F16)
    if op in _FLOAT:
        return asm.op(_FLOAT[op], a, b)
    if op in ("min", "max"):
        return _extremum(asm, traits, op, a, b)
    raise InternalError(f"{op} of {dtype} reached code generation")


def _extremum(asm: Assembler, traits: Traits, op: str, a: Value, b: Value) -> Value:
    """The maximum or minimum: NaN if either is; zeros of unlike sign count as equal, as in
    numpy."""
    if traits.has_nan_extrema:
        name = "llvm.minimum" if op == "min" else "llvm.maximum"
        return asm.call(name, a.type, [a, b], a.type.mangled)
    predicate = "olt" if op == "min" else "ogt"
    if _is_number(b):
        a, b = b, a
    # The comparison is false on NaN and then gives b: one minps or maxps.
    picked = asm.select(asm.fcmp(predicate, a, b), a, b)
    if _is_number(a):
        return picked
    return asm.select(asm.fcmp("uno", a, a), a, picked)


def _is_number(a: Value) -> bool:
    """Whether `a` is a float literal other than NaN."""
    if not a.ref.startswith(("0x", "splat")):
        return False
    bits = int(a.ref.rstrip(")").rsplit("x", 1)[1].lstrip("H"), 16)
    if a.type.element == "half":
        return bits & 0x7FFF <= 0x7C00
    return bits & (1 << 63) - 1 <= 0x7FF << 52


def fma(asm: Assembler, traits: Traits, a: Value, b: Value, c: Value, dtype: DType) -> Value:
    """`a * b + c` with one rounding where the target has such an instruction, else two."""
    if not dtype.is_float:
        return asm.op("add", asm.op("mul", a, b), c)
    if traits.has_relaxed_fma and a.type.lanes and dtype in (DType.F32, DType.F64):
        return _relaxed_fma(asm, traits.target.lanes(dtype), a, b, c)
    if not traits.has_fma:
        product = _float_binary(asm, traits, "mul", a, b, dtype)
        return _float_binary(asm, traits, "add", product, c, dtype)
    if dtype is DType.F16 and not traits.has_half_math:
        wide = [half_to_float(asm, traits, x) for x in (a, b, c)]
        total = asm.call("llvm.fma", wide[0].type, wide, wide[0].type.mangled)
        return convert(asm, traits, total, DType.F32, DType.F16)
    return asm.call("llvm.fma", a.type, [a, b, c], a.type.mangled)


def _relaxed_fma(asm: Assembler, width: int, a: Value, b: Value, c: Value) -> Value:
    """`fma` in registers of exactly `width` lanes, which LLVM does not split; vectors of other
    sizes are rounded twice."""
    lanes = a.type.lanes
    if lanes % width or lanes & (lanes - 1):
        return asm.op("fadd", asm.op("fmul", a, b), c)
    type_ = Type(a.type.element, width)
    made = []
    for start in range(0, lanes, width):
        part = range(start, start + width)
        parts = [x if lanes == width else asm.shuffle(x, x, part) for x in (a, b, c)]
        made.append(asm.call("llvm.wasm.relaxed.madd", type_, parts, type_.mangled))
    return asm.concat(made)


def divide(
    asm: Assembler, traits: Traits, op: str, a: Value, b: Value, *, is_signed: bool
) -> Value:
    """Integer `div`, `floordiv` or `floormod`; a zero divisor gives 0, the least value divided by
    -1 wraps, and neither traps."""
    type_ = a.type
    known = b.number
    if known is not None and not is_signed:
        known &= (1 << type_.bits) - 1
    if known is not None and a.number is not None and known > 0 and a.number >= 0:
        return integer(a.number % known if op == "floormod" else a.number // known, type_)
    if known is not None and known > 0 and known & (known - 1) == 0:
        shift = integer(known.bit_length() - 1, type_)
        if op == "floormod":
            return asm.op("and", a, integer(known - 1, type_))
        if op == "floordiv" or not is_signed:
            return a if known == 1 else asm.op("ashr" if is_signed else "lshr", a, shift)
    zero = integer(0, type_)
    divisor, is_zero = b, None
    if known is None or known == 0:
        is_zero = asm.icmp("eq", b, zero)
        divisor = asm.select(is_zero, integer(1, type_), b)
    quotient = _quotient(asm, traits, a, divisor, is_signed)
    rest = asm.op("sub", a, asm.op("mul", quotient, divisor))
    result = rest if op == "floormod" else quotient
    if is_signed and op != "div":
        is_unlike = asm.icmp("slt", asm.op("xor", rest, divisor), zero)
        is_low = asm.op("and", asm.icmp("ne", rest, zero), is_unlike)
        fixed = (
            asm.op("add", rest, divisor)
            if op == "floormod"
            else asm.op("sub", quotient, integer(1, type_))
        )
        result = asm.select(is_low, fixed, result)
    return result if is_zero is None else asm.select(is_zero, zero, result)


def _quotient(asm: Assembler, traits: Traits, a: Value, b: Value, is_signed: bool) -> Value:
    type_ = a.type
    if type_.bits == 64 and not traits.has_wide_integers:
        raise InternalError(f"64-bit division reached code generation for {traits.target.name}")
    is_minus_one = None
    if is_signed and b.number is None:
        # x / -1 traps for the least x on x86: negate instead.
        is_minus_one = asm.icmp("eq", b, integer(-1, type_))
        b = asm.select(is_minus_one, integer(1, type_), b)
    elif is_signed and b.number == -1:
        return asm.op("sub", integer(0, type_), a)
    if traits.has_division or b.number is not None:
        quotient = asm.op("sdiv" if is_signed else "udiv", a, b)
    else:
        # Exact: with both below 2^32 a quotient is an integer or at least 2^-32 away from one.
        up, down = ("sitofp", "fptosi") if is_signed else ("uitofp", "fptoui")
        real_quotient = asm.op("fdiv", asm.cast(up, a, "double"), asm.cast(up, b, "double"))
        quotient = asm.cast(down, real_quotient, type_.element)
    if is_minus_one is None:
        return quotient
    return asm.select(is_minus_one, asm.op("sub", integer(0, type_), quotient), quotient)
