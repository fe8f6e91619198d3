"""What comparisons, divisions and extrema mean on arrays whose elements are dims.

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
from aot.ir.dims import Dim, DimExpr
from aot.ir.types import Array

_BOUNDS: ContextVar[Mapping[str, dims.Interval]] = ContextVar("bounds", default=dims.NO_BOUNDS)


class Positive:
    """Symbols that may be taken to be at least 1 where an answer needs it.

    Attributes:
        allowed: their names.
        taken: those of which an answer needed it.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self.allowed = allowed
        self.taken: dict[str, None] = {}


_POSITIVE: ContextVar[Positive | None] = ContextVar("positive", default=None)


@contextmanager
def assuming(
    known: Mapping[str, dims.Interval], positive: Positive | None = None
) -> Iterator[None]:
    """Inside, answers hold for symbols within the `known` bounds, and quotients for those of
    `positive` that they are added to."""
    token, other = _BOUNDS.set(known), _POSITIVE.set(positive)
    try:
        yield
    finally:
        _BOUNDS.reset(token)
        _POSITIVE.reset(other)


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
    """An array element as a dim: numpy numbers become Python ints.

    Raises:
        UndecidedError: it is a float that is computed from dims.
    """
    if isinstance(value, (DimExpr, int, np.integer, np.bool_)):
        return value if isinstance(value, DimExpr) else int(value)
    raise UndecidedError(f"{value} as an integer")


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


def is_not_negative(a: Dim) -> bool:
    """Whether `a >= 0` for all symbols, those at least 1 that may be taken to be.

    Raises:
        UndecidedError: as in `is_equal`.
    """
    return _decided_by_positive(lambda: not is_less(a, 0), a)


def _decided_by_positive(decide: Callable[[], bool], *found: Dim) -> bool:
    """What `decide` says, or what it says where symbols of the dims are at least 1."""
    try:
        return decide()
    except UndecidedError:
        positive, known = _POSITIVE.get(), _BOUNDS.get()
        if positive is None:
            raise
        names = {name for dim in found for name in dims.symbols(dim)}
        names = {name for name in names if name in positive.allowed}
        raised = {name: (max(known.get(name, (0, None))[0] or 0, 1),) for name in names}
        bounds = {n: (*low, known.get(n, (0, None))[1]) for n, low in raised.items()}
        with assuming({**known, **bounds}):
            answer = decide()
        positive.taken.update(dict.fromkeys(sorted(names)))
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
    if not _decided_by_positive(lambda: is_less(0, b), b) or not is_not_negative(a):
        raise UndecidedError(f"{a} / {b}")
    return dims.floor_divide(a, b)


def decide(function: Callable[[Dim, Dim], bool], a: Array, b: Array) -> Array:
    """A comparison of two arrays of dims, as a bool array."""
    return map_dims(function, a, b).astype(bool)
