"""Equalities between dims, and between types, that follow from a function's assumptions.

Owns the solving of assumptions for symbols. Never changes a function.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot.errors import CompileError
from aot.ir.bounds import add_bound, linear
from aot.ir.dims import (
    Dim,
    DimExpr,
    Interval,
    Symbol,
    add,
    bounds,
    multiply,
    narrow,
    substitute,
    symbols,
)
from aot.ir.graph import Assumption, Function
from aot.ir.types import TensorType


def difference(a: Dim, b: Dim) -> Dim:
    """The canonical form of `a - b`."""
    return add(a, multiply(b, -1))


def number_of_equal(left: Dim, right: Dim) -> tuple[str, int] | None:
    """(symbol, number) such that two dims are equal only for this number; None where their
    difference is not linear in one symbol, or no integer solves it."""
    apart = difference(left, right)
    found = linear(apart) or linear(multiply(apart, -1))
    if found is None:
        return None
    name, factor, rest = found
    number, left_over = divmod(-rest, factor)
    return None if left_over else (name, number)


def check_satisfiable(function: Function) -> None:
    """Checks that the assumptions do not fix a symbol to two different numbers.

    Raises:
        CompileError: naming the symbol, and what asks for each number.
    """
    wanted: dict[str, tuple[int, str]] = {}
    for assumption in function.assumptions:
        found = number_of_equal(assumption.left, assumption.right)
        if found is None:
            continue
        name, number = found
        first, reason = wanted.setdefault(name, (number, assumption.reason))
        if first != number:
            raise CompileError(
                f"no input fits: {name} would have to be {first} ({reason}) and {number} "
                f"({assumption.reason})"
            )


def solve(zero: Dim) -> tuple[str, Dim] | None:
    """(name, value) of a symbol that `zero == 0` determines; None if there is none.

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
    """Equalities of dims that follow from a set of assumptions.

    Attributes:
        known: bounds of symbols.
        is_contradictory: some assumption is false whatever the symbols are.
    """

    def __init__(self, assumptions: Iterable[Assumption] = ()) -> None:
        self._values: dict[str, Dim] = {}  # of solved symbols; may have symbols solved later
        self.known: dict[str, Interval] = {}
        self.is_contradictory = False
        self._zeros: dict[Dim, None] = {}
        self._zeros_with: dict[str, list[Dim]] = {}  # by symbol; some may be gone
        for assumption in assumptions:
            self.add(assumption.left, assumption.right)

    def add(self, left: Dim, right: Dim) -> None:
        """Adds the equality `left == right`."""
        add_bound(self.known, left, right)
        pending = [difference(left, right)]
        while pending:
            zero = self.canonical(pending.pop())
            if isinstance(zero, int):
                self.is_contradictory |= zero != 0
                continue
            solved = solve(zero)
            if solved is None:
                self._zeros[zero] = None
                for name in symbols(zero):
                    self._zeros_with.setdefault(name, []).append(zero)
                continue
            name, value = solved
            self._values[name] = value
            touched = [z for z in self._zeros_with.pop(name, []) if z in self._zeros]
            for old in dict.fromkeys(touched):
                del self._zeros[old]
                pending.append(old)

    def canonical(self, dim: Dim) -> Dim:
        """`dim` with solved symbols substituted, simplified by the known bounds."""
        solved = self._solved_in(dim)
        dim = substitute(dim, {name: self._value(name) for name in solved}) if solved else dim
        return narrow(dim, self.known) if self.known else dim

    def _solved_in(self, dim: Dim) -> list[str]:
        return [name for name in symbols(dim) if name in self._values] if self._values else []

    def _value(self, name: str) -> Dim:
        """A solved symbol in terms of unsolved ones, with path compression."""
        stack = [name]
        while stack:
            value = self._values[stack[-1]]
            solved = self._solved_in(value)
            longer = [n for n in solved if self._solved_in(self._values[n])]
            if longer:
                stack += longer
                continue
            if solved:
                value = substitute(value, {n: self._values[n] for n in solved})
                self._values[stack[-1]] = value
            stack.pop()
        return self._values[name]

    def are_equal(self, a: Dim, b: Dim) -> bool:
        """Whether the assumptions imply that `a` and `b` are equal, as far as can be decided."""
        if a == b:
            return True
        left = self.canonical(difference(a, b))
        return left == 0 or left in self._zeros or multiply(left, -1) in self._zeros


class TypeRule:
    """Decides, in one function, whether a stored result type is compatible with the type that the
    shape rule computes.

    A function's dims must be equal under its assumptions. An executable's symbols are renamed
    parameters: there a symbolic dim goes with any dim that it could be, and ints must be equal.
    """

    def __init__(self, function: Function) -> None:
        self._is_executable = function.kind == "executable"
        self.equalities = DimEqualities(function.assumptions)

    def accepts(self, recomputed: TensorType, stored: TensorType) -> bool:
        """Whether a value may have type `stored` if the shape rule computes `recomputed`.

        Layouts are chosen by passes: a rule that gives none accepts any.
        """
        if recomputed.dtype is not stored.dtype or recomputed.rank != stored.rank:
            return False
        if recomputed.layout not in (None, stored.layout):
            return False
        return all(self.may_equal(a, b) for a, b in zip(recomputed.dims, stored.dims, strict=True))

    def may_equal(self, a: Dim, b: Dim) -> bool:
        """Whether corresponding dims of two types may be equal."""
        if self.equalities.are_equal(a, b):
            return True
        if not self._is_executable:
            return False
        low, high = bounds(difference(a, b), {})
        return (low is None or low <= 0) and (high is None or high >= 0)
