"""Quotients on drivers whose OpFDiv is off by 2.5 ulp, as Vulkan allows.

Owns the divisors by which a product is exact, and the correction of quotients that are rounded to
an integer, as quantisation rounds x / scale: near a half an inexact one would move the integer by
one. The correction is computed in integers, which all drivers compute alike. Knows nothing of
expressions.
"""

from __future__ import annotations

from aot.backends.vulkan.spirv import Op
from aot.backends.vulkan.values import MASK, Values

_FRACTION_BITS = 23
_FRACTION = (1 << _FRACTION_BITS) - 1
_MAGNITUDE = 0x7FFFFFFF
_LEAST_NORMAL = 1 << _FRACTION_BITS
# Quotients that are corrected. Below a quarter all round to 0, and above 2**20 a 16-bit integer
# saturates.
_FIRST, _END = 0x3E800000, 0x49800000
# Halves below 2**20 are multiples of 8 units in the last place: those within 3 of one go to it.
_NEAR, _UNITS = 4, 8


def exact_inverse(values: Values, value: int) -> int | None:
    """The inverse of a literal power of two in f32; None for other values, or if the inverse is not
    a normal number. A product with it is exact.
    """
    bits = values.bits(value)
    if bits is None:
        return None
    exponent = bits >> _FRACTION_BITS & 0xFF
    if bits & _FRACTION or not 1 <= 254 - exponent <= 253:
        return None
    return values.f32_bits((bits & ~_MAGNITUDE) | (254 - exponent) << _FRACTION_BITS)


def beside_halves(values: Values, quotient: int, a: int, b: int) -> int:
    """A float that rounds to the same integer as the exact a / b rounded to f32, for integers of up
    to 20 bits; `quotient` is a / b off by up to 2.5 ulp, all three are ids of f32.

    The quotient is moved to the nearest multiple of 8 of its ulp, h, which is the half that it is
    within 3 ulp of, if there is one. The remainder a - h * b, in units in which one ulp of h is the
    fraction of b, has no more than 28 bits, so that the products wrap to it. Twice the remainder is
    above the fraction of b where a / b rounds to more than h; it is never equal to it, since no
    quotient of two floats is in the middle between two. Quotients that cannot be near such a half,
    exact ones, and those of operands that are not normal are left alone.
    """
    if exact_inverse(values, b) is not None:
        return quotient
    asm, pure, word = values.asm, values.pure, values.u32
    u32, boolean = asm.u32, asm.boolean

    def bits(value: int) -> int:
        return pure(Op.BITCAST, u32, value)

    def both(op: Op, value: int, literal: int) -> int:
        return pure(op, u32, value, word(literal))

    def magnitude(value: int) -> int:
        return both(Op.BITWISE_AND, bits(value), _MAGNITUDE)

    def exponent(value: int) -> int:
        return both(Op.SHIFT_RIGHT_LOGICAL, value, _FRACTION_BITS)

    def fraction(value: int) -> int:
        low = both(Op.BITWISE_AND, value, _FRACTION)
        return both(Op.BITWISE_OR, low, 1 << _FRACTION_BITS)

    near = both(Op.BITWISE_AND, both(Op.I_ADD, bits(quotient), _NEAR), MASK & -_UNITS)
    top, bottom, size = magnitude(a), magnitude(b), both(Op.BITWISE_AND, near, _MAGNITUDE)
    divisor = fraction(bottom)
    # the shift of twice a's fraction: b's and h's exponents have a bias more than a's
    exponents = pure(Op.I_ADD, u32, exponent(bottom), exponent(size))
    scale = pure(Op.I_SUB, u32, exponent(top), exponents)
    shift = both(Op.I_ADD, scale, 127 + _FRACTION_BITS + 1)
    shifted = pure(Op.SHIFT_LEFT_LOGICAL, u32, fraction(top), both(Op.BITWISE_AND, shift, 31))
    product = pure(Op.I_MUL, u32, both(Op.SHIFT_LEFT_LOGICAL, fraction(size), 1), divisor)
    remainder = pure(Op.I_SUB, u32, shifted, product)
    is_above = pure(Op.S_GREATER_THAN, boolean, remainder, divisor)
    is_below = pure(Op.S_LESS_THAN, boolean, remainder, pure(Op.S_NEGATE, u32, divisor))
    down = values.select(u32, is_below, word(MASK), word(0))
    moved = pure(Op.I_ADD, u32, near, values.select(u32, is_above, word(1), down))
    # in range, by one comparison, and operands whose fractions have a leading one
    offset = both(Op.I_SUB, magnitude(quotient), _FIRST)
    is_half = pure(Op.U_LESS_THAN, boolean, offset, word(_END - _FIRST))
    for operand in (top, bottom):
        is_normal = pure(Op.U_GREATER_THAN, boolean, operand, word(_LEAST_NORMAL - 1))
        is_half = pure(Op.LOGICAL_AND, boolean, is_half, is_normal)
    return values.select(asm.f32, is_half, pure(Op.BITCAST, asm.f32, moved), quotient)
