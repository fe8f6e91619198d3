"""Comparisons, divisions and extrema on arrays of dims.

Used by reference functions of ops that compute with shapes. An answer is given where it holds for
every value of the symbols (which are never negative, and within the bounds of `assuming`); else
`UndecidedError` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir.dim_limits import OversizedDimError
from aot.ir.dims import Dim, DimExpr
from aot.ir.types import Array

_BOUNDS: ContextVar[Mapping[str, dims.Interval]] = ContextVar("bounds", default=dims.NO_BOUNDS)


class Taken:
    """Assumptions recorded while deciding comparisons of dims: symbols that must be at least 1, and
    dividends that must not be negative.

    Attributes:
        allowed: the names of these symbols, of which alone that may be what is divided.
        least: the dims of which an answer needed it, and how much they are at least.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self.allowed = allowed
        self.least: dict[Dim, int] = {}


_TAKEN: ContextVar[Taken | None] = ContextVar("taken", default=None)


@contextmanager
def assuming(known: Mapping[str, dims.Interval], taken: Taken | None = None) -> Iterator[None]:
    """A context in which answers hold for symbols within the bounds `known`, and quotients under
    the conditions added to `taken`."""
    token, other = _BOUNDS.set(known), _TAKEN.set(taken)
    try:
        yield
    finally:
        _BOUNDS.reset(token)
        _TAKEN.reset(other)


class UndecidedError(Exception):
    """The result depends on the values of symbols."""


def has_dims(*arrays: Array) -> bool:
    """Whether an array holds dims (Python objects) rather than numbers."""
    return any(a.dtype == object for a in arrays)


def object_array(values: list[Any], shape: tuple[int, ...]) -> Array:
    """An object array of `shape` from its elements in row-major order."""
    result = np.empty(len(values), object)
    for position, value in enumerate(values):
        result[position] = value
    return result.reshape(shape)


def as_dim(value: Any) -> Dim:
    """An array element as a dim: numpy numbers become Python ints.

    Raises:
        UndecidedError: it is a float that is computed from dims.
    """
    if isinstance(value, (DimExpr, int, np.integer, np.bool_)):
        return value if isinstance(value, DimExpr) else int(value)
    raise UndecidedError(f"{value} as an integer")


def map_dims(function: Callable[..., Any], *arrays: Array) -> Array:
    """`function` applied to the elements, as dims, of broadcast arrays; an object array.

    Raises:
        OversizedDimError: an element is a number that no program computes.
    """
    spread = np.broadcast_arrays(*arrays)
    items = [function(*map(as_dim, row)) for row in zip(*(a.flat for a in spread), strict=True)]
    if not any(isinstance(item, DimExpr) for item in items):
        beyond = [item for item in items if not -(1 << 63) <= item < 1 << 63]
        if beyond:
            raise OversizedDimError(f"with {beyond[0]}, which does not fit 64 bits")
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


def is_not_negative(a: Dim) -> bool:
    """Whether `a >= 0` for all symbols, or by an assumption that may be recorded.

    Raises:
        UndecidedError: as in `is_equal`.
    """
    try:
        return _where_positive(lambda: not is_less(a, 0), a)
    except UndecidedError:
        taken = _TAKEN.get()
        if taken is None or not dims.symbols(a) <= set(taken.allowed):
            raise
        taken.least[a] = 0
        return True


def _where_positive(decide: Callable[[], bool], dim: Dim) -> bool:
    """The result of `decide`; if undecided, its result when the dim's symbols are at least 1, which
    is recorded as an assumption.
    """
    try:
        return decide()
    except UndecidedError:
        taken, known = _TAKEN.get(), dict(_BOUNDS.get())
        if taken is None:
            raise
        names = sorted(name for name in dims.symbols(dim) if name in taken.allowed)
        for name in names:
            low, high = known.get(name, (0, None))
            known[name] = max(low or 0, 1), high
        with assuming(known):
            answer = decide()
        taken.least.update(dict.fromkeys(map(dims.symbol, names), 1))
        return answer


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
    if not _where_positive(lambda: is_less(0, b), b) or not is_not_negative(a):
        raise UndecidedError(f"{a} / {b}")
    return dims.floor_divide(a, b)


def decide(function: Callable[[Dim, Dim], bool], a: Array, b: Array) -> Array:
    """A comparison of two arrays of dims, as a bool array."""
    return map_dims(function, a, b).astype(bool)
