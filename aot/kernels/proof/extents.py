"""Converts dims to polynomials over the variables of a proof.

Owns the variables of dims' symbols, and of the parts of dims that are no polynomials of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from aot.base.records import dataclass
from aot.ir.dims import Atom, Dim, DimExpr, Extremum, FloorDiv, Interval, Symbol
from aot.kernels.proof.inequalities import Inequalities
from aot.kernels.proof.polynomials import Polynomial, combined, constant, divided, product

MOST_TERMS = 16  # of a dim that is kept as a sum


@dataclass(eq=False)
class Extents:
    """The values of dims, such as the extents of loops.

    Attributes:
        known: bounds of dims' symbols; others are not negative.
        dims: what the kernel's dim parameters are, in terms of other symbols.
        is_rough: whether long sums among `dims` are kept by their range alone.
        switches: those of the kernel that are known here.
    """

    space: Inequalities
    known: Mapping[str, Interval]
    dims: Mapping[str, Dim]
    is_rough: bool = False
    switches: dict[Extremum, int] = field(default_factory=dict)
    _symbols: dict[str, Polynomial] = field(default_factory=dict)
    _dims: dict[Dim, Polynomial] = field(default_factory=dict)
    _sums: dict[object, Polynomial] = field(default_factory=dict)
    _quotients: dict[FloorDiv, Polynomial] = field(default_factory=dict)
    _is_giving: bool = False  # what a dispatch gives for dim parameters

    def _symbol(self, name: str) -> Polynomial:
        if name not in self._symbols:
            low, high = self.known.get(name, (0, None))
            if low is not None and low == high:
                self._symbols[name] = constant(low)
            else:
                self._symbols[name] = self.space.variable(name, low, high, of=())
        return self._symbols[name]

    def form(self, dim: Dim) -> Polynomial:
        """The polynomial of a dim."""
        if isinstance(dim, int):
            return constant(dim)
        if dim not in self._dims:
            uses = self.space.local_uses
            total = constant(dim.constant)
            for monomial, coefficient in dim.terms:
                term = constant(coefficient)
                for atom in monomial:
                    term = product(term, self.atom(atom))
                total = combined(total, term)
            if uses != self.space.local_uses:
                return total
            if self._is_giving and is_long(dim):
                total = self._long(dim, total)
            self._dims[dim] = total
        return self._dims[dim]

    def _long(self, dim: DimExpr, total: Polynomial) -> Polynomial:
        """A variable, known by its range only, for a dim that is a sum of many terms, such as the
        extent of a concatenation of many parts known only at run time.
        """
        if dim.terms not in self._sums:
            terms = combined(total, constant(-dim.constant))
            low, high = self.space.interval(terms)
            self._sums[dim.terms] = self.space.variable("sum", low, high, of=[terms])
        return combined(self._sums[dim.terms], constant(dim.constant))

    def atom(self, atom: Atom) -> Polynomial:
        """The polynomial of a part of dims, such as a symbol."""
        if isinstance(atom, Symbol):
            value = self.dims.get(atom.name)
            return self._symbol(atom.name) if value is None else self._given(value)
        if isinstance(atom, FloorDiv):
            found = self.space.quotient(self.form(atom.numerator), self.form(atom.denominator))
            if found is not None:
                return found[0]
            if atom not in self._quotients:
                self._quotients[atom] = self.space.variable("value")
            return self._quotients[atom]
        if atom in self.switches:
            return constant(self.switches[atom])
        return self.space.extremum([self.form(a) for a in atom.args], is_max=atom.is_max)

    def _given(self, dim: Dim) -> Polynomial:
        """The value of a dim that the host computes for a dispatch. A sum, such as the extent `t //
        2 - 1`, becomes a variable equal to it, so that products with it have few terms.
        """
        self._is_giving = self.is_rough
        p = self.form(dim)
        self._is_giving = False
        if len(p) < 2:
            return p
        for variable, total in self.space.sums.items():
            times = divided(p, total)
            if times is not None:
                return product(times, {(variable,): 1})
        return self.space.sum_of(p, str(dim))


def is_long(dim: Dim) -> bool:
    """Whether a dim is a sum of many terms."""
    return not isinstance(dim, int) and len(dim.terms) > MOST_TERMS
