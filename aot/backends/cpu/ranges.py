"""Indices as sums of products of loop variables, and the ranges that follow from the loops.

Emits nothing; what follows for comparisons is `dims.decided`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim, Interval
from aot.ir.expr import Expr
from aot.kernels.nest.index_math import Terms, add_terms


@dataclass(frozen=True, slots=True)
class LinearForm:
    """A linear form: a constant plus terms times factors; terms are variables or opaque
    expressions.
    """

    constant: Dim
    terms: tuple[tuple[Expr, Dim], ...]

    @staticmethod
    def of(indices: Sequence[Expr], scales: Sequence[Dim]) -> LinearForm:
        """The sum of `indices`, each times its scale."""
        terms: Terms = {}
        constant: Dim = 0
        for e, scale in zip(indices, scales, strict=True):
            constant = dims.add(constant, add_terms(e, scale, terms))
        return LinearForm(constant, tuple(terms.items()))


def interval(
    constant: Dim, terms: Iterable[tuple[Expr, Dim]], ranges: Mapping[Expr, Interval]
) -> Interval:
    """The interval of a linear form, `constant` plus each term times its factor; a term without a
    range is unbounded."""
    low, high = dims.bounds(constant, {})
    for term, factor in terms:
        first, last = ranges.get(term, (None, None))
        if not isinstance(factor, int):
            return None, None
        if factor < 0:
            first, last = last, first
        low = None if low is None or first is None else low + factor * first
        high = None if high is None or last is None else high + factor * last
    return low, high
