"""Extents multiplied by a float and rounded down, as other engines do in floats, expressed as dims.

A product with a float is rounded before its floor is taken. Where the float stands for a small
fraction p/q, that is mostly the floor of the exact product with p/q, which dims simplify best: a
third of 3 n is n. Where it is not, the rounding is written out. Knows nothing of graphs.
"""

from __future__ import annotations

import math
from fractions import Fraction

from aot.frontends.lib.coordinates import meant
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.types import DType

# up to this extents of no known bound are scaled as engines do
_MOST_EXTENT = 1 << 22
_SIGNIFICANT = {DType.F32: 24, DType.F64: 53}


def scaled_extent(extent: Dim, scale: float, dtype: DType, most: int | None = None) -> Dim:
    """`floor(extent * scale)` with factors and product in `dtype`, for extents up to 2^22 or their
    bound, and results below 2^23.

    Args:
        scale: a positive float32 or float64, as `dtype` says.
        most: of the extent, where that is known.
    """
    if isinstance(extent, int):
        return math.floor(float(dtype.numpy.type(extent) * dtype.numpy.type(scale)))
    most = _MOST_EXTENT if most is None else max(most, 1)
    exact, simple, digits = Fraction(scale), meant(scale, dtype), _SIGNIFICANT[dtype]
    if simple.denominator == 1 or _floors_alike(exact, simple, most, digits):
        return _floor(extent, simple)
    if dtype is DType.F32:
        return _rounded_floor(extent, exact, most)
    if simple == exact:  # no fraction that it may stand for is as near
        return _floor(extent, _below(exact, most))
    return _floor_of_less(extent, exact, simple, most)


def _floor(extent: Dim, scale: Fraction) -> Dim:
    return dims.floor_divide(dims.multiply(extent, scale.numerator), scale.denominator)


def _floors_alike(exact: Fraction, simple: Fraction, most: int, digits: int) -> bool:
    """Whether floor(n * simple) equals the floor of the rounded product n * exact for all n up to
    `most`.

    A product that is whole with `simple` is a little less with `exact`, and rounds up to be whole
    if that is half of the last bit at most: 2^-(digits + 1) of it or less, whatever the number. One
    that is not is 1 / denominator or more below the next whole one, and must not round up to it.
    """
    apart, least = exact - simple, Fraction(1, simple.denominator)
    if apart < 0 and -apart * 2 ** (digits + 1) > simple:
        return False
    for bits in range(_bits(most * exact) + 1):
        half = Fraction(2) ** (bits - digits)
        number = 2**bits / exact if apart < 0 else min(2 ** (bits + 1) / exact, Fraction(most))
        if half + number * apart >= least:
            return False
    return True


def _bits(number: Fraction) -> int:
    """The exponent of the largest power of two that is not above a number."""
    return math.frexp(float(number))[1] - 1


def _rounded_floor(extent: Dim, scale: Fraction, most: int) -> Dim:
    """`floor(extent * scale)` for a product that is first rounded to 24 bits.

    Between powers of two the rounding adds up to half of a last bit, which doubles at each. What
    rounds up to a whole number is what reaches it with that added: for a tie too, as a whole number
    below 2^23 is even in units of the last bit.
    """
    above, below, digits = scale.numerator, scale.denominator, _SIGNIFICANT[DType.F32]
    product = dims.multiply(extent, above)
    total: Dim = product
    halves = 0  # in units of 1 / below
    for bits in range(min(_bits(most * scale), digits - 2) + 1):
        more = math.floor(Fraction(2) ** (bits - digits) * below) - halves
        if more:
            reaches = dims.minimum(dims.floor_divide(product, below << bits), 1)
            total = dims.add(total, dims.multiply(reaches, more))
            halves += more
    return dims.floor_divide(total, below)


def _below(scale: Fraction, most: int) -> Fraction:
    """The largest fraction up to `scale` with a denominator up to `most`; the floors of its
    multiples up to `most` equal those of `scale`."""
    near = scale.limit_denominator(most)
    if near <= scale:
        return near
    # near - 1 / (q r) is the neighbour of denominator r, the largest for which p r = 1 modulo q
    q = near.denominator
    r = pow(near.numerator, -1, q) if q > 1 else 1
    r += (most - r) // q * q
    return near - Fraction(1, q * r)


def _floor_of_less(extent: Dim, exact: Fraction, simple: Fraction, most: int) -> Dim:
    """`floor(extent * simple)`, minus 1 where the product with `simple` is an integer and the
    smaller product with `exact` does not round up to it, because it is too far above a power of
    two."""
    digits = _SIGNIFICANT[DType.F64]
    floor = _floor(extent, simple)
    furthest = simple / ((simple - exact) * 2**digits)  # over a power of two; between 1 and 2
    is_far: Dim = 0
    for bits in range(_bits(most * simple) + 1):
        first, last = math.floor(furthest * 2**bits) + 1, 2 << bits
        if first <= last:
            from_first = dims.minimum(dims.floor_divide(floor, first), 1)
            behind = dims.minimum(dims.floor_divide(floor, last + 1), 1)
            is_far = dims.add(is_far, dims.add(from_first, dims.multiply(behind, -1)))
    before = dims.floor_divide(dims.add(extent, -1), simple.denominator)
    is_whole = dims.add(dims.floor_divide(extent, simple.denominator), dims.multiply(before, -1))
    return dims.add(floor, dims.multiply(dims.minimum(is_far, is_whole), -1))
