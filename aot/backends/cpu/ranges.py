"""Which comparisons of indices are decided by the ranges of the loops around them.

Owns the intervals of loop variables and what follows for sums of products of them. Emits nothing;
what it can't decide is compared when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.expr import Expr

Interval = tuple[int | None, int | None]  # inclusive; None is unbounded


def interval(constant: Dim, terms: Mapping[Expr, Dim], ranges: Mapping[Expr, Interval]) -> Interval:
    """Where `constant` plus each term times its factor lies; a term without a range may be
    anything."""
    low, high = dims.bounds(constant, {})
    for term, factor in terms.items():
        first, last = ranges.get(term, (None, None))
        if not isinstance(factor, int):
            return None, None
        if factor < 0:
            first, last = last, first
        low = None if low is None or first is None else low + factor * first
        high = None if high is None or last is None else high + factor * last
    return low, high


def decided(op: str, difference: Interval) -> bool | None:
    """`a op b` where `a - b` lies in an interval; None where it depends."""
    low, high = difference
    match op:
        case "lt":
            return _decided(high is not None and high < 0, low is not None and low >= 0)
        case "le":
            return _decided(high is not None and high <= 0, low is not None and low > 0)
        case "gt" | "ge":
            opposite = decided("le" if op == "gt" else "lt", difference)
            return None if opposite is None else not opposite
    return None


def _decided(is_always: bool, is_never: bool) -> bool | None:
    return True if is_always else False if is_never else None
