"""Positions of slices, which may count from the end or lie outside."""

from __future__ import annotations

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim

FAR = 10**9  # exporters write "to the end" as some number from here on


def is_position(value: Dim) -> bool:
    """Whether a dim is not negative, unless a tensor is empty, where it makes no difference."""
    known: dict[str, dims.Interval] = dict.fromkeys(dims.symbols(value), (1, None))
    low, _ = dims.bounds(value, known)
    return low is not None and low >= 0


def position(value: Dim, extent: Dim, low: int, high: Dim) -> Dim:
    """A bound of a slice along a dim of `extent`, which may count from the end, clamped to
    [low, high].

    Raises:
        UnsupportedNodeError: it may be negative or not.
    """
    if isinstance(value, int):
        if value >= FAR:
            return high
        if value <= -FAR:
            return low
        value = dims.add(extent, value) if value < 0 else value
    elif not is_position(value):
        high_bound = dims.bounds(value, {})[1]
        if high_bound is None or high_bound >= 0:
            raise UnsupportedNodeError(f"bound {value} may count from either end")
        value = dims.add(extent, value)
    return dims.maximum(low, dims.minimum(value, high))
