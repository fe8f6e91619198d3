"""Errors in units in the last place, for tests of our own transcendental functions."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def ulp_errors(got: Array, exact: Array) -> Array:
    """How far `got` (f16, f32) lies from `exact` (f64), in units in the last place of `exact`.

    Infinite where one is NaN and the other is not, where signs differ (those of zeros too), or
    where an infinity or a zero is exact and not met. A result beyond the largest finite number
    counts as the power of two above it, so that overflow a little too early or late is an error of
    that size.
    """
    info = np.finfo(got.dtype)
    bits = info.nmant
    with np.errstate(all="ignore"):
        size = np.clip(np.abs(exact), float(info.smallest_subnormal), float(info.max))
        exponent = np.maximum(np.frexp(size)[1] - 1, info.minexp)
        top = 2.0 ** (info.maxexp)
        numbers = np.clip(got.astype(np.float64), -top, top)
        nearest = np.where(np.isfinite(exact), np.clip(exact, -top, top), exact)
        errors = np.abs(numbers - nearest) * np.exp2(bits - exponent.astype(np.float64))
    errors = np.where(np.isnan(got) & np.isnan(exact), 0.0, errors)
    is_wrong = np.isnan(got) != np.isnan(exact)
    is_wrong |= ~np.isnan(exact) & (np.signbit(got) != np.signbit(exact))
    is_wrong |= (exact == 0) & (got != 0)
    is_wrong |= np.isinf(exact) & (got != exact)
    return np.where(is_wrong, np.inf, np.where(np.isinf(exact) & (got == exact), 0.0, errors))
