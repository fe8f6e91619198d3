"""Where sums of products of loop variables lie, by the ranges of the loops.

Emits nothing; what follows for comparisons is `dims.decided`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot.ir import dims
from aot.ir.dims import Dim, Interval
from aot.ir.expr import Expr


def interval(constant: Dim, terms: Mapping[Expr, Dim], ranges: Mapping[Expr, Interval]) -> Interval:
    """The interval of `constant` plus each term times its factor; a term without a range may be
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
