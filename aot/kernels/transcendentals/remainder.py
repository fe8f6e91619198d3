"""C's fmod, exactly, by long division of mantissas in floating-point arithmetic.

Owns the formula behind `aot.kernels.transcendentals.expansion` for both precisions. The quotient of
x and y may have as many bits as their exponents differ by, 276 in single and 2097 in double
precision; each step takes a fixed number of them off, so that no element branches and lanes stay
together. A remainder takes about 240 operations in single precision, 650 in double, 90 of halves.

Only normal numbers are computed with: subnormal operands and results are taken apart and put
together as integers, so that units which flush them give the same.
"""

from __future__ import annotations

from dataclasses import replace

from aot.base.records import dataclass
from aot.ir.expr import Bitcast, Const, Expr, cast, unary
from aot.ir.types import DType
from aot.kernels.transcendentals.values import V


@dataclass(frozen=True)
class Format:
    """A float format, with the parameters of a division step in it.

    Attributes:
        fraction: bits of the mantissa that are stored.
        bias: of the exponent.
        low: bits of the lower of two parts of a mantissa. A digit times either part, and a rest
            plus a digit times the lower part, are exact in the float.
        step: bits of the quotient that a step finds.
        spread: most that the exponents of two finite numbers differ by.
        multiplier, shift: `difference * multiplier >> shift` is `difference // step` up to
            `spread`; integers of the float's size may have no division.
    """

    dtype: DType
    integer: DType
    fraction: int
    bias: int
    low: int
    step: int
    spread: int
    multiplier: int
    shift: int

    @property
    def sign(self) -> int:
        return -(1 << self.integer.bits - 1)

    @property
    def infinity(self) -> int:
        return (2 * self.bias + 1) << self.fraction

    def power(self, exponent: int) -> int:
        """The bits of 2 to the power `exponent`."""
        return (self.bias + exponent) << self.fraction

    def floating(self, bits: V) -> V:
        return V(Bitcast(bits.e, self.dtype))


SINGLE = Format(DType.F32, DType.I32, 23, 127, 11, 11, 276, 745, 13)
FORMATS = {
    # computed in single precision, where the exponents of halves differ less
    DType.F16: replace(SINGLE, spread=39),
    DType.F32: SINGLE,
    DType.F64: Format(DType.F64, DType.I64, 52, 1023, 26, 25, 2097, 10486, 18),
}


def fmod(a: Expr, b: Expr) -> Expr:
    """x - y * trunc(x / y) without rounding, with the sign of x; NaN where x is infinite or y is 0,
    and x where y is infinite."""
    f = FORMATS[a.dtype]
    x, y = (V(cast(operand, f.dtype)).bits(f.integer) for operand in (a, b))
    size, divisor = x & ~f.sign, y & ~f.sign
    mantissa, exponent = _parts(size, f)
    unit, least = _parts(divisor, f)
    rest = _rest(mantissa, unit, exponent - least, f)
    bits = _together(rest, least, f) | (x & f.sign)
    is_invalid = (size > f.infinity - 1) | (divisor > f.infinity) | divisor.equals(0)
    nan = V(Const(f.integer, f.infinity | 1 << f.fraction - 1))
    result = f.floating(is_invalid.choose(nan, (size < divisor).choose(x, bits)))
    return cast(result.e, a.dtype)


def _parts(size: V, f: Format) -> tuple[V, V]:
    """(m, e) for the positive number with bits `size`, equal to m * 2^(e - bias - fraction), where
    m is an integer with its highest bit set; e is below 1 for a subnormal number."""
    is_subnormal = size < 1 << f.fraction
    # the integer of the fraction's bits, exactly: 2^fraction + integer - 2^fraction
    whole = f.floating(size | f.power(f.fraction)) - 2.0**f.fraction
    bits = is_subnormal.choose(whole.bits(f.integer), size)
    exponent = (bits >> f.fraction) - is_subnormal.choose(
        V(Const(f.integer, f.bias + f.fraction - 1)), 0
    )
    mantissa = f.floating((bits & (1 << f.fraction) - 1) | f.power(f.fraction))
    return mantissa, exponent


def _rest(mantissa: V, unit: V, difference: V, f: Format) -> V:
    """`mantissa * 2^difference` modulo `unit`: an integer in [0, unit), as a float."""
    inverse = V(Const(f.dtype, 1.0)) / unit
    high = f.floating(unit.bits(f.integer) & -(1 << f.low))
    low = unit - high
    high, low = (V(unary("neg", part.e)) for part in (high, low))
    # what is added to it leaves its nearest integer
    magic = 1.5 * 2.0**f.fraction

    def reduced(rest: V) -> V:
        """One division step: the remainder, of either sign and little more than half a unit, after
        subtracting the quotient digit nearest to it (or the one beside it, near a tie)."""
        digit = rest.fma(inverse, magic) - magic
        return digit.fma(low, digit.fma(high, rest))

    steps = difference * f.multiplier >> f.shift
    first = difference - steps * f.step
    rest = reduced(mantissa * f.floating((first + f.bias) << f.fraction))
    for number in range(1, f.spread // f.step + 1):
        is_shifted = steps > number - 1
        scale = is_shifted.choose(V(Const(f.dtype, 2.0**f.step)), 1.0)
        rest = reduced(rest * scale)
    return (rest < 0.0).choose(rest + unit, rest).abs()


def _together(rest: V, exponent: V, f: Format) -> V:
    """The bits of the number `rest * 2^(exponent - bias - fraction)`, for a non-negative integer
    `rest`."""
    bits = rest.bits(f.integer)
    normal = bits + (exponent - (f.bias + f.fraction) << f.fraction)
    is_normal = (normal > (1 << f.fraction) - 1) & (bits > 0)
    # in units of the least number it is an integer of the fraction's bits
    shift = exponent - 1
    shift = (shift > f.fraction).choose(f.fraction, shift)
    units = rest * f.floating((shift + f.bias) << f.fraction)
    subnormal = (units + 2.0**f.fraction).bits(f.integer) & (1 << f.fraction) - 1
    return is_normal.choose(normal, subnormal)
