"""Normalises bounds of slices, which may count from the end or be out of range."""

from __future__ import annotations

from aot.frontends.lib.extents import check_equal
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.dims import Dim

FAR = 10**9  # exporters write "to the end" as some number from here on


def is_position(value: Dim) -> bool:
    """Whether a dim is non-negative, except in empty tensors, where this makes no difference."""
    low, _ = dims.bounds(value, _not_empty(value))
    return low is not None and low >= 0


def settled(place: Place, value: Dim) -> Dim:
    """A bound that is constant except in empty tensors, as that constant, which a run checks."""
    low, high = dims.bounds(value, _not_empty(value))
    if low is None or low != high:
        return value
    check_equal(place, value, low, f"bound {value} of a slice must be {low}")
    return low


def _not_empty(value: Dim) -> dict[str, dims.Interval]:
    return dict.fromkeys(dims.symbols(value), (1, None))


def position(place: Place, value: Dim, extent: Dim, low: int, high: Dim) -> Dim:
    """A bound of a slice along a dim of `extent`, which may count from the end, clamped to
    [low, high].

    One that is negative unless a tensor is empty counts from the end, one that may be negative or
    not from the front, and a run checks that.
    """
    if isinstance(value, int):
        if value >= FAR:
            return high
        if value <= -FAR:
            return low
        value = dims.add(extent, value) if value < 0 else value
    elif not is_position(value):
        last = dims.bounds(value, _not_empty(value))[1]
        if last is None or last >= 0:
            what = f"bound {value} of a slice must not be negative"
            check_equal(place, dims.maximum(value, 0), value, what)
        else:
            back = dims.multiply(value, -1)
            what = f"{back}, by which a slice's bound counts from the end, must be at least 1"
            check_equal(place, dims.maximum(back, 1), back, what)
            value = dims.add(extent, value)
    return dims.maximum(low, dims.minimum(value, high))
