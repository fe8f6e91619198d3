"""Unary functions in double precision, from which narrower results are rounded.

What the reference of an op and the interpreter of kernels both compute. Formulas keep the digits of
small results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aot.ir.types import Array

Function = Callable[[Array], Array]


def _by_element(function: Callable[[float], float]) -> Function:
    return lambda x: np.asarray(
        np.vectorize(function, otypes=[np.float64])(np.asarray(x, np.float64)), np.float64
    )


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    z = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + z), z / (1 + z)), x.dtype)


def _gated(gate: Function) -> Function:
    """x times `gate`, for gates that are 0 at -infinity: the result is NaN there, and -0 for a
    large negative x."""
    return lambda x: np.asarray(x * gate(x))


def _softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _tanh_line(x: Array) -> Any:
    bounded = np.clip(x, -1e30, 1e30)
    return 2 * math.sqrt(2 / math.pi) * (bounded + 0.044715 * bounded**3)


erf = _by_element(math.erf)
erfc = _by_element(math.erfc)
silu = _gated(sigmoid)
mish = _gated(lambda x: np.tanh(_softplus(x)))
gelu = _gated(lambda x: erfc(x * -math.sqrt(0.5)) / 2)
gelu_tanh = _gated(lambda x: sigmoid(_tanh_line(x)))
