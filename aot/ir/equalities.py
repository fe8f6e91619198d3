"""What a function's assumptions make equal: dims, and types whose dims differ only in writing.

Owns the solving of assumptions for symbols. Never changes a function.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot.ir.core import Assumption, Function
from aot.ir.dims import Dim, DimExpr, Symbol, add, bounds, multiply, substitute, symbols
from aot.ir.types import TensorType


def difference(a: Dim, b: Dim) -> Dim:
    """`a - b`."""
    return add(a, multiply(b, -1))


def solve(zero: Dim) -> tuple[str, Dim] | None:
    """(name, value) of a symbol that `zero == 0` determines, or None.

    The symbol stands alone in a term with coefficient 1 or -1 and nowhere else. Of several the
    last by name is taken, so that the answer depends on nothing else.
    """
    if not isinstance(zero, DimExpr):
        return None
    found: tuple[str, Dim] | None = None
    for monomial, coefficient in zero.terms:
        if len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(monomial[0], Symbol):
            continue
        name = monomial[0].name
        rest = difference(zero, DimExpr(((monomial, coefficient),), 0))
        if name not in symbols(rest) and (found is None or name > found[0]):
            found = name, multiply(rest, -coefficient)
    return found


class DimEqualities:
    """The closure of a set of assumptions.

    Attributes:
        values: what solved symbols are, in terms of the others.
        is_contradictory: some assumption is false whatever the symbols are.
    """

    def __init__(self, assumptions: Iterable[Assumption] = ()) -> None:
        self.values: dict[str, Dim] = {}
        self.is_contradictory = False
        self._zeros: dict[Dim, None] = {}
        for assumption in assumptions:
            self.add(assumption.left, assumption.right)

    def add(self, left: Dim, right: Dim) -> None:
        """Takes in `left == right`."""
        pending = [difference(left, right)]
        while pending:
            zero = self.canonical(pending.pop())
            if isinstance(zero, int):
                self.is_contradictory |= zero != 0
                continue
            solved = solve(zero)
            if solved is None:
                self._zeros[zero] = None
                continue
            name, value = solved
            self.values = {n: substitute(v, {name: value}) for n, v in self.values.items()}
            self.values[name] = value
            touched = [z for z in self._zeros if name in symbols(z)]
            for old in touched:
                del self._zeros[old]
            pending.extend(touched)

    def canonical(self, dim: Dim) -> Dim:
        """`dim` with solved symbols replaced."""
        return substitute(dim, self.values) if self.values else dim

    def are_equal(self, a: Dim, b: Dim) -> bool:
        """Whether the assumptions make `a` and `b` equal, as far as can be seen."""
        if a == b:
            return True
        left = self.canonical(difference(a, b))
        return left == 0 or left in self._zeros or multiply(left, -1) in self._zeros


class TypeRule:
    """Which stored result type is as good as the one that the shape rule gives, in one function.

    A function's dims must be equal under its assumptions. An executable's symbols are renamed
    parameters: there a symbolic dim goes with any dim that it could be, and ints must be equal.
    """

    def __init__(self, function: Function) -> None:
        self._is_executable = function.kind == "executable"
        self.equalities = DimEqualities(function.assumptions)

    def accepts(self, recomputed: TensorType, stored: TensorType) -> bool:
        """Whether a value may have type `stored` where the shape rule gives `recomputed`.

        Layouts are chosen by passes: a rule that gives none accepts any.
        """
        if recomputed.dtype is not stored.dtype or recomputed.rank != stored.rank:
            return False
        if recomputed.layout not in (None, stored.layout):
            return False
        return all(self.may_equal(a, b) for a, b in zip(recomputed.dims, stored.dims, strict=True))

    def may_equal(self, a: Dim, b: Dim) -> bool:
        """Whether dims of two types that should be equal may be."""
        if self.equalities.are_equal(a, b):
            return True
        if not self._is_executable:
            return False
        low, high = bounds(difference(a, b), {})
        return (low is None or low <= 0) and (high is None or high >= 0)
