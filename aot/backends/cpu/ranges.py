"""Indices as sums of products of loop variables, and where such sums lie by the loops' ranges.

Emits nothing; what follows for comparisons is `dims.decided`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aot.ir import dims
from aot.ir.dims import Dim, Interval
from aot.ir.expr import Binary, Expr, dim_of


@dataclass(frozen=True, slots=True)
class LinearForm:
    """`constant` plus each term times its factor; terms are variables, or what is no such sum."""

    constant: Dim
    terms: tuple[tuple[Expr, Dim], ...]

    @staticmethod
    def of(indices: Sequence[Expr], scales: Sequence[Dim]) -> LinearForm:
        """The sum of `indices`, each times its scale."""
        terms: dict[Expr, Dim] = {}
        constant: Dim = 0
        for e, scale in zip(indices, scales, strict=True):
            constant = dims.add(constant, _add(e, scale, terms))
        return LinearForm(constant, tuple(terms.items()))


def _add(e: Expr, scale: Dim, terms: dict[Expr, Dim]) -> Dim:
    """Adds `scale * e` to `terms`; the part without variables comes back."""
    dim = dim_of(e)
    if dim is not None:
        return dims.multiply(scale, dim)
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        other = scale if e.op == "add" else dims.multiply(scale, -1)
        return dims.add(_add(e.a, scale, terms), _add(e.b, other, terms))
    if isinstance(e, Binary) and e.op == "mul":
        for x, y in ((e.a, e.b), (e.b, e.a)):
            factor = dim_of(y)
            if factor is not None:
                return _add(x, dims.multiply(scale, factor), terms)
    terms[e] = dims.add(terms.get(e, 0), scale)
    if terms[e] == 0:
        del terms[e]
    return 0


def interval(
    constant: Dim, terms: Iterable[tuple[Expr, Dim]], ranges: Mapping[Expr, Interval]
) -> Interval:
    """The interval of `constant` plus each term times its factor; a term without a range may be
    anything."""
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
