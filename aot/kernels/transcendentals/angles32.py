"""Sine and cosine in single precision, with the reduction of any float32 by multiples of pi/2.

Owns the two functions; coefficients are minimax (Remez in 40 digits, then rounded to f32), with the
interval and the error of the exact polynomial beside them.
"""

from __future__ import annotations

import math
from itertools import pairwise

from aot.ir.expr import Cast, Const, Expr
from aot.ir.types import DType
from aot.kernels.transcendentals.values import SIGN, V, head12, polynomial

F32, I32, U32 = DType.F32, DType.I32, DType.U32


# sin(x) = x + x^3 p(x^2), error 2^-33.9; cos(x) = 1 - x^2/2 + x^4 p(x^2), error 2^-29.3;
# both relative, on |x| <= 1.
_SIN = (
    -0.166666664854683696,
    0.00833331605378880523,
    -0.000198361151284473592,
    2.69480999045358114e-06,
)
_COS = (0.0416665738836042839, -0.00138846751770071414, 2.42002999922102264e-05)
_HALF_PI = math.pi / 2
_HALF_PI_HEAD = 1.5703125  # its first 12 bits
# The first 199 bits of 2/pi, with 25 zeros before them.
_TWO_OVER_PI = (0x00000051, 0x7CC1B727, 0x220A94FE, 0x13ABE8FA, 0x9A6EE06D, 0xB14ACC9E, 0x21C820FF)


def _window(offset: V) -> tuple[V, V, V]:
    """96 bits of `_TWO_OVER_PI` from bit `offset` (0 to 127) on, most significant word first.

    A barrel shifter over constants: by two words, by one word, then by bits.
    """
    words = [V(Const(U32, w)) for w in _TWO_OVER_PI]
    for step in (2, 1):
        is_shifted = (offset & 32 * step).differs(0)
        words = [
            is_shifted.choose(far, near) for near, far in zip(words, words[step:], strict=False)
        ]
    left = offset & 31
    right = left ^ 31
    first, second, third, *_ = (
        (near << left) | ((far >> 1) >> right) for near, far in pairwise(words)
    )
    return first, second, third


def _product_top(mantissa: V, window: tuple[V, V, V]) -> tuple[V, V]:
    """Top two words of the low 96 bits of a 24-bit number times 96 bits.

    Halves of 16 bits make 32x32-bit products of 32-bit multiplications. Of the last word the upper
    half is enough: what is left out is below 2^-53 quadrants, and no float32 but zero comes nearer
    to a multiple of pi/2 than 2^-30 of it.
    """
    w0, w1, w2 = window
    low, high = mantissa & 0xFFFF, mantissa >> 16
    w1_low, w1_high = w1 & 0xFFFF, w1 >> 16
    middle = low * w1_high + (low * w1_low >> 16)
    cross = high * w1_low + (middle & 0xFFFF)
    w1_carry = high * w1_high + (middle >> 16) + (cross >> 16)
    w2_high = w2 >> 16
    w2_carry = high * w2_high + (low * w2_high >> 16)
    second = mantissa * w1 + w2_carry
    overflow = V(Cast((second < w2_carry).e, U32))
    return mantissa * w0 + w1_carry + overflow, second


def _reduce(x: V) -> tuple[V, V]:
    """(r, q) with x == q * pi/2 + r modulo 2 pi and |r| <= pi/4 * (1 + 2^-20), for finite x >= 0.

    Below 1 r is x itself. Payne and Hanek, "Radian reduction for trigonometric functions", SIGNUM
    Newsletter 18, 1983: only those bits of 2/pi count that make neither multiples of four
    quadrants nor less than what is wanted.
    """
    bits = x.bits(U32)
    mantissa = (bits & 0x7FFFFF) | 0x800000
    first, second = _product_top(mantissa, _window((bits >> 23) - 127))
    # Two bits of quadrants, then the fraction: as a signed number it is the nearest quadrant's.
    quadrant = (first + 0x20000000) >> 30
    fraction = (first << 2) | (second >> 30)
    rest = second << 2
    sign = (fraction.bits() >> 31).bits(U32)
    fraction, rest = fraction ^ sign, rest ^ sign
    high = V(Cast((fraction >> 8).bits().e, F32))
    low = V(Cast((((fraction & 0xFF) << 23) | (rest >> 9)).bits().e, F32))
    head = head12(high)
    tail = low.fma(_HALF_PI * 2.0**-55, (high - head) * (_HALF_PI * 2.0**-24))
    tail = head.fma((_HALF_PI - _HALF_PI_HEAD) * 2.0**-24, tail)
    r = head.fma(_HALF_PI_HEAD * 2.0**-24, tail)
    r = (r.bits(U32) | (sign & SIGN)).float_bits()
    is_reduced = x >= 1.0
    return is_reduced.choose(r, x), is_reduced.choose(quadrant, 0)


def _sin_or_cos(a: Expr, is_cos: bool) -> Expr:
    x = V(a)
    size = x.abs()
    r, quadrant = _reduce(size)
    if is_cos:
        quadrant = quadrant + 1
    u = r * r
    sine = (polynomial(u, _SIN) * u).fma(r, r)
    cosine = (u * u).fma(polynomial(u, _COS), u.fma(-0.5, 1.0))
    magnitude = (quadrant & 1).equals(0).choose(sine, cosine)
    sign = (quadrant & 2) << 30
    if not is_cos:
        sign = sign ^ (x.bits(U32) & SIGN)
    result = (magnitude.bits(U32) ^ sign).float_bits()
    return (size < math.inf).choose(result, math.nan).e


def sin(a: Expr) -> Expr:
    """sin(x), at most 1.75 ulp for every float32; NaN at infinities."""
    return _sin_or_cos(a, is_cos=False)


def cos(a: Expr) -> Expr:
    """cos(x), at most 1.75 ulp for every float32; NaN at infinities."""
    return _sin_or_cos(a, is_cos=True)
