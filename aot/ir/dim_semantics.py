"""What comparisons, divisions and extrema mean on arrays whose elements are dims.

Used by reference functions of ops that compute with shapes. An answer is given where it holds for
every value of the symbols (which are never negative, and within the bounds of `assuming`); else
`UndecidedError` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.types import Array

_BOUNDS: ContextVar[Mapping[str, dims.Interval]] = ContextVar("bounds", default=dims.NO_BOUNDS)


@contextmanager
def assuming(known: Mapping[str, dims.Interval]) -> Iterator[None]:
    """Inside, answers hold for symbols within the `known` bounds."""
    token = _BOUNDS.set(known)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


class UndecidedError(Exception):
    """The result depends on the values of symbols."""


def has_dims(*arrays: Array) -> bool:
    """Whether an array holds Python objects, that is dims, rather than numbers."""
    return any(a.dtype == object for a in arrays)


def object_array(values: list[Any], shape: tuple[int, ...]) -> Array:
    """An object array of `shape` from its elements in row-major order."""
    result = np.empty(len(values), object)
    for position, value in enumerate(values):
        result[position] = value
    return result.reshape(shape)


def as_dim(value: Any) -> Dim:
    """An array element as a dim: numpy numbers become Python ints."""
    return value if isinstance(value, DimExpr) else int(value)


def map_dims(function: Callable[..., Any], *arrays: Array) -> Array:
    """`function` of the broadcast arrays' elements as dims, as an object array."""
    spread = np.broadcast_arrays(*arrays)
    items = [function(*map(as_dim, row)) for row in zip(*(a.flat for a in spread), strict=True)]
    return object_array(items, spread[0].shape)


def _bounds_of_difference(a: Dim, b: Dim) -> dims.Interval:
    return dims.bounds(dims.add(a, dims.multiply(b, -1)), _BOUNDS.get())


def is_equal(a: Dim, b: Dim) -> bool:
    """Whether `a == b` for all symbols.

    Raises:
        UndecidedError: for some it is, for some not, as far as can be seen.
    """
    if a == b:
        return True
    low, high = _bounds_of_difference(a, b)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise UndecidedError(f"{a} == {b}")


def is_less(a: Dim, b: Dim) -> bool:
    """Whether `a < b` for all symbols.

    Raises:
        UndecidedError: as in `is_equal`.
    """
    low, high = _bounds_of_difference(a, b)
    if high is not None and high < 0:
        return True
    if low is not None and low >= 0:
        return False
    raise UndecidedError(f"{a} < {b}")


def is_less_equal(a: Dim, b: Dim) -> bool:
    """Whether `a <= b` for all symbols.

    Raises:
        UndecidedError: as in `is_equal`.
    """
    return not is_less(b, a)


def divide(a: Dim, b: Dim) -> Dim:
    """`a / b` truncated towards zero; 0 where b is 0.

    Raises:
        UndecidedError: the signs are not known.
    """
    if b == 0:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    if is_less(a, 0) or not is_less(0, b):
        raise UndecidedError(f"{a} / {b}")
    return dims.floor_divide(a, b)


def decide(function: Callable[[Dim, Dim], bool], a: Array, b: Array) -> Array:
    """A comparison of two arrays of dims, as a bool array."""
    return map_dims(function, a, b).astype(bool)
