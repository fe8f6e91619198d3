"""Dot products of packed words, with the instructions that a target has.

Owns which instruction that is, and what stands for it where there is none. All of them are exact:
none saturates on the way, whatever the operands are.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.cpu import arithmetic
from aot.backends.cpu.assembler import Assembler, Type, Value, integer
from aot.backends.cpu.traits import Traits
from aot.ir.types import DType

I8X4, U7X4, U8X4, I16X2 = DType.I8X4, DType.U7X4, DType.U8X4, DType.I16X2
BF16X2 = DType.BF16X2
Part = Callable[[Value, Value, Value], Value]
# products of matrices of bytes
_MATRICES = {(I8X4, I8X4): "smmla", (U8X4, I8X4): "usmmla", (U8X4, U8X4): "ummla"}
# lanes, the features, and what adds the products of pairs of bf16
_BF16 = (
    (16, ("avx512bf16",), "llvm.x86.avx512bf16.dpbf16ps.512", ""),
    (8, ("avx512bf16", "avx512vl"), "llvm.x86.avx512bf16.dpbf16ps.256", ""),
    (4, ("avx512bf16", "avx512vl"), "llvm.x86.avx512bf16.dpbf16ps.128", ""),
    (4, ("neon", "bf16"), "llvm.aarch64.neon.bfdot", "v4f32.v8bf16"),
)
# lanes, the feature, and what sums pairs of products of bytes, and of 16 bits, on x86
_PAIRS = (
    (16, "avx512bw", "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512"),
    (8, "avx2", "avx2.pmadd.ub.sw", "avx2.pmadd.wd"),
    (4, "ssse3", "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
)


def dot(
    asm: Assembler,
    traits: Traits,
    a: Value,
    b: Value,
    c: Value,
    dtypes: tuple[DType, DType],
    *,
    is_narrow: bool = False,
) -> Value:
    """`c` plus the products of the parts of `a` and `b`, words of `dtypes`, lane by lane.

    Args:
        is_narrow: any two products fit 16 bits together.
    """
    left, right = dtypes
    if left is BF16X2:
        return _dot_of_bf16(asm, traits, a, b, c)
    if right in (U7X4, U8X4) and left is I8X4:
        a, b, left, right = b, a, right, left
    lanes = c.type.lanes
    if lanes:
        for width, made in _instructions(asm, traits, left, right, is_narrow=is_narrow):
            if lanes % width == 0 and lanes & (lanes - 1) == 0:
                return _by_width(asm, width, made, a, b, c)
    elif left is right is I16X2 and traits.target.sums_scalar_pairs:
        return asm.call("llvm.arm.smlad", c.type, [a, b, c])
    total = c
    for number in range(left.parts):
        x = _part(asm, a, left, number)
        total = asm.op("add", total, asm.op("mul", x, _part(asm, b, right, number)))
    return total


def _dot_of_bf16(asm: Assembler, traits: Traits, a: Value, b: Value, c: Value) -> Value:
    """`c` plus the dot product of two pairs of bf16, in f32."""
    lanes = c.type.lanes
    for width, features, name, suffix in _BF16:
        if not lanes or lanes % width or lanes & (lanes - 1):
            continue
        if not all(map(traits.target.has, features)):
            continue

        def made(a: Value, b: Value, c: Value, name: str = name, suffix: str = suffix) -> Value:
            # the instruction takes a lane of the last operand; `a` is what all columns share
            pairs = [asm.bitcast_to(x, Type("bfloat", 2 * c.type.lanes)) for x in (b, a)]
            return asm.call(name, c.type, [c, *pairs], suffix)

        return _by_width(asm, width, made, a, b, c)
    for number in (0, 1):
        parts = []
        for value in (a, b):
            word = asm.bitcast_to(value, c.type.of("i32"))
            upper = word if number else asm.op("shl", word, integer(16, word.type))
            upper = asm.op("and", upper, integer(-(1 << 16), word.type))
            parts.append(asm.bitcast_to(upper, c.type))
        c = arithmetic.fma(asm, traits, parts[0], parts[1], c, DType.F32)
    return c


def dot_of_pairs(
    asm: Assembler, traits: Traits, a: Value, b: Value, c: Value, dtypes: tuple[DType, DType]
) -> Value:
    """Emits `dot` of bytes into sums of 16 bits: each half of the products is added to one part of
    `c`.
    """
    left, right = dtypes
    if right is U7X4:
        a, b, left, right = b, a, right, left
    lanes = c.type.lanes
    if (left, right) == (U7X4, I8X4) and lanes:
        for width, feature, name, _ in _PAIRS:
            if traits.target.has(feature) and lanes % width == 0 and lanes & (lanes - 1) == 0:

                def made(a: Value, b: Value, c: Value, name: str = name) -> Value:
                    sums = _sums_of_bytes(asm, name, a, b)
                    return asm.bitcast_to(asm.op("add", sums, asm.bitcast_to(c, sums.type)), c.type)

                return _by_width(asm, width, made, a, b, c)
    halves = []
    for half in (0, 1):
        total = _part(asm, c, I16X2, half)
        for number in (2 * half, 2 * half + 1):
            x = _part(asm, a, left, number)
            total = asm.op("add", total, asm.op("mul", x, _part(asm, b, right, number)))
        halves.append(total)
    low = asm.op("and", halves[0], integer(0xFFFF, c.type))
    return asm.op("or", low, asm.op("shl", halves[1], integer(16, c.type)))


def matrix_dot(asm: Assembler, a: Value, b: Value, c: Value, dtypes: tuple[DType, DType]) -> Value:
    """`c`, of two rows by two columns, plus the products of 8 bytes of each row and each column."""
    if dtypes[0] is BF16X2:
        pairs = [asm.bitcast_to(x, Type("bfloat", 8)) for x in (a, b)]
        return asm.call("llvm.aarch64.neon.bfmmla", c.type, [c, *pairs])
    return asm.call(f"llvm.aarch64.neon.{_MATRICES[dtypes]}", c.type, [c, a, b], "v4i32.v16i8")


def column_pairs(asm: Assembler, low: Value, high: Value) -> list[Value]:
    """Two vectors of column pairs, made from vectors with the first and the last 4 bytes of four
    columns' 8 bytes."""
    first, second = (asm.bitcast_to(x, Type("i32", 4)) for x in (low, high))
    orders = (0, 4, 1, 5), (2, 6, 3, 7)
    return [asm.bitcast_to(asm.shuffle(first, second, order), low.type) for order in orders]


def _sums_of_bytes(asm: Assembler, name: str, codes: Value, numbers: Value) -> Value:
    """Sums of adjacent byte products, in 16 bits."""
    bytes_, pairs = (Type(f"i{n}", codes.type.lanes * 32 // n) for n in (8, 16))
    operands = [asm.bitcast_to(x, bytes_) for x in (codes, numbers)]
    return asm.call(f"llvm.x86.{name}", pairs, operands)


def unpack(asm: Assembler, traits: Traits, a: Value, parts: tuple[int, int], dtype: DType) -> Value:
    """Two bytes of each word, extended to two 16-bit numbers."""
    is_signed = dtype.part.is_signed
    lanes = a.type.lanes
    widen = "ashr" if is_signed else "lshr"
    if parts in ((0, 2), (1, 3)) and lanes:
        # they lie where their 16 bits will: shifts are cheaper than an order of bytes
        pairs = asm.bitcast_to(a, Type("i16", 2 * lanes))
        eight = integer(8, pairs.type)
        if parts == (0, 2):
            pairs = asm.op("shl", pairs, eight)
        return asm.bitcast_to(asm.op(widen, pairs, eight), a.type)
    if lanes and traits.has_vectors:
        # bytes move to the upper half of their 16 bits, from where a shift brings their sign along
        bytes_ = asm.bitcast_to(a, Type("i8", 4 * lanes))
        zero = integer(0, bytes_.type)
        chosen = []
        for lane in range(lanes):
            for part in parts:
                chosen += [4 * lanes, 4 * lane + part]
        spread = asm.bitcast_to(asm.shuffle(bytes_, zero, chosen), Type("i16", 2 * lanes))
        return asm.bitcast_to(asm.op(widen, spread, integer(8, spread.type)), a.type)
    if parts in ((0, 2), (1, 3)) and traits.target.sums_scalar_pairs:
        if parts == (1, 3):
            halves = [asm.op(op, a, integer(n, a.type)) for op, n in (("lshr", 8), ("shl", 24))]
            a = asm.op("or", *halves)
        return asm.call("llvm.arm.sxtb16" if is_signed else "llvm.arm.uxtb16", a.type, [a])
    low, high = (_part(asm, a, dtype, number) for number in parts)
    low = asm.op("and", low, integer(0xFFFF, low.type))
    return asm.op("or", low, asm.op("shl", high, integer(16, high.type)))


def _part(asm: Assembler, word: Value, dtype: DType, number: int) -> Value:
    """Element `number` of each packed word, extended to 32 bits."""
    bits = dtype.part.bits
    top = asm.op("shl", word, integer(32 - bits * (number + 1), word.type))
    return asm.op("ashr" if dtype.part.is_signed else "lshr", top, integer(32 - bits, word.type))


def _by_width(asm: Assembler, width: int, made: Part, a: Value, b: Value, c: Value) -> Value:
    """Applies `made` to `a`, `b` and `c` in registers of `width` lanes each, and concatenates the
    results."""
    lanes = c.type.lanes
    if lanes == width:
        return made(a, b, c)
    results = []
    for start in range(0, lanes, width):
        part = range(start, start + width)
        results.append(made(*(asm.shuffle(x, x, part) for x in (a, b, c))))
    return asm.concat(results)


def _sum_of_long_products(asm: Assembler, traits: Traits, a: Value, b: Value, c: Value) -> Value:
    """A dot product by widening multiplications from 16 to 32 bits, and additions of adjacent
    products."""
    halves = []
    for first in (0, 4):
        part = range(first, first + 4)
        words = (asm.bitcast_to(x, Type("i16", 8)) for x in (a, b))
        wide = [asm.cast("sext", asm.shuffle(x, x, part), "i32") for x in words]
        halves.append(asm.op("mul", wide[0], wide[1]))
    low, high = halves
    if traits.target.arch == "aarch64":
        pairs = asm.call("llvm.aarch64.neon.addp", low.type, [low, high], low.type.mangled)
        return asm.op("add", c, pairs)
    pairs = asm.op("add", *(asm.shuffle(low, high, range(n, 8, 2)) for n in (0, 1)))
    return asm.op("add", c, pairs)


def _sum_of_bytes(
    asm: Assembler, traits: Traits, a: Value, b: Value, c: Value, *, is_narrow: bool
) -> Value:
    """The dot product of bytes by widening multiplications to 16 bits, and pairwise additions in
    32; if any two products fit 16 bits, they are first added there.
    """
    is_wide = traits.target.arch == "aarch64"
    halves = []
    for half in (0, 1):
        words = (asm.op("lshr", x, integer(16 * half, x.type)) if half else x for x in (a, b))
        pairs = [asm.cast("trunc", x, "i16") for x in words]
        bytes_ = [asm.bitcast_to(x, Type("i8", 8)) for x in pairs]
        name = "llvm.aarch64.neon.smull" if is_wide else "llvm.arm.neon.vmulls"
        halves.append(asm.call(name, Type("i16", 8), bytes_, "v8i16"))
    if is_narrow:
        halves = [asm.op("add", *halves)]
    for sums in halves:
        if is_wide:
            pair = asm.call("llvm.aarch64.neon.saddlp", c.type, [sums], "v4i32.v8i16")
            c = asm.op("add", c, pair)
        else:
            c = asm.call("llvm.arm.neon.vpadals", c.type, [c, sums], "v4i32.v8i16")
    return c


def _sums_of_pairs(asm: Assembler, traits: Traits) -> list[tuple[int, Part]]:
    """(lanes, function) of the ways to compute a dot product with two instructions: one sums pairs
    of products in 16 bits, the other sums pairs of these.
    """
    found: list[tuple[int, Part]] = []
    for width, feature, name, wide in _PAIRS:
        if not traits.target.has(feature):
            continue

        def made(a: Value, b: Value, c: Value, name: str = name, wide: str = wide) -> Value:
            pairs = _sums_of_bytes(asm, name, a, b)
            total = asm.call(f"llvm.x86.{wide}", c.type, [pairs, integer(1, pairs.type)])
            return asm.op("add", total, c)

        found.append((width, made))
    return found


def _instructions(
    asm: Assembler, traits: Traits, left: DType, right: DType, *, is_narrow: bool
) -> list[tuple[int, Part]]:
    """(lanes, function) of each suitable instruction, widest first."""
    target = traits.target
    found: list[tuple[int, Part]] = []

    def accumulating(name: str, width: int, suffix: str = "", *, swaps: bool = False) -> None:
        """Adds an instruction that accumulates products of bytes into `c`."""

        def made(a: Value, b: Value, c: Value) -> Value:
            type_ = Type("i8", 4 * c.type.lanes)
            bytes_ = [asm.bitcast_to(x, type_) for x in ((b, a) if swaps else (a, b))]
            return asm.call(name, c.type, [c, *bytes_], suffix)

        found.append((width, made))

    def multiplying(name: str, width: int) -> None:
        """Adds an instruction that sums pairs of 16-bit products, without accumulating into `c`."""

        def made(a: Value, b: Value, c: Value) -> Value:
            type_ = Type("i16", 2 * c.type.lanes)
            pairs = [asm.bitcast_to(x, type_) for x in (a, b)]
            return asm.op("add", asm.call(name, c.type, pairs), c)

        found.append((width, made))

    if left is U7X4:
        for other in (U8X4, I8X4):
            found += _instructions(asm, traits, other, right, is_narrow=right is I8X4)
        return sorted(found, key=lambda item: -item[0])
    if (left, right) == (U8X4, I8X4):
        if target.has("avx512vnni"):
            accumulating("llvm.x86.avx512.vpdpbusd.512", 16)
        if (target.has("avx512vnni") and target.has("avx512vl")) or target.has("avxvnni"):
            accumulating("llvm.x86.avx512.vpdpbusd.256", 8)
            accumulating("llvm.x86.avx512.vpdpbusd.128", 4)
        if target.has("i8mm"):
            accumulating("llvm.aarch64.neon.usdot", 4, "v4i32.v16i8")
        if is_narrow:
            found += [(w, p) for w, p in _sums_of_pairs(asm, traits) if w not in dict(found)]
            found.sort(key=lambda item: -item[0])
    if left is right and left is not I16X2 and target.has("dotprod"):
        name = "sdot" if left is I8X4 else "udot"
        is_wide = target.arch == "aarch64"
        family = "aarch64" if is_wide else "arm"
        # the instruction takes a lane of the last operand; `a` is what all columns share
        accumulating(f"llvm.{family}.neon.{name}", 4, "v4i32.v16i8", swaps=True)
    elif left is right is I8X4 and target.has("neon"):
        found.append((4, lambda a, b, c: _sum_of_bytes(asm, traits, a, b, c, is_narrow=is_narrow)))
    if left is right is I16X2:
        if target.has("avx512bw"):
            multiplying("llvm.x86.avx512.pmaddw.d.512", 16)
        if target.has("avx2"):
            multiplying("llvm.x86.avx2.pmadd.wd", 8)
        if target.arch == "x86_64":
            multiplying("llvm.x86.sse2.pmadd.wd", 4)
        if target.has("simd128"):
            multiplying("llvm.wasm.dot", 4)
        if target.has("neon"):
            found.append((4, lambda a, b, c: _sum_of_long_products(asm, traits, a, b, c)))
    return found
