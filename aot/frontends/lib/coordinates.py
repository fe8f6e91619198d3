"""Source coordinates of a resized dim, by exact rational arithmetic.

Resizing maps element i of the result to a coordinate in the source, which is linear in i:
`(slope * i + start) / divisor`. ONNX's specification of Resize gives slope and start as fractions
of the extents and of the scale. A scale that follows from the extents is their ratio; one that is
given as a float stands for the fraction that rounds to it, so 0.6 is 3/5. Nothing is rounded until
the nearest element is chosen, which decides ties and whole coordinates as the formulas do. Knows
nothing of graphs.

https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

from fractions import Fraction
from typing import Self, TypeVar

import numpy as np

from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.types import Array, DType

_MOST = 1 << 62  # numbers below are computed in 64 bits
# Fractions of denominators up to these have floats of their own, of 24 and of 53 bits.
_DENOMINATORS = {DType.F32: 1 << 12, DType.F64: 1 << 20}


def meant(scale: float, dtype: DType) -> Fraction:
    """The fraction with the smallest denominator that rounds to `scale` in `dtype`; the exact value
    of `scale` if all such denominators are large."""
    found = Fraction(scale)
    for limit in (1 << bits for bits in range(_DENOMINATORS[dtype].bit_length())):
        simple = found.limit_denominator(limit)
        if dtype.numpy.type(simple.numerator / simple.denominator) == scale:
            return simple
    return found


def is_power_of_two(number: Fraction) -> bool:
    """Whether a positive number is 2^n, for any integer n."""
    parts = number.numerator, number.denominator
    return all(n & (n - 1) == 0 for n in parts)


@dataclass(frozen=True)
class Line:
    """A line of coordinates: element i has `(slope * i + start) / divisor`, with a positive
    divisor."""

    slope: Dim
    start: Dim
    divisor: Dim

    def moved(self, halves: int) -> Self:
        """The line shifted by `halves` times 1/2."""
        return type(self)(
            dims.multiply(self.slope, 2),
            dims.add(dims.multiply(self.start, 2), dims.multiply(self.divisor, halves)),
            dims.multiply(self.divisor, 2),
        )


@dataclass(frozen=True)
class KnownLine(Line):
    """A line whose coefficients are numbers."""

    slope: int
    start: int
    divisor: int

    @staticmethod
    def of(slope: Fraction, start: Fraction) -> KnownLine:
        divisor = slope.denominator * start.denominator
        return KnownLine(int(slope * divisor), int(start * divisor), divisor)


_L = TypeVar("_L", bound=Line)


@dataclass(frozen=True)
class Places:
    """The coordinates of all elements of a dim of known extent.

    Attributes:
        above: the numerators, int64 or Python integers.
        divisor: the common denominator.
    """

    above: Array
    divisor: int

    @staticmethod
    def of(line: KnownLine, count: int) -> Places:
        slope, start, divisor = line.slope, line.start, line.divisor
        largest = abs(slope) * max(count, 1) + abs(start) + divisor
        numbers = np.arange(count).astype(np.int64 if largest < _MOST else object)
        return Places(np.asarray(numbers * slope + start), divisor)

    @property
    def floors(self) -> Array:
        return np.asarray(self.above // self.divisor, np.int64)

    @property
    def ceilings(self) -> Array:
        return np.asarray(-(-self.above // self.divisor), np.int64)

    def beyond(self, whole: Array) -> Array:
        """The fractions of the coordinates above the integers `whole`, in float64, rounded once."""
        rest = self.above - whole.astype(self.above.dtype) * self.divisor
        return np.asarray(rest / self.divisor, np.float64)

    def are_outside(self, extent: int) -> Array:
        """Which coordinates are before the first element or after the last."""
        last = (extent - 1) * self.divisor
        return np.asarray((self.above < 0) | (self.above > last), bool)


def rounded(line: _L, rounding: str) -> tuple[_L, bool]:
    """Expresses a rounding of `resize.ROUNDING` as a floor or a ceiling: (line, is_floor).

    Returns:
        A line, and whether its floors (or else its ceilings) are the nearest elements.
    """
    match rounding:
        case "floor":
            return line, True
        case "ceil":
            return line, False
        case "round_prefer_ceil":
            return line.moved(1), True
    return line.moved(-1), False


def nearest(line: KnownLine, rounding: str, count: int) -> Array:
    """The index of the element nearest to each coordinate; it may be out of range."""
    moved, is_floor = rounded(line, rounding)
    places = Places.of(moved, count)
    return places.floors if is_floor else places.ceilings


def line_of(
    coordinates: str,
    extent: int,
    size: int,
    scale: Fraction,
    roi: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1)),
) -> KnownLine:
    """The coordinates of a dim of known extents, given the name of the coordinate transformation in
    ONNX."""
    width, last, half = scale * extent, extent - 1, Fraction(1, 2)
    match coordinates:
        case "align_corners":
            return KnownLine.of(Fraction(0) if width == 1 else last / (width - 1), Fraction(0))
        case "asymmetric":
            return KnownLine.of(1 / scale, Fraction(0))
        case "tf_crop_and_resize":
            start, part = roi[0] * last, (roi[1] - roi[0]) * last
            if width == 1:
                return KnownLine.of(Fraction(0), start + part / 2)
            return KnownLine.of(part / (width - 1), start)
        case "pytorch_half_pixel" if size == 1:
            return KnownLine.of(Fraction(0), Fraction(0))
        case "half_pixel_symmetric":
            centre = Fraction(extent, 2) * (1 - size / width)
            return KnownLine.of(1 / scale, centre + half / scale - half)
    return KnownLine.of(1 / scale, half / scale - half)


def open_line(coordinates: str, extent: Dim, size: Dim, scale: Fraction | None) -> Line | None:
    """The coordinates of a dim of dynamic extents; None if they are not a line with coefficients
    that are integer expressions of the extents.

    Args:
        scale: None for the ratio of the extents.

    A result of one element with `pytorch_half_pixel` is the caller's to handle.
    """
    if coordinates == "align_corners" and scale is None:
        steps = dims.maximum(dims.add(size, -1), 1)
        return Line(dims.add(extent, -1), 0, steps)
    above, below = (size, extent) if scale is None else (scale.numerator, scale.denominator)
    if coordinates == "asymmetric":
        return Line(below, 0, above)
    if coordinates == "align_corners":
        steps = dims.add(dims.multiply(extent, above), dims.multiply(below, -1))
        # of an exact width of 1 there is the element 0 only
        slope = dims.multiply(dims.add(extent, -1), below)
        return Line(slope, 0, dims.maximum(steps, 1))
    if coordinates == "half_pixel_symmetric" and scale is not None:
        before = dims.multiply(dims.add(1, dims.multiply(size, -1)), below)
        start = dims.add(before, dims.multiply(dims.add(extent, -1), above))
        return Line(dims.multiply(below, 2), start, dims.multiply(above, 2))
    if coordinates not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        return None
    start = dims.add(below, dims.multiply(above, -1))
    return Line(dims.multiply(below, 2), start, dims.multiply(above, 2))
