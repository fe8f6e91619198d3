"""Data-dependent dims, which values define at run time: finds them and their upper bounds.

The op `extent` makes a symbol of a value; behind it the symbol is a dim like any other. Its limits
are assumptions of the form `min(symbol, limit) == symbol`, so that they print, parse and are kept
as the bounds of inputs are (aot/ir/bounds.py); a limit may be symbolic. Never changes a function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aot.ir.builtin import EXTENT
from aot.ir.dims import (
    Atom,
    Dim,
    DimExpr,
    Extremum,
    FloorDiv,
    Symbol,
    add,
    bounds,
    floor_divide,
    maximum,
    minimum,
    multiply,
    symbol,
    symbols,
)
from aot.ir.graph import Assumption, Function, Op


def extents_of(function: Function) -> dict[str, Op]:
    """The `extent` op that defines each data-dependent symbol, in program order."""
    return {
        str(dim): op
        for op in function.walk()
        if op.record is EXTENT and isinstance(dim := op.attrs["dim"], DimExpr)
    }


def is_capacity(op: Op) -> bool:
    """Whether an `extent` is a capacity set by the user's limit: its operand is a constant."""
    x = op.operands[0]
    return x is not None and x.op is not None and x.op.name == "constant"


def limit(dim: DimExpr, most: Dim, reason: str) -> Assumption | None:
    """The assumption that `dim` is at most `most`; None if that is always true."""
    least = minimum(dim, most)
    return None if least == dim else Assumption(least, dim, reason)


def limits_of(names: Iterable[str], assumptions: Iterable[Assumption]) -> dict[str, Dim]:
    """Upper bounds of the symbols `names` from assumptions; symbols without one are left out.
    Bounds may contain symbols among `names`.
    """
    wanted = set(names)
    found: dict[str, Dim] = {}
    for assumption in assumptions:
        limited = limit_of(assumption.left, assumption.right)
        if limited is not None and (name := str(limited[0])) in wanted:
            found[name] = minimum(found.get(name, limited[1]), limited[1])
    return found


def limit_of(left: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """(dim, its upper bound) if the equation `left == right` says only that the dim is at most the
    bound; else None.
    """
    for extreme, dim in ((left, right), (right, left)):
        most = _other(extreme, dim)
        if most is not None:
            return dim, most
    return None


def _other(extreme: Dim, dim: Dim) -> Dim | None:
    """The other operand, `most`, if `extreme` is `min(dim, most)`; else None."""
    if not isinstance(extreme, DimExpr) or extreme.constant or len(extreme.terms) != 1:
        return None
    monomial, coefficient = extreme.terms[0]
    atom = monomial[0]
    if coefficient != 1 or len(monomial) != 1 or not isinstance(atom, Extremum) or atom.is_max:
        return None
    others = [arg for arg in atom.args if arg != dim]
    return minimum(*others) if len(others) < len(atom.args) else None


def assumptions_by_last(function: Function) -> dict[str, list[Assumption]]:
    """Assumptions about symbols that are defined by values, keyed by the symbol that is defined
    last.
    """
    order = {name: number for number, name in enumerate(extents_of(function))}
    found: dict[str, list[Assumption]] = {}
    for assumption in function.assumptions if order else ():
        named = symbols(assumption.left) | symbols(assumption.right)
        last = max(named & order.keys(), key=order.__getitem__, default=None)
        if last is not None:
            found.setdefault(last, []).append(assumption)
    return found


class Largest:
    """Finds upper bounds of dims whose symbols are computed from data.

    Args:
        names: the symbols that values give.
        limits: theirs, where they have any.
    """

    def __init__(self, names: Iterable[str], limits: Mapping[str, Dim]) -> None:
        self.names = frozenset(names)
        self.limits = limits
        self._known: dict[Dim, Dim | None] = {}

    @staticmethod
    def of(function: Function) -> Largest:
        names = extents_of(function)
        return Largest(names, limits_of(names, function.assumptions))

    def is_given(self, dim: Dim) -> bool:
        """Whether the dim contains a symbol that a value defines."""
        return bool(self.names) and not self.names.isdisjoint(symbols(dim))

    def largest(self, dim: Dim) -> Dim | None:
        """An upper bound of `dim` without data-dependent symbols; None if there is none."""
        if not self.is_given(dim):
            return dim
        if dim not in self._known:
            self._known[dim] = None  # what limits itself has no limit
            self._known[dim] = self._largest(dim)
        return self._known[dim]

    def _largest(self, dim: Dim) -> Dim | None:
        assert isinstance(dim, DimExpr)
        total: Dim = dim.constant
        for monomial, coefficient in dim.terms:
            product: Dim = coefficient
            if not any(self._is_given_atom(atom) for atom in monomial):
                for atom in monomial:
                    product = multiply(product, DimExpr((((atom,), 1),), 0))
            elif any(self._may_be_negative(atom) for atom in monomial):
                return None
            elif coefficient < 0:
                continue  # what is taken away may be nothing
            else:
                for atom in monomial:
                    most = self._largest_atom(atom)
                    if most is None:
                        return None
                    product = multiply(product, most)
            total = add(total, product)
        return total

    def _is_given_atom(self, atom: Atom) -> bool:
        return self.is_given(_dim(atom))

    @staticmethod
    def _may_be_negative(atom: Atom) -> bool:
        low, _ = bounds(_dim(atom), {})
        if low is None and isinstance(atom, FloorDiv):
            # what divides is not 0, or the run ends
            known = [bounds(part, {})[0] for part in (atom.numerator, atom.denominator)]
            return any(least is None or least < 0 for least in known)
        return low is None or low < 0

    def _largest_atom(self, atom: Atom) -> Dim | None:
        if isinstance(atom, Symbol):
            if atom.name not in self.names:
                return symbol(atom.name)
            found = self.limits.get(atom.name)
            return None if found is None else self.largest(found)
        if isinstance(atom, FloorDiv):
            above = self.largest(atom.numerator)
            if above is None:
                return None
            if self.is_given(atom.denominator):
                return maximum(above, 0)  # it is 1 at least, or the run ends
            return floor_divide(above, atom.denominator)
        parts = [self.largest(arg) for arg in atom.args]
        known = [part for part in parts if part is not None]
        if atom.is_max:
            return maximum(*known) if len(known) == len(parts) else None
        return minimum(*known) if known else None


def _dim(atom: Atom) -> DimExpr:
    return DimExpr((((atom,), 1),), 0)


def unlimited(function: Function) -> dict[str, Op]:
    """`extent` ops, by symbol, of unbounded symbols that do not depend on other unbounded ones; all
    unbounded ones if they depend on each other.
    """
    given = Largest.of(function)
    found = {
        name: op for name, op in extents_of(function).items() if given.largest(symbol(name)) is None
    }
    roots = {
        name: op
        for name, op in found.items()
        if (symbols(given.limits.get(name, 0)) & found.keys()) <= {name}
    }
    return roots or found
