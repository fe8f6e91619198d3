"""Floats that are computed from dims: what they say of integers, and when nothing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.ir import dims
from aot.ir.dim_ratios import as_ratios, map_ratios, numbers, ratio_of, truncated
from aot.ir.dim_semantics import UndecidedError

H = dims.symbol("H")


def _h() -> np.ndarray:
    return as_ratios(np.array([H], object))


def _number(value: float) -> np.ndarray:
    return np.array([value], np.float32)


@given(st.integers(0, 1 << 14), st.sampled_from([1, 2, 3, 5, 7, 16, 32]), st.booleans())
def test_floor_and_ceil_are_those_of_floats(extent: int, divisor: int, is_ceil: bool) -> None:
    op = "ceil" if is_ceil else "floor"
    (dim,) = truncated(map_ratios(op, map_ratios("div", _h(), _number(divisor))))
    rounding = np.ceil if is_ceil else np.floor
    expected = rounding(np.float32(extent) / np.float32(divisor))
    assert dims.evaluate(dim, {"H": extent}) == expected


@given(st.integers(0, 4000), st.integers(-8, 8), st.sampled_from([0.5, 0.25, 2.0, 4.0]))
def test_sums_and_exact_factors(extent: int, term: int, factor: float) -> None:
    ratio = map_ratios("mul", map_ratios("add", _h(), _number(term)), _number(factor))
    (dim,) = truncated(map_ratios("floor", ratio))
    assert dims.evaluate(dim, {"H": extent}) == math.floor(Fraction(factor) * (extent + term))


@pytest.mark.parametrize(
    ("op", "value"), [("mul", 0.1), ("div", 0.0), ("div", -2.0), ("div", math.inf), ("pow", 2.0)]
)
def test_what_rounding_could_change_is_undecided(op: str, value: float) -> None:
    with pytest.raises(UndecidedError):
        map_ratios(op, _h(), _number(value))


def test_a_quotient_is_not_multiplied_again() -> None:
    with pytest.raises(UndecidedError):
        map_ratios("mul", map_ratios("div", _h(), _number(3)), _number(3))


def test_ratios_without_symbols_are_numbers() -> None:
    found = numbers(np.array([ratio_of(0.75), ratio_of(3)], object))
    assert found is not None
    np.testing.assert_array_equal(found, [0.75, 3])
    assert numbers(_h()) is None
