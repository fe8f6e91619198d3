"""Ratios of dims, which represent floats computed from extents.

Exporters compute extents in floats, as in ceil(H / 2). A ratio is exact, and stands for a float
only where rounding cannot change what its floor or ceiling is: factors are few powers of two, and
quotients are not multiplied again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.ir import dim_semantics as ds
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.types import Array

_MOST = 1 << 12  # of a number that floats are multiplied with or divided by


@dataclass(frozen=True)
class Ratio:
    """A dim divided by a positive number."""

    numerator: Dim
    denominator: int = 1

    @property
    def is_number(self) -> bool:
        """Whether the ratio has no symbols."""
        return isinstance(self.numerator, int)

    def __float__(self) -> float:
        return int(self.numerator) / self.denominator


def ratio_of(value: Any) -> Ratio:
    """An array element as a ratio.

    Raises:
        UndecidedError: it is infinite, NaN, or no small number over a small power of two.
    """
    if isinstance(value, Ratio):
        return value
    if isinstance(value, DimExpr):
        return Ratio(value)
    number = float(value)
    if not np.isfinite(number):
        raise ds.UndecidedError(f"{number} and a dim")
    above, below = number.as_integer_ratio()
    if below > _MOST or abs(above) >= 1 << 24:
        raise ds.UndecidedError(f"{number} and a dim")
    return Ratio(above, below)


def _is_exact(ratio: Ratio) -> bool:
    """Whether a float can represent the ratio exactly."""
    return ratio.denominator & (ratio.denominator - 1) == 0


def _add(a: Ratio, b: Ratio) -> Ratio:
    above = dims.add(
        dims.multiply(a.numerator, b.denominator), dims.multiply(b.numerator, a.denominator)
    )
    return _reduced(above, a.denominator * b.denominator)


def _reduced(above: Dim, below: int) -> Ratio:
    if below > _MOST:
        raise ds.UndecidedError(f"{above} / {below}")
    quotient = dims.floor_divide(above, below)
    if dims.multiply(quotient, below) == above:
        return Ratio(quotient)
    return Ratio(above, below)


def _multiply(a: Ratio, b: Ratio) -> Ratio:
    if not (_is_exact(a) and _is_exact(b)):
        raise ds.UndecidedError(f"{a} * {b}")
    return _reduced(dims.multiply(a.numerator, b.numerator), a.denominator * b.denominator)


def _divide(a: Ratio, b: Ratio) -> Ratio:
    below = b.numerator
    if not isinstance(below, int) or below <= 0 or not (_is_exact(a) and _is_exact(b)):
        raise ds.UndecidedError(f"{a} / {b}")
    return _reduced(dims.multiply(a.numerator, b.denominator), a.denominator * below)


def _extremum(choose: Callable[..., Dim]) -> Callable[[Ratio, Ratio], Ratio]:
    def run(a: Ratio, b: Ratio) -> Ratio:
        below = a.denominator * b.denominator
        left = dims.multiply(a.numerator, b.denominator)
        right = dims.multiply(b.numerator, a.denominator)
        return _reduced(choose(left, right), below)

    return run


def _compared(decide: Callable[[Dim, Dim], bool]) -> Callable[[Ratio, Ratio], bool]:
    return lambda a, b: decide(
        dims.multiply(a.numerator, b.denominator), dims.multiply(b.numerator, a.denominator)
    )


def _negative(a: Ratio) -> Ratio:
    return Ratio(dims.multiply(a.numerator, -1), a.denominator)


def _floor(a: Ratio) -> Ratio:
    return Ratio(dims.floor_divide(a.numerator, a.denominator))


def _ceil(a: Ratio) -> Ratio:
    return Ratio(dims.ceil_divide(a.numerator, a.denominator))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _negative(b)),
    "mul": _multiply,
    "div": _divide,
    "minimum": _extremum(dims.minimum),
    "maximum": _extremum(dims.maximum),
    "less": _compared(ds.is_less),
    "less_equal": _compared(ds.is_less_equal),
    "equal": _compared(ds.is_equal),
    "neg": _negative,
    "floor": _floor,
    "ceil": _ceil,
}


def map_ratios(op: str, *arrays: Array) -> Array:
    """An op's result on floats that are ratios of dims, as an object array.

    Raises:
        UndecidedError: the op, or its result, says nothing that holds for all values of symbols.
    """
    function = _FUNCTIONS.get(op)
    if function is None:
        raise ds.UndecidedError(f"{op} of a dim")
    spread = np.broadcast_arrays(*arrays)
    rows = zip(*(a.flat for a in spread), strict=True)
    return ds.object_array([function(*map(ratio_of, row)) for row in rows], spread[0].shape)


def as_ratios(x: Array) -> Array:
    """An array of dims as ratios."""
    return ds.object_array([ratio_of(v) for v in x.flat], x.shape)


def truncated(x: Array) -> Array:
    """Ratios truncated to integers.

    Raises:
        UndecidedError: the sign of one is not known.
    """
    return ds.object_array([_truncated(ratio_of(v)) for v in x.flat], x.shape)


def _truncated(a: Ratio) -> Dim:
    if a.denominator == 1:
        return a.numerator
    if ds.is_not_negative(a.numerator):
        return dims.floor_divide(a.numerator, a.denominator)
    return dims.ceil_divide(a.numerator, a.denominator)


def numbers(elements: Array) -> Array | None:
    """Ratios without symbols as floats; None where one has symbols."""
    if any(isinstance(v, Ratio) and not v.is_number for v in elements.flat):
        return None
    return np.array([float(v) for v in elements.flat], np.float64).reshape(elements.shape)
